"""The ladder's rows, tables, claims and figure, from run folders written by hand."""

import csv
import json
import shlex
from pathlib import Path

import pytest

from ising_attn.lab.ladder_plots import save_ladder
from ising_attn.lab.ladder_report import CLAIMS, ladder_tables, measured, perplexities, spoken_claims
from ising_attn.lab.ladder_rows import BUDGETS, PARTS, RUNGS, Row, rows
from samplers import InvalidOptionError

SIZES = {"transformer": 109_000, "dlgn": 280_000}


def write_run(out: Path, row: Row, seed: int, **summary: float | None) -> None:
    folder = out / "runs" / row.name / f"seed-{seed}"
    folder.mkdir(parents=True)
    command = shlex.join(["python", "boolean_lm.py", *row.arguments, f"--seed={seed}", f"--out={folder}"])
    (folder / "config.json").write_text("{}")
    (folder / "environment.json").write_text(json.dumps({"command": command, "commit": "0123456789abcdef"}))
    size = SIZES.get(row.rung.name, 109_000)
    (folder / "summary.json").write_text(json.dumps({"parameters": size, "steps": 5, **summary}))


def row(name: str) -> Row:
    return next(one for one in rows() if one.name == name)


def ladder(tmp_path: Path, **perplexity: tuple[float, float | None]) -> list:
    """Runs of three seeds: soft and hard perplexity by row, each seed about 0.01 above the one before."""
    for name, (soft, hard) in perplexity.items():
        one = row(name.replace("_", "-").replace("--", "-"))
        for seed in range(3):
            own = hard if hard is None else hard + (0.0, 0.011, 0.02)[seed]
            values = {"test_perplexity_soft": soft + 0.01 * seed, "test_perplexity_hard": own}
            gap = None if own is None else own / (soft + 0.01 * seed) - 1
            write_run(tmp_path, one, seed, **values, gap=gap)
    return measured(tmp_path, rows())


def claims(results: list) -> dict[tuple[str, str], tuple[str, str]]:
    table = ladder_tables(results)["claims"]
    return {(r[0], r[2]): (r[3], r[4]) for r in table.rows}  # type: ignore[misc]


def test_every_row_is_named_once_and_teachers_come_first():
    found = rows()
    names = [one.name for one in found]
    assert len(set(names)) == len(names)
    for k, one in enumerate(found):
        if one.rung.teacher is not None:
            teacher = f"{one.part}-{one.rung.teacher}"
            assert teacher in names[:k] and f"--teacher-row={teacher}" in one.arguments
    known = {(one.part, one.rung.name) for one in found}
    assert all((claim.part, name) in known for claim in CLAIMS for name in claim.rungs)
    assert {one.part for one in found} == set(PARTS) and all(len(one.jobs()) == 3 for one in found)
    assert [rung.published for rung in RUNGS if rung.name == "transformer"][0] is not None


def test_budgets_change_how_long_and_nothing_else():
    def model(one: Row) -> list[str]:
        kept = (
            "--steps",
            "--learning-rate",
            "--batch-size",
            "--warmup",
            "--eval-every",
            "--validation",
            "--test",
            "--loss-at",
            "--seed",
        )
        return [flag for flag in one.arguments if not flag.startswith(kept)]

    for budget in BUDGETS:
        for ours, medium in zip(rows(budget), rows("medium"), strict=True):
            assert (ours.name, model(ours)) == (medium.name, model(medium))


def test_unknown_parts_and_budgets():
    with pytest.raises(InvalidOptionError, match="no part 'repo'"):
        rows("medium", ["repo"])
    with pytest.raises(InvalidOptionError, match="--budget is 'lng'.*did you mean 'long'"):
        rows("lng")


def test_tables_put_published_numbers_beside_ours(tmp_path: Path):
    results = ladder(tmp_path, repository_transformer=(5.0, None), repository_dlgn=(8.0, 8.1), tuned_router=(6.0, 6.1))
    tables = ladder_tables(results)
    assert list(tables) == ["repository", "tuned", "published", "claims", "runs"]
    table = tables["repository"]
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    assert cells["rung"] == "DLGN, ours" and cells["hard/soft"] == pytest.approx(1.0125, abs=1e-4)
    assert (cells["soft"], cells["hard"]) == ("8.010 ± 0.010", "8.110 ± 0.010")
    assert (
        "calibrated" not in table.columns
        and table.rows[0][3] is None
        and "Seeds 0-2; commit 0123456789." in table.caption
    )
    published = dict(zip(tables["published"].columns, tables["published"].rows[0], strict=True))
    assert (published["said soft"], published["logged soft"], published["size"]) == (4.86, 4.86, 108_861)
    assert [row[0] for row in tables["published"].rows] == ["Transformer (teacher)"], "our own rung was never published"
    assert any(line.startswith("yes: a hard DLGN below 11.83") for line in spoken_claims(tables["claims"]))
    assert len(tables["runs"].rows) == 9


@pytest.mark.parametrize(("hard", "verdict"), [(8.1, "yes"), (8.4, "no")])
def test_the_gap_of_a_dlgn_is_judged_by_its_worst_seed(tmp_path: Path, hard: float, verdict: str):
    found = claims(ladder(tmp_path, repository_dlgn=(8.0, hard)))
    assert found["a DLGN loses at most 2 % by hardening (published 28 %)", "repository"][1] == verdict
    assert found["a hard DLGN below 11.83 with at most 1,362,813 parameters", "repository"][1] == "yes"


def test_claims_about_two_rows_are_paired(tmp_path: Path):
    name = "a hard router at or below its teacher, with no more parameters"
    found = claims(ladder(tmp_path, tuned_transformer=(6.0, None), tuned_router__distilled=(5.9, 5.95)))
    assert found[name, "tuned"][1] == "yes" and "difference -0.050" in found[name, "tuned"][0]


def test_a_larger_student_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SIZES, "router-distilled", 200_000)
    found = claims(ladder(tmp_path, tuned_transformer=(6.0, None), tuned_router__distilled=(5.0, 5.0)))
    assert found["a hard router at or below its teacher, with no more parameters", "tuned"][1] == "no"


def test_differences_within_the_noise_are_undecided(tmp_path: Path):
    for seed, (first, second) in enumerate([(6.0, 6.1), (6.1, 6.0), (6.05, 6.06)]):
        write_run(tmp_path, row("tuned-router"), seed, test_perplexity_soft=first, test_perplexity_hard=first, gap=0.0)
        write_run(
            tmp_path, row("tuned-router-coupled"), seed, test_perplexity_soft=6.0, test_perplexity_hard=second, gap=0.0
        )
    found = claims(measured(tmp_path, rows()))
    assert found["couplings help the hard router", "tuned"][1] == "undecided"


def test_exploding_loops_and_the_ratio_of_different_models(tmp_path: Path):
    loops = {"repository_looped__as__coded": (18.0, 754.0), "repository_looped": (9.0, 9.1)}
    results = ladder(tmp_path, **loops, repository_hba__v2=(5.3, 6.5))
    found = claims(results)
    assert found["looping explodes when it is hardened (18 → 754)", "repository"][1] == "yes"
    assert found["hard HBA is 115 times better than hard looped DLGN", "repository"] == ("115.8 times", "yes")
    assert found["the same against a loop of bits", "repository"] == ("1.4 times", "no")
    assert found["with bits in the loop, hard is within 10 % of soft at 8 rounds", "repository"][1] == "yes"


def test_a_loop_that_has_learned_nothing_decides_nothing(tmp_path: Path):
    loops = {"repository_looped__as__coded": (28.7, 28.7), "repository_hba__v2": (5.3, 6.5)}
    found = claims(ladder(tmp_path, **loops))
    for name in (
        "looping explodes when it is hardened (18 → 754)",
        "hard HBA is 115 times better than hard looped DLGN",
    ):
        assert found[name, "repository"][1] == "undecided" and "too shortly" in found[name, "repository"][0]


def test_runs_with_other_flags_are_left_out(tmp_path: Path):
    write_run(tmp_path, rows("quick")[0], 0, test_perplexity_soft=5.0)
    assert measured(tmp_path, rows("medium")) == []


def test_the_figure_and_its_numbers(tmp_path: Path):
    results = ladder(tmp_path / "out", repository_transformer=(5.0, None), repository_dlgn=(8.0, 8.1))
    save_ladder(tmp_path, "repository", perplexities(results), {"DLGN, ours": (11.83, 15.16)}, "title")
    lines = list(csv.DictReader((tmp_path / "repository.csv").read_text().splitlines()))
    assert len(lines) == 3 + 6 + 2
    assert {line["kind"] for line in lines} == {"soft", "hard", "logged soft", "logged hard"}
    assert (tmp_path / "repository.png").stat().st_size > 10_000


def test_rows_with_fewer_seeds_are_named(tmp_path: Path):
    results = ladder(tmp_path, repository_transformer=(5.0, None), repository_dlgn=(8.0, 8.1))
    assert "Fewer seeds" not in ladder_tables(results)["repository"].caption
    write_run(tmp_path, row("repository-dlgn"), 7, test_perplexity_soft=8.0, test_perplexity_hard=8.0, gap=0.0)
    caption = ladder_tables(measured(tmp_path, rows()))["repository"].caption
    assert caption.endswith("Fewer seeds: Transformer (teacher) (3).")
