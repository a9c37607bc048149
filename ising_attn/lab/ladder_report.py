"""Tables of the Boolean ladder from its finished runs: soft and hard side by side, published beside ours, claims."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ising_attn.lab.ladder_rows import Row
from ising_attn.lab.paired import PairedDifference
from ising_attn.lab.sweep_results import Runs, finished_runs, provenance, runs_table, values
from ising_attn.lab.tables import Table, spread

SOFT, HARD, CALIBRATED = "test_perplexity_soft", "test_perplexity_hard", "test_perplexity_calibrated"
KEYS = (SOFT, HARD, CALIBRATED, "gap", "threshold", "threshold_on_edge", "temperature", "routing_entropy", "parameters")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A row and its finished runs."""

    row: Row
    runs: Runs

    def values(self, key: str) -> dict[int, float]:
        """A number of every run by seed."""
        return values(self.runs, key)

    def mean(self, key: str) -> float | None:
        found = list(self.values(key).values())
        return sum(found) / len(found) if found else None

    @property
    def as_used(self) -> str:
        """The number that counts: calibrated where it is, else hard, else as it is."""
        return next(key for key in (CALIBRATED, HARD, SOFT) if self.values(key))


def measured(out: Path, rows: Iterable[Row]) -> list[Measured]:
    """The rows that have a finished run."""
    known = {row.name: row for row in rows}
    found = finished_runs(out, {name: row.arguments for name, row in known.items()})
    return [Measured(known[name], runs) for name, runs in found.items()]


def ladder_tables(results: Sequence[Measured]) -> dict[str, Table]:
    """What was measured in each part, what was published, the claims, and every run."""
    tables = {part: part_table([m for m in results if m.row.part == part]) for part in _parts(results)}
    published = published_table(results)
    return {
        **tables,
        **({"published": published} if published.rows else {}),
        "claims": claims_table(results),
        "runs": runs_table({m.row.name: m.runs for m in results}, KEYS),
    }


def part_table(results: Sequence[Measured]) -> Table:
    """Perplexities of one part."""
    part = results[0].row.part
    kinds = {"soft": SOFT, "hard": HARD, "calibrated": CALIBRATED}
    shown = {name: key for name, key in kinds.items() if any(one.values(key) for one in results)}
    table = Table(_TITLES[part], ["rung", "size", *shown, "hard/soft"], {"size": ",.0f", "hard/soft": ".2f"})
    for one in results:
        cells = [spread(list(one.values(key).values()), ".3f") for key in shown.values()]
        gap = one.mean("gap")
        table.add(one.row.rung.label, one.mean("parameters"), *cells, None if gap is None else 1 + gap)
    steps = {run.value("steps") or 0 for m in results for run in m.runs.values()}
    table.caption = " ".join(
        [
            _CAPTIONS[part],
            *(["Calibrated: hard, threshold chosen on validation data."] if "calibrated" in shown else []),
            f"Size: parameters. Mean ± sample standard deviation; at most {max(steps):.0f} steps.",
            provenance(run for m in results for run in m.runs.values()),
            *_fewer_seeds(results),
        ]
    )
    return table


def _fewer_seeds(results: Sequence[Measured]) -> list[str]:
    """Which rows have fewer seeds than others."""
    most = max(len(one.runs) for one in results)
    fewer = [f"{one.row.rung.label} ({len(one.runs)})" for one in results if len(one.runs) < most]
    return [f"Fewer seeds: {', '.join(fewer)}."] if fewer else []


def published_table(results: Sequence[Measured]) -> Table:
    """What the repository says and logs of each rung of its own protocol."""
    columns = ["rung", "size", "said soft", "said hard", "logged soft", "logged hard"]
    table = Table("Published perplexity", columns, {"size": ",.0f", **dict.fromkeys(columns[2:], ".2f")})
    for one in results:
        if one.row.part == "repository" and one.row.rung.published is not None:
            table.add(one.row.rung.label, *dataclasses.astuple(one.row.rung.published))
    table.caption = (
        "Said: README and article of karumaru-kakikukekodoumei/boolean-attention. Logged: its log files; one seed, 40 "
        "to 60 epochs."
    )
    return table


def _parts(results: Iterable[Measured]) -> list[str]:
    return list(dict.fromkeys(m.row.part for m in results))


_TITLES = {
    "repository": "Perplexity in the repository's protocol",
    "tuned": "Perplexity in our protocol",
}
_CAPTIONS = {
    "repository": (
        "First 80,000 characters, context 16, last position of 7,984 windows, some of which also chose weights."
    ),
    "tuned": "Whole text, context 16, all positions; test text that chose nothing.",
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about rows of one part.

    Args:
        statement: what is claimed, or what is aimed at.
        source: who says so.
        rungs: the rows that it needs.
        judge: from those rows, what was measured and whether the statement holds.
    """

    statement: str
    source: str
    part: str
    rungs: tuple[str, ...]
    judge: Callable[..., tuple[str, bool | None]]


def claims_table(results: Sequence[Measured]) -> Table:
    """Every claim whose rows are there."""
    known = {(m.row.part, m.row.rung.name): m for m in results}
    table = Table("Claims and goals", ["statement", "source", "protocol", "measured", "holds"])
    for claim in CLAIMS:
        rows = [known.get((claim.part, name)) for name in claim.rungs]
        if all(row is not None for row in rows):
            said, holds = claim.judge(*rows)
            table.add(claim.statement, claim.source, claim.part, said, _spoken(holds))
    table.caption = (
        "A difference between two rows holds where its 95 % confidence interval over paired seeds is on one side."
    )
    return table


def spoken_claims(table: Table) -> list[str]:
    """The table of claims as lines for a terminal."""
    lines = [f"{holds}: {statement} ({part}): {measured}" for statement, _, part, measured, holds in table.rows]
    return [table.title, "", *lines, "", table.caption]


def _spoken(holds: bool | None) -> str:
    return "undecided" if holds is None else "yes" if holds else "no"


def _explodes(one: Measured) -> tuple[str, bool | None]:
    gap = one.mean("gap") or 0.0
    said = f"{one.mean(SOFT):.2f} soft, {one.mean(HARD):.2f} hard, hard / soft = {1 + gap:.2f}"
    return (said, gap > 1.0) if _has_learned(one) else (f"{said}; {_UNTRAINED}", None)


_UNTRAINED = "trained too shortly to judge: the soft one is far from the logged value"


def _has_learned(one: Measured) -> bool:
    """Whether a rung is about as good, while soft, as the repository's logs say of theirs."""
    published = one.row.rung.published
    logged = None if published is None else published.logged_soft
    return logged is None or (one.mean(SOFT) or float("inf")) < 1.25 * logged


def _gap_at_most(limit: float) -> Callable[[Measured], tuple[str, bool | None]]:
    def judge(one: Measured) -> tuple[str, bool | None]:
        gaps = one.values("gap")
        return f"hard against soft {spread(list(gaps.values()), '+.2%')}", max(gaps.values()) <= limit

    return judge


def _below(limit: float, parameters: int) -> Callable[[Measured], tuple[str, bool | None]]:
    def judge(one: Measured) -> tuple[str, bool | None]:
        hard, size = one.values(HARD), one.mean("parameters") or 0.0
        return f"{spread(list(hard.values()), '.3f')} with {size:,.0f} parameters", (
            max(hard.values()) < limit and size <= parameters
        )

    return judge


def _ratio(first: Measured, second: Measured) -> tuple[str, bool | None]:
    ratio = (first.mean(HARD) or 0.0) / (second.mean(second.as_used) or 1.0)
    said = f"{ratio:.1f} times"
    return (said, ratio > 100) if _has_learned(first) else (f"{said}; {_UNTRAINED}", None)


def _lower(first_key: str, second_key: str) -> Callable[[Measured, Measured], tuple[str, bool | None]]:
    """Whether the first row is below the second, by paired seeds."""

    def judge(first: Measured, second: Measured) -> tuple[str, bool | None]:
        keys = [row.as_used if key == "used" else key for row, key in ((first, first_key), (second, second_key))]
        found = PairedDifference.of(first.values(keys[0]), second.values(keys[1]))
        means = f"{first.mean(keys[0]):.3f} against {second.mean(keys[1]):.3f}"
        if found.low is None or found.high is None:
            return f"{means}, no interval", None
        said = f"{means}, difference {found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
        return said, True if found.high < 0 else False if found.low > 0 else None

    return judge


def _student_at_most(student: Measured, teacher: Measured) -> tuple[str, bool | None]:
    said, lower = _lower(HARD, SOFT)(student, teacher)
    sizes = [row.mean("parameters") or 0.0 for row in (student, teacher)]
    smaller = sizes[0] <= sizes[1]
    return f"{said}; {sizes[0]:,.0f} and {sizes[1]:,.0f} parameters", lower if smaller else False


_README, _GOAL = "README of the repository", "goal of this project"
CLAIMS = (
    Claim(
        "looping explodes when it is hardened (18 → 754)", _README, "repository", ("looped-as-coded",), _explodes
    ),
    Claim(
        "with bits in the loop, hard is within 10 % of soft at 8 rounds", _GOAL, "repository", ("looped",),
        _gap_at_most(0.10),
    ),
    Claim(
        "hard HBA is 115 times better than hard looped DLGN", _README, "repository", ("looped-as-coded", "hba-v2"),
        _ratio,
    ),
    Claim(
        "the same against a loop of bits", "control", "repository", ("looped", "hba-v2"), _ratio
    ),
    Claim(
        "distilled HBA beats its teacher (4.73 < 4.86), soft", _README, "repository",
        ("hba-v2-distilled", "transformer"), _lower(SOFT, SOFT),
    ),
    Claim(
        "distilled HBA beats its teacher, hard", "follows from “logic only”", "repository",
        ("hba-v2-distilled", "transformer"), _lower("used", SOFT),
    ),
    Claim(
        "distillation helps soft HBA", _README, "repository", ("hba-v2-distilled", "hba-v2"), _lower(SOFT, SOFT)
    ),
    Claim(
        "hard HBA gains from training hard, without a reward for undecided routers", "control", "repository",
        ("hba-v1-mended", "hba-v1"), _lower(HARD, HARD),
    ),
    Claim(
        "a DLGN loses at most 2 % by hardening (published 28 %)", _GOAL, "repository", ("dlgn",), _gap_at_most(0.02)
    ),
    Claim(
        "a hard DLGN below 11.83 with at most 1,362,813 parameters", _GOAL, "repository", ("dlgn",),
        _below(11.83, 1_362_813),
    ),
    *(
        Claim(
            "a hard router at or below its teacher, with no more parameters", _GOAL, part,
            ("router-distilled", "transformer"), _student_at_most,
        )
        for part in ("repository", "tuned")
    ),
    Claim(
        "a hard router that had no teacher at or below the Transformer", _GOAL, "tuned", ("router", "transformer"),
        _student_at_most,
    ),
    Claim(
        "a hard router born again at or below the first teacher", _GOAL, "tuned",
        ("router-born-again", "transformer"), _student_at_most,
    ),
    Claim("couplings help the hard router", _GOAL, "tuned", ("router-coupled", "router"), _lower(HARD, HARD)),
    Claim("couplings help the soft router", _GOAL, "tuned", ("router-coupled", "router"), _lower(SOFT, SOFT)),
    Claim("distillation helps the hard router", _GOAL, "tuned", ("router-distilled", "router"), _lower(HARD, HARD)),
    Claim(
        "our router's heads and bias help softmax as well", "control", "tuned", ("transformer-offset", "transformer"),
        _lower(SOFT, SOFT),
    ),
)  # fmt: skip


def perplexities(results: Sequence[Measured]) -> list[tuple[str, Mapping[str, dict[int, float]]]]:
    """(label, values by seed of soft, hard and hard calibrated) of rows, for the figure."""
    names = {"soft": SOFT, "hard": HARD, "hard, calibrated": CALIBRATED}
    return [(m.row.rung.label, {name: m.values(key) for name, key in names.items()}) for m in results]
