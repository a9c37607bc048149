"""--learn-schedule: the anneal's angles are trained with the model, kept with its weights, and resumed exactly."""

import functools
import json
from pathlib import Path

import pytest
import torch
from script_runs import exit_code, loaded

from ising_attn.lab.checkpoints import load_checkpoint
from samplers.dqa import load_schedule, named_schedule

SMALL = ["--quick", "--batch-size=8", "--context=4", "--filler-share=0.5", "--aer-sequences=0", "--schedule=constant"]
LEARN = [*SMALL, "--sampler=dqa", "--sampler.num-layers=2", "--learn-schedule"]
BEST = "checkpoints/best.safetensors"
ROWS = ("fields", "couplings", "mixer")


@pytest.fixture(scope="module")
def scripts():
    """Both experiments as modules, so that a test costs no new interpreter."""
    with loaded("brackets") as brackets, loaded("tiny_shakespeare") as text:
        yield {"brackets": brackets, "tiny_shakespeare": text}


@pytest.fixture
def experiment(scripts, monkeypatch, capsys, tmp_path):
    """Runs one, without plots, in an empty working directory; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scripts["brackets"], "save_figures", lambda *_, **__: [])
    monkeypatch.setattr(scripts["tiny_shakespeare"].figures, "draw_all", lambda _: [])

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        code = exit_code(scripts[name], monkeypatch, arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def brackets(experiment):
    return functools.partial(experiment, "brackets")


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
        # Adam's first step is as long as the rate, whatever the gradient, but for its ε of 1e-8.
        moved = (trained[f"learned_schedule.{row}"] - getattr(start, row)).abs()
        assert moved.tolist() == pytest.approx([0.02, 0.02], rel=1e-2)
    written = load_schedule("run/schedule.json").layers()
    assert all(torch.equal(getattr(written, row), trained[f"learned_schedule.{row}"]) for row in ROWS)
    assert summary("run")["mean_angle_change"] == pytest.approx(0.02, rel=1e-2)
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
    assert "runs the 2 layers that are stored with the weights" in out
    code, out, err = brackets("--config=run/config.json", "--quick", best, "--out=same-settings")
    assert code == 0, err
    for folder in ("same", "same-settings"):
        assert summary(folder)["test_loss"] == trained["test_loss"]
        assert summary(folder)["marginal_mae"] == trained["marginal_mae"]

    assert brackets(*SMALL, "--sampler=exact", best, "--out=exact")[0] == 0
    assert summary("exact")["test_accuracy"] == trained["test_accuracy_exact"]
    code, out, _ = brackets(*SMALL, "--sampler=dqa", "--sampler.num-layers=2", best, "--out=other")
    assert code == 0 and "is left out; --learn-schedule takes it" in " ".join(out.split())
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
    assert code == 0 and "stored with the weights" in out, err


def test_every_seed_and_every_rate_starts_from_the_same_angles(brackets):
    options = ["--steps=2", "--seeds=0,1", "--learning-rates=0.01,0.02", "--rate-steps=1", "--out=run"]
    code, _, err = brackets(*LEARN, *options)
    assert code == 0, err
    first, second = (load_schedule(f"run/seed-{seed}/schedule.json").layers() for seed in (0, 1))
    assert not torch.equal(first.mixer, second.mixer)
    for layers in (first, second):
        # Two steps from the start; those of the trials are taken back.
        assert (layers.mixer - named_schedule("learned-strong", 2).layers().mixer).abs().max() < 0.045


def test_a_rescale_is_found_on_training_data_and_stored_with_the_weights(brackets):
    # Weights of moderate size: for large ones the squares have many minima, and which is found depends on the machine.
    trained = ("--sampler=exact", "--steps=60", "--learning-rate=0.005", "--warmup=0", "--out=exact")
    assert brackets(*SMALL, *trained, "--no-quick", "--test-size=50")[0] == 0
    ramp = ["--sampler=dqa", "--sampler.schedule=learned-weak", "--sampler.num-layers=4"]
    code, out, err = brackets(*SMALL, *ramp, "--rescale=12", f"--weights=exact/{BEST}", "--out=run")
    assert code == 0, err
    found = summary("run")["rescale"]
    assert found["sequences"] == 12 and found["after"] < found["before"]
    assert f"fields × {found['fields']:.3f}" in out
    plain = brackets(*SMALL, *ramp, f"--weights=exact/{BEST}", "--out=plain")
    assert plain[0] == 0 and summary("run")["marginal_mae"] < summary("plain")["marginal_mae"]
    angles, start = load_schedule("run/schedule.json").layers(), named_schedule("learned-weak", 4).layers()
    torch.testing.assert_close(angles.fields, found["fields"] * start.fields)
    torch.testing.assert_close(angles.couplings, found["couplings"] * start.couplings)

    code, out, _ = brackets(*SMALL, "--sampler=dqa", "--weights=run/checkpoints/rescaled.safetensors", "--out=again")
    assert code == 0 and "runs the 4 layers that are stored with the weights" in out
    assert summary("again")["marginal_mae"] == summary("run")["marginal_mae"]


def test_the_language_model_learns_and_rescales_too(experiment):
    Path("text.txt").write_text("abba cad dog be\n" * 400)
    tiny = ["--data=text.txt", "--quick", "--steps=3", "--batch-size=8", "--context=4", "--embed-dim=8", "--ffn-dim=8"]
    dqa = ["--sampler=dqa", "--sampler.num-layers=2"]
    code, out, err = experiment("tiny_shakespeare", *tiny, *dqa, "--learn-schedule", "--rescale=20", "--out=run")
    assert code == 0, err
    trained, rescaled = weights("run", "best"), weights("run", "rescaled")
    assert trained.keys() == rescaled.keys() and torch.equal(trained["tokens.weight"], rescaled["tokens.weight"])
    found = summary("run")["rescale"]
    torch.testing.assert_close(
        rescaled["learned_schedule.fields"], found["fields"] * trained["learned_schedule.fields"]
    )
    assert summary("run")["mean_angle_change"] > 0 and "rescale from 20 training sequences" in out


REFUSED = [
    (["--learn-schedule", "--sampler=exact"], ["'exact' has no layer angles", "'dqa'"]),
    (["--learn-schedule", "--sampler.engine=aer"], ["engine='aer'", "engine='statevector'"]),
    (["--learn-schedule", "--sampler.shots=100"], ["shots=100", "without shots"]),
    (["--learn-schedule", "--attention=softmax"], ["uses no sampler", "--attention=boltzmann"]),
    (["--angle-learning-rate=-1"], ["--angle-learning-rate is -1"]),
    (["--rescale=5", "--sampler=gibbs"], ["--rescale finds factors", "--sampler=dqa"]),
    (["--rescale=5", "--attention=sigmoid"], ["--rescale finds factors", "--sampler=dqa"]),
    (["--rescale=5", "--sampler.engine=aer", "--context=21"], ["21 spins", "at most 20", "leave --rescale out"]),
    (["--rescale=-1"], ["--rescale is -1", "at least 0"]),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_what_cannot_be_learned_is_refused_in_a_sentence(brackets, tmp_path, arguments, parts):
    code, _, err = brackets("--quick", *arguments)
    said = " ".join(err.split())
    assert code != 0 and "Traceback" not in err and all(part in said for part in parts), err
    assert not any(tmp_path.iterdir())


def test_weights_without_a_schedule_are_refused_where_one_is_asked_for(brackets):
    assert brackets(*SMALL, "--sampler=exact", "--steps=1", "--out=run")[0] == 0
    code, _, err = brackets(*LEARN, f"--weights=run/{BEST}", "--out=other")
    assert code != 0 and "holds no schedule of its own" in err and not Path("other").exists()
