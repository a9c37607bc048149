"""A table to be made, as a TOML file: which runs of an experiment, what is compared, and against which row.

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
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ising_attn.cli import experiments
from ising_attn.lab.sweep import Job
from samplers.errors import InvalidOptionError, did_you_mean

_BETTER = ("smaller", "larger")


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
        for name in self.rows:
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
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidOptionError(f"{path} cannot be read as a sweep: {error}") from None
        try:
            rows = {name: _made(FileRow, row) for name, row in _table(values.pop("rows", {})).items()}
            measures = tuple(_made(Measure, one) for one in values.pop("measures", ()))
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
    for key in ("flags",):
        if any(not isinstance(flag, str) or not flag.startswith("--") for flag in plain.get(key, ())):
            raise InvalidOptionError(f"{key} is {list(plain[key])}; each must be text such as --context=12")
    return kind(**plain)
