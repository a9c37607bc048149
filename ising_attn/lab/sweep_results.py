"""What the finished runs of a sweep came to, read back from their folders at any time."""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ising_attn.lab.runs import read_json
from ising_attn.lab.sweep import Job, State
from ising_attn.lab.tables import Table


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """One finished run.

    Args:
        row, seed: of its job.
        folder: the run folder.
        summary: content of summary.json.
        environment: content of environment.json.
    """

    row: str
    seed: int
    folder: Path
    summary: dict[str, Any]
    environment: dict[str, Any]

    def value(self, key: str) -> float | None:
        """A number of the summary; None where it is absent."""
        found = self.summary.get(key)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

    @property
    def commit(self) -> str:
        """The commit of the code that ran, short, "-dirty" where files differed; "" where it is not known."""
        whole, dash, dirty = (self.environment.get("commit") or "").partition("-")
        return whole[:10] + dash + dirty

    @property
    def command(self) -> str:
        """What would run it again from a checkout, without the folder."""
        words = shlex.split(self.environment.get("command") or "")
        words[1:2] = [f"experiments/{Path(script).name}" for script in words[1:2]]
        return shlex.join(w for w in words if w != "--resume" and not w.startswith(("--out=", "--device=")))


Runs = dict[int, FinishedRun]
"""The finished runs of one row by seed."""


def finished_runs(out: Path, arguments: Mapping[str, Sequence[str]]) -> dict[str, Runs]:
    """The finished runs of each row, seeds in order; rows without one are left out, and so are runs with other flags.

    Args:
        out: the folder of the sweep.
        arguments: the flags of each row by its name.
    """
    found: dict[str, Runs] = {}
    for row, flags in arguments.items():
        runs: Runs = {}
        for folder in sorted((out / "runs" / row).glob("seed-*"), key=_seed):
            if not folder.is_dir():
                continue
            job = Job(row=row, seed=_seed(folder), experiment="", arguments=tuple(flags))
            if job.state(out) is State.DONE:
                summary, environment = (read_json(folder / f"{name}.json") for name in ("summary", "environment"))
                runs[job.seed] = FinishedRun(row, job.seed, folder, summary, environment)
        if runs:
            found[row] = runs
    return found


def changed_runs(out: Path, arguments: Mapping[str, Sequence[str]]) -> list[Path]:
    """The folders of those rows that hold runs with other flags."""
    folders = [(row, folder) for row in arguments for folder in sorted((out / "runs" / row).glob("seed-*"), key=_seed)]
    return [
        folder
        for row, folder in folders
        if folder.is_dir()
        and Job(row=row, seed=_seed(folder), experiment="", arguments=tuple(arguments[row])).state(out) is State.CHANGED
    ]


def _seed(folder: Path) -> int:
    number = folder.name.partition("-")[2]
    return int(number) if number.isdigit() else -1


def values(runs: Runs, key: str) -> dict[int, float]:
    """A number of every run by seed, where it has it."""
    found = {seed: run.value(key) for seed, run in runs.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def spoken_seeds(seeds: Iterable[int]) -> str:
    """ "0-4, 7": runs of consecutive numbers shortened."""
    parts: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def provenance(runs: Iterable[FinishedRun], *, short: bool = False) -> str:
    """Seeds and commits of runs, for captions; `short` names no more than one commit."""
    shown = list(runs)
    commits = sorted({run.commit or "unknown" for run in shown})
    seeds = spoken_seeds(run.seed for run in shown)
    several = f"{len(commits)} commits" if short else f"commits {', '.join(commits)}"
    return f"Seeds {seeds}; {several if len(commits) > 1 else f'commit {commits[0]}'}."


def runs_table(results: Mapping[str, Runs], keys: Sequence[str]) -> Table:
    """Every run with those numbers of its summary, its time, commit and command."""
    table = Table("Runs", ["row", "seed", *keys, "steps", "best step", "train seconds", "commit", "command"])
    table.formats = {**dict.fromkeys(keys, ".6g"), "train seconds": ".1f"}
    for runs in results.values():
        for run in runs.values():
            numbers = [run.value(key) for key in keys]
            counts = [None if (n := run.value(key)) is None else round(n) for key in ("steps", "best_step")]
            table.add(run.row, run.seed, *numbers, *counts, run.value("train_seconds"), run.commit, run.command)
    return table
