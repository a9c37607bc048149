"""The outermost frame, the device check and the progress display."""

import io
import os
import signal
import sys

import pytest
import torch
from rich.console import Console

from ising_attn.lab.device import resolve_device
from ising_attn.lab.errors import CheckpointError, TrainingInterrupted
from ising_attn.lab.main import run_main
from ising_attn.lab.progress import training_progress
from samplers import InvalidOptionError, UnknownSamplerError


def raising(error: BaseException):
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CheckpointError("there is no checkpoint x"), 1, "error: there is no checkpoint x\n"),
        (InvalidOptionError("--steps is 0"), 2, "error: --steps is 0\n"),
        (UnknownSamplerError("no sampler is named 'x'"), 2, "error: no sampler is named 'x'\n"),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), 1, "error: No such file or directory: x.txt\n"),
        (
            OSError(28, "No space left on device", "r/last.safetensors"),
            1,
            "error: No space left on device: r/last.safetensors; "
            "free some space and go on with --resume, or start on another disk with --out\n",
        ),
        (
            OSError(27, "File too large", "x"),
            1,
            "error: File too large: x; raise the limit on the size of files (ulimit -f) and go on with --resume\n",
        ),
        (MemoryError(), 1, "error: out of memory; use a smaller --batch-size or --context, or --device=cpu\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (TrainingInterrupted("stopped; go on with --resume"), 130, "\nstopped; go on with --resume\n"),
    ],
)
def test_expected_errors_are_one_sentence_and_an_exit_code(error, code, text, capsys):
    assert run_main(raising(error), debug=False) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", text)


def test_defects_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_main(raising(ZeroDivisionError()), debug=False)


def test_debug_shows_the_traceback(monkeypatch):
    with pytest.raises(CheckpointError):
        run_main(raising(CheckpointError("x")), debug=True)
    monkeypatch.setattr("sys.argv", ["prog", "--debug"])
    with pytest.raises(CheckpointError):
        run_main(raising(CheckpointError("x")))


def test_success_is_zero_and_a_returned_code_is_passed_on():
    assert run_main(lambda: None, debug=False) == 0
    assert run_main(lambda: 3, debug=False) == 3


@pytest.mark.parametrize(
    ("encoding", "errors", "shown"),
    [
        ("utf-8", "strict", b"x\\udcff \xe2\x9f\xa8"),
        ("latin-1", "strict", b"x\\udcff \\u27e8"),
        ("ascii", "surrogateescape", b"x\\udcff \\u27e8"),
        ("utf-8", "surrogateescape", b"x\xff \xe2\x9f\xa8"),
    ],
)
def test_what_cannot_be_printed_is_escaped(monkeypatch, encoding, errors, shown):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding, errors=errors))

    def main() -> None:
        sys.stdout.write("x\udcff \u27e8")
        sys.stdout.flush()

    assert run_main(main, debug=False) == 0
    assert raw.getvalue() == shown


def test_a_real_ctrl_c_exits_with_130(capsys, interrupts):
    assert run_main(lambda: os.kill(os.getpid(), signal.SIGINT), debug=False) == 130


def test_devices_are_checked(monkeypatch):
    assert resolve_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda:x", "cpu:0", ""):
        with pytest.raises(InvalidOptionError, match="it must be auto, cpu, cuda or cuda:N"):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(InvalidOptionError, match=f"--device={name} was asked for, but .*; use --device=cpu"):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InvalidOptionError, match="there are 2 CUDA devices"):
        resolve_device("cuda:2")


def shown(*, terminal: bool, early: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=80, color_system=None)
    with training_progress("seed 0", console=console) as progress:
        progress.start(0, 200)
        for step in range(1, 101):
            progress.advance(step, {"loss": 1 / step, "accuracy": 0.5, "error": 3.0})
        progress.evaluated(100, {"loss": 0.25, "accuracy": 0.875})
        if early:
            progress.stopped_early(100)
    return text.getvalue()


def test_files_get_a_plain_line_at_each_evaluation():
    text = shown(terminal=False)
    assert text.startswith("seed 0: step 100/200, loss 0.010, accuracy 0.500 │ validation loss 0.250, accuracy 0.875, ")
    assert text.endswith(" s left\n")
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_slow_steps_are_heard_of_between_evaluations(monkeypatch):
    now = iter(range(0, 10**6, 20))  # twenty seconds pass at each look
    monkeypatch.setattr("ising_attn.lab.progress.time.monotonic", lambda: next(now))
    assert shown(terminal=False).count("\n") > 20


def test_a_terminal_gets_one_bar_with_loss_accuracy_and_time_left_on_80_columns():
    last = shown(terminal=True).split("\r")[-1].replace("\x1b[2K", "").split("\n")[0]
    for part in ("seed 0", "100/200", "loss 0.010", "0.875"):
        assert part in last
    assert len(last.rstrip()) <= 80


def test_a_fit_that_stops_early_ends_its_bar_and_says_so():
    last = shown(terminal=True, early=True).split("\r")[-1].replace("\x1b[2K", "").split("\n")[0]
    assert "stopped early" in last and "100/100" in last and "0.875" in last and "0:00:00" in last or "00:00" in last
    assert shown(terminal=False, early=True).splitlines()[-1] == "seed 0: stopped early after step 100 of 200"
    assert "stopped early" not in shown(terminal=True)
