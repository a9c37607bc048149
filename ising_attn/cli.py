"""The command `ising-attn NAME …`: runs an experiment's script as `python` would, or one of a few commands."""

import ast
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ising_attn.packages import ForeignPackageError, require_own_package
from samplers.errors import did_you_mean

_USAGE = "usage: ising-attn NAME [OPTIONS …]\n       ising-attn NAME --help"
COMMANDS = {
    "report": ("ising_attn.lab.run_page", "One page, HTML or Markdown, from run folders alone."),
    "doctor": ("ising_attn.lab.doctor", "What is installed, which devices there are, and what is missing."),
    "samplers": ("ising_attn.lab.sampler_list", "Every sampler, what it can do, and its options."),
    "completion": ("ising_attn.lab.completion", "Completion of commands and flags for bash, zsh or fish."),
}
"""Modules with a `main(arguments)`, imported when they are called, and what they do."""


def experiments_folder() -> Path | None:
    """Where the scripts are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "experiments", package.parent / "experiments"):
        if any(_scripts_in(folder)):
            return folder
    return None


def experiments() -> dict[str, Path]:
    """Every experiment's name and script, by name."""
    folder = experiments_folder()
    return {} if folder is None else {path.stem.replace("_", "-"): path for path in _scripts_in(folder)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment named first with the arguments that follow; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    known = experiments()
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(_help(known))
        return 0
    if given[0] in ("-V", "--version"):
        sys.stdout.write(f"ising-attn {_version()}\n")
        return 0
    name = given[0].replace("_", "-")
    if name in COMMANDS:
        return _run_command(name, given[1:])
    if name not in known:
        listed, hint = ", ".join(known) or "none is installed", did_you_mean(name, (*known, *COMMANDS))
        sys.stderr.write(
            f"no experiment is named {given[0]!r}{hint}; known: {listed}; commands: {', '.join(COMMANDS)}\n"
        )
        return 2
    try:
        require_own_package("models")
    except ForeignPackageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return _run(known[name], given[1:])


def _run_command(name: str, arguments: Sequence[str]) -> int:
    # Imports torch, which --help and --version do without.
    from ising_attn.lab.main import run_main

    module = importlib.import_module(COMMANDS[name][0])
    return run_main(lambda: module.main(arguments), debug="--debug" in arguments)


def _run(script: Path, arguments: Sequence[str]) -> int:
    saved, sys.argv = sys.argv, [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return int(stop.code or 0)
        sys.stderr.write(f"{stop.code}\n")
        return 1
    finally:
        sys.argv = saved
    return 0


def _help(known: dict[str, Path]) -> str:
    width = max(len(name) for name in (*known, *COMMANDS))
    lines = [f"  {name:<{width}}  {_summary(path)}" for name, path in known.items()]
    commands = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join([_USAGE, "", "experiments:", *(lines or ["  none is installed"]), "", "commands:", *commands, ""])


def _summary(script: Path) -> str:
    """The first line of a script's docstring; the script is not run."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return text.strip().split("\n")[0]


def _scripts_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.py") if not p.name.startswith("_"))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ising-attn")
    except PackageNotFoundError:
        return "(not installed: a checkout)"
