"""How far long work is: a bar on a terminal, plain lines elsewhere; always on stderr."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

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


@contextlib.contextmanager
def work_progress(label: str, total: int | None, *, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """For work in `total` parts (None: unknown): call what it yields with a word on each part that is done.

    with work_progress("samplers", 3) as advance:
        advance("exact")
    """
    console = console or Console(stderr=True)
    done = 0
    if not console.is_terminal:

        def line(what: str) -> None:
            nonlocal done
            done += 1
            of = "" if total is None else f"/{total}"
            console.print(f"{label}: {done}{of} {what}", highlight=False, soft_wrap=True, markup=False)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task(label, total=total, shown="")
        yield lambda what: bar.update(task, advance=1, shown=what)


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

    def stopped_early(self, step: int) -> None:
        self._bar.update(self._task, completed=step, total=step, shown=f"stopped early{self._validation}")


class _Lines:
    """A line at each evaluation, and every half minute between them, for log files."""

    _QUIET_SECONDS = 30.0

    def __init__(self, label: str, console: Console):
        self._label, self._console = label, console
        self._first, self._total, self._train = 0, 0, ""
        self._started = self._last = time.monotonic()

    def start(self, step: int, total: int) -> None:
        self._first, self._total = step, total
        self._started = self._last = time.monotonic()

    def advance(self, step: int, values: Mapping[str, float]) -> None:
        self._train = _spoken(values)
        if time.monotonic() - self._last >= self._QUIET_SECONDS:
            self._line(step, "")

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        self._line(step, f" │ validation {_spoken(values)}")

    def stopped_early(self, step: int) -> None:
        line = f"{self._label}: stopped early after step {step} of {self._total}"
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _line(self, step: int, validation: str) -> None:
        self._last = time.monotonic()
        per_step = (self._last - self._started) / max(1, step - self._first)
        left = round(per_step * (self._total - step))
        line = f"{self._label}: step {step}/{self._total}, {self._train}{validation}, {left} s left"
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def _spoken(values: Mapping[str, float]) -> str:
    """Loss and accuracy first; other numbers are for the metrics file."""
    shown = [name for name in ("loss", "accuracy") if name in values] or list(values)[:2]
    return ", ".join(f"{name} {values[name]:.3f}" for name in shown)
