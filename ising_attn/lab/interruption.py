"""A clean Ctrl-C: the first one is a request, which the work that is under way looks at between its steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible(*, once: bool) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts at once. Outside the main thread, never set.

    Args:
        once: otherwise the others do no harm: torchrun passes a Ctrl-C on that may have come before.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def request(*_: object) -> None:
        event.set()
        if once:
            signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, request)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
