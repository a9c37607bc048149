"""Many runs of experiments in one folder: parallel, resumable at any time, and each one what a command would do.

A job is a row of a table (a name and a command line) with one seed. It runs in a process of its own, with one thread,
in OUT/runs/ROW/seed-K; what it prints is in OUT/runs/ROW/seed-K.log. What is on disk is the only state: a sweep that is
started again skips what is finished, resumes what was interrupted and tries again what had failed. A run whose process
is killed from outside is resumed at once, at most twice. Runs are made by an engine: this machine, or a Ray cluster.
"""

import collections
import contextlib
import dataclasses
import fnmatch
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ising_attn.lab.engines import Run, engine
from ising_attn.lab.jobs import Job, State, interleaved, job_table, run_folder
from ising_attn.lab.main import EXIT_FAILED, EXIT_INTERRUPTED
from ising_attn.lab.progress import work_progress
from samplers import InvalidOptionError
from samplers.cluster import check_address

__all__ = [
    "Job", "State", "Sweep", "SweepResult", "SweepSettings", "interleaved", "job_table", "run_folder", "run_sweep",
]  # fmt: skip

_POLL_SECONDS = 0.2
# The last is what torch's optimisers import when the first one is made.
PRELOAD = ("models", "ising_attn.lab.seeds", "torch._dynamo")
MOST_TRIES = 3
"""How often a run is started whose process or worker is killed; an error of the run itself is not tried again."""
_MEANT = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What every command that runs a sweep takes."""

    config: Path | None = None
    """TOML or JSON file of settings; flags override it."""
    out: Path | None = None
    """Folder of runs, tables and plots."""
    parts: tuple[str, ...] = ()
    """Only these parts, in this order (--parts=A,B); by default all."""
    rows: tuple[str, ...] = ()
    """Only rows whose name fits one of these patterns (--rows='*T12,*T16')."""
    seeds: tuple[int, ...] = ()
    """Seeds of every row (--seeds=0,1,2); by default as many as each row says."""
    workers: int = 1
    """Runs at a time, each a process with one thread."""
    cluster: str | None = None
    """Make the runs on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local for a Ray that is started here; by
    default processes of this machine."""
    max_minutes: float | None = None
    """Start no run that is expected to end after so many minutes; the same command goes on later."""
    device: str = "cpu"
    """cpu, cuda or cuda:N, for every run."""
    redo_changed: bool = False
    """Delete and make anew the runs whose settings have changed; by default they are left alone and named."""
    list: bool = False
    """Say what would run, with commands and estimated times, and end."""
    report_only: bool = False
    """Run nothing; write tables and plots from the runs that there are."""
    debug: bool = False
    """Show the traceback of an error."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InvalidOptionError(f"--workers is {self.workers}; it must be at least 1")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise InvalidOptionError(f"--max-minutes is {self.max_minutes}; it must be above 0")
        if self.cluster is not None:
            check_address(self.cluster)

    def takes(self, row: str) -> bool:
        """Whether a row of that name is asked for."""
        return not self.rows or any(fnmatch.fnmatchcase(row, pattern) for pattern in self.rows)


@dataclasses.dataclass
class SweepResult:
    """What a sweep came to.

    Args:
        done: finished now; `skipped` were finished before.
        failed: with the last line of what they printed, or what ended them.
        changed: left alone, because their folders hold runs with other settings.
        left: not run, for lack of time or after an interruption.
    """

    done: list[Job] = dataclasses.field(default_factory=list)
    skipped: list[Job] = dataclasses.field(default_factory=list)
    failed: dict[Job, str] = dataclasses.field(default_factory=dict)
    changed: list[Job] = dataclasses.field(default_factory=list)
    left: list[Job] = dataclasses.field(default_factory=list)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """Of a command that ran it."""
        return EXIT_INTERRUPTED if self.interrupted else EXIT_FAILED if self.failed else 0

    def remarks(self, out: Path) -> list[str]:
        """Lines that say it."""
        counts = (("done", self.done), ("finished before", self.skipped), ("failed", self.failed))
        lines = [", ".join(f"{len(jobs)} {what}" for what, jobs in (*counts, ("not run", self.left)))]
        for job, why in self.failed.items():
            lines.append(f"failed: {job}: {why} ({job.folder(out)}.log)")
        for job in self.changed:
            lines.append(f"left alone: {job.folder(out)} was made with other settings; --redo-changed makes it anew")
        if self.left or self.failed:
            lines.append("the same command goes on with what is left")
        return lines


@dataclasses.dataclass
class _Started:
    run: Run
    since: float


class Sweep:
    """Runs jobs in their order.

    Args:
        out: the folder of the sweep.
        workers: runs at a time, at least 1.
        max_minutes: start no job after that time, and none that is expected to end after it; None has no limit.
        redo_changed: delete and make anew the runs whose settings are other ones than the job's.
        device: for every run.
        cluster: a Ray cluster that makes the runs, see `SweepSettings`; None for processes of this machine.
        preload: modules that most runs import, imported once for all.
    """

    def __init__(
        self,
        out: Path,
        *,
        workers: int = 1,
        max_minutes: float | None = None,
        redo_changed: bool = False,
        device: str = "cpu",
        cluster: str | None = None,
        preload: Sequence[str] = PRELOAD,
    ):
        self.out, self.workers, self.device = out if cluster is None else out.absolute(), workers, device
        self.max_seconds = None if max_minutes is None else 60 * max_minutes
        self.redo_changed = redo_changed
        self._engine = engine(cluster, out, workers=workers, device=device, preload=preload)
        # How often the runs were asked to stop, and how often they have been told.
        self._asked, self._told = 0, 0
        self._running: dict[Job, _Started] = {}
        self._tries: collections.Counter[Job] = collections.Counter()
        # Measured over expected seconds: how much slower this machine is than the one of the estimates.
        self._measured, self._expected = 0.0, 0.0

    @classmethod
    def of(cls, settings: SweepSettings, out: Path) -> "Sweep":
        """The sweep that a command line asks for."""
        return cls(
            out,
            workers=settings.workers,
            max_minutes=settings.max_minutes,
            redo_changed=settings.redo_changed,
            device=settings.device,
            cluster=settings.cluster,
        )

    def run(self, jobs: Sequence[Job]) -> SweepResult:
        """Run what is not finished. Ctrl-C or SIGTERM stops the runs where they can go on; a second one kills them.

        Raises:
            ClusterError: the cluster cannot be reached, or its machines cannot make these runs; nothing was started.
        """
        result, waiting = SweepResult(), collections.deque[Job]()
        for job in jobs:
            job.command()  # refuses what cannot be started
            state = job.state(self.out)
            if state is State.DONE:
                result.skipped.append(job)
            elif state is State.CHANGED and not self.redo_changed:
                result.changed.append(job)
            else:
                waiting.append(job)
        if waiting:
            with self._engine, _signals(self._stop_runs), work_progress("runs", len(waiting)) as advance:
                self._run_all(waiting, result, advance)
        result.left += waiting
        result.interrupted = self._asked > 0
        return result

    def _run_all(self, waiting: collections.deque[Job], result: SweepResult, advance: Callable[[str], None]) -> None:
        began = time.monotonic()
        with self._none_left_behind():
            while True:
                self._pass_on_stops()
                self._start(waiting, began)
                if not self._running:
                    return
                for job, run, seconds in self._ended():
                    if self._is_tried_again(job, run):
                        waiting.appendleft(job)
                        continue
                    self._note(job, run, seconds, result)
                    advance(f"{job}: {self._how(job, result, seconds)}, {self._time_left(waiting)}")
                time.sleep(_POLL_SECONDS)

    def _start(self, waiting: collections.deque[Job], began: float) -> None:
        while waiting and len(self._running) < self.workers and not self._asked:
            elapsed = time.monotonic() - began
            if self.max_seconds is not None and elapsed + self._pace() * waiting[0].seconds > self.max_seconds:
                return
            job = waiting.popleft()
            self._running[job] = _Started(self._run_of(job), time.monotonic())
            self._tries[job] += 1

    def _run_of(self, job: Job) -> Run:
        folder, state = job.folder(self.out), job.state(self.out)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if state is State.CHANGED:
            shutil.rmtree(folder)
        command = job.command(folder, resume=state is State.STARTED, device=self.device)
        return self._engine.start(command, Path(f"{folder}.log"))

    def _ended(self) -> list[tuple[Job, Run, float]]:
        ended = [(job, one) for job, one in self._running.items() if one.run.status is not None]
        for job, _ in ended:
            del self._running[job]
        return [(job, one.run, time.monotonic() - one.since) for job, one in ended]

    def _is_tried_again(self, job: Job, run: Run) -> bool:
        return _was_killed(run) and self._tries[job] < MOST_TRIES and not self._asked

    def _note(self, job: Job, run: Run, seconds: float, result: SweepResult) -> None:
        if run.status == 0 and job.state(self.out) is State.DONE:
            result.done.append(job)
            self._measured, self._expected = self._measured + seconds, self._expected + job.seconds
        elif self._asked:
            result.left.append(job)
        elif _was_killed(run):
            why = run.why or f"killed by {signal.Signals(-(run.status or 0)).name}"
            result.failed[job] = f"{why}, {self._tries[job]} times"
        else:
            result.failed[job] = run.why or _last_line(Path(f"{job.folder(self.out)}.log")) or f"exit {run.status}"

    def _how(self, job: Job, result: SweepResult, seconds: float) -> str:
        if job in result.failed:
            return f"failed ({result.failed[job]})"
        return f"{seconds:.0f} s" if job not in result.left else "stopped"

    def _pace(self) -> float:
        return self._measured / self._expected if self._expected else 1.0

    def _time_left(self, waiting: Iterable[Job]) -> str:
        seconds = sum(job.seconds for job in waiting)
        now = time.monotonic()
        running = sum(max(job.seconds * self._pace() - (now - one.since), 0) for job, one in self._running.items())
        return f"about {(seconds * self._pace() + running) / self.workers / 60:.0f} min left"

    @contextlib.contextmanager
    def _none_left_behind(self) -> Iterator[None]:
        """An error here (a full disk) ends the runs as well."""
        try:
            yield
        except BaseException:
            self._stop_runs()
            self._pass_on_stops()
            raise

    def _stop_runs(self) -> None:
        """Ask the runs to save and end, or, the second time, make them. A signal's handler: it only takes note."""
        self._asked += 1

    def _pass_on_stops(self) -> None:
        while self._told < self._asked:
            sent = signal.SIGINT if self._told == 0 else signal.SIGKILL
            self._told += 1
            for one in list(self._running.values()):
                one.run.send(sent)


def _was_killed(run: Run) -> bool:
    """From outside: by the system for want of memory, with its machine, or by a fault; not by Ctrl-C."""
    return run.status is not None and run.status < 0 and -run.status not in _MEANT


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM call `stop`. Outside the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before: list[Any] = [signal.signal(kind, lambda *_: stop()) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def _last_line(file: Path) -> str:
    """The last line of a log that has words."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if any(map(str.isalpha, line))]
    return lines[-1][:300] if lines else ""


def run_sweep(settings: SweepSettings, jobs: Sequence[Job], out: Path, say: Callable[[str], None]) -> int:
    """Run the jobs as the command line asks, say what became of them, and return the exit code."""
    result = Sweep.of(settings, out).run(jobs)
    for line in result.remarks(out):
        say(line)
    return result.exit_code
