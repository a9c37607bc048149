"""How far training is: a bar on a terminal, plain lines elsewhere; always on stderr."""

import contextlib
import time
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ising_attn.lab.training import ProgressDisplay


@contextlib.contextmanager
def training_progress(label: str = "training", *, console: Console | None = None) -> Iterator[ProgressDisplay]:
    """A display for `Trainer.fit`: a live bar with loss, accuracy and time left where stderr is a terminal.

    with training_progress("seed 0") as progress:
        trainer.fit(progress)
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(label, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, expand=True) as bar:
        yield _Bar(bar, bar.add_task(label, total=None, shown=""))


class _Bar:
    def __init__(self, bar: Progress, task: TaskID):
        self._bar, self._task = bar, task
        self._train, self._validation = "", ""

    def start(self, step: int, total: int) -> None:
        self._bar.update(self._task, completed=step, total=total)

    def advance(self, step: int, values: Mapping[str, float]) -> None:
        self._train = _spoken(values)
        self._bar.update(self._task, completed=step, shown=self._train + self._validation)

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        name = "accuracy" if "accuracy" in values else next(iter(values))
        self._validation = f" │ validation {values[name]:.3f}"
        self._bar.update(self._task, shown=self._train + self._validation)


class _Lines:
    """One line at each evaluation, for log files."""

    def __init__(self, label: str, console: Console):
        self._label, self._console = label, console
        self._first, self._total, self._train = 0, 0, ""
        self._started = time.monotonic()

    def start(self, step: int, total: int) -> None:
        self._first, self._total, self._started = step, total, time.monotonic()

    def advance(self, step: int, values: Mapping[str, float]) -> None:
        self._train = _spoken(values)

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        per_step = (time.monotonic() - self._started) / max(1, step - self._first)
        left = round(per_step * (self._total - step))
        line = f"{self._label}: step {step}/{self._total}, {self._train} │ validation {_spoken(values)}, {left} s left"
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def _spoken(values: Mapping[str, float]) -> str:
    """Loss and accuracy first; other numbers are for the metrics file."""
    shown = [name for name in ("loss", "accuracy") if name in values] or list(values)[:2]
    return ", ".join(f"{name} {values[name]:.3f}" for name in shown)
