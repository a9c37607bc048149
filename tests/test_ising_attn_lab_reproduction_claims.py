"""What a measured gain says of a published one."""

from pathlib import Path

import pytest

from ising_attn.lab.paired import PairedDifference
from ising_attn.lab.reproduction_claims import CONFIRMED, CONTRADICTED, OPEN, SIGN_ONLY, SOLVED, claims_table, verdict
from ising_attn.lab.reproduction_report import Measured
from ising_attn.lab.reproduction_rows import rows
from ising_attn.lab.sweep_results import FinishedRun


@pytest.mark.parametrize(
    ("published", "differences", "expected"),
    [
        (0.05, [0.04, 0.05, 0.06], CONFIRMED),
        (0.05, [0.10, 0.11, 0.12], SIGN_ONLY),
        (0.05, [-0.02, 0.0, 0.01], CONTRADICTED),  # no gain of that size
        (0.05, [-0.10, -0.11, -0.12], CONTRADICTED),
        (0.05, [-0.10, 0.20, 0.05], OPEN),
        (-0.05, [-0.04, -0.05, -0.06], CONFIRMED),
        (-0.05, [0.01, 0.02, 0.03], CONTRADICTED),
        (0.0, [-0.01, 0.0, 0.01], OPEN),
        (0.0, [0.0, 0.0, 0.0], OPEN),
        (0.0, [-0.10, -0.11, -0.12], CONTRADICTED),
        (0.0, [0.10, 0.11, 0.12], CONTRADICTED),
        (0.05, [0.05], OPEN),
    ],
)
def test_verdicts(published, differences, expected):
    assert verdict(published, PairedDifference.of_differences(differences)) == expected


def measured_as(numbers: dict[str, tuple[float, ...]]) -> list[Measured]:
    """Rows of the reproduction as if these had been measured, seed by seed."""
    chosen = {row.name: row for row in rows("medium")}
    return [
        Measured(
            chosen[name],
            {s: FinishedRun(name, s, Path(), {f"test_{chosen[name].measure}": v}, {}) for s, v in enumerate(values)},
        )
        for name, values in numbers.items()
    ]


def test_a_gain_between_perfect_accuracies_cannot_be_seen():
    perfect, less = (1.0, 1.0, 1.0), (1.0, 0.98, 0.99)
    for softmax, coupled, expected in ((perfect, perfect, SOLVED), (perfect, less, OPEN), (less, less, CONTRADICTED)):
        results = measured_as({"brackets-softmax-no-ffn-T8": softmax, "brackets-h+J-no-ffn-T8": coupled})
        (line,) = claims_table(results).rows
        assert line[-1] == expected


def test_claims_are_gains_over_softmax_where_both_are_published():
    numbers: dict[str, tuple[float, ...]] = {
        "text-paper-softmax-T8": (6.00, 6.10, 6.20),
        "text-paper-h+J-T8": (5.90, 6.00, 6.11),
        "text-paper-h+J-bias-T8": (5.0, 5.0, 5.0),  # not in the paper
        "brackets-h-no-ffn-T16": (0.9, 0.9, 0.9),  # no softmax beside it
    }
    results = measured_as(numbers)
    table = claims_table(results)
    (line,) = table.rows
    assert line == ["text", 8, "h+J", "+0.048", "+0.097", "+0.082 to +0.111", SIGN_ONLY]
    assert "over 3 seeds" in table.caption
