"""experiments/anneal_schedule.py from the outside: fits, files that the sampler takes, tables, and what it refuses."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from script_runs import exit_code, loaded

from samplers import get_sampler
from samplers.dqa import AngleSchedule, DQASampler, calibration, load_schedule, named_schedule
from samplers.dqa.learning import MEDIUM, Family, exact_magnetization, stretched
from samplers.dqa.schedules import linear_ramp

TINY = ("--steps=12", "--batch=8", "--spins=3", "--layers=2", "--test-spins=2,5", "--test-problems=8", "--out=run")


@pytest.fixture(scope="module")
def script():
    with loaded("anneal_schedule") as module:
        yield module


@pytest.fixture
def run(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the script in this process, in an empty folder and on 80 columns; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> int:
        return exit_code(script, monkeypatch, arguments)

    return call


def errors(folder: Path) -> dict[tuple[str, int, int], float]:
    """(schedule, layers, spins) → mean error."""
    with (folder / "numbers.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {(row["schedule"], int(row["layers"]), int(row["spins"])): float(row["error"]) for row in rows}


def test_a_fit_is_tested_at_other_sizes_and_its_file_runs(run, capsys: pytest.CaptureFixture[str]):
    assert run(*TINY) == 0
    shown = capsys.readouterr().out.splitlines()
    folder = Path("run").resolve()
    assert shown[-1] == str(folder)
    file = folder / "schedules" / "fitted-2.json"
    assert f"--sampler.schedule={file}" in shown
    assert max(len(line) for line in shown if str(folder) not in line) <= 80
    found = errors(folder)
    assert {key[1:] for key in found} == {(2, 2), (2, 5)}
    assert {key[0] for key in found} >= {"fitted", "calibrated ramp", "learned-weak", "learned-medium"}
    # Better than its start at a size between those that it was fitted and is tested at.
    assert found["fitted", 2, 5] < found["calibrated ramp", 2, 5]

    schedule = load_schedule(file)
    assert schedule.about["family"] == {"fields": 1.0, "couplings": 0.3, "num_spins": [3]}
    assert schedule.about["steps"] == 12 and schedule.about["start"] == "ramp"
    problem = Family(1.0, 0.3).problems(5, 4, seed=1)
    sampler = get_sampler("dqa", schedule=str(file))
    assert isinstance(sampler, DQASampler)
    twin = get_sampler("dqa", schedule=schedule)
    torch.testing.assert_close(sampler.magnetization(problem), twin.magnetization(problem))

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13)) and all(row["layers"] == 2 for row in rows)
    assert (folder / "plots" / "error_by_layers.png").read_bytes()[:4] == b"\x89PNG"
    assert "n = 5" in (folder / "table.md").read_text()
    assert json.loads((folder / "summary.json").read_text())["schedules"] == {"2": "schedules/fitted-2.json"}


def test_evaluation_fits_nothing_and_agrees_with_the_sampler(run):
    assert run("--evaluate", "--layers=4", "--test-spins=5", "--test-problems=6", "--seed=3", "--out=run") == 0
    assert not Path("run/schedules").exists() and not Path("run/metrics.jsonl").exists()
    found = errors(Path("run"))
    assert set(found) == {
        (label, 4, 5) for label in ("calibrated ramp", "learned-weak", "learned-medium", "learned-strong")
    }
    problem = MEDIUM.problems(5, 6, 2**41 + 3)
    exact = exact_magnetization(problem)
    ramp = calibration.calibrated(linear_ramp().layers(4))
    for label, layers in (("learned-medium", named_schedule("learned-medium", 4).layers()), ("calibrated ramp", ramp)):
        sampler = DQASampler(schedule=AngleSchedule(layers))
        expected = (sampler.magnetization(problem) - exact).abs().mean()
        assert found[label, 4, 5] == pytest.approx(float(expected), abs=1e-6)
    assert found["learned-medium", 4, 5] < found["calibrated ramp", 4, 5]


def test_a_resumed_run_keeps_its_fits_but_not_those_of_other_settings(run):
    assert run(*TINY) == 0
    file = Path("run/schedules/fitted-2.json")
    first, written = file.read_text(), file.stat().st_mtime_ns
    assert run(*TINY, "--resume", "--layers=2,3", "--test-problems=4") == 0
    assert file.stat().st_mtime_ns == written and Path("run/schedules/fitted-3.json").exists()
    assert run(*TINY, "--resume", "--steps=13") == 0
    assert file.read_text() != first and load_schedule(file).about["steps"] == 13


def test_a_fitted_schedule_is_tested_and_fitted_further(run):
    assert run(*TINY, "--name=mine", "--fields=0.5", "--couplings=0.2") == 0
    mine = "run/schedules/mine-2.json"
    assert run("--evaluate", "--layers=2", f"--schedules={mine}", "--test-spins=3", "--out=tested") == 0
    assert ("mine-2", 2, 3) in errors(Path("tested"))
    more = [word for word in TINY if not word.startswith("--out")]
    assert run(*more, f"--start={mine}", "--learning-rate=1e-9", "--out=more") == 0
    before, after = load_schedule(mine), load_schedule("more/schedules/fitted-2.json")
    torch.testing.assert_close(after.layers().mixer, before.layers().mixer, atol=1e-5, rtol=0)
    assert after.about["start"] == mine

    assert run(*more, f"--start={Path(mine).absolute()}", "--layers=3", "--learning-rate=1e-9", "--out=longer") == 0
    longer, expected = load_schedule("longer/schedules/fitted-3.json").layers(), stretched(before.layers(), 3)
    torch.testing.assert_close(longer.couplings, expected.couplings, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--layers=0",), "--layers is 0; it must be at least 1"),
        (("--test-spins=4,21",), "--test-spins has 21; .* at most 20"),
        (("--steps=0",), "--steps is 0"),
        (("--fields=-1",), "--fields is -1"),
        (("--learning-rate=0",), "--learning-rate is 0"),
        (("--start=rampp",), "did you mean 'ramp'"),
        (("--device=tpu",), "'tpu'"),
        (("--schedules=nowhere.json",), "cannot read the schedule 'nowhere.json'"),
        (("--name=a/b",), "a file name without a folder"),
        (("--layer=3",), "did you mean '--layers'"),
        (("--resume",), "--resume needs the run folder"),
    ],
)
def test_refuses_in_a_sentence_and_leaves_nothing(
    flags: tuple[str, ...], words: str, run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(*flags) != 0
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert re.search(words, " ".join(said.split())), said
    assert not any(tmp_path.iterdir())
