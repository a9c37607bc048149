"""Tables: the same cells in three dresses, and statistics that exist only where they do."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from ising_attn.lab.tables import Table, mean_and_std, spread, write_tables


def example() -> Table:
    table = Table("Accuracy", ["sampler", "accuracy", "mae"], {"accuracy": ".2%", "mae": ".4f"}, "2 seeds")
    table.add("exact", 0.98765, None)
    table.add("a|b", 0.5, 0.123456789)
    return table


def test_markdown_aligns_numbers_right_and_escapes_bars():
    assert example().markdown().split("\n") == [
        "### Accuracy",
        "",
        "| sampler | accuracy | mae |",
        "| --- | ---: | ---: |",
        "| exact | 98.77% | – |",
        "| a\\|b | 50.00% | 0.1235 |",
        "",
        "2 seeds",
        "",
    ]


def test_csv_keeps_full_precision_and_leaves_what_is_missing_empty():
    rows = list(csv.reader(io.StringIO(example().csv())))
    assert rows == [["sampler", "accuracy", "mae"], ["exact", "0.98765", ""], ["a|b", "0.5", "0.123456789"]]


def test_rich_shows_every_cell():
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(example().rich())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(text in shown for text in ("Accuracy", "98.77%", "0.1235", "2 seeds", "–"))


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="2 cells were given for 3 columns"):
        example().add("exact", 0.5)


def test_spread_is_the_mean_and_the_sample_deviation():
    values = [0.9, 0.95, 1.0]
    assert mean_and_std(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert spread(values, ".1%") == "95.0% ± 5.0%"
    assert spread([0.5, None], ".1%") == "50.0%"
    assert spread([None], ".1%") is None and mean_and_std([]) == (None, None)


def test_all_tables_go_to_one_page_and_one_csv_each(tmp_path):
    write_tables(tmp_path / "run", {"first": example(), "second": example()})
    assert (tmp_path / "run" / "table.md").read_text().count("### Accuracy") == 2
    assert (tmp_path / "run" / "first.csv").read_text() == (tmp_path / "run" / "second.csv").read_text()
