"""Whole processes that are killed, run out of disk or meet in one folder: nothing is lost, and the numbers stay."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.files import is_partial
from ising_attn.lab.runs import read_json, read_metrics

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = [str(ROOT / "experiments" / "brackets.py"), "--attention=softmax", "--no-plots", "--device=cpu"]
RUN = ["--steps=200", "--eval-every=10", "--batch-size=8", "--learning-rate=0.0003", "--seed=3"]
# Runs a script under another writer of files; {change} is put before it.
WRAPPED = """
import os, runpy, sys, time
from pathlib import Path
sys.path[:0] = [{root!r}]
from ising_attn.lab import files
{change}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Half of the tenth checkpoint is on disk when the writer falls asleep, and says so.
SLOW = """
count, written = 0, Path.write_bytes
def slowly(path, content):
    global count
    if ".last." in path.name:
        count += 1
        if count == 10:
            written(path, content[: len(content) // 2])
            Path(os.environ["ASLEEP"]).touch()
            time.sleep(600)
    return written(path, content)
Path.write_bytes = slowly
"""
# As a full disk: what is written of one kind of file fails from the nth time on.
FULL = """
import errno
count, written = 0, Path.write_bytes
def full(path, content):
    global count
    if {name!r} in path.name:
        count += 1
        if count >= {nth}:
            written(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written(path, content)
Path.write_bytes = full
"""


def command(out: Path, *flags: str, change: str = "") -> list[str]:
    arguments = [*EXPERIMENT, *RUN, f"--out={out}", *flags]
    if not change:
        return [sys.executable, *arguments]
    return [sys.executable, "-c", WRAPPED.format(root=str(ROOT), change=textwrap.dedent(change)), *arguments]


def started(given: list[str], **environment: str) -> subprocess.Popen:
    values = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=values)


def finished(given: list[str], **environment: str) -> tuple[int, str]:
    with started(given, **environment) as process:
        said = process.communicate(timeout=300)[1]
    return process.returncode, said


def until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def rows(out: Path) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_metrics(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without an accident."""
    out = tmp_path_factory.mktemp("whole") / "run"
    code, said = finished(command(out))
    assert code == 0, said
    return out


def assert_same(out: Path, whole: Path) -> None:
    """Metrics and weights, bit for bit."""
    assert rows(out) == rows(whole)
    for name in ("last", "best"):
        ours, theirs = (load_checkpoint(path / "checkpoints" / f"{name}.safetensors") for path in (out, whole))
        assert ours.step == theirs.step
        assert all(torch.equal(ours.model[key], value) for key, value in theirs.model.items())
    ours, theirs = read_json(out / "summary.json"), read_json(whole / "summary.json")
    assert ours["test_accuracy"] == theirs["test_accuracy"]
    assert not [path for path in out.rglob("*") if is_partial(path)]


def assert_resumes(out: Path, whole: Path) -> None:
    code, said = finished(command(out, "--resume"))
    assert code == 0, said
    assert_same(out, whole)


@pytest.mark.slow
def test_kill_9_in_the_middle_of_training(tmp_path: Path, whole: Path):
    out = tmp_path / "run"
    process = started(command(out))
    until(lambda: (out / "metrics.jsonl").exists() and len(read_metrics(out)) >= 3, process)
    kill(process)
    assert load_checkpoint(out / "checkpoints" / "last.safetensors").step < 200
    assert not (out / "summary.json").exists()
    assert_resumes(out, whole)


def test_kill_9_in_the_middle_of_a_checkpoint(tmp_path: Path, whole: Path):
    out, mark = tmp_path / "run", tmp_path / "asleep"
    process = started(command(out, change=SLOW), ASLEEP=str(mark))
    until(mark.exists, process)
    kill(process)
    assert load_checkpoint(out / "checkpoints" / "last.safetensors").step == 90
    assert [path for path in (out / "checkpoints").iterdir() if is_partial(path)]
    assert_resumes(out, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nth", "file"),
    [
        ("config", 1, "config.json"),
        ("last", 5, "last.safetensors"),
        ("best", 1, "best.safetensors"),
        ("summary", 1, "summary.json"),
    ],
)
def test_a_full_disk_is_named_with_its_file_and_what_was_there_stays(
    name: str, nth: int, file: str, tmp_path: Path, whole: Path
):
    out = tmp_path / "run"
    code, said = finished(command(out, change=FULL.format(name=f".{name}.", nth=nth)))
    assert code == 1 and "Traceback" not in said
    assert f"No space left on device: {out}" in said and file in said
    assert "free some space and go on with --resume" in said
    assert not [path for path in out.rglob("*") if is_partial(path)]
    if name == "last":
        assert load_checkpoint(out / "checkpoints" / "last.safetensors").step == 40
    if name == "config":
        code, said = finished(command(out))  # nothing was begun, so there is nothing to resume
        assert code == 0, said
        assert_same(out, whole)
    else:
        assert_resumes(out, whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limits of resources")
def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, whole: Path):
    """No writer of ours is changed here: the system itself refuses the bytes of the first checkpoint."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))"
    out = tmp_path / "run"
    code, said = finished(command(out, change=limit))
    assert code == 1 and "Traceback" not in said
    assert "File too large" in said and "last.safetensors" in said and "ulimit -f" in said
    assert_resumes(out, whole)


@pytest.mark.slow
def test_two_runs_in_one_folder(tmp_path: Path, whole: Path):
    out, mark = tmp_path / "run", tmp_path / "asleep"
    first = started(command(out, change=SLOW.replace("600", "0.1") + WAIT), ASLEEP=str(mark), GO=str(tmp_path / "go"))
    until(mark.exists, first)
    for flags in ([], ["--resume"]):
        code, said = finished(command(out, *flags))
        assert code == 1 and ("in use by another process" in said or "holds a run already" in said), said
    (tmp_path / "go").touch()
    said = first.communicate(timeout=300)[1]
    assert first.returncode == 0, said
    assert_same(out, whole)


# Wait until both others were refused.
WAIT = """
slept = time.sleep
def until_told(seconds):
    while seconds == 0.1 and not Path(os.environ["GO"]).exists():
        slept(0.01)
    slept(seconds)
time.sleep = until_told
"""

SWEEP = """
title = "Two rows"
experiment = "brackets"
seeds = [3]
flags = ["--attention=softmax", "--steps=200", "--eval-every=10", "--batch-size=8", "--learning-rate=0.0003"]
[[measures]]
key = "test_accuracy"
name = "accuracy"
better = "larger"
[rows.only]
flags = []
"""


@pytest.mark.slow
def test_kill_9_of_a_sweeps_run_and_of_the_sweep(tmp_path: Path, whole: Path):
    (tmp_path / "rows.toml").write_text(SWEEP)
    out = tmp_path / "sweep"
    sweep = [sys.executable, str(ROOT / "experiments" / "sweep.py"), f"--file={tmp_path / 'rows.toml'}", f"--out={out}"]
    run = out / "runs" / "only" / "seed-3"
    first = started(sweep)
    until(lambda: len(read_metrics(run)) >= 3, first)
    before = len(read_metrics(run))
    os.kill(process_of(run), signal.SIGKILL)
    until(lambda: len(read_metrics(run)) > before, first)  # the sweep has it go on from its checkpoint
    kill(first)  # its run ends with it, and may not hold the folder against the next one
    assert load_checkpoint(run / "checkpoints" / "last.safetensors").step < 200
    code, said = finished(sweep)
    assert code == 0, said
    assert_same(run, whole)


def process_of(run: Path) -> int:
    """The process that works in a run's folder, by its command line or the log that it writes."""
    log = str(run) + ".log"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str((entry / "fd" / "1").readlink()) == log:
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError(f"no process writes {log}")


@pytest.mark.slow
def test_json_files_of_a_run_are_whole(whole: Path):
    for path in whole.glob("*.json"):
        json.loads(path.read_text())
