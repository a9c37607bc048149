"""Scripts in processes of their own that need not import torch each time: forked from a server that has done it once.

A run of a small model takes seconds, and so do its imports; over a sweep of hundreds of runs that is half of the time.
"""

import contextlib
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import ising_attn
from samplers.processes import end_with_parent, server_context, variables

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
_ROOT = str(Path(ising_attn.__file__).resolve().parent.parent)


class ScriptProcess:
    """`python SCRIPT ARGUMENTS` with one thread, its output appended to a file; started when made.

    It is killed when the process that made it ends, so that a sweep that was killed leaves no run behind.

    Args:
        command: the script and its arguments.
        log: where its output goes.
        preload: modules that the server imports before the first script.
    """

    def __init__(self, command: Sequence[str], log: Path, *, preload: Sequence[str] = ()):
        context = server_context([__name__, *preload])
        self._process: BaseProcess = context.Process(target=_run_script, args=(list(command), str(log), _ROOT))
        with variables({**ONE_THREAD, "PYTHONPATH": with_root()}):
            self._process.start()

    @property
    def status(self) -> int | None:
        """The exit status, minus the signal's number where one ended it; None while it runs."""
        return self._process.exitcode

    @property
    def why(self) -> str:
        """Nothing is known beyond the status."""
        return ""

    def wait(self) -> int:
        """The exit status, when it has ended."""
        self._process.join()
        return int(self._process.exitcode or 0)

    def send(self, sent: signal.Signals) -> None:
        """A signal to the script."""
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self._process.pid, sent)  # type: ignore[arg-type]


def _run_script(command: list[str], log: str, root: str) -> None:
    """In the new process: what `python` does with a script."""
    end_with_parent()
    if hasattr(os, "setsid"):
        os.setsid()  # the terminal's Ctrl-C goes to the sweep alone, which passes it on
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Ray's workers ignore Ctrl-C, and what they start would too.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(ONE_THREAD)
    if root != _ROOT:
        raise RuntimeError(f"the scripts would run the code in {_ROOT}, not that in {root}")
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")


def with_root() -> str:
    """The server does not take over sys.path, where a checkout that runs its own scripts has put itself first."""
    there = os.environ.get("PYTHONPATH")
    return _ROOT if not there else os.pathsep.join([_ROOT, there])
