"""`python -m samplers.conformance NAME_OR_MODULE:CLASS [option=value …]`: a conformance report in the terminal."""

import argparse
import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from samplers import IsingAttnError, Sampler, get_sampler
from samplers.conformance import run_conformance
from samplers.errors import InvalidOptionError


def _maker(target: str, options: dict[str, Any]) -> Callable[[], Sampler]:
    if ":" not in target:
        return lambda: get_sampler(target, **options)
    module, _, attribute = target.partition(":")
    sys.path.insert(0, "")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidOptionError(f"{target!r} cannot be imported ({error}); give module:Class or a name") from error
    return lambda: kind(**options)


def _options(words: list[str]) -> dict[str, Any]:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidOptionError(f"{word!r} is not an option; write name=value, such as num_reads=500")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m samplers.conformance", description="Check a sampler's contract.")
    parser.add_argument("sampler", help="a registered name (exact, gibbs, …) or module:Class")
    parser.add_argument("options", nargs="*", help="options of the sampler, name=value")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        make = _maker(given.sampler, _options(given.options))
        capabilities = make().capabilities
    except IsingAttnError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False)
        return 2
    with console.status(f"checking {given.sampler} …"):
        outcomes = run_conformance(make)
    table = Table(title=f"{given.sampler}: gradient {capabilities.gradient}", title_justify="left")
    for column in ("check", "outcome", "what"):
        table.add_column(column, overflow="fold")
    colours = {"passed": "green", "failed": "bold red", "does not apply": "dim"}
    for outcome in outcomes:
        colour = colours[outcome.status]
        table.add_row(outcome.check.name, f"[{colour}]{outcome.status}", outcome.detail or outcome.check.subject)
    console.print(table)
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    console.print(f"{passed} passed, {failed} failed, {len(outcomes) - passed - failed} do not apply")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
