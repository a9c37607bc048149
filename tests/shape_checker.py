"""The run-time type checker of the tests: beartype, with int accepted where float is asked (PEP 484's tower)."""

from collections.abc import Callable

from beartype import BeartypeConf, beartype

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable) -> Callable:
    """Check a function or class, except functions within functions: theirs would be compiled anew at every call."""
    return function if "<locals>" in function.__qualname__ else _checked(function)
