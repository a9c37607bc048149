"""Jobs of a sweep: one run each, the command that makes it, and what its folder says of it.

A job is a row of a table (a name and a command line) with one seed. Its run folder is OUT/runs/ROW/seed-K, and what it
prints is in OUT/runs/ROW/seed-K.log.
"""

import collections
import dataclasses
import enum
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from ising_attn.cli import experiments
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.runs import read_json
from ising_attn.lab.tables import Table
from samplers import InvalidOptionError
from samplers.errors import did_you_mean

_OF_ONE_CALL = ("--out", "--resume", "--device", "--debug", "--plots", "--no-plots")


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
