"""What is wrong with a command line, in one sentence: tyro draws a box around it, every other error here is a line."""

import contextlib
import io
import itertools
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ising_attn.lab.setting_values import spoken
from samplers.errors import InvalidOptionError, did_you_mean

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def as_errors(flags: Mapping[str, Any], source: Path | None = None) -> Iterator[None]:
    """Within the block, arguments that tyro refuses raise an error of ours; --help ends the program as ever.

    Args:
        flags: every flag with its annotation.
        source: the file that the arguments are from; None: the command line.

    Raises:
        InvalidOptionError: a value that is missing or cannot be read.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as stop:
        if stop.code:
            text = sentence(said.getvalue(), flags)
            raise InvalidOptionError(text if source is None else f"{source}: {text}") from None
        raise
    finally:
        if sys.exc_info()[1] is None:
            sys.stderr.write(said.getvalue())


def sentence(box: str, flags: Mapping[str, Any]) -> str:
    """What stands in the first part of a box of tyro's, in our words where it is of a known kind."""
    text = _first_part(box)
    if found := re.fullmatch(r"Error parsing (\S+): (.*)", text):
        name, why = found.groups()
        # What our own settings refuse names its flag by itself.
        if why.startswith("--") or name not in flags:
            return why
        return f"{name} cannot be read ({why}); it must be {spoken(flags[name])}"
    if found := re.match(r"Missing value for argument '([^']+)'", text):
        name = found[1].split("/")[-1]
        return f"{name} needs a value" + (f"; it must be {spoken(flags[name])}" if name in flags else "")
    if found := re.match(r"invalid choice '(.*)' for argument '([^']+)'", text):
        given, name = found[1], found[2].split("/")[-1]
        if name in flags:
            choices = typing.get_args(flags[name])
            return f"{name} is {given!r}; it must be {spoken(flags[name])}{did_you_mean(given, map(str, choices))}"
    return text


def _first_part(box: str) -> str:
    """The lines between the title and the first rule, without the frame, which is in ASCII where stdout is."""
    lines = [_COLOUR.sub("", line) for line in box.splitlines()]
    inner = [line.strip("│ ") for line in lines if line.startswith("│")]
    if not inner:
        inner = [line.strip() for line in lines[2:]]  # after a line with the title and one of dashes
    first = itertools.takewhile(lambda line: line.strip("─-"), inner)
    return " ".join(first) or box.strip()
