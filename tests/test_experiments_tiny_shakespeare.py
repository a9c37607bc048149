"""The Tiny Shakespeare experiment end to end with tiny budgets and an invented text."""

import builtins
import csv
import json
import sys
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from script_runs import exit_code, loaded

from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.text import CORPUS_VARIABLE

TINY = ["--data=text.txt", "--quick", "--steps=4", "--batch-size=8", "--context=4", "--embed-dim=8", "--ffn-dim=8"]


@pytest.fixture(scope="module")
def experiment():
    """The script as a module, so that a test costs no new interpreter."""
    with loaded("tiny_shakespeare") as module:
        yield module


@pytest.fixture
def text(experiment, monkeypatch, capsys, tmp_path):
    """Runs the experiment beside an invented text, without a network; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CORPUS_VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", no_network)
    Path("text.txt").write_text(invented(6000))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = exit_code(experiment, monkeypatch, arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def no_network(*_, **__):
    raise ConnectionError("no route to host")


def invented(length: int) -> str:
    """Words of a tiny language, in which the next character is often certain."""
    words = np.random.default_rng(0).choice(["abba", "cad", "dog", "be", "\n"], size=length)
    return " ".join(words)[:length]


def summary(folder: str) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


def weights(folder: str, name: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(folder) / "checkpoints" / f"{name}.safetensors").model


def test_a_sampler_is_trained_through_and_held_against_exact(text):
    code, out, err = text(*TINY, "--sampler=dqa", "--sampler.num-layers=3", "--heads=2", "--sample=30", "--out=run")
    assert code == 0, err
    values, run = summary("run"), Path("run")
    keys = ("test_perplexity", "test_perplexity_exact", "test_nats", "test_bits_per_char", "marginal_mae")
    assert all(isinstance(values[key], float) for key in (*keys, "train_seconds", "validation_perplexity"))
    assert values["test_perplexity"] == pytest.approx(np.exp(values["test_nats"]))
    assert 0 < values["marginal_mae"] < values["marginal_max_error"] < 2
    assert values["protocol"] == "tuned" and not values["selected_on_test"]
    assert values["vocabulary"] == 9 and values["train_characters"] == 5400 and values["test_characters"] == 80
    assert {p.name for p in run.iterdir()} >= {"config.json", "environment.json", "metrics.jsonl", "table.md"}
    for name in ("learning_curve", "couplings", "couplings_by_distance", "attention_example", "marginals"):
        assert (run / "plots" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert len((run / "plots" / f"{name}.csv").read_text().splitlines()) > 1
    with (run / "by_sampler.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["sampler"] for row in rows] == ["dqa", "exact"]
    assert float(rows[0]["perplexity"]) == values["test_perplexity"] and float(rows[1]["mean |Δ|"]) == 0
    sample = (run / "sample.txt").read_text()
    assert len(sample) == 31 and sample[0] == "\n" and set(sample) <= set(invented(6000)) and sample in out
    assert out.splitlines()[-1] == str(run.resolve())


@pytest.mark.parametrize("attention", ["softmax", "sigmoid"])
def test_attention_without_a_sampler_has_no_marginals(text, attention):
    code, _, err = text(*TINY, f"--attention={attention}", "--no-ffn", "--layers=2", "--out=run")
    assert code == 0, err
    values = summary("run")
    assert values["test_perplexity"] > 1
    assert values["test_perplexity_exact"] is values["marginal_mae"] is None
    assert Path("run/plots/attention_example.png").exists() and not Path("run/plots/couplings.png").exists()


def test_it_learns_the_language(text):
    code, _, err = text(
        "--data=text.txt", "--context=6", "--embed-dim=16", "--ffn-dim=32", "--batch-size=64",
        "--steps=80", "--eval-every=80", "--learning-rate=2e-2", "--warmup=5", "--test-characters=600", "--out=run",
    )  # fmt: skip
    assert code == 0, err
    values = summary("run")
    assert values["test_perplexity"] < 2.2  # 2.0; a model that knows only how frequent characters are has 7.4
    assert values["marginal_mae"] == 0 and values["test_perplexity"] == values["test_perplexity_exact"]


def test_the_papers_protocol_has_the_papers_defaults(text, experiment, monkeypatch):
    code, out, err = text(*TINY, "--protocol=paper", "--out=run")
    assert code == 0, err
    assert "also choose the weights, as in the paper" in " ".join(out.split())
    assert "chose the weights, as in the paper" in Path("run/table.md").read_text()
    values, config = summary("run"), json.loads(Path("run/config.json").read_text())
    assert values["selected_on_test"] and values["validation_loss"] == pytest.approx(values["test_nats"])
    assert values["published_perplexity"] is None  # another text, another model
    assert config["model"]["dropout"] == 0.1 and config["model"]["heads"] == config["model"]["layers"] == 1
    training = config["training"]
    assert (training["learning_rate"], training["coupling_learning_rate"]) == (1e-3, 3e-5)
    assert (training["clip"], training["patience"], training["weight_decay"]) == (1.0, 20, 0.01)
    monkeypatch.setattr(sys, "argv", ["tiny_shakespeare.py", "--protocol=paper", "--learning-rate=0.5"])
    settings = experiment.read_settings()
    assert settings.training.learning_rate == 0.5 and settings.training.coupling_learning_rate == 3e-5
    assert (settings.model.embed_dim, settings.model.ffn_dim, settings.context) == (64, 128, 8)


def test_the_published_number_stands_beside_the_papers_setting_alone(text, experiment, monkeypatch):
    corpus = experiment.Corpus(invented(3000), Path("text.txt"), experiment.Corpus.read(Path("text.txt")).sha256)
    data = experiment.TextData.paper(corpus.text)

    def published(*arguments: str) -> float | None:
        monkeypatch.setattr(sys, "argv", ["tiny_shakespeare.py", "--protocol=paper", *arguments])
        run = experiment.TextExperiment(corpus, data, experiment.read_settings(), torch.device("cpu"))
        found = run.published()
        return None if found is None else found.value

    assert published("--context=4") is None  # not the paper's text
    monkeypatch.setattr("ising_attn.lab.text.CORPUS_SHA256", corpus.sha256)
    assert published("--context=4") == 6.776 and published("--context=4", "--attention=softmax") == 6.775
    assert published("--context=4", "--sampler=dqa") == 6.671
    for other in ("--heads=2", "--no-ffn", "--dropout=0", "--score-bias=distance", "--attention=sigmoid", "--quick"):
        assert published("--context=4", other) is None


def test_several_seeds_have_folders_of_their_own_and_a_spread(text):
    code, out, err = text(*TINY, "--seeds=0,3", "--out=run")
    assert code == 0, err
    one, other, both = summary("run/seed-0"), summary("run/seed-3"), summary("run")
    assert one["test_perplexity"] != other["test_perplexity"]
    assert both["test_perplexity"] == pytest.approx((one["test_perplexity"] + other["test_perplexity"]) / 2)
    assert both["test_perplexity_std"] > 0 and both["seeds"]["3"] == other
    assert "mean ± std" in out and "mean ± std" in Path("run/table.md").read_text()


def test_a_resumed_run_equals_an_uninterrupted_one(text):
    options = [*TINY, "--schedule=constant", "--dropout=0.2"]
    assert text(*options, "--steps=8", "--out=whole")[0] == 0
    assert text(*options, "--steps=3", "--out=parts")[0] == 0
    code, _, err = text("--resume", "--steps=8", "--out=parts")
    assert code == 0, err
    whole, parts = weights("whole"), weights("parts")
    assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)
    assert summary("whole")["test_perplexity"] == summary("parts")["test_perplexity"]


def test_trained_weights_are_evaluated_and_continued_without_training(text):
    assert text(*TINY, "--sample=40", "--seed=5", "--out=trained")[0] == 0
    best = "--weights=trained/checkpoints/best.safetensors"
    code, _, err = text("--config=trained/config.json", best, "--out=same")
    assert code == 0, err
    trained, same = summary("trained"), summary("same")
    assert same["test_perplexity"] == trained["test_perplexity"] and same["train_seconds"] is None
    assert Path("same/sample.txt").read_text() == Path("trained/sample.txt").read_text()
    options = ["--sampler=annealing", "--sampler.num-reads=20", "--prompt=dog", "--temperature=0"]
    code, _, err = text("--config=trained/config.json", best, *options, "--out=other")
    assert code == 0, err
    other = summary("other")
    assert other["test_perplexity_exact"] == pytest.approx(trained["test_perplexity"]) and other["marginal_mae"] > 0
    assert Path("other/sample.txt").read_text().startswith("dog")


def test_weights_of_other_characters_are_refused(text):
    assert text(*TINY, "--out=trained")[0] == 0
    Path("text.txt").write_text(invented(6000).replace("g", "G"))
    best = "--weights=trained/checkpoints/best.safetensors"
    code, _, err = text("--config=trained/config.json", best, "--out=other")
    assert code != 0 and "another model: characters is" in err and not Path("other").exists()


@pytest.mark.parametrize("couplings", [["distance"], ["band", "--coupling-width=2"], ["low-rank", "--coupling-rank=1"]])
def test_couplings_of_every_kind(text, couplings):
    kind, *options = couplings
    code, _, err = text(*TINY, f"--couplings={kind}", *options, "--learn-beta", "--out=run")
    assert code == 0, err
    assert Path("run/plots/couplings.png").exists() and summary("run")["test_perplexity"] > 1


def test_couplings_without_fields_are_called_what_they_are(text):
    assert "averages uniformly" in " ".join(text(*TINY, "--mode=J")[1].split())
    assert "averages uniformly" not in text(*TINY, "--mode=J", "--score-bias=position")[1]


def test_without_matplotlib_there_are_numbers_and_one_line(text, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for present in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, present)
    code, out, err = text(*TINY, "--out=run")
    assert code == 0, err
    assert out.count("ising-attn[plots]") == 1 and Path("run/plots/couplings.csv").exists()


@pytest.mark.parametrize("protocol", ["tuned", "paper"])
def test_help_shows_the_defaults_of_the_protocol(text, protocol):
    code, out, _ = text(f"--protocol={protocol}", "--help")
    assert code == 0
    assert ("default: 3e-05" in out) == (protocol == "paper")


REFUSED = [
    (["--context=4"], ["--data=PATH", CORPUS_VARIABLE, "tinyshakespeare.txt", "no route to host"]),
    (["--data=absent.txt"], ["--data names absent.txt", "no file"]),
    (["--data=text.txt", "--context=400"], ["validation text has 300 characters", "at least 401"]),
    (["--data=text.txt", "--prompt=Zebra"], ["'Z'", "none of the 9"]),
    (["--data=text.txt", "--prompt="], ["--prompt is empty"]),
    (["--data=text.txt", "--sample=-1"], ["--sample is -1", "at least 0"]),
    (["--data=text.txt", "--temperature=-1"], ["--temperature is -1", "at least 0"]),
    (["--data=text.txt", "--context=0"], ["--context is 0", "at least 1"]),
    (["--data=text.txt", "--marginal-windows=0"], ["--marginal-windows is 0"]),
    (["--data=text.txt", "--test-characters=1"], ["--test-characters is 1"]),
    (["--data=text.txt", "--sampler=exat"], ["'exat'", "did you mean 'exact'"]),
    (["--data=text.txt", "--context=40"], ["40 spins", "at most 24", "--sampler=annealing"]),
    (["--data=text.txt", "--couplings=band"], ["width"]),
    (["--data=text.txt", "--heads=3"], ["num_heads=3", "not a multiple"]),
    (["--data=text.txt", "--weights=absent.safetensors"], ["no checkpoint absent.safetensors"]),
    (["--data=text.txt", "--weights=a.safetensors", "--seeds=0,1"], ["--weights evaluates one checkpoint"]),
    (["--data=text.txt", "--learning-rates=0.1,0"], ["--learning-rates has 0", "above 0"]),
    (["--data=text.txt", "--rate-steps=0"], ["--rate-steps is 0"]),
    (["--data=text.txt", "--learning-rat=1"], ["did you mean '--learning-rate'"]),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing(text, tmp_path, arguments, parts):
    code, _, err = text("--sampler=exact", *arguments)
    assert code != 0 and "Traceback" not in err
    assert all(part in err for part in parts), err
    assert len(err.strip().splitlines()) <= 6  # a sentence, or one in a frame
    assert {p.name for p in tmp_path.iterdir()} <= {"text.txt", "cache"}


def test_a_run_is_never_overwritten(text):
    assert text(*TINY, "--out=run")[0] == 0
    before = {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}
    code, _, err = text(*TINY, "--out=run")
    assert code != 0 and "--resume" in err
    assert before == {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}


def test_the_learning_rate_is_chosen_on_validation_data(text):
    options = [*TINY, "--steps=20", "--schedule=constant", "--learning-rate=1e-3", "--coupling-learning-rate=3e-3"]
    code, _, err = text(*options, "--learning-rates=1e-5,0.02,1e-4", "--rate-steps=8", "--out=run")
    assert code == 0, err
    rates = summary("run")["learning_rates"]
    assert rates["chosen"] == 0.02 and min(rates["loss"], key=rates["loss"].get) == "0.02"
    assert list(rates["loss"]) == ["1e-05", "0.02", "0.0001"]
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {row.get("label") for row in rows} == {"rate-1e-05", "rate-0.02", "rate-0.0001", None}
    with Path("run/plots/learning_curve.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["10", "20"]
    # The training that follows starts afresh, with the couplings' rate in proportion.
    alone = [*TINY, "--steps=20", "--schedule=constant", "--learning-rate=0.02", "--coupling-learning-rate=0.06"]
    assert text(*alone, "--out=alone")[0] == 0
    ours, theirs = weights("run"), weights("alone")
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)
