"""Many runs of experiments in one folder: parallel, resumable at any time, and each one what a command would do.

A job is a row of a table (a name and a command line) with one seed. It runs in a process of its own, with one thread,
in OUT/runs/ROW/seed-K; what it prints is in OUT/runs/ROW/seed-K.log. What is on disk is the only state: a sweep that is
started again skips what is finished, resumes what was interrupted and tries again what had failed.
"""

import collections
import contextlib
import dataclasses
import enum
import fnmatch
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ising_attn.cli import experiments
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.main import EXIT_FAILED, EXIT_INTERRUPTED
from ising_attn.lab.progress import work_progress
from ising_attn.lab.runs import read_json
from ising_attn.lab.script_process import ScriptProcess
from ising_attn.lab.tables import Table
from samplers import InvalidOptionError
from samplers.errors import did_you_mean

_OF_ONE_CALL = ("--out", "--resume", "--device", "--debug", "--plots", "--no-plots")
_POLL_SECONDS = 0.2
# The last is what torch's optimisers import when the first one is made.
PRELOAD = ("models", "ising_attn.lab.seeds", "torch._dynamo")


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

    def takes(self, row: str) -> bool:
        """Whether a row of that name is asked for."""
        return not self.rows or any(fnmatch.fnmatchcase(row, pattern) for pattern in self.rows)


class State(enum.Enum):
    """What a job's folder says."""

    NEW = "not started"
    STARTED = "interrupted"
    DONE = "done"
    CHANGED = "run with other settings"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run of an experiment.

    Args:
        row: name of the table's row, also of its folder.
        seed: passed as --seed.
        experiment: name of the script, as `ising-attn NAME` has it.
        arguments: its other flags, each as --name=value or --name.
        seconds: about how long it takes.
    """

    row: str
    seed: int
    experiment: str
    arguments: tuple[str, ...]
    seconds: float = 60.0

    def __str__(self) -> str:
        return f"{self.row} seed {self.seed}"

    def folder(self, out: Path) -> Path:
        return run_folder(out, self.row, self.seed)

    def command(self, out: Path | str | None = None, *, resume: bool = False, device: str | None = None) -> list[str]:
        """The arguments after `python`: the script and its flags."""
        known = experiments()
        if self.experiment not in known:
            raise InvalidOptionError(
                f"no experiment is named {self.experiment!r}{did_you_mean(self.experiment, known)}; "
                f"known: {', '.join(known)}"
            )
        flags = [*self.arguments, f"--seed={self.seed}"]
        flags += [f"--device={device}"] if device else []
        flags += [f"--out={out}"] if out is not None else []
        return [str(known[self.experiment]), *flags, *(["--resume"] if resume else [])]

    def spoken(self) -> str:
        """The command for a reader, without seed and folder."""
        script, *flags = self.command()
        path = Path(script)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return shlex.join(["python", str(shown), *flags[: len(self.arguments)]])

    def state(self, out: Path) -> State:
        """Judged by the run folder alone."""
        folder = self.folder(out)
        if not (folder / "config.json").exists():
            return State.NEW
        if sorted(_given(folder)) != sorted(_deciding((*self.arguments, f"--seed={self.seed}"))):
            return State.CHANGED
        return State.DONE if (folder / "summary.json").exists() else State.STARTED


def run_folder(out: Path, row: str, seed: int) -> Path:
    """Where a sweep keeps one run."""
    return out / "runs" / row / f"seed-{seed}"


def _given(folder: Path) -> list[str]:
    """The flags with which the run in a folder was made, but for those that change no number."""
    try:
        command = read_json(folder / "environment.json")["command"]
    except (RunFolderError, KeyError, TypeError):
        return []
    return _deciding(shlex.split(command)[2:])


def _deciding(flags: Iterable[str]) -> list[str]:
    return [flag for flag in flags if flag.partition("=")[0] not in _OF_ONE_CALL]


def interleaved(jobs: Iterable[Job]) -> list[Job]:
    """The first job of every row, then the second of every row, and so on; rows keep their order."""
    turns: dict[int, list[Job]] = collections.defaultdict(list)
    seen: collections.Counter[str] = collections.Counter()
    for job in jobs:
        turns[seen[job.row]].append(job)
        seen[job.row] += 1
    return [job for turn in sorted(turns) for job in turns[turn]]


@dataclasses.dataclass
class SweepResult:
    """What a sweep came to.

    Args:
        done: finished now; `skipped` were finished before.
        failed: with the last line of what they printed.
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


class Sweep:
    """Runs jobs in their order.

    Args:
        out: the folder of the sweep.
        workers: processes at a time, at least 1.
        max_minutes: start no job after that time, and none that is expected to end after it; None has no limit.
        redo_changed: delete and make anew the runs whose settings are other ones than the job's.
        device: for every run.
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
        preload: Sequence[str] = PRELOAD,
    ):
        self.out, self.workers, self.device, self.preload = out, workers, device, preload
        self.max_seconds = None if max_minutes is None else 60 * max_minutes
        self.redo_changed = redo_changed
        self._stop = threading.Event()
        self._running: dict[Job, tuple[ScriptProcess, float]] = {}
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
        )

    def run(self, jobs: Sequence[Job]) -> SweepResult:
        """Run what is not finished. Ctrl-C or SIGTERM stops the runs where they can go on; a second one kills them."""
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
        started = time.monotonic()
        with _signals(self._stop_runs), work_progress("runs", len(waiting)) as advance, self._none_left_behind():
            while True:
                self._start(waiting, started)
                if not self._running:
                    break
                for job, status, seconds in self._ended():
                    self._note(job, status, seconds, result)
                    advance(f"{job}: {self._how(job, result, seconds)}, {self._time_left(waiting)}")
                time.sleep(_POLL_SECONDS)
        result.left += waiting
        result.interrupted = self._stop.is_set()
        return result

    def _start(self, waiting: collections.deque[Job], started: float) -> None:
        while waiting and len(self._running) < self.workers and not self._stop.is_set():
            elapsed = time.monotonic() - started
            if self.max_seconds is not None and elapsed + self._pace() * waiting[0].seconds > self.max_seconds:
                return
            job = waiting.popleft()
            self._running[job] = (self._process(job), time.monotonic())

    def _process(self, job: Job) -> ScriptProcess:
        folder, state = job.folder(self.out), job.state(self.out)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if state is State.CHANGED:
            shutil.rmtree(folder)
        command = job.command(folder, resume=state is State.STARTED, device=self.device)
        return ScriptProcess(command, Path(f"{folder}.log"), preload=self.preload)

    def _ended(self) -> list[tuple[Job, int, float]]:
        ended = []
        for job, (process, since) in list(self._running.items()):
            status = process.status
            if status is not None:
                del self._running[job]
                ended.append((job, status, time.monotonic() - since))
        return ended

    def _note(self, job: Job, status: int, seconds: float, result: SweepResult) -> None:
        if status == 0 and job.state(self.out) is State.DONE:
            result.done.append(job)
            self._measured, self._expected = self._measured + seconds, self._expected + job.seconds
        elif self._stop.is_set():
            result.left.append(job)
        else:
            result.failed[job] = _last_line(Path(f"{job.folder(self.out)}.log")) or f"exit status {status}"

    def _how(self, job: Job, result: SweepResult, seconds: float) -> str:
        if job in result.failed:
            return f"failed ({result.failed[job]})"
        return f"{seconds:.0f} s" if job not in result.left else "stopped"

    def _pace(self) -> float:
        return self._measured / self._expected if self._expected else 1.0

    def _time_left(self, waiting: Iterable[Job]) -> str:
        seconds = sum(job.seconds for job in waiting)
        now = time.monotonic()
        running = sum(max(job.seconds * self._pace() - (now - since), 0) for job, (_, since) in self._running.items())
        return f"about {(seconds * self._pace() + running) / self.workers / 60:.0f} min left"

    @contextlib.contextmanager
    def _none_left_behind(self) -> Iterator[None]:
        """An error here (a full disk) ends the runs as well."""
        try:
            yield
        except BaseException:
            self._stop_runs()
            raise

    def _stop_runs(self) -> None:
        """The first time ask the runs to save and end; then make them."""
        sent = signal.SIGKILL if self._stop.is_set() else signal.SIGINT
        self._stop.set()
        for process, _ in list(self._running.values()):
            process.send(sent)


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
    """The last line of a log that has words, without the frame that tyro draws around its messages."""
    lines = [line.strip("│ ") for line in file.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if any(map(str.isalpha, line))]
    return lines[-1][:300] if lines else ""


def run_sweep(settings: SweepSettings, jobs: Sequence[Job], out: Path, say: Callable[[str], None]) -> int:
    """Run the jobs as the command line asks, say what became of them, and return the exit code."""
    result = Sweep.of(settings, out).run(jobs)
    for line in result.remarks(out):
        say(line)
    return result.exit_code


def job_table(jobs: Sequence[Job], out: Path, workers: int = 1) -> Table:
    """Every row's command, how many of its seeds there are, what is done, and about how long the rest takes."""
    table = Table("Runs", ["row", "seeds", "done", "minutes", "command"], {"minutes": ".1f"})
    rows: dict[str, list[Job]] = collections.defaultdict(list)
    for job in jobs:
        rows[job.row].append(job)
    total = 0.0
    for row, own in rows.items():
        left = sum(job.seconds for job in own if job.state(out) is not State.DONE)
        total += left
        done = sum(job.state(out) is State.DONE for job in own)
        table.add(row, len(own), done, left / 60, own[0].spoken())
    table.caption = (
        f"{len(jobs)} runs; what is left takes about {total / workers / 3600:.1f} h on {workers} core"
        f"{'' if workers == 1 else 's'}."
    )
    return table
