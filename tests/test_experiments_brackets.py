"""The bracket experiment end to end with tiny budgets: what it writes, what it refuses, how it resumes."""

import builtins
import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from script_runs import exit_code, loaded

from ising_attn.lab.checkpoints import load_checkpoint
from samplers import get_sampler

SCRIPT = Path(__file__).resolve().parent.parent / "experiments" / "brackets.py"
TINY = ["--quick", "--steps=4", "--batch-size=8", "--context=4", "--filler-share=0.5", "--aer-sequences=1"]


@pytest.fixture(scope="module")
def experiment():
    """The script as a module, so that a test costs no new interpreter."""
    with loaded("brackets") as module:
        yield module


@pytest.fixture
def brackets(experiment, monkeypatch, capsys, tmp_path):
    """Runs the experiment in an empty working directory; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = exit_code(experiment, monkeypatch, arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def weights(folder: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / "checkpoints" / f"{name}.safetensors").model


def test_the_script_runs_from_any_folder_and_ends_with_the_run_folder(tmp_path):
    command = [sys.executable, str(SCRIPT), *TINY, "--sampler=exact"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.parent == tmp_path / "runs" and (folder / "summary.json").exists()


def test_an_anneal_is_trained_compared_and_run_on_aer(brackets):
    pytest.importorskip("qiskit_aer")
    code, out, err = brackets(*TINY, "--sampler=dqa", "--sampler.num-layers=4", "--out=run")
    assert code == 0, err
    run = Path("run")
    values = summary(run)
    keys = ("test_accuracy", "test_accuracy_exact", "marginal_mae", "train_seconds", "aer_test_accuracy")
    assert all(isinstance(values[key], float) for key in keys)
    assert 0 < values["marginal_mae"] < values["marginal_max_error"] < 2
    assert values["aer_max_difference"] < 1e-5 and values["aer_sequences"] == 1
    assert {p.name for p in run.iterdir()} >= {"config.json", "environment.json", "metrics.jsonl", "table.md"}
    pictures = ("learning_curve", "couplings", "couplings_by_distance", "attention_example", "marginals")
    for name in pictures:
        assert (run / "plots" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert len((run / "plots" / f"{name}.csv").read_text().splitlines()) > 1
    with (run / "by_sampler.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["sampler"] for row in rows] == ["dqa", "exact", "dqa, Aer", "dqa, state vector"]
    assert float(rows[0]["accuracy"]) == values["test_accuracy"] and float(rows[1]["mean |Δ|"]) == 0
    assert json.loads((run / "config.json").read_text())["sampler_options"] == {"num_layers": 4}
    assert out.splitlines()[-1] == str(run.resolve()) and "Test accuracy by nesting depth" in out


@pytest.mark.parametrize("attention", ["softmax", "sigmoid"])
def test_attention_without_a_sampler_has_no_marginals(brackets, attention):
    code, _, err = brackets(*TINY, f"--attention={attention}", "--no-ffn", "--out=run")
    assert code == 0, err
    values = summary(Path("run"))
    assert values["test_accuracy"] > 0
    assert values["test_accuracy_exact"] is values["marginal_mae"] is values["aer_test_accuracy"] is None
    assert (Path("run/plots/attention_example.png")).exists() and not Path("run/plots/couplings.png").exists()


@pytest.mark.slow
def test_simulated_annealing_with_more_heads_and_layers(brackets):
    options = ["--sampler=annealing", "--sampler.num-reads=20", "--sampler.num-sweeps=4", "--heads=4", "--layers=2"]
    code, _, err = brackets(*TINY, *options, "--steps=2", "--out=run")
    assert code == 0, err
    assert summary(Path("run"))["marginal_mae"] > 0
    assert Path("run/plots/couplings_layer_1.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("context", [2, 3, 9])
def test_any_context_from_two_on(brackets, context):
    code, out, err = brackets("--quick", "--steps=2", f"--context={context}", "--sampler=exact", "--out=run")
    assert code == 0, err
    assert ("overlap" in out) == (context < 4)


@pytest.mark.slow
def test_several_seeds_have_folders_of_their_own_and_a_spread(brackets):
    code, out, err = brackets(*TINY, "--sampler=exact", "--seeds=0,3", "--out=run")
    assert code == 0, err
    one, other, both = summary(Path("run/seed-0")), summary(Path("run/seed-3")), summary(Path("run"))
    assert one["test_accuracy"] != other["test_accuracy"]
    assert both["test_accuracy"] == pytest.approx((one["test_accuracy"] + other["test_accuracy"]) / 2)
    assert both["test_accuracy_std"] == pytest.approx(abs(one["test_accuracy"] - other["test_accuracy"]) / 2**0.5)
    assert both["seeds"]["3"] == other
    assert "mean ± std" in out and "mean ± std" in Path("run/table.md").read_text()
    alone = brackets(*TINY, "--sampler=exact", "--seed=3", "--out=alone")
    assert alone[0] == 0 and summary(Path("alone"))["test_accuracy"] == other["test_accuracy"]


def test_a_resumed_run_equals_an_uninterrupted_one(brackets):
    options = [*TINY, "--sampler=exact", "--schedule=constant"]
    assert brackets(*options, "--steps=8", "--out=whole")[0] == 0
    assert brackets(*options, "--steps=3", "--out=parts")[0] == 0
    code, _, err = brackets("--resume", "--steps=8", "--out=parts")
    assert code == 0, err
    whole, parts = weights(Path("whole")), weights(Path("parts"))
    assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)
    assert summary(Path("whole"))["test_accuracy"] == summary(Path("parts"))["test_accuracy"]


def test_a_run_keeps_its_seeds(brackets):
    assert brackets(*TINY, "--sampler=exact", "--seed=3", "--steps=1", "--out=run")[0] == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for flag, asked in (("--seed=9", "seed 9"), ("--seeds=1,2", "seeds 1, 2"), ("--seeds=3,4", "seeds 3, 4")):
        code, out, err = brackets("--resume", flag, "--out=run")
        assert code == 1 and not out
        assert err.startswith(f"error: the run in run has seed 3, not {asked}; resume without --seed")
    assert before == {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    code, _, err = brackets("--resume", "--seeds=3", "--steps=2", "--out=run")
    assert code == 0, err


@pytest.mark.slow
def test_a_run_of_several_seeds_gets_more_but_loses_none(brackets):
    assert brackets(*TINY, "--sampler=exact", "--seeds=0,3", "--steps=1", "--out=run")[0] == 0
    kept = weights(Path("run/seed-3"))
    for flag in ("--seeds=0", "--seeds=0,4"):
        code, _, err = brackets("--resume", flag, "--out=run")
        assert code == 1 and "the run in run has seeds 0, 3, not seed" in err
    code, _, err = brackets("--resume", "--seeds=0,3,4", "--out=run")
    assert code == 0, err
    assert list(summary(Path("run"))["seeds"]) == ["0", "3", "4"]
    assert json.loads(Path("run/config.json").read_text())["seeds"] == [0, 3, 4]
    assert all(torch.equal(tensor, kept[name]) for name, tensor in weights(Path("run/seed-3")).items())


@pytest.mark.slow
def test_trained_weights_run_through_another_sampler(brackets):
    assert brackets(*TINY, "--sampler=exact", "--out=trained")[0] == 0
    best = "--weights=trained/checkpoints/best.safetensors"
    code, _, err = brackets(*TINY, "--sampler=dqa", "--sampler.num-layers=3", best, "--out=other")
    assert code == 0, err
    trained, other = summary(Path("trained")), summary(Path("other"))
    assert other["test_accuracy_exact"] == trained["test_accuracy"] and other["train_seconds"] is None
    assert other["marginal_mae"] > 0


def test_without_matplotlib_there_are_numbers_and_one_line(brackets, monkeypatch):
    hide(monkeypatch, "matplotlib")
    code, out, err = brackets(*TINY, "--sampler=exact", "--out=run")
    assert code == 0, err
    assert out.count("ising-attn[plots]") == 1
    assert Path("run/plots/couplings.csv").exists() and not Path("run/plots/couplings.png").exists()


def test_without_aer_the_keys_are_null_and_one_line_says_so(brackets, monkeypatch):
    hide(monkeypatch, "qiskit_aer")
    code, out, err = brackets(*TINY, "--sampler=dqa", "--sampler.num-layers=2", "--out=run")
    assert code == 0, err
    values = summary(Path("run"))
    assert values["aer_test_accuracy"] is values["aer_max_difference"] is None
    assert values["marginal_mae"] > 0 and out.count("ising-attn[aer]") == 1


def hide(monkeypatch, package: str) -> None:
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for present in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, present)


REFUSED = [
    (["--sampler=anealing"], ["'anealing'", "did you mean 'annealing'", "dqa", "exact"]),
    (["--sampler=dqa", "--context=21"], ["21 spins", "at most 20", "--sampler=annealing"]),
    (["--context=1"], ["context is 1", "at least 2"]),
    (["--filler-share=1"], ["filler_share is 1", "between 0 and 0.95"]),
    (["--learning-rate=-1"], ["--learning-rate is -1", "above 0"]),
    (["--learning-rates=0.1,inf"], ["--learning-rates has inf; each must be finite"]),
    (["--steps=0"], ["--steps is 0"]),
    (["--monitor=acuracy"], ["--monitor is 'acuracy'; this task reports accuracy, loss"]),
    (["--heads=3"], ["num_heads=3", "not a multiple"]),
    (["--test-size=0"], ["test_size is 0"]),
    (["--marginal-sequences=0"], ["--marginal-sequences is 0"]),
    (["--sampler.num-layers=0"], ["num_layers=0", "at least 1"]),
    (["--sampler.num-layer=3"], ["--sampler.num-layer", "did you mean '--sampler.num-layers'"]),
    (["--contxt=8"], ["--contxt", "did you mean '--context'"]),
    (["--sampler=dqa", "--sampler.gradient=none"], ["no gradient"]),
    (["--sampler=dqa", "--mode=h+J+K"], ["three-body", "exact"]),
    (["--device=tpu"], ["'tpu'", "auto, cpu, cuda"]),
    (["--weights=missing.safetensors"], ["no checkpoint missing.safetensors"]),
    (["--weights=a.safetensors", "--seeds=0,1"], ["--weights evaluates one checkpoint"]),
    (["--resume"], ["--resume needs the run folder"]),
    (["--config=missing.toml"], ["no file of settings missing.toml"]),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing(brackets, tmp_path, arguments, parts):
    code, _, err = brackets("--quick", *arguments)
    assert code != 0 and "Traceback" not in err
    assert all(part in err for part in parts), err
    assert len(err.strip().splitlines()) <= 6  # a sentence, or one in a frame
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_absent_is_refused(brackets, tmp_path):
    code, _, err = brackets("--quick", "--device=cuda")
    assert code != 0 and "--device=cpu" in err and not any(tmp_path.iterdir())


def test_debug_shows_where_an_error_comes_from(brackets):
    with pytest.raises(Exception, match="context is 1"):
        brackets("--context=1", "--debug")


def test_a_run_is_never_overwritten_and_foreign_weights_are_refused(brackets):
    assert brackets(*TINY, "--sampler=exact", "--out=run")[0] == 0
    before = contents(Path("run"))
    code, _, err = brackets(*TINY, "--sampler=exact", "--out=run")
    assert code != 0 and "--resume" in err
    code, _, err = brackets("--resume", "--embed-dim=16", "--out=run")
    assert code != 0 and "another model" in err
    best = "--weights=run/checkpoints/best.safetensors"
    code, _, err = brackets(*TINY, "--sampler=exact", "--heads=1", best, "--out=other")
    assert code != 0 and "another model" in err and not Path("other").exists()
    Path("cut.safetensors").write_bytes(Path("run/checkpoints/best.safetensors").read_bytes()[:-100])
    code, _, err = brackets(*TINY, "--sampler=exact", "--weights=cut.safetensors", "--out=other")
    assert code != 0 and "truncated, damaged" in err and not Path("other").exists()
    assert before == contents(Path("run"))


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file but the record of environments, to which each resumption, even a failing one, adds itself."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "environment.json"}


def test_a_dry_run_tells_what_a_machine_would_be_sent_and_sends_nothing(brackets, monkeypatch, tmp_path):
    testing = pytest.importorskip("dwave.system.testing", reason="needs dwave-system")
    machine = testing.MockDWaveSampler(topology_type="pegasus", topology_shape=[3], parameter_warnings=False)
    monkeypatch.setattr(machine, "sample", lambda *_, **__: pytest.fail("something was sent"))
    monkeypatch.setattr(machine, "sample_ising", lambda *_, **__: pytest.fail("something was sent"))
    made = get_sampler("dwave", machine=machine, num_reads=100)
    monkeypatch.setattr(
        "ising_attn.lab.config.get_sampler", lambda name, **_: made if name == "dwave" else get_sampler(name)
    )
    code, out, err = brackets(*TINY, "--sampler=dwave", "--dry-run")
    assert code == 0, err
    words = " ".join(out.split())
    assert "nothing was sent" in words
    assert "; 4 steps: " in words
    assert not (tmp_path / "runs").exists()
    code, _, err = brackets(*TINY, "--sampler=exact", "--dry-run")
    assert code != 0
    assert "--sampler=dwave" in err
