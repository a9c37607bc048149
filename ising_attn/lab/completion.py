"""`ising-attn completion bash|zsh|fish`: what a shell needs to complete commands, flags and values.

The script is made from the same settings classes that read the command line, so that it cannot differ from it. It is
fixed: make it anew after an update, or after a package with further samplers was installed.

    ising-attn completion bash > ~/.local/share/bash-completion/completions/ising-attn
    ising-attn completion zsh > ~/.zfunc/_ising-attn          # a folder of $fpath
    ising-attn completion fish > ~/.config/fish/completions/ising-attn.fish
"""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ising_attn import cli
from ising_attn.lab.completion_scripts import FILES, SCRIPTS, Command, Flag
from ising_attn.lab.config import SamplerSettings, flags_of
from samplers.errors import InvalidOptionError, MissingDependencyError, did_you_mean
from samplers.registry import sampler_class, sampler_entries, sampler_names


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the script of a shell to stdout; the exit code."""
    given = list(arguments or ())
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(f"usage: ising-attn completion {{{','.join(SCRIPTS)}}}\n\n{__doc__}")
        return 0
    shell, *more = given
    if shell not in SCRIPTS or more:
        said = " ".join(given)
        raise InvalidOptionError(
            f"no completion for {said!r}{did_you_mean(shell, SCRIPTS)}; it is for one of {known()}"
        )
    sys.stdout.write(SCRIPTS[shell](all_commands(), sampler_flags()))
    return 0


def known() -> str:
    """The shells, for messages."""
    return ", ".join(SCRIPTS)


def all_commands() -> list[Command]:
    """Every experiment and command of `ising-attn` with its flags."""
    found = []
    for name, script in cli.experiments().items():
        module = _loaded(script)
        found.append(Command(name, _first_line(module), tuple(_flags_in(module, script))))
    for name, (module_name, summary) in cli.COMMANDS.items():
        module = importlib.import_module(module_name)
        words = tuple(SCRIPTS) if name == "completion" else FILES if name == "report" else ()
        flags = tuple(_flags_in(module, Path(str(module.__file__))))
        found.append(Command(name, summary, flags, words))
    return found


def sampler_flags() -> dict[str, tuple[Flag, ...]]:
    """The options of each installed sampler as flags, by its names."""
    found: dict[str, tuple[Flag, ...]] = {}
    for entry in sampler_entries().values():
        try:
            kind = sampler_class(entry.name)
        except (MissingDependencyError, ImportError):
            continue
        flags = tuple(
            Flag(f"--sampler.{field.name.replace('_', '-')}", field.metadata["help"], _choices(field.metadata))
            for field in dataclasses.fields(kind)
            if "help" in field.metadata
        )
        found |= dict.fromkeys((entry.name, *entry.aliases), flags)
    return found


def _choices(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, metadata.get("choices") or ()))


def _flags_in(module: types.ModuleType, source: Path) -> Iterator[Flag]:
    """The flags of the settings that the module reads by `parse_settings`."""
    found: dict[str, Flag] = {}
    for kind in _settings_in(module, source):
        words = _docstrings(kind)
        for name, annotation in flags_of(kind).items():
            values: Any = _values(annotation)
            if name == "--sampler" and issubclass(kind, SamplerSettings):
                values = tuple(sampler_names())
            found.setdefault(name, Flag(name, words.get(name, ""), values))
    yield from found.values()


def _settings_in(module: types.ModuleType, source: Path) -> list[type]:
    """The classes that are named as the first argument of a call of `parse_settings`."""
    calls = [node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if getattr(call.func, "id", "") == "parse_settings" and call.args]
    kinds = [getattr(module, node.id, None) for name in named for node in ast.walk(name) if isinstance(node, ast.Name)]
    return [kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)]


def _values(annotation: Any) -> tuple[str, ...] | str | None:
    """What may follow a flag: words, a file, something else (no words), or nothing (None)."""
    if annotation is bool:
        return None
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(map(str, arguments))
    if annotation is Path or Path in arguments:
        return FILES
    return ()


def _docstrings(kind: type) -> dict[str, str]:
    """The first sentence below each field, by flag; those of nested settings too."""
    found: dict[str, str] = {"--help": "Show all options."}
    for one in reversed(kind.__mro__):
        if dataclasses.is_dataclass(one):
            body = typing.cast(ast.ClassDef, ast.parse(inspect.cleandoc(inspect.getsource(one))).body[0]).body
            for line, text in itertools.pairwise(body):
                if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(line.target, ast.Name):
                    flag = f"--{line.target.id.replace('_', '-')}"
                    found[flag] = _sentence(str(ast.literal_eval(text.value)))
    for field in dataclasses.fields(kind):
        nested = typing.get_args(field.type)[0] if hasattr(field.type, "__metadata__") else None
        if isinstance(nested, type) and dataclasses.is_dataclass(nested):
            found |= _docstrings(nested)
    return found


def _sentence(text: str) -> str:
    whole = " ".join(text.split())
    return whole.split("; ")[0].split(". ")[0].rstrip(".")


def _first_line(module: types.ModuleType) -> str:
    return (module.__doc__ or "").strip().split("\n")[0]


def _loaded(script: Path) -> types.ModuleType:
    """A script as a module, without running its main part; `sys.path` is left as it was."""
    name, path = f"_completion_{script.stem}", list(sys.path)
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module
