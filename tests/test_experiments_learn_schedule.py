"""--learn-schedule: the anneal's angles are trained with the model, kept with its weights, and resumed exactly."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.main import run_main
from samplers.dqa import load_schedule, named_schedule

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
SMALL = ["--quick", "--batch-size=8", "--context=4", "--filler-share=0.5", "--aer-sequences=0", "--schedule=constant"]
LEARN = [*SMALL, "--sampler=dqa", "--sampler.num-layers=2", "--learn-schedule"]
BEST = "checkpoints/best.safetensors"
ROWS = ("fields", "couplings", "mixer")


@pytest.fixture(scope="module")
def script():
    name = "brackets_with_a_schedule"
    spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / "brackets.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture
def brackets(script, monkeypatch, capsys, tmp_path):
    """Runs the experiment, without plots, in an empty working directory; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "save_figures", lambda *_, **__: [])

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["brackets.py", *arguments])
        try:
            code = run_main(script.main)
        except SystemExit as stop:
            code = int(stop.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def weights(folder: str, name: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(folder) / "checkpoints" / f"{name}.safetensors").model


def summary(folder: str) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


def test_angles_move_at_their_own_rate_and_are_written_as_a_schedule(brackets):
    options = ["--steps=1", "--warmup=0", "--coupling-std=0.1", "--angle-learning-rate=0.02", "--out=run"]
    code, _, err = brackets(*LEARN, *options)
    assert code == 0, err
    start, trained = named_schedule("learned-strong", 2).layers(), weights("run", "best")
    for row in ROWS:
        # Adam's first step is as long as the rate, whatever the gradient.
        moved = (trained[f"learned_schedule.{row}"] - getattr(start, row)).abs()
        assert moved.tolist() == pytest.approx([0.02, 0.02], rel=1e-3)
    written = load_schedule("run/schedule.json").layers()
    assert all(torch.equal(getattr(written, row), trained[f"learned_schedule.{row}"]) for row in ROWS)
    assert summary("run")["mean_angle_change"] == pytest.approx(0.02, rel=1e-3)
    assert json.loads(Path("run/config.json").read_text())["learn_schedule"] is True


def test_a_resumed_run_equals_an_uninterrupted_one(brackets):
    assert brackets(*LEARN, "--steps=6", "--out=whole")[0] == 0
    assert brackets(*LEARN, "--steps=2", "--out=parts")[0] == 0
    code, _, err = brackets("--resume", "--steps=6", "--out=parts")
    assert code == 0, err
    whole, parts = weights("whole"), weights("parts")
    assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)
    assert "learned_schedule.mixer" in whole
    assert summary("whole")["mean_angle_change"] == summary("parts")["mean_angle_change"]
    code, _, err = brackets("--resume", "--no-learn-schedule", "--out=parts")
    assert code != 0 and "another model: 'learned_schedule.couplings'" in " ".join(err.split())


def test_weights_bring_their_schedule_and_run_without_it_too(brackets):
    assert brackets(*LEARN, "--steps=4", "--angle-learning-rate=0.1", "--out=run")[0] == 0
    trained, best = summary("run"), f"--weights=run/{BEST}"
    code, out, err = brackets(*SMALL, "--sampler=dqa", best, "--out=same")
    assert code == 0, err
    assert "runs the 2 layers that were learned with the weights" in out
    code, out, err = brackets("--config=run/config.json", "--quick", best, "--out=same-settings")
    assert code == 0, err
    for folder in ("same", "same-settings"):
        assert summary(folder)["test_loss"] == trained["test_loss"]
        assert summary(folder)["marginal_mae"] == trained["marginal_mae"]

    assert brackets(*SMALL, "--sampler=exact", best, "--out=exact")[0] == 0
    assert summary("exact")["test_accuracy"] == trained["test_accuracy_exact"]
    code, out, _ = brackets(*SMALL, "--sampler=dqa", "--sampler.num-layers=2", best, "--out=other")
    assert code == 0 and "is left out; --learn-schedule takes it" in out
    assert summary("other")["test_loss"] != trained["test_loss"]

    file = "--sampler.schedule=run/schedule.json"
    assert brackets(*SMALL, "--sampler=dqa", file, best, "--out=from-file")[0] == 0
    assert summary("from-file")["test_loss"] == pytest.approx(trained["test_loss"], abs=1e-6)


def test_a_learned_schedule_runs_as_circuits(brackets):
    pytest.importorskip("qiskit_aer")
    code, _, err = brackets(*LEARN, "--steps=2", "--aer-sequences=1", "--out=run")
    assert code == 0, err
    assert summary("run")["aer_max_difference"] < 1e-5
    aer = ("--sampler=dqa", "--sampler.engine=aer", "--test-size=4", "--marginal-sequences=2")
    code, out, err = brackets(*SMALL, *aer, f"--weights=run/{BEST}", "--out=aer")
    assert code == 0 and "learned with the weights" in out, err


def test_every_seed_and_every_rate_starts_from_the_same_angles(brackets):
    options = ["--steps=2", "--seeds=0,1", "--learning-rates=0.01,0.02", "--rate-steps=1", "--out=run"]
    code, _, err = brackets(*LEARN, *options)
    assert code == 0, err
    first, second = (load_schedule(f"run/seed-{seed}/schedule.json").layers() for seed in (0, 1))
    assert not torch.equal(first.mixer, second.mixer)
    for layers in (first, second):
        # Two steps from the start; those of the trials are taken back.
        assert (layers.mixer - named_schedule("learned-strong", 2).layers().mixer).abs().max() < 0.045


REFUSED = [
    (["--sampler=exact"], ["'exact' has no layer angles", "'dqa'"]),
    (["--sampler=dqa", "--sampler.engine=aer"], ["engine='aer'", "engine='statevector'"]),
    (["--sampler=dqa", "--sampler.shots=100"], ["shots=100", "without shots"]),
    (["--attention=softmax"], ["uses no sampler", "--attention=boltzmann"]),
    (["--sampler=dqa", "--angle-learning-rate=-1"], ["--angle-learning-rate is -1"]),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_what_cannot_be_learned_is_refused_in_a_sentence(brackets, tmp_path, arguments, parts):
    code, _, err = brackets("--quick", "--learn-schedule", *arguments)
    said = " ".join(err.split())
    assert code != 0 and "Traceback" not in err and all(part in said for part in parts), err
    assert not any(tmp_path.iterdir())


def test_weights_without_a_schedule_are_refused_where_one_is_asked_for(brackets):
    assert brackets(*SMALL, "--sampler=exact", "--steps=1", "--out=run")[0] == 0
    code, _, err = brackets(*LEARN, f"--weights=run/{BEST}", "--out=other")
    assert code != 0 and "holds no learned schedule" in err and not Path("other").exists()
