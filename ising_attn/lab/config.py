"""Settings of an experiment: a dataclass's defaults, overridden by a file, overridden by flags."""

import argparse
import dataclasses
import json
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from ising_attn.lab.setting_values import is_sequence, shown, spoken, takes
from ising_attn.lab.usage_errors import as_errors
from samplers import InvalidOptionError, Sampler, get_sampler, sampler_class
from samplers.errors import did_you_mean
from samplers.spread import spread_sampler

T = TypeVar("T")

V = TypeVar("V")

Flat = Annotated[V, tyro.conf.OmitArgPrefixes]
"""`training: Flat[TrainingSettings]` nests a dataclass whose flags carry no prefix: --steps, not --training.steps."""
Hidden = Annotated[V, tyro.conf.Suppress]
"""`x: Hidden[int] = 0` is set by the program alone: no flag, and not read from files."""

_PRIMITIVES = (bool, int, float, str, Path, types.NoneType)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every experiment takes. Subclass it, and nest further dataclasses with `Flat[...]`."""

    config: Path | None = None
    """TOML or JSON file of settings; flags override it. The config.json of a run is one."""
    out: Path | None = None
    """Run folder; by default runs/NAME-DATE-ID."""
    resume: bool = False
    """Go on with the run in --out, with its settings, from its last checkpoint."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerSettings(RunSettings):
    """Settings of an experiment with a sampler, whose options are flags too: --sampler=dqa --sampler.num-layers=20."""

    sampler: str = "exact"
    """Sampler of the spin marginals; its own options are listed below."""
    sampler_workers: int = 1
    """Processes over which the problems of each sampler call are spread; 1 is none but this one."""
    sampler_options: Hidden[dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Those options of the sampler that differ from its defaults."""

    def make_sampler(self, **defaults: Any) -> Sampler:
        """The chosen sampler with the options that were set, and `defaults` for those that were not."""
        made = get_sampler(self.sampler, **{**defaults, **self.sampler_options})
        return made if self.sampler_workers == 1 else spread_sampler(made, workers=self.sampler_workers)


def parse_settings(kind: type[T], argv: Sequence[str] | None = None, *, prog: str, description: str = "") -> T:
    """Settings from the defaults of `kind`, then a file, then flags.

    The file is --config; with --resume, the config.json of the run in --out comes before it. Keys are spelled like
    flags, with - or _, alone or in the table of their dataclass; `sampler_options` is the table of the sampler's.
    Sequences take spaces or commas: --seeds 0 1 2, --seeds=0,1,2.

    Raises:
        InvalidOptionError: an unknown flag or key (with the nearest one), a value that is missing, cannot be read or
            is out of range.
        SystemExit: 0, after --help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    early = _early(arguments)
    files = [(path, _read(path)) for path in _files(early)]
    reader = _Reader(kind, _sampler_name(kind, early, files), prog, description)
    for path, values in files:
        if values.get("sampler", reader.sampler) != reader.sampler:
            values = {key: value for key, value in values.items() if key not in ("sampler", *_OPTION_TABLES)}
        reader.read(reader.tokens(values, path), source=path)
    reader.read(arguments)
    return reader.settings()


def settings_to_dict(settings: Any) -> dict[str, Any]:
    """Settings as nested values for config.json, without hidden ones and those of one call (--out, --resume, …)."""
    found = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in _OF_ONE_CALL or (_is_hidden(field.type) and field.name != "sampler_options"):
            continue
        found[field.name] = settings_to_dict(value) if dataclasses.is_dataclass(value) else value
    return found


_OF_ONE_CALL = ("config", "out", "resume", "dry_run", "debug")
_OPTION_TABLES = ("sampler_options", "sampler-options")


class _Reader:
    """Reads tokens by tyro into one growing default, so that each layer overrides the one before."""

    def __init__(self, kind: type, sampler: str | None, prog: str, description: str):
        self.kind, self.sampler, self.prog, self.description = kind, sampler, prog, description
        extra: list[Any] = []
        if sampler is not None:
            options: Any = _options_class(sampler)
            name = Annotated[options, tyro.conf.arg(name="sampler")]
            extra = [("chosen_options", name, dataclasses.field(default_factory=options))]
        self.wrapped = dataclasses.make_dataclass(kind.__name__, extra, bases=(kind,), frozen=True, kw_only=True)
        self.wrapped.__doc__ = kind.__doc__
        self.flags = flags_of(self.wrapped)
        self.value = self.wrapped()

    def read(self, tokens: Sequence[str], source: Path | None = None) -> None:
        """Override the present value by these arguments."""
        with as_errors(self.flags, source):
            self.value, unknown = tyro.cli(
                self.wrapped,
                args=self._spelled(tokens),
                default=self.value,
                prog=self.prog,
                description=self.description,
                return_unknown_args=True,
            )
        if unknown:
            raise InvalidOptionError(self._unknown(unknown[0]))

    def settings(self) -> Any:
        """The value as the class that was asked for, and its sampler's options checked."""
        values = {f.name: getattr(self.value, f.name) for f in dataclasses.fields(self.kind)}
        if self.sampler is not None:
            chosen = self.value.chosen_options
            changed = {
                f.name: getattr(chosen, f.name)
                for f in dataclasses.fields(chosen)
                if getattr(chosen, f.name) != f.default
            }
            get_sampler(self.sampler, **changed)
            values["sampler_options"] = changed
        return self.kind(**values)

    def tokens(self, values: Mapping[str, Any], source: Path, prefix: str = "") -> list[str]:
        """The content of a file as arguments."""
        found: list[str] = []
        for key, value in values.items():
            name = key.replace("_", "-")
            flag = f"--{prefix}{name}"
            if isinstance(value, Mapping) and flag not in self.flags:
                inner = "sampler." if name == "sampler-options" else self._table(key, source)
                found += self.tokens(value, source, inner)
                continue
            self._check(key, value, flag, source)
            if _can_be_none(self.flags[flag]) and isinstance(value, bool):
                # Runs had switches where there are choices now; true is the first of them.
                found.append(f"{flag}={typing.get_args(self.flags[flag])[0] if value else 'none'}")
            elif self.flags[flag] is bool and isinstance(value, bool):
                found.append(flag if value else f"--{prefix}no-{name}")
            elif isinstance(value, list):
                found += [flag, *map(str, value)]
            else:
                found.append(f"{flag}={value}")
        return found

    def _check(self, key: str, value: Any, flag: str, source: Path) -> None:
        """Refuse what is no setting, and a value of another type than the setting's."""
        if key.replace("-", "_") in (
            "sampler_options",
            *(f.name for f in dataclasses.fields(self.kind) if _nested(f.type)),
        ):
            raise InvalidOptionError(f"{source} has {key} = {shown(value)}; it must be a table of settings")
        if key.startswith("-") and (bare := key.lstrip("-")):
            raise InvalidOptionError(
                f"{source} has the unknown setting {key!r}; keys have no dashes in front: {bare!r}"
            )
        if key.replace("-", "_") in (*_OF_ONE_CALL, "help"):
            raise InvalidOptionError(f"{source} has the unknown setting {key!r}; it is for the command line alone")
        if flag not in self.flags:
            raise InvalidOptionError(f"{source} has the unknown setting {key!r}{self._nearest(flag)}")
        if not takes(self.flags[flag], value) and not (_can_be_none(self.flags[flag]) and isinstance(value, bool)):
            raise InvalidOptionError(f"{source} has {key} = {shown(value)}; it must be {spoken(self.flags[flag])}")

    def _table(self, key: str, source: Path) -> str:
        """The flag prefix of a table: none where the field is `Flat`."""
        tables = {f.name: f.type for f in dataclasses.fields(self.kind) if _nested(f.type)}
        name = key.replace("-", "_")
        if name not in tables:
            raise InvalidOptionError(f"{source} has the unknown table {key!r}{did_you_mean(name, tables)}")
        return "" if _is_flat(tables[name]) else f"{key.replace('_', '-')}."

    def _spelled(self, tokens: Sequence[str]) -> list[str]:
        """--seeds=0,1,2, --resume=false and --no-ffn as tyro takes them: --seeds 0 1 2, --no-resume, --ffn=none."""
        found: list[str] = []
        sequence = False
        for token in tokens:
            if not token.startswith("--"):
                found += token.split(",") if sequence else [token]
                continue
            token = self._without_no(token)
            name, equals, value = token.partition("=")
            annotation = self.flags.get(name.replace("_", "-"))
            sequence = is_sequence(annotation)
            if equals and sequence:
                found += [name, *value.split(",")]
            elif equals and annotation is bool and value.lower() in ("true", "false"):
                prefix, dot, last = name[2:].rpartition(".")
                found.append(name if value.lower() == "true" else f"--{prefix}{dot}no-{last}")
            elif equals and value in ("true", "false") and bool in typing.get_args(annotation):
                found.append(f"{name}={value.capitalize()}")
            else:
                found.append(token)
        return found

    def _without_no(self, flag: str) -> str:
        """--no-ffn as --ffn=none, where that is a choice."""
        prefix, no, last = flag.replace("_", "-").rpartition("no-")
        choice = f"{prefix}{last}"
        return f"{choice}=none" if no and _can_be_none(self.flags.get(choice)) else flag

    def _unknown(self, token: str) -> str:
        name = token.partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {token!r}; settings are flags, --help lists them"
        return f"there is no flag {name}{self._nearest(name) or '; --help lists all'}"

    def _nearest(self, flag: str) -> str:
        return did_you_mean(flag.replace("_", "-"), self.flags)


# ---- the layers -----------------------------------------------------------------------------------------------


def _early(arguments: Sequence[str]) -> argparse.Namespace:
    """The few flags that decide how the rest is read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # A missing value is left to the full parser, whose message is the better one.
    parser.add_argument("--config", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, nargs="?")
    parser.add_argument("--sampler", nargs="?")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_known_args(arguments)[0]


def _files(early: argparse.Namespace) -> list[Path]:
    files = []
    if early.resume:
        if early.out is None:
            raise InvalidOptionError("--resume needs the run folder to go on with: --resume --out=FOLDER")
        files.append(early.out / "config.json")
        if not files[0].exists():
            raise InvalidOptionError(
                f"{early.out} holds no run to resume (no config.json); leave --resume out to start one"
            )
    if early.config is not None:
        files.append(early.config)
    return files


def _read(path: Path) -> dict[str, Any]:
    """A TOML or JSON file of settings."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise InvalidOptionError(f"there is no file of settings {path}") from None
    except RecursionError:
        raise InvalidOptionError(
            f"{path} is nested too deeply for a file of settings; keep tables in one level"
        ) from None
    except ValueError as error:
        raise InvalidOptionError(f"{path} cannot be read as {path.suffix[1:].upper() or 'TOML'}: {error}") from None
    if not isinstance(values, dict):
        raise InvalidOptionError(f"{path} must hold a table of settings, not a {type(values).__name__}")
    return values


def _sampler_name(kind: type, early: argparse.Namespace, files: Sequence[tuple[Path, dict]]) -> str | None:
    """The sampler that the last layer with one names; None for settings without a sampler."""
    default = {f.name: f.default for f in dataclasses.fields(kind)}.get("sampler")
    for path, values in files if default is not None else ():
        if not isinstance(values.get("sampler", default), str):
            given = shown(values["sampler"])
            raise InvalidOptionError(f"{path} has sampler = {given}; it must be the name of a sampler, as text")
    named = [default, *(values.get("sampler") for _, values in files), early.sampler]
    return None if default is None else [str(name) for name in named if name is not None][-1]


# ---- fields and flags -----------------------------------------------------------------------------------------


def _options_class(sampler: str) -> type:
    """The sampler's options as a dataclass for tyro: those that a command line can spell."""
    kind = sampler_class(sampler)
    hints = typing.get_type_hints(kind)
    fields: list[Any] = []
    for field in dataclasses.fields(kind):
        annotation = _readable(_text_for_any(hints[field.name], field.default))
        if "help" in field.metadata and annotation is not None and isinstance(field.default, _PRIMITIVES + (tuple,)):
            argument = tyro.conf.arg(help=_help(field.metadata), metavar=_metavar(field.metadata))
            fields.append((field.name, Annotated[annotation, argument], field.default))
    options = dataclasses.make_dataclass("SamplerOptions", fields, frozen=True)
    options.__doc__ = f"Options of the sampler {sampler!r}."
    return options


def _help(metadata: Mapping[str, Any]) -> str:
    low, high = metadata.get("minimum"), metadata.get("maximum")
    limits = [f"at least {low:g}"] if low is not None else []
    limits += [f"at most {high:g}"] if high is not None else []
    return metadata["help"] + (f" [{', '.join(limits)}]" if limits else "")


def _metavar(metadata: Mapping[str, Any]) -> str | None:
    choices = metadata.get("choices")
    return "{" + ",".join(map(str, choices)) + "}" if choices else None


def _text_for_any(annotation: Any, default: Any) -> Any:
    """An option of `Any` type takes text among other things (a name, a path, "depolarizing=0.01")."""
    if annotation is not Any:
        return annotation
    return str | None if default is None else type(default)


def _readable(annotation: Any) -> Any:
    """The part of an annotation that a command line can spell; None where there is no such part."""
    origin = typing.get_origin(annotation)
    if annotation in _PRIMITIVES or origin is typing.Literal:
        return annotation
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in map(_readable, typing.get_args(annotation)) if part is not None]
        return typing.Union[tuple(parts)] if set(parts) - {types.NoneType} else None  # noqa: UP007
    if origin in (tuple, list) and all(a is ... or a in _PRIMITIVES for a in typing.get_args(annotation)):
        return annotation
    return None


def flags_of(kind: Any, prefix: str = "") -> dict[str, Any]:
    """Every flag of a dataclass, nested ones too, with its annotation; `--no-x` beside a boolean `--x`."""
    found: dict[str, Any] = {"--help": bool}
    for field in dataclasses.fields(kind):
        name = "sampler" if field.name == "chosen_options" else field.name.replace("_", "-")
        if nested := _nested(field.type):
            found |= flags_of(nested, prefix if _is_flat(field.type) else f"{prefix}{name}.")
        elif not _is_hidden(field.type):
            annotation = typing.get_args(field.type)[0] if hasattr(field.type, "__metadata__") else field.type
            found[f"--{prefix}{name}"] = annotation
            if annotation is bool or _can_be_none(annotation):
                found[f"--{prefix}no-{name}"] = bool
    return found


def _can_be_none(annotation: Any) -> bool:
    """A choice that has "none" among its words."""
    return typing.get_origin(annotation) is typing.Literal and "none" in typing.get_args(annotation)


def _nested(annotation: Any) -> type | None:
    bare = typing.get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
    return bare if dataclasses.is_dataclass(bare) and isinstance(bare, type) else None


def _is_flat(annotation: Any) -> bool:
    return tyro.conf.OmitArgPrefixes in getattr(annotation, "__metadata__", ())


def _is_hidden(annotation: Any) -> bool:
    return tyro.conf.Suppress in getattr(annotation, "__metadata__", ())
