"""experiments/gated_mlp.py from the outside, its runs in this process; the real sweep in a slow test."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from script_runs import EXPERIMENTS, exit_code, loaded

from ising_attn.bilinear import LowRankBilinear
from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.sweep import State, Sweep, SweepResult
from ising_attn.lab.text import CORPUS_VARIABLE, TextData
from ising_attn.symmetry import symmetry_gaps_in
from models import model_from_config

TINY = [
    "--ranks=2", "--activations=gelu", "--parameters=600", "--embed-dim=8", "--context=4", "--steps=6",
    "--rate-steps=3", "--learning-rates=0.01,0.02", "--batch-size=8", "--validation-characters=201", "--seeds=0",
    "--out=study",
]  # fmt: skip


@pytest.fixture(scope="module")
def script():
    with loaded("gated_mlp") as module:
        yield module


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("to be, or not to be: that is the question.\n" * 300)
    return file


@pytest.fixture
def study(script, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the script in this process, its runs too; returns the exit code and how many runs were made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CORPUS_VARIABLE, str(text))

    class InProcess(Sweep):
        made = 0

        def run(self, jobs) -> SweepResult:
            result = SweepResult()
            for job in jobs:
                state = job.state(self.out)
                if state is State.DONE:
                    result.skipped.append(job)
                    continue
                assert state is State.NEW
                with loaded("tiny_shakespeare") as training:
                    assert exit_code(training, monkeypatch, job.command(job.folder(self.out))[1:]) == 0
                InProcess.made += 1
                result.done.append(job)
            return result

    monkeypatch.setattr(script, "Sweep", InProcess)

    def call(*arguments: str) -> tuple[int, int]:
        InProcess.made = 0
        return exit_code(script, monkeypatch, arguments), InProcess.made

    return call


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def test_a_study_end_to_end(
    script, study, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert study(*TINY) == (0, 6)  # three layers: rates of each, then one seed of each
    shown = capsys.readouterr().out
    assert shown.strip().splitlines()[-1].endswith("study")
    out = tmp_path / "study"
    runs = {(row["variant"], int(row["seed"])): row for row in rows(out / "runs.csv")}
    assert len(runs) == 3
    data = TextData.tuned(text.read_text())
    for (name, seed), row in runs.items():
        folder = out / "runs" / name / f"seed-{seed}"
        summary = json.loads((folder / "summary.json").read_text())
        rate = json.loads((out / "runs" / f"rate-{name}" / "seed-1000" / "summary.json").read_text())["learning_rates"]
        assert float(row["test"]) == summary["test_perplexity"]
        assert float(row["learning rate"]) == rate["chosen"] == float(min(rate["loss"], key=rate["loss"].get))
        if name.startswith("mlp"):
            assert row["exchange gap"] == ""
            continue
        checkpoint = load_checkpoint(folder / "checkpoints" / "best.safetensors")
        model = model_from_config(checkpoint.model_config).eval()
        model.load_state_dict(checkpoint.model)
        # The study's first evaluation batch: 500 windows of 4, or what the text has.
        windows = (len(data.test) - 1) // 4
        tokens = data.test[: 4 * windows].view(-1, 4)[:500]
        (gaps,) = symmetry_gaps_in(model, tokens).values()
        assert float(row["exchange gap"]) == pytest.approx(gaps.exchange, abs=1e-6)
        assert (gaps.exchange == 0) == name.startswith("symmetric")
        assert (row["perplexity"] == row["exchanged"]) == name.startswith("symmetric")
        layer = next(part for part in model.modules() if isinstance(part, LowRankBilinear))
        assert (layer.rank, layer.place) == (2, "outside" if name.startswith("symmetric") else "factor")
    for name in ("table.md", "results.csv", "gated_minus_symmetric.csv", "symmetry.csv", "config.json",
                 "environment.json", "summary.json", "plots/perplexity.png", "plots/differences.png",
                 "plots/symmetry.png"):  # fmt: skip
        assert (out / name).stat().st_size > 0

    monkeypatch.setattr(script, "save_figures", lambda report, folder: [])
    before = (out / "table.md").read_text()
    assert study(*TINY) == (0, 0)
    assert (out / "table.md").read_text() == before
    assert study(*TINY, "--report-only", "--seeds=0,1") == (0, 0)
    assert "note: 3 of 6 runs are missing" in " ".join(capsys.readouterr().out.split())
    assert study(*TINY, "--list", "--seeds=0,1,2") == (0, 0)
    assert "--ffn-rank=2" in capsys.readouterr().out


def test_the_list_of_what_would_run_makes_nothing(study, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert study("--list", "--out=study", "--rows=gated-*", "--activations=silu") == (0, 0)
    shown = capsys.readouterr().out
    assert "--learning-rate=CHOSEN" in shown and "mlp" not in shown and "rate-gated-r8-silu" in shown
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks=0"], "--ranks has 0"),
        (["--ranks=65"], "--ranks has 65; a bilinear form has a rank from 1 to --embed-dim=64"),
        (["--activations=glue"], "--activations has 'glue'"),
        (["--parts=gatde"], "--parts has 'gatde'; did you mean 'gated'"),
        (["--rows=nothing"], "no row fits --rows=nothing"),
        (["--parameters=300"], "300 parameters are too few"),
        (["--workers=0"], "--workers is 0"),
        (["--report-only"], "study holds no finished run of this study"),
    ],
)
def test_what_cannot_be_done_is_refused(study, arguments: list[str], message: str, capsys, tmp_path: Path):
    code, made = study("--out=study", *arguments)
    assert (code != 0, made) == (True, 0)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_quick_runs_in_processes_and_goes_on(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CORPUS_VARIABLE, str(text))
    command = [sys.executable, str(EXPERIMENTS / "gated_mlp.py"), "--quick", "--workers=2", "--ranks=1", "--seeds=0,1"]
    for expected in ("9 done, 0 finished before", "0 done, 9 finished before"):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert expected in done.stdout
    assert torch.tensor(len(rows(tmp_path / "results" / "gated-mlp-quick" / "runs.csv"))) == 6
