"""The reproduction: its rows, and its tables and plots from a folder of runs that were made up."""

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from script_runs import loaded

from ising_attn.lab import reproduction_report as report
from ising_attn.lab.checkpoints import Checkpoint, save_checkpoint
from ising_attn.lab.config import parse_settings
from ising_attn.lab.reproduction_budgets import BUDGETS
from ising_attn.lab.reproduction_figures import save_all, softmax_gains, trained_couplings
from ising_attn.lab.reproduction_rows import PARTS, Row, rows
from ising_attn.lab.sweep import State, interleaved, run_folder
from ising_attn.lab.sweep_results import finished_runs, runs_table, spoken_seeds
from samplers.errors import InvalidOptionError

DISTANCES = 0.6 * np.cos(np.arange(1, 130) / 2.5)


def value_of(row: Row, seed: int) -> float:
    """A made-up result: h+J gains 2 points of accuracy or 0.05 of perplexity over softmax; seeds share their luck."""
    luck, noise = np.random.default_rng(seed).normal(), np.random.default_rng([seed, len(row.name)]).normal()
    better = {"softmax": 0.0, "h+J": 1.0}.get(row.variant, -0.2)
    if row.measure == "accuracy":
        return min(1.0, 0.9 + 0.02 * better + 0.01 * luck + 0.001 * noise)
    return 6.8 - 0.08 * row.context - 0.05 * better + 0.03 * luck + 0.003 * noise


def fabricate(out: Path, row: Row, seed: int) -> Path:
    """The files of a finished run that a report reads."""
    folder = run_folder(out, row.name, seed)
    (folder / "checkpoints").mkdir(parents=True)
    command = ["python", f"experiments/{row.experiment}.py", *row.arguments, f"--seed={seed}", f"--out={folder}"]
    value = value_of(row, seed)
    summary: dict[str, Any] = {
        "seed": seed,
        f"test_{row.measure}": value,
        "steps": 300,
        "best_step": 250,
        "train_seconds": 12.5,
    }
    if "--attention=boltzmann" in row.arguments:
        summary |= {f"test_{row.measure}_exact": value * 0.999, "marginal_mae": 0.01}
    if row.part == "length-transfer":
        summary["perplexity_by_context"] = {"8": value, "16": value + 0.1}
    environment = {"command": shlex.join(command), "commit": "0123456789abcdef" * 2 + "01234567"}
    for name, content in (("config", {}), ("summary", summary), ("environment", environment)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    if row.experiment == "brackets":
        lines = [f"{depth},{400 // depth},{value**depth},{value**depth}" for depth in (1, 2, 3)]
        (folder / "by_depth.csv").write_text("\n".join(["nesting depth,closings,own,exact", *lines]) + "\n")
    if row.variant == "h+J":
        j = DISTANCES[: row.context - 1]
        pairs = [j[a - b - 1] for a in range(row.context) for b in range(a)]
        noise = 0.05 * np.random.default_rng(seed).normal(size=len(pairs))
        tensor = torch.tensor(np.array([pairs]) + noise, dtype=torch.float32)
        weights = {"blocks.0.attention.couplings.values": tensor}
        save_checkpoint(folder / "checkpoints" / "best.safetensors", Checkpoint(model=weights))
    return folder


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> tuple[Path, list[Row]]:
    out = tmp_path_factory.mktemp("sweep")
    chosen = rows("quick")
    for row in chosen:
        for seed in range(2 if row.context == 4 else 3):
            fabricate(out, row, seed)
    return out, chosen


@pytest.mark.parametrize("budget", BUDGETS)
def test_names_are_unique_and_rows_differ_in_what_they_run(budget):
    found = rows(budget)
    assert len({row.name for row in found}) == len(found)
    assert len({(row.experiment, row.part, *sorted(row.arguments)) for row in found}) == len(found)
    assert {row.part for row in found} == set(PARTS)
    assert all(row.seconds > 0 and row.seeds >= 1 and "/" not in row.name for row in found)


@pytest.mark.slow
def test_every_row_is_a_command_that_the_scripts_take():
    kinds = {}
    with loaded("tiny_shakespeare") as text, loaded("brackets") as brackets:
        kinds = {"tiny-shakespeare": (text.TextSettings, text.PaperSettings), "brackets": (brackets.BracketSettings,)}
        commands = {(row.experiment, row.arguments) for budget in BUDGETS for row in rows(budget)}
        # Parsing takes long: few commands that have all flags between them, told apart by their words, not numbers.
        words = {c: {(c[0], re.sub(r"=[\d.,e-]+$", "=#", flag)) for flag in c[1]} for c in sorted(commands)}
        missing = set().union(*words.values())
        while missing:
            experiment, arguments = command = max(words, key=lambda c: len(words[c] & missing))
            missing -= words[command]
            settings = parse_settings(kinds[experiment][-1], [*arguments, "--seed=3"], prog="")
            assert settings.training.seed == 3 and not settings.quick and not settings.plots
            assert settings.training.monitor == "loss"


def test_the_budgets_spell_out_everything_that_decides_a_number():
    decided = {"--steps", "--batch-size", "--learning-rate", "--coupling-learning-rate", "--schedule", "--warmup",
               "--weight-decay", "--eval-every", "--patience", "--clip", "--context", "--embed-dim", "--heads",
               "--layers", "--ffn", "--dropout", "--attention"}  # fmt: skip
    for row in rows("medium"):
        assert decided <= {flag.partition("=")[0] for flag in row.arguments}, row.name


def test_published_numbers_stand_beside_the_rows_of_the_same_setting():
    known = {row.name: row.published for row in rows("medium") if row.published is not None}
    assert known["text-paper-h+J-T12"].value == 5.567 and known["text-paper-K-T8"].value == 6.168
    assert known["brackets-softmax-no-ffn-T16"].value == pytest.approx(0.8513)
    assert known["brackets-h+J-ffn-T16"].value == pytest.approx(0.9597)
    assert "text-paper-h+J-bias-T12" not in known and "text-paper-softmax-T16" not in known


def test_jobs_are_interleaved_by_seed():
    chosen = [row for row in rows("quick") if row.part == "brackets-tuned"][:3]
    jobs = interleaved(job for row in chosen for job in row.jobs((0, 1)))
    assert [(job.row, job.seed) for job in jobs] == [(row.name, seed) for seed in (0, 1) for row in chosen]


def test_unknown_parts_and_budgets_are_refused():
    with pytest.raises(InvalidOptionError, match="did you mean 'brackets'"):
        rows("quick", ["bracket"])
    with pytest.raises(InvalidOptionError, match="--budget"):
        rows("large")


def test_runs_of_other_settings_are_left_out(made_up, tmp_path):
    row = made_up[1][0]
    fabricate(tmp_path, row, 0)
    (job,) = row.jobs([0])
    assert job.state(tmp_path) is State.DONE
    assert finished_runs(tmp_path, {row.name: row.arguments}).keys() == {row.name}
    assert finished_runs(tmp_path, {row.name: (*row.arguments, "--heads=2")}) == {}


def test_tables_have_means_published_values_and_paired_tests(made_up):
    out, chosen = made_up
    results = report.measured(out, chosen)
    tables = report.part_tables(results)
    assert {"text-paper", "brackets-with-ffn", "brackets-without-ffn", "samplers", "text-paper-gains"} <= tables.keys()
    own = {(m.row.part, m.row.variant, m.row.context): m for m in results}
    softmax, coupled = own["text-paper", "softmax", 8], own["text-paper", "h+J", 8]
    mean, std = np.mean(list(coupled.values.values())), np.std(list(coupled.values.values()), ddof=1)
    rows_of = {row[0]: row for row in tables["text-paper"].rows if row[0]}
    assert rows_of["h+J"][-1] == f"{mean:.3f} ± {std:.3f}"
    at = tables["text-paper"].rows.index(rows_of["h+J"])
    assert tables["text-paper"].rows[at + 1] == ["", "published", "6.776 ± 0.034", "5.846 ± 0.036"]
    line = next(r for r in tables["text-paper-gains"].rows if r[1:4] == [8, "h+J", "softmax"])
    theirs = stats.ttest_rel(list(softmax.values.values()), list(coupled.values.values()))
    assert line[5] == f"{np.mean(list(softmax.values.values())) - mean:+.3f}" and line[7] == pytest.approx(
        theirs.pvalue
    )
    adjusted, plain = line[9], line[7]
    assert isinstance(adjusted, float) and isinstance(plain, float)
    assert line[8] == 0.25 and adjusted >= plain
    assert "Seeds 0-2; commit 0123456789." in tables["text-paper"].caption


def test_a_planted_effect_is_found_and_a_null_is_not(made_up):
    results = [m for m in report.measured(*made_up) if m.row.part == "brackets"]
    by_names = {(c.first.row.name, c.second.row.variant): c.gain for c in report.comparisons(results)}
    effect = by_names["brackets-h+J-no-ffn-T8", "softmax"]
    assert effect.mean == pytest.approx(0.02, abs=0.005) and effect.p is not None and effect.p < 0.05
    worse = by_names["brackets-h-no-ffn-T8", "softmax"]
    assert worse.mean < 0


def test_the_gain_of_perplexity_is_positive_where_it_is_lower(made_up):
    results = [m for m in report.measured(*made_up) if m.row.part == "text-paper"]
    assert softmax_gains(results)["h+J"][8].mean == pytest.approx(0.05, abs=0.02)


def test_baselines_are_those_of_the_same_kind():
    named = {row.variant: row for row in rows("medium")}
    assert report.baselines(named["softmax"]) == []
    assert report.baselines(named["h+J"]) == ["softmax", "h"]
    assert report.baselines(named["h+J, bias"]) == ["softmax", "softmax, bias", "h, bias", "h+J"]
    assert report.baselines(named["h+J, scalar bias"]) == ["softmax", "h, scalar bias", "h+J"]
    assert report.baselines(named["dqa, learned"]) == ["softmax", "exact"]
    assert report.baselines(named["softmax, faster"]) == ["softmax"]
    of_the_recipe = report.baselines(named["h+J, steady, faster"])
    assert of_the_recipe == ["softmax, faster", "softmax, fastest", "softmax, bias, faster", "h, steady, faster"]
    assert of_the_recipe[:-1] == report.baselines(named["h, steady, faster"])
    assert set(of_the_recipe) <= named.keys()


def test_every_run_is_a_line_with_its_command_and_commit(made_up):
    out, chosen = made_up
    row = chosen[0]
    table = runs_table(finished_runs(out, {row.name: row.arguments}), report.KEYS)
    assert [line[1] for line in table.rows] == [0, 1]
    command = str(table.rows[0][-1])
    assert table.rows[0][-2] == "0123456789" and "--seed=0" in command and "--out" not in command


def test_seeds_are_spoken_in_short():
    assert spoken_seeds([3, 0, 1, 2, 7]) == "0-3, 7"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["text-paper"], {"text-paper", "text-paper-three-body", "text-paper-gains", "text-paper-couplings"}),
        pytest.param(
            PARTS[1:],
            {"brackets-with-ffn", "brackets-without-ffn-gains", "brackets-without-ffn-depth", "samplers-gains",
             "brackets-tuned-without-ffn-gains", "length-transfer"},
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_figures_and_their_numbers(made_up, tmp_path, parts, expected):
    pytest.importorskip("matplotlib")
    results = [m for m in report.measured(*made_up) if m.row.part in parts]
    assert save_all(tmp_path, results, "python experiments/reproduce.py") == []
    names = {path.stem for path in tmp_path.glob("*.png")}
    assert names == {path.stem for path in tmp_path.glob("*.csv")} >= expected
    if "text-paper" not in parts:
        return
    with (tmp_path / "text-paper-gains.csv").open() as file:
        line = next(row for row in csv.DictReader(file) if (row["variant"], row["T"]) == ("h+J", "8"))
    assert float(line["gain"]) == pytest.approx(0.05, abs=0.02) and float(line["low"]) < float(line["gain"])


def test_couplings_are_read_from_the_checkpoint(made_up):
    out, chosen = made_up
    row = next(row for row in chosen if row.name == "text-paper-h+J-T8")
    run = finished_runs(out, {row.name: row.arguments})[row.name][0]
    j = trained_couplings(run, 8)
    assert np.allclose(j, j.T) and not np.diag(j).any()
    assert [np.diagonal(j, d).mean() for d in (1, 2, 3)] == pytest.approx(DISTANCES[:3], abs=0.1)
