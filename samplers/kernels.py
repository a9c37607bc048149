"""The one numba decorator of the project, and how kernels are spread over threads.

Modules that hold kernels are imported where they are first used, so that `import samplers` stays fast.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch

# No "nnan" and no "ninf": NaN and infinity must come out of a kernel as they would from numpy.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp", "afn"}


def kernel(function: Callable | None = None, *, fastmath: bool = True, inline: bool = False) -> Any:
    """Compile a function to machine code at its first call, cached on disk between processes.

    The interpreter lock is released while a kernel runs, so `in_threads` may run several at once. A kernel may
    call other kernels. `fastmath` allows sums to be reordered (needed for vector lanes) but keeps NaN and ∞.
    """

    def compiled(f: Callable) -> Any:
        # Type checkers wrap functions at import; numba needs the function itself.
        own = inspect.unwrap(f)
        # numba names its files on disk after the function, and takes them for fresh while the function's own file is.
        own.__qualname__ += f"-{_sources(own.__module__.partition('.')[0])}"
        return numba.njit(
            cache=True,
            nogil=True,
            error_model="numpy",
            fastmath=_FAST_MATH if fastmath else False,
            inline="always" if inline else "never",
        )(own)

    return compiled if function is None else compiled(function)


@cache
def _sources(package: str) -> str:
    """A word that changes with every file that holds kernels, of ours or of `package`: they may call one another."""
    digest = hashlib.sha256()
    for name in sorted({"samplers", package}):
        for folder in getattr(sys.modules.get(name), "__path__", ()):
            for file in sorted(Path(folder).rglob("*.py")):
                content = file.read_bytes()
                if b"samplers.kernels import" in content or file == Path(__file__):
                    digest.update(content)
    return digest.hexdigest()[:12]


def in_threads(function: Callable[[int, int], object], count: int, *, smallest: int = 1) -> None:
    """Call function(start, stop) over parts of range(count), in as many threads as torch uses.

    Args:
        function: does its part by a kernel; parts must not write to the same memory.
        count: how many pieces of work there are.
        smallest: no part is smaller than this, so that little work stays in the calling thread.
    """
    parts = max(1, min(torch.get_num_threads(), count // max(1, smallest)))
    bounds = [count * i // parts for i in range(parts + 1)]
    if parts == 1:
        function(0, count)
        return
    pool = _pool(parts)
    pending = [pool.submit(function, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    function(bounds[0], bounds[1])
    for future in pending:
        future.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="samplers-kernel")


# A forked process inherits the pool without its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
