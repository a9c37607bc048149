"""experiments/masks.py from the outside: what it prints and writes, and what it refuses."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from script_runs import exit_code, loaded

from ising_attn import masks


@pytest.fixture(scope="module")
def script():
    with loaded("masks") as module:
        yield module


@pytest.fixture
def run(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the script in this process, in an empty folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> int:
        return exit_code(script, monkeypatch, arguments)

    return call


def test_butterfly_end_to_end(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("--mask=butterfly", "--length=5", "--check", "--out=run") == 0
    shown = capsys.readouterr().out
    assert shown.strip().splitlines()[-1].endswith("run")
    assert max(map(len, shown.splitlines())) <= 100
    assert "level 4: {w3→w4} covers {w3}" in shown and "leak:" not in shown
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["positions"], summary["depth"], summary["classes"], summary["leaks"]) == (13, 1, 13, 0)
    assert summary["labelled"] == 5 and summary["needed"] == 13
    for name in ("table.md", "classes.csv", "leaks.csv", "config.json", "hasse.dot", "plots/mask.png"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    for name in ("allowed.npy", "mask.txt"):
        assert torch.equal(masks.load_mask(tmp_path / "run" / name), masks.butterfly(5).allowed)
    assert run("--mask=butterfly", "--out=run") != 0  # a run is never overwritten


@pytest.mark.parametrize("name", ["causal", "prefix", "window", "document", "block-causal", "two-stream",
                                  "block-two-stream"])  # fmt: skip
def test_every_mask_by_name(name: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ising_attn.masks.save_mask_drawing", lambda *given, **options: None)
    assert run(f"--mask={name}", "--length=8", "--check", "--sparse=2", "--out=run") == 0
    made = {
        "causal": masks.causal(8),
        "prefix": masks.prefix(8, 3),
        "window": masks.window(8, 3),
        "document": masks.document([3, 5]),
        "block-causal": masks.block_causal(8, 2),
        "two-stream": masks.two_stream(8),
        "block-two-stream": masks.block_two_stream(8, 2),
    }[name]
    assert torch.equal(masks.load_mask(tmp_path / "run" / "allowed.npy"), made.allowed)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["depth"] == made.order.depth and summary["classes"] == made.order.num_classes


def test_a_mask_of_ones_own_that_leaks(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # Position 0 sees 1 and 1 sees 2: token 1 leaks at once, and position 3 is alone.
    np.savetxt(tmp_path / "mine.csv", [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]], fmt="%d", delimiter=",")
    assert run("--file=mine.csv", "--out=run") == 0
    shown = capsys.readouterr().out
    assert "leak: position 0 has token 1 from position 1 after 1 layer\n" in shown
    with (tmp_path / "run" / "leaks.csv").open() as file:
        assert list(csv.reader(file))[1:] == [["0", "1", "1", "1"], ["1", "2", "2", "1"]]
    with (tmp_path / "run" / "sparse.csv").open() as file:
        assert [row[:3] for row in csv.reader(file)][1:] == [
            ["1", "1", "3"], ["2", "2", "2"], ["3", "2", "2"], ["4", "2", "2"], ["any", "2", "2"],
        ]  # fmt: skip
    assert run("--file=mine.csv", "--check") == 1
    assert "2 of 4 positions with a label can see their own target" in capsys.readouterr().err
    assert run("--file=mine.csv", "--labels=none", "--check", "--out=none") == 0
    assert run("--file=mine.csv", "--labels=own", "--check", "--out=own") == 1
    assert "4 of 4 positions" in capsys.readouterr().err


def test_leaks_after_some_layers(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "deep.txt").write_text("#.#\n...\n.#.\n")  # 0 sees 2, which sees 1
    assert run("--file=deep.txt", "--layers=1", "--check", "--out=shallow") == 0
    assert run("--file=deep.txt", "--layers=2", "--check", "--out=deep") == 1
    assert "after 2 layers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--mask=buterfly",), "did you mean 'butterfly'"),
        (("--labels=nxt",), "did you mean 'next'"),
        (("--mask=block-two-stream", "--length=10", "--block=4"), "n=10 .* block=4: 2 would be left over"),
        (("--mask=block-two-stream", "--content=tokens"), "did you mean 'token'"),
        (("--length=0",), "n=0"),
        (("--sparse=0",), "0 layers"),
        (("--layers=-1",), "-1 layers"),
        (("--file=nothing.npy",), "no file of a mask"),
        (("--mask=two-stream", "--length=3", "--permutation=0,1"), r"order is \[0, 1\]"),
    ],
)
def test_refuses_in_a_sentence(
    flags: tuple[str, ...], words: str, run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(*flags) != 0
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert re.search(words, said), said
    assert not (tmp_path / "runs").exists()
