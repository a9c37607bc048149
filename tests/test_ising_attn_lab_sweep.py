"""Sweeps of many runs: order, skipping, resuming, failures, interruption. A small script stands for an experiment."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from ising_attn.lab import jobs as jobs_module
from ising_attn.lab import sweep as module
from ising_attn.lab.sweep import Job, State, Sweep, SweepSettings, interleaved, job_table
from samplers.errors import InvalidOptionError

ROOT = Path(__file__).resolve().parent.parent
# Acts like an experiment on a run folder: counts its starts, fails or waits where it is told to, goes on with --resume.
SCRIPT = """
import json, os, shlex, signal, sys, time
from pathlib import Path
flags = dict(a.lstrip("-").partition("=")[::2] for a in sys.argv[1:])
out = Path(flags["out"])
if (out / "config.json").exists() and "resume" not in flags:
    sys.exit("error: holds a run already")
(out / "checkpoints").mkdir(parents=True, exist_ok=True)
(out / "config.json").write_text("{}")
command = shlex.join(["python", *sys.argv])
(out / "environment.json").write_text(json.dumps({"command": command, "threads": os.environ["OMP_NUM_THREADS"]}))
(out / "pid").write_text(str(os.getpid()))
with Path(flags["journal"]).open("a") as journal:
    journal.write(f"{out.parent.name} {flags['seed']} {'resumed' if 'resume' in flags else 'started'}\\n")
own = f"{out.parent.name} {flags['seed']} "
if Path(flags["journal"]).read_text().count(own) <= int(flags.get("die", 0)):
    os.kill(os.getpid(), signal.SIGKILL)
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
if "wait" in flags and "resume" not in flags:
    while not stopped:
        time.sleep(0.02)
    sys.exit(130)
if flags.get("fail") == flags["seed"]:
    sys.exit("error: the disk is on fire")
(out / "summary.json").write_text(json.dumps({"value": int(flags["seed"])}))
"""


@pytest.fixture
def journal(tmp_path, monkeypatch) -> Path:
    script = tmp_path / "fake.py"
    script.write_text(textwrap.dedent(SCRIPT))
    monkeypatch.setattr(jobs_module, "experiments", lambda: {"fake": script})
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    return tmp_path / "journal"


def jobs(journal: Path, names: str = "ab", seeds: int = 2, *extra: str) -> list[Job]:
    return interleaved(
        Job(row=name, seed=seed, experiment="fake", arguments=(f"--journal={journal}", *extra), seconds=1.0)
        for name in names
        for seed in range(seeds)
    )


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def test_runs_are_made_in_order_with_one_thread_and_then_skipped(journal, tmp_path):
    out = tmp_path / "out"
    first = Sweep(out).run(jobs(journal))
    assert lines(journal) == ["a 0 started", "b 0 started", "a 1 started", "b 1 started"]
    assert len(first.done) == 4 and not (first.failed or first.left or first.skipped or first.interrupted)
    assert json.loads((out / "runs/a/seed-1/summary.json").read_text()) == {"value": 1}
    assert json.loads((out / "runs/a/seed-1/environment.json").read_text())["threads"] == "1"
    second = Sweep(out).run(jobs(journal, "ab", 3))
    assert len(second.skipped) == 4 and [(j.row, j.seed) for j in second.done] == [("a", 2), ("b", 2)]
    assert lines(journal)[4:] == ["a 2 started", "b 2 started"]


def test_an_interrupted_run_is_resumed(journal, tmp_path):
    out = tmp_path / "out"
    Sweep(out).run(jobs(journal))
    (out / "runs/b/seed-0/summary.json").unlink()
    again = Sweep(out).run(jobs(journal))
    assert lines(journal)[4:] == ["b 0 resumed"] and len(again.done) == 1 and len(again.skipped) == 3


def test_a_failed_run_is_named_and_the_others_go_on(journal, tmp_path):
    out = tmp_path / "out"
    result = Sweep(out).run(jobs(journal, "ab", 3, "--fail=1"))
    assert {(j.row, j.seed) for j in result.failed} == {("a", 1), ("b", 1)} and len(result.done) == 4
    assert set(result.failed.values()) == {"error: the disk is on fire"}
    said = "\n".join(result.remarks(out))
    assert "4 done" in said and "2 failed" in said and "a seed 1: error: the disk is on fire" in said
    assert "error: the disk is on fire" in (out / "runs/a/seed-1.log").read_text()
    repeated = Sweep(out).run(jobs(journal, "ab", 3, "--fail=1"))
    assert len(repeated.skipped) == 4 and len(repeated.failed) == 2 and lines(journal)[-1].endswith("1 resumed")


def test_a_killed_run_is_resumed_at_once(journal, tmp_path):
    out = tmp_path / "out"
    result = Sweep(out).run(jobs(journal, "ab", 1, "--die=1"))
    assert lines(journal) == ["a 0 started", "a 0 resumed", "b 0 started", "b 0 resumed"]
    assert len(result.done) == 2 and not result.failed


def test_a_run_that_is_killed_again_and_again_is_reported(journal, tmp_path):
    out = tmp_path / "out"
    result = Sweep(out).run([*jobs(journal, "a", 1, "--die=9"), *jobs(journal, "b", 1)])
    assert lines(journal) == ["a 0 started", "a 0 resumed", "a 0 resumed", "b 0 started"]
    assert [(j.row, why) for j, why in result.failed.items()] == [("a", "killed by SIGKILL, 3 times")]
    assert [j.row for j in result.done] == ["b"]


def test_runs_with_other_settings_are_left_alone_unless_told(journal, tmp_path):
    out = tmp_path / "out"
    Sweep(out).run(jobs(journal, "a", 1))
    changed = jobs(journal, "a", 1, "--rate=2")
    assert changed[0].state(out) is State.CHANGED
    result = Sweep(out).run(changed)
    assert result.changed == changed and "--redo-changed" in "\n".join(result.remarks(out)) and len(lines(journal)) == 1
    assert Sweep(out, redo_changed=True).run(changed).done == changed
    assert lines(journal)[1:] == ["a 0 started"] and changed[0].state(out) is State.DONE


def test_what_changes_no_number_changes_no_settings(journal, tmp_path):
    out = tmp_path / "out"
    Sweep(out, device="cpu").run(jobs(journal, "a", 1))
    assert jobs(journal, "a", 1, "--no-plots")[0].state(out) is State.DONE


def test_no_run_starts_that_would_end_too_late(journal, tmp_path):
    result = Sweep(tmp_path / "out", max_minutes=0.01).run(jobs(journal))
    assert not result.done and len(result.left) == 4 and not lines(journal)


def test_several_workers_run_at_once(journal, tmp_path):
    sweep, found = Sweep(tmp_path / "out", workers=3), []

    def stop_when_three_run() -> None:
        _until(lambda: len(lines(journal)) == 3)
        found.append(1)
        sweep._stop_runs()

    timer = threading.Thread(target=stop_when_three_run)
    timer.start()
    result = sweep.run(jobs(journal, "abcd", 1, "--wait"))
    timer.join()
    # Nothing ends before it is interrupted, so three lines mean three at once; the fourth never starts.
    assert found and len(lines(journal)) == 3 and result.interrupted
    assert not result.failed and len(result.left) == 4


@pytest.mark.slow
def test_ctrl_c_leaves_everything_resumable(journal, tmp_path):
    """A whole process, since signals go to one."""
    out = tmp_path / "out"
    driver = _driver(journal, tmp_path)
    process = subprocess.Popen([sys.executable, str(driver)], stderr=subprocess.DEVNULL)
    _until(lambda: len(lines(journal)) == 1, 120)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 42
    assert (out / "runs/a/seed-0/config.json").exists() and not (out / "runs/b").exists()
    both = jobs(journal, "ab", 1, "--wait")
    assert both[0].state(out) is State.STARTED
    sweep = Sweep(out)

    def stop_when_three_run() -> None:
        _until(lambda: len(lines(journal)) == 3)
        sweep._stop_runs()

    timer = threading.Thread(target=stop_when_three_run)
    timer.start()
    assert [j.row for j in sweep.run(both).done] == ["a"]  # goes on; b waits until it is stopped
    timer.join()
    assert lines(journal)[1:] == ["a 0 resumed", "b 0 started"]


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_run_behind(journal, tmp_path):
    driver = _driver(journal, tmp_path)
    process = subprocess.Popen([sys.executable, str(driver)], stderr=subprocess.DEVNULL)
    _until(lambda: len(lines(journal)) == 1, 120)
    run = _process_of(tmp_path / "out/runs/a/seed-0")
    process.kill()
    process.wait(timeout=30)
    _until(lambda: not _lives(run))
    assert jobs(journal, "a", 1, "--wait")[0].state(tmp_path / "out") is State.STARTED


def test_an_unknown_experiment_is_refused_before_anything_starts(journal, tmp_path):
    with pytest.raises(InvalidOptionError, match="did you mean 'fake'"):
        Sweep(tmp_path / "out").run([*jobs(journal), Job(row="c", seed=0, experiment="fakes", arguments=())])
    assert not lines(journal)


def test_the_list_has_commands_and_what_is_done(journal, tmp_path):
    out = tmp_path / "out"
    Sweep(out).run(jobs(journal, "a", 1))
    table = job_table(jobs(journal), out, workers=2)
    assert [row[:3] for row in table.rows] == [["a", 2, 1], ["b", 2, 0]]
    assert [row[3] for row in table.rows] == pytest.approx([1 / 60, 2 / 60])
    assert "fake.py" in str(table.rows[0][4]) and f"--journal={journal}" in str(table.rows[0][4])


@pytest.mark.parametrize("given", [{"workers": 0}, {"max_minutes": 0.0}])
def test_impossible_settings_are_refused(given):
    with pytest.raises(InvalidOptionError):
        SweepSettings(**given)


def test_rows_are_chosen_by_patterns():
    settings = SweepSettings(rows=("*T12", "text-*"))
    assert [settings.takes(name) for name in ("brackets-T12", "text-T8", "brackets-T8")] == [True, True, False]
    assert SweepSettings().takes("any")


def _until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def _driver(journal: Path, tmp_path: Path) -> Path:
    """A script that runs a sweep of two jobs that wait; 42 where it was interrupted and both are left."""
    out = tmp_path / "out"
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from pathlib import Path\n"
        "from ising_attn.lab import jobs, sweep\n"
        "if __name__ == '__main__':\n"
        f"    jobs.experiments = lambda: {{'fake': Path({str(tmp_path / 'fake.py')!r})}}\n"
        f"    flags = ('--journal={journal}', '--wait')\n"
        "    jobs = [sweep.Job(row=row, seed=0, experiment='fake', arguments=flags) for row in 'ab']\n"
        f"    result = sweep.Sweep(Path({str(out)!r})).run(jobs)\n"
        "    sys.exit(42 if result.interrupted and len(result.left) == 2 else 1)\n"
    )
    return driver


def _process_of(folder: Path) -> int:
    return int((folder / "pid").read_text())


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
