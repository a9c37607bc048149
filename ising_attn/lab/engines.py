"""Where the runs of a sweep are made: processes of this machine, or workers of a Ray cluster. One interface."""

import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, runtime_checkable

from ising_attn.lab.script_process import ScriptProcess


@runtime_checkable
class Run(Protocol):
    """One run that was started."""

    @property
    def status(self) -> int | None:
        """The exit status, minus the signal's number where one ended it; None while it runs."""

    @property
    def why(self) -> str:
        """What is known about its end beyond the status; "" where nothing is."""

    def send(self, sent: signal.Signals) -> None:
        """A signal to the script; nothing where it has ended."""


class Engine(ABC):
    """Starts runs; a context manager, since some engines hold machines meanwhile."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    def start(self, command: Sequence[str], log: Path) -> Run:
        """A script with its arguments, one thread, output appended to `log`."""


class LocalEngine(Engine):
    """Processes of this machine.

    Args:
        preload: modules that most runs import, imported once for all.
    """

    def __init__(self, preload: Sequence[str]):
        self._preload = preload

    def start(self, command: Sequence[str], log: Path) -> Run:
        return ScriptProcess(command, log, preload=self._preload)


def engine(cluster: str | None, out: Path, *, workers: int, device: str, preload: Sequence[str]) -> Engine:
    """The engine for a `--cluster` value; None is this machine.

    Raises:
        MissingDependencyError, InvalidOptionError: a cluster without Ray, or no address of one.
    """
    if cluster is None:
        return LocalEngine(preload)
    from ising_attn.lab.ray_engine import RayEngine

    return RayEngine(cluster, out, workers=workers, gpus=int(device.startswith("cuda")), preload=preload)
