"""Values of a file of settings: whether they are of a setting's type, and what it takes in words."""

import json
import types
import typing
from pathlib import Path
from typing import Any


def takes(annotation: Any, value: Any) -> bool:
    """Whether a value of a file is of the setting's type; "None" stands for null, which TOML has not."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(takes(part, value) for part in arguments)
    if typing.get_origin(annotation) is typing.Literal:
        return value in arguments
    if is_sequence(annotation):
        parts = [part for part in arguments if part is not ...]
        # Items are passed on as arguments of their own, where one with dashes would be a flag.
        return isinstance(value, list) and all(
            any(takes(part, item) for part in parts) and not str(item).startswith("--") for item in value
        )
    if annotation is types.NoneType:
        return value is None or value == "None"
    if annotation is bool or isinstance(value, bool):
        return annotation is bool and isinstance(value, bool)
    if annotation is str:
        return isinstance(value, str | int | float)
    kinds: dict[Any, Any] = {int: int, float: int | float, Path: str}
    return annotation not in kinds or isinstance(value, kinds[annotation])


def spoken(annotation: Any, *, many: bool = False) -> str:
    """What a setting takes, in words."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(spoken(part, many=many) for part in arguments)
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if is_sequence(annotation):
        return f"a list of {spoken(arguments[0], many=True)}"
    words: dict[Any, str] = {
        bool: "true or false",
        types.NoneType: 'null ("None" in TOML)',
        str: "text",
        Path: "a path, as text",
    }
    numbers: dict[Any, str] = {
        int: "whole numbers" if many else "a whole number",
        float: "numbers" if many else "a number",
    }
    return (words | numbers).get(annotation, str(annotation))


def shown(value: Any) -> str:
    """A value of a file, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def is_sequence(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, list)
