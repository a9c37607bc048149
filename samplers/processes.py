"""Processes of this machine: from a server that has imported what they need, and ended with whoever started them."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any


def server_context(preload: Sequence[str]) -> Any:
    """A `multiprocessing` context whose processes do not inherit this one's threads.

    Args:
        preload: modules that the server imports when it starts, with the first process of this program.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


def end_with_parent() -> None:
    """From now on this process is killed when the one that started it ends, however that ends."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Within the block these environment variables are set, for processes that start in it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old
