"""A table to be made, as a TOML file: which runs of an experiment, what is compared, and against which row.

For example:

    title = "Tasks with masks"
    experiment = "masked-text"
    seeds = [0, 1, 2]
    flags = ["--context=12"]                 # of every row
    baseline = "causal"                      # unless a row names its own
    seconds = 60                             # of one run, about

    [[measures]]
    key = "test_perplexity"                  # of summary.json
    name = "perplexity"
    format = ".3f"
    better = "smaller"

    [rows.causal]
    flags = ["--task=causal"]
    [rows.butterfly]
    flags = ["--task=butterfly"]
"""

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ising_attn.cli import experiments
from ising_attn.lab.sweep import Job
from samplers.errors import InvalidOptionError, did_you_mean

_BETTER = ("smaller", "larger")
_ROW_NAME = re.compile(r"[A-Za-z0-9][\w +\-.,=()]{0,99}")
# Of the sweep itself.
_OWN_FLAGS = ("--seed", "--seeds", "--out", "--resume", "--help", "--config", "--device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """One column.

    Args:
        key: of summary.json.
        name: the column's.
        format: of its numbers.
        better: "smaller" or "larger".
    """

    key: str
    name: str
    format: str = ".3f"
    better: str = "smaller"

    def __post_init__(self) -> None:
        if self.better not in _BETTER:
            raise InvalidOptionError(f"better is {self.better!r}; it must be 'smaller' or 'larger'")
        try:
            format(0.5, f"+{self.format}")
        except ValueError:
            raise InvalidOptionError(f"format is {self.format!r}; it must be a number format such as .3f") from None

    @property
    def difference_format(self) -> str:
        """Of a difference of two such numbers: signed."""
        return f"+{self.format}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRow:
    """One row: its own flags, and the row that it is compared with ("" for none)."""

    flags: tuple[str, ...] = ()
    baseline: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFile:
    """The whole file; see the top of this module."""

    title: str
    experiment: str
    rows: Mapping[str, FileRow]
    measures: tuple[Measure, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    flags: tuple[str, ...] = ()
    baseline: str = ""
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.rows or not self.measures or not self.seeds:
            raise InvalidOptionError("a sweep needs at least one of rows, measures and seeds each")
        known = experiments()
        if self.experiment not in known:
            raise InvalidOptionError(
                f"no experiment is named {self.experiment!r}{did_you_mean(self.experiment, known)}; "
                f"known: {', '.join(known)}"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise InvalidOptionError(f"seeds are {list(self.seeds)}; give each once")
        for name in self.rows:
            if not _ROW_NAME.fullmatch(name):
                raise InvalidOptionError(
                    f"the row {name!r} cannot name a folder; use 1 to 100 letters, digits, spaces and + - _ . , = ( ), "
                    "and begin with a letter or digit"
                )
            base = self.baseline_of(name)
            if base and base not in self.rows:
                raise InvalidOptionError(
                    f"the row {name!r} is compared with {base!r}{did_you_mean(base, self.rows)}, which is no row"
                )

    @classmethod
    def read(cls, path: Path) -> "RowFile":
        """The file at `path`.

        Raises:
            InvalidOptionError: no such file, no TOML, a key that is unknown or missing.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidOptionError(f"{path} cannot be read as a sweep: {error}") from None
        try:
            rows = {name: _made(FileRow, row) for name, row in _table(values.pop("rows", {})).items()}
            measures = tuple(_made(Measure, one) for one in _listed(values.pop("measures", [])))
            return _made(cls, {**values, "rows": rows, "measures": measures})
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{path}: {error}") from None

    def baseline_of(self, row: str) -> str:
        """The row that `row` is compared with; "" for none."""
        own = self.rows[row].baseline
        base = self.baseline if own is None else own
        return "" if base == row else base

    def arguments(self, row: str) -> tuple[str, ...]:
        """All flags of a row."""
        return (*self.flags, *self.rows[row].flags)

    def jobs(self, row: str, seeds: tuple[int, ...] = ()) -> list[Job]:
        """Its runs; for the file's seeds where none are given."""
        return [
            Job(row=row, seed=s, experiment=self.experiment, arguments=self.arguments(row), seconds=self.seconds)
            for s in seeds or self.seeds
        ]


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidOptionError(f"rows is {value!r}; it must be tables, [rows.NAME] each")
    return value


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidOptionError(f"measures is {value!r}; it must be tables, [[measures]] each")
    return value


def _made(kind: Any, values: Any) -> Any:
    """A dataclass from a TOML table, lists as tuples."""
    if not isinstance(values, dict):
        raise InvalidOptionError(f"{values!r} must be a table")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise InvalidOptionError(f"unknown key {key!r}{did_you_mean(key, fields)}; known: {', '.join(fields)}")
    missing = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and name not in values
    ]
    if missing:
        raise InvalidOptionError(f"{', '.join(missing)} missing")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    for key in ("flags", "seeds", "measures"):
        if key in plain and not isinstance(plain[key], tuple):
            raise InvalidOptionError(f"{key} is {plain[key]!r}; it must be a list")
    for key in ("title", "experiment", "baseline", "key", "name", "format"):
        if key in plain:
            _check_plain(key, plain[key])
    for seed in plain.get("seeds", ()):
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidOptionError(f"seeds has {seed!r}; each must be an integer of at least 0")
    seconds: Any = plain.get("seconds", 1)
    if not (_is_number(seconds) and seconds > 0):
        raise InvalidOptionError(f"seconds is {seconds!r}; it must be a number above 0")
    for flag in plain.get("flags", ()):
        if not isinstance(flag, str) or not re.match(r"--[a-z]", flag):
            raise InvalidOptionError(f"flags has {flag!r}; each must be text such as --context=12")
        if flag.partition("=")[0] in _OWN_FLAGS:
            raise InvalidOptionError(f"flags has {flag!r}, which the sweep gives by itself")
    return kind(**plain)


def _check_plain(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidOptionError(f"{name} is {value!r}; it must be text")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
