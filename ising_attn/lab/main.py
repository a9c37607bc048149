"""The outermost frame of a command: expected errors become one or two sentences and an exit code."""

import errno
import io
import os
import sys
from collections.abc import Callable

import torch

from ising_attn.lab.distributed import is_follower
from ising_attn.lab.errors import LostProcessError
from samplers.errors import InvalidOptionError, IsingAttnError, UnknownSamplerError

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
# What another command line would mend.
_OF_USAGE = (InvalidOptionError, UnknownSamplerError)

_ROOM = "free some space and go on with --resume, or start on another disk with --out"
_ADVICE = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and go on with --resume",
}


def run_main(main: Callable[[], int | None], *, debug: bool | None = None) -> int:
    """Run a command's main function and return its exit code, for `sys.exit(run_main(main))`.

    Errors raised on purpose (`IsingAttnError`), those of files and of memory are said on stderr in a sentence or
    two, without a traceback unless `debug` (by default: `--debug` is on the command line). Any other exception is
    a defect and keeps its traceback.
    """
    debug = "--debug" in sys.argv[1:] if debug is None else debug
    _escape_what_cannot_be_printed()
    try:
        return main() or 0
    except KeyboardInterrupt as error:
        if debug:
            raise
        if is_follower():
            return EXIT_INTERRUPTED
        return _say(str(error) or "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output is gone (`… | head`); keep Python from complaining once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (IsingAttnError, OSError, MemoryError, torch.OutOfMemoryError) as error:
        if debug:
            raise
        code = EXIT_USAGE if isinstance(error, _OF_USAGE) else EXIT_FAILED
        if is_follower() and isinstance(error, (*_OF_USAGE, LostProcessError)):
            return code  # process 0 says it
        return _say(_sentence(error), code)


def _escape_what_cannot_be_printed() -> None:
    """Names of files that are no text, and signs that the terminal's encoding has not, are printed as escapes."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
        stream.reconfigure(errors="backslashreplace")


def _sentence(error: BaseException) -> str:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "out of memory; use a smaller --batch-size or --context, or --device=cpu"
    if isinstance(error, OSError) and error.strerror:
        said = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        advice = _ADVICE.get(error.errno or 0)
        return f"{said}; {advice}" if advice else said
    return str(error) or type(error).__name__


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"error: {text}\n" if code != EXIT_INTERRUPTED else f"\n{text}\n")
    return code
