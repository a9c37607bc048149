"""experiments/boolean_lm.py and boolean_ladder.py from the outside, their runs in this process."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from script_runs import exit_code, loaded

from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.sweep import State, Sweep, SweepResult
from ising_attn.lab.text import CORPUS_VARIABLE
from models import model_from_config

SMALL = [
    "--context=4", "--embed-dim=8", "--heads=2", "--layers=1", "--ffn-dim=8", "--steps=6", "--eval-every=3",
    "--batch-size=4", "--validation-characters=201", "--test-characters=201", "--no-plots",
]  # fmt: skip


@pytest.fixture(scope="module")
def script():
    with loaded("boolean_lm") as module:
        yield module


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("to be, or not to be: that is the question.\n" * 300)
    monkeypatch.setenv(CORPUS_VARIABLE, str(file))
    return file


@pytest.fixture
def run(script: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def call(name: str, *flags: str, expect: int = 0) -> dict[str, Any]:
        out = tmp_path / "runs" / name / "seed-0"
        assert exit_code(script, monkeypatch, (*SMALL, *flags, f"--out={out}")) == expect
        return json.loads((out / "summary.json").read_text()) if expect == 0 else {}

    return call


def test_sampler_router_and_logic_block_are_one_model(run, tmp_path: Path):
    fast = ("--sampler.num-reads=8", "--sampler.num-sweeps=8", "--validation-characters=21", "--test-characters=21")
    summary = run("union", "--attention=router", "--sampler=gibbs", *fast, "--ffn=logic")
    assert summary["test_perplexity_soft"] > 1 and summary["test_perplexity_hard"] > 1
    assert summary["gap"] == pytest.approx(summary["test_perplexity_hard"] / summary["test_perplexity_soft"] - 1)
    assert 0 < summary["routing_entropy"] < 0.7
    config = load_checkpoint(tmp_path / "runs/union/seed-0/checkpoints/best.safetensors").model_config
    assert config["attention"]["kind"] == "router" and config["feed_forward"]["kind"] == "logic"


@pytest.mark.parametrize("loop", ["bits", "as-coded"])
def test_loops_of_gates_in_the_protocol_of_the_repository(run, loop: str):
    sizes = ("--state=300", "--widths=300") if loop == "bits" else ("--state=64", "--widths=64,32")
    flags = ("--protocol=repository", "--model=looped", f"--loop={loop}", *sizes, "--iterations=2")
    summary = run(f"loop-{loop}", *flags)
    assert summary["selected_on_test"] is True and summary["test_characters"] == 201 - 4
    assert summary["test_perplexity_hard"] > 1 and summary["temperature"] == 1.0


def test_a_cooled_calibrated_and_distilled_student(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    teacher = run("teacher", "--attention=softmax")
    assert teacher["test_perplexity_hard"] is None and teacher["gap"] is None
    flags = ("--model=hba", "--attention=scalar-router", "--final-temperature=0.1", "--calibrate")
    student = run("student", *flags, "--teacher-row=teacher", "--entropy-weight=0.1", "--attention-matching=0.5")
    assert "distilled" in capsys.readouterr().out
    assert student["test_perplexity_calibrated"] > 1 and student["threshold_on_edge"] in (0.0, 1.0)
    folder = tmp_path / "runs/student/seed-0/checkpoints"
    stored = {name: load_checkpoint(folder / f"{name}.safetensors") for name in ("best", "calibrated")}
    assert float(stored["best"].model["blocks.0.attention.temperature"]) == student["temperature"]
    assert float(stored["calibrated"].model["blocks.0.attention.threshold"]) == student["threshold"]
    model: Any = model_from_config(stored["calibrated"].model_config)
    model.load_state_dict(stored["calibrated"].model)
    assert model(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all()


def test_several_seeds_side_by_side(run):
    summary = run("seeds", "--model=logic", "--widths=200", "--seeds=0,1", "--protocol=repository", "--loss-at=all")
    assert set(summary["seeds"]) == {"0", "1"} and summary["test_perplexity_hard_std"] is not None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--attention=rooter",), "--attention"),
        (("--attention=router", "--router-temperature=0"), "temperature=0.0; it must be a finite number above 0"),
        (("--attention=router", "--final-temperature=-1"), "--final-temperature is -1.0"),
        (("--attention=router", "--sampler=mean-field", "--routing=hard"), "finds no ground states"),
        (("--attention=softmax", "--routing=hard"), "has no option 'routing'"),
        (("--attention=softmax", "--calibrate"), "are for routers"),
        (("--attention=softmax", "--final-temperature=0.1"), "this model has none"),
        (("--loss-at=last",), "--loss-at=last is for --protocol=repository"),
        (("--teacher=nowhere.safetensors",), "there is no checkpoint nowhere.safetensors"),
        (("--alpha=2",), "alpha=2.0"),
        (("--model=looped", "--widths=16", "--state=32"), "must come out as it goes in"),
    ],
)
def test_bad_input_is_said_in_a_sentence(run, capsys: pytest.CaptureFixture[str], flags: tuple, message: str):
    code = 1 if any(word in message for word in ("ground states", "no checkpoint")) else 2
    run("bad", *flags, expect=code)
    said = capsys.readouterr()
    assert message in " ".join((said.err + said.out).split()) and "Traceback" not in said.err


def test_teachers_of_another_context_or_vocabulary(run, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run("teacher", "--attention=softmax")
    file = tmp_path / "runs/teacher/seed-0/checkpoints/best.safetensors"
    run("longer", f"--teacher={file}", "--context=5", expect=1)
    assert "sees 4 characters and the student 5" in " ".join(capsys.readouterr().err.split())
    text.write_text("quite another text, with Z in it.\n" * 300)
    run("stranger", f"--teacher={file}", expect=1)
    assert "only one of them has" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def ladder(script: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run boolean_ladder.py with its runs in this process, each shrunk to a few steps."""
    monkeypatch.chdir(tmp_path)
    with loaded("boolean_ladder") as module:

        class InProcess(Sweep):
            made: list[str] = []

            def run(self, jobs) -> SweepResult:
                result = SweepResult()
                for job in jobs:
                    if job.state(self.out) is State.DONE:
                        result.skipped.append(job)
                        continue
                    assert exit_code(script, monkeypatch, job.command(job.folder(self.out))[1:]) == 0
                    self.made.append(job.row)
                    result.done.append(job)
                return result

        monkeypatch.setattr(module, "Sweep", InProcess)

        def call(*flags: str) -> list[str]:
            InProcess.made = []
            assert exit_code(module, monkeypatch, flags) == 0
            return InProcess.made

        yield call


def test_the_ladder_runs_teachers_first_and_goes_on(ladder, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ("--quick", "--out=ladder", "--rows=repository-router-distilled")
    assert ladder(*flags) == ["repository-transformer", "repository-router-distilled"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "Perplexity in the repository's protocol" in shown and "a hard router" in shown
    assert "its numbers mean nothing" in shown
    assert ladder(*flags) == [], "what is finished is skipped"
    files = {path.name for path in (tmp_path / "ladder").iterdir()}
    assert {"table.md", "repository.csv", "claims.csv", "runs.csv", "plots"} <= files
    assert (tmp_path / "ladder/plots/repository.png").exists()
    assert ladder("--report-only", *flags) == []


def test_the_ladder_lists_what_it_would_run(ladder, capsys: pytest.CaptureFixture[str]):
    assert ladder("--list", "--parts=tuned", "--rows=*born-again") == []
    shown = capsys.readouterr().out
    assert "tuned-transformer" in shown and "tuned-router-distilled" in shown and "tuned-router-born-again" in shown
