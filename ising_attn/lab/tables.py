"""`Table`: one table of results, shown with rich, written as Markdown and as CSV."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

Cell = str | int | float | None
"""None is a value that does not exist: shown as a dash, an empty CSV cell."""


@dataclass
class Table:
    """Rows of cells under named columns.

    Args:
        title: one line above the table.
        columns: their names; `formats` maps a column to a format such as ".2%" or ".4f" (CSV keeps full precision).
        caption: one line below it (what is counted, which seeds), or "".
    """

    title: str
    columns: Sequence[str]
    formats: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells were given for {len(self.columns)} columns of {self.title!r}")
        self.rows.append(list(cells))

    def shown(self) -> list[list[str]]:
        """The cells as text."""
        return [[_text(c, self.formats.get(n, "")) for n, c in zip(self.columns, r, strict=True)] for r in self.rows]

    def rich(self) -> RichTable:
        table = RichTable(
            title=self.title,
            caption=self.caption or None,
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for index, name in enumerate(self.columns):
            table.add_column(name, justify="right" if self._is_numeric(index) else "left", no_wrap=index == 0)
        for row in self.shown():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """A GitHub table under its title, with a final newline."""
        names = [_escaped(n) for n in self.columns]
        rule = ["---:" if self._is_numeric(i) else "---" for i in range(len(names))]
        lines = [names, rule, *([_escaped(c) for c in row] for row in self.shown())]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"### {self.title}\n\n{body}\n" + (f"\n{self.caption}\n" if self.caption else "")

    def csv(self) -> str:
        """Comma-separated, full precision, a header line, and nothing where a value does not exist."""
        return csv_text(self.columns, self.rows)

    def _is_numeric(self, index: int) -> bool:
        cells = [row[index] for row in self.rows if row[index] is not None]
        return bool(cells) and all(isinstance(c, int | float) or _is_spread(c) for c in cells)


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """CSV of any rows; None becomes an empty cell, floats keep full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def write_tables(folder: Path, tables: Mapping[str, Table]) -> None:
    """`table.md` with all the tables, and one `NAME.csv` for each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text("\n".join(t.markdown() for t in tables.values()), encoding="utf-8")
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (n − 1); None where they do not exist (no values, a single one)."""
    known = [v for v in values if v is not None]
    if not known:
        return None, None
    return float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None


def spread(values: Sequence[float | None], pattern: str) -> str | None:
    """ "mean ± std" in a format such as ".2%", just the mean of a single value, None for none."""
    mean, std = mean_and_std(values)
    if mean is None:
        return None
    return format(mean, pattern) + (f" ± {format(std, pattern)}" if std is not None else "")


def _text(cell: Cell, pattern: str) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    return cell if isinstance(cell, str) else format(cell, pattern)


def _is_spread(cell: Cell) -> bool:
    return isinstance(cell, str) and " ± " in cell


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
