"""Sweeps on Ray: the same numbers as on this machine, lost workers, refused clusters, nothing left behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ising_attn.lab import code_version as code_module
from ising_attn.lab import jobs as jobs_module
from ising_attn.lab import ray_engine as module
from ising_attn.lab.engines import LocalEngine, engine
from ising_attn.lab.ray_engine import RayEngine
from ising_attn.lab.script_process import with_root
from ising_attn.lab.sweep import Job, State, Sweep, SweepSettings
from samplers.cluster import ClusterError, connected
from samplers.errors import InvalidOptionError, MissingDependencyError

ROOT = Path(__file__).resolve().parent.parent
# Adds numbers one by one and keeps the sum on disk, as training does; once, at the third, it kills what is told.
SCRIPT = """
import json, os, shlex, signal, sys, time
from pathlib import Path
flags = dict(a.lstrip("-").partition("=")[::2] for a in sys.argv[1:])
out = Path(flags["out"])
out.mkdir(parents=True, exist_ok=True)
(out / "config.json").write_text("{}")
(out / "environment.json").write_text(json.dumps({"command": shlex.join(["python", *sys.argv])}))
with Path(flags["journal"]).open("a") as journal:
    journal.write(f"{out.parent.name} {flags['seed']} {'resumed' if 'resume' in flags else 'started'}\\n")
kept = out / "kept.json"
done = json.loads(kept.read_text()) if kept.exists() else []
while len(done) < 6:
    if len(done) == 3 and "resume" not in flags and "kill" in flags:
        server = os.getppid()
        worker = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        time.sleep(300)
    if "wait" in flags and "resume" not in flags:
        time.sleep(300)
    done.append(len(done) * 0.1 + int(flags["seed"]))
    kept.write_text(json.dumps(done))
(out / "summary.json").write_text(json.dumps({"value": sum(done)}))
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray", reason="Ray is not installed")
    with connected("local", workers=2, environment={"PYTHONPATH": with_root()}) as connection:
        yield connection


@pytest.fixture
def journal(tmp_path, monkeypatch) -> Path:
    script = tmp_path / "fake.py"
    script.write_text(textwrap.dedent(SCRIPT))
    monkeypatch.setattr(jobs_module, "experiments", lambda: {"fake": script})
    return tmp_path / "journal"


def jobs(journal: Path, rows: str, seeds: int, *extra: str) -> list[Job]:
    return [
        Job(row=row, seed=seed, experiment="fake", arguments=(f"--journal={journal}", *extra))
        for row in rows
        for seed in range(seeds)
    ]


def values(out: Path, made: list[Job]) -> list[float]:
    return [json.loads((job.folder(out) / "summary.json").read_text())["value"] for job in made]


# ---- without a cluster ----------------------------------------------------------------------------------------


def test_processes_of_this_machine_are_the_default(tmp_path):
    assert isinstance(engine(None, tmp_path, workers=1, device="cpu", preload=()), LocalEngine)
    assert isinstance(engine("auto", tmp_path, workers=1, device="cpu", preload=()), RayEngine)


@pytest.mark.parametrize("address", ["auto", "local", "head:6379", "10.0.0.1:6379", "ray://head:10001"])
def test_addresses_of_clusters(address):
    assert SweepSettings(cluster=address).cluster == address


@pytest.mark.parametrize("address", ["", "remote", "head", "http://head:1", "head:port", "ray://head"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InvalidOptionError, match="HOST:PORT"):
        SweepSettings(cluster=address)


def test_without_ray_the_extra_is_named_and_nothing_starts(journal, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"ising-attn\[cluster\]"):
        Sweep(tmp_path / "out", cluster="local", preload=()).run(jobs(journal, "a", 1))
    assert not journal.exists()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_port_where_nobody_listens_is_refused_at_once(journal, tmp_path, monkeypatch, scheme):
    ray_module = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray_module)
    with socket.socket() as reserved:  # bound, but not listening
        reserved.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(ClusterError, match="no Ray cluster answers at"):
            Sweep(tmp_path / "out", cluster=address).run(jobs(journal, "a", 1))
    assert not journal.exists()


def test_the_version_of_the_code_follows_every_source_file(tmp_path, monkeypatch):
    first = code_module.code_version()
    assert set(first) == {"ising-attn", "code", "torch", "Python"} and len(first["code"]) == 12
    file = tmp_path / "sampler.py"
    file.write_text("a = 1\n")
    monkeypatch.setattr(code_module, "_sources", lambda: iter([("samplers/sampler.py", file)]))
    hashes = {code_module._hash()}
    file.write_text("a = 2\n")
    hashes.add(code_module._hash())
    monkeypatch.setattr(code_module, "_sources", lambda: iter([("samplers/other.py", file)]))
    assert len(hashes | {code_module._hash()}) == 3


def test_a_checkout_and_an_installed_package_have_the_same_sources(tmp_path, monkeypatch):
    names = [name for name, _ in code_module._sources()]
    assert "experiments/brackets.py" in names and "samplers/base.py" in names
    assert any(name.endswith(".json") for name in names) and len(names) == len(set(names))
    assert not any(name.startswith("ising_attn/experiments") for name in names)


# ---- on a Ray of two workers ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_on_ray_equal_runs_in_series(ray, tmp_path):
    """A real experiment, down to the last digit of every metric."""
    arguments = ("--quick", "--sampler=gibbs", "--no-plots", "--steps=6", "--eval-every=3")
    made = [Job(row="a", seed=seed, experiment="brackets", arguments=arguments) for seed in (0, 1)]
    serial, spread = tmp_path / "serial", tmp_path / "ray"
    assert len(Sweep(serial).run(made).done) == 2
    result = Sweep(spread, cluster="local", workers=2).run(made)
    assert len(result.done) == 2, result.failed
    for job in made:
        assert _metrics(job.folder(serial)) == _metrics(job.folder(spread))
    assert len(Sweep(serial, cluster="local").run(made).skipped) == 2


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_with_the_same_numbers(ray, journal, tmp_path):
    made = jobs(journal, "ab", 2)
    assert len(Sweep(tmp_path / "serial", workers=2, preload=()).run(made).done) == 4
    journal.unlink()
    killing = jobs(journal, "ab", 2, "--kill")
    result = Sweep(tmp_path / "ray", cluster="local", workers=2, preload=()).run(killing)
    assert len(result.done) == 4 and not result.failed
    assert values(tmp_path / "ray", killing) == values(tmp_path / "serial", made)
    lines = journal.read_text().splitlines()
    assert sorted(lines) == sorted(f"{r} {s} {how}" for r in "ab" for s in (0, 1) for how in ("started", "resumed"))


@pytest.mark.slow
def test_a_worker_that_is_lost_again_and_again_is_reported(ray, journal, tmp_path, monkeypatch):
    script = tmp_path / "fake.py"
    script.write_text(script.read_text().replace('"resume" not in flags and "kill"', '"kill"'))
    (job,) = jobs(journal, "a", 1, "--kill")
    result = Sweep(tmp_path / "out", cluster="local", preload=()).run([job])
    assert "worker was lost" in result.failed[job] and result.failed[job].endswith("3 times")
    assert job.state(tmp_path / "out") is State.STARTED and len(journal.read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("address", ["local", None])
def test_an_interrupted_sweep_goes_on_with_either_engine(ray, journal, tmp_path, address):
    out, made = tmp_path / "out", jobs(journal, "a", 2, "--wait")
    sweep = Sweep(out, cluster="local", workers=2, preload=())

    def stop_when_both_run() -> None:
        _until(lambda: journal.exists() and len(journal.read_text().splitlines()) == 2)
        sweep._stop_runs()

    timer = threading.Thread(target=stop_when_both_run)
    timer.start()
    result = sweep.run(made)
    timer.join()
    assert result.interrupted and len(result.left) == 2 and not result.failed
    assert len(Sweep(out, cluster=address, preload=()).run(made).done) == 2
    assert [line.split()[-1] for line in journal.read_text().splitlines()] == ["started"] * 2 + ["resumed"] * 2


@pytest.mark.slow
def test_a_failing_run_is_reported_at_once(ray, journal, tmp_path):
    (tmp_path / "fake.py").write_text("import sys; sys.exit('error: the disk is on fire')")
    result = Sweep(tmp_path / "out", cluster="local", preload=()).run(jobs(journal, "a", 1))
    assert list(result.failed.values()) == ["error: the disk is on fire"]


@pytest.mark.slow
def test_other_code_and_an_unshared_folder_are_refused_before_anything_starts(ray, journal, tmp_path, monkeypatch):
    here = code_module.code_version()
    with monkeypatch.context() as patch:
        patch.setattr(module, "code_version", lambda: {**here, "code": "other"})
        with pytest.raises(ClusterError, match=f"code is {here['code']} there and other here; install the same"):
            Sweep(tmp_path / "out", cluster="local", preload=()).run(jobs(journal, "a", 1))

    @contextlib.contextmanager
    def unseen(out: Path) -> Iterator[Path]:
        yield out / "elsewhere"

    with monkeypatch.context() as patch:
        patch.setattr(module, "_token", unseen)
        with pytest.raises(ClusterError, match=r"does not see the folder .*out; --out must be a folder that all"):
            Sweep(tmp_path / "out", cluster="local", preload=()).run(jobs(journal, "a", 1))
    assert not journal.exists()


@pytest.mark.slow
def test_a_worker_of_other_code_that_joins_later_is_refused(ray, journal, tmp_path, monkeypatch):
    monkeypatch.setattr(RayEngine, "_check_nodes", lambda self: None)
    monkeypatch.setattr(module, "code_version", lambda: {"ising-attn": "0.0"})
    result = Sweep(tmp_path / "out", cluster="local", preload=()).run(jobs(journal, "a", 1))
    (why,) = result.failed.values()
    assert "runs other code" in why and "0.0 here" in why and "times" not in why


# ---- whole processes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_and_its_ray_and_says_nothing_of_it(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "rows.toml").write_text(
        'title = "T"\nexperiment = "brackets"\nseeds = [0, 1]\nflags = ["--steps=100000", "--eval-every=50"]\n'
        '[[measures]]\nkey = "test_accuracy"\nname = "accuracy"\n[rows.a]\nflags = []\n'
    )
    out, mark = tmp_path / "out", f"mark-{os.getpid()}"
    command = [sys.executable, str(ROOT / "experiments/sweep.py"), f"--file={tmp_path / 'rows.toml'}", f"--out={out}"]
    process = subprocess.Popen(
        [*command, "--cluster=local", "--workers=2"],
        env={**os.environ, "ISING_ATTN_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _until(lambda: process.poll() is not None or len(list(out.glob("runs/a/*/checkpoints/*"))) >= 2, 200)
        assert process.poll() is None, process.communicate()[1]
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 130 and "2 not run" in said
    for text in (said, errors):
        assert not any(word in text.lower() for word in ("raylet", "warning", "traceback", "ray::", "deprecat"))
    _until(lambda: not _marked(mark), 30)
    made = [
        Job(row="a", seed=s, experiment="brackets", arguments=("--steps=100000", "--eval-every=50")) for s in (0, 1)
    ]
    assert [job.state(out) for job in made] == [State.STARTED] * 2
    assert all((job.folder(out) / "checkpoints").iterdir() for job in made)


@pytest.mark.slow
def test_where_no_cluster_answers_one_sentence_says_so(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    code = (
        "from samplers.cluster import ClusterError, connected\n"
        "try:\n"
        "    with connected('auto'): pass\n"
        "except ClusterError as error:\n"
        "    print(error)\n"
    )
    given = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**given, "PYTHONPATH": with_root()},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "no Ray cluster can be used at 'auto'" in done.stdout and "ray start --head" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1 and not done.stderr


def _metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def _marked(mark: str) -> list[int]:
    """Processes that have inherited the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
