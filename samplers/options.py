"""Options of a sampler: dataclass fields that carry their own help, range and choices."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from samplers.errors import InvalidOptionError, did_you_mean


def option(
    *,
    default: Any,
    help: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple | None = None,
) -> Any:
    """A sampler option with its default, one line of help, and what values it takes (None is let through).

    `default` is a keyword because type checkers see a field's default under no other form.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def check_options(owner: Any) -> None:
    """Check every `option` field of a dataclass instance against its own range, choices and type."""
    kind = type(owner).__name__
    for field in dataclasses.fields(owner):
        if "help" not in field.metadata:
            continue
        value, limits = getattr(owner, field.name), field.metadata
        annotation = typing.get_type_hints(type(owner)).get(field.name, Any)
        if not _fits(value, annotation):
            raise InvalidOptionError(
                f"{kind}: {field.name}={value!r} is of type {type(value).__name__}; it must be {_spoken(annotation)}"
            )
        if value is None or isinstance(value, bool):
            continue
        choices, low, high = limits["choices"], limits["minimum"], limits["maximum"]
        if choices is not None and isinstance(value, str) and value not in choices:
            raise InvalidOptionError(
                f"{kind}: {field.name}={value!r}; it must be one of {', '.join(map(repr, choices))}"
                f"{did_you_mean(value, choices)}"
            )
        if isinstance(value, int | float) and not _in_range(value, low, high):
            raise InvalidOptionError(f"{kind}: {field.name}={value!r}; it must be {_range(low, high)}")


def check_names(kind: type, given: Mapping[str, Any], spoken_name: str) -> None:
    """Refuse option names that `kind` does not have, naming the nearest one."""
    known = [f.name for f in dataclasses.fields(kind) if f.init]
    for name in given:
        if name not in known:
            raise InvalidOptionError(
                f"the sampler {spoken_name!r} has no option {name!r}{did_you_mean(name, known)}; "
                f"its options are {', '.join(known)}"
            )


def _fits(value: Any, annotation: Any) -> bool:
    if annotation is Any:
        return True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return value in typing.get_args(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin) if isinstance(origin, type) else True


def _spoken(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _in_range(value: float, low: float | None, high: float | None) -> bool:
    return value == value and (low is None or value >= low) and (high is None or value <= high)


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"between {low:g} and {high:g}"
    if low is None and high is None:
        return "a number, not NaN"
    return f"at least {low:g}" if low is not None else f"at most {high:g}"
