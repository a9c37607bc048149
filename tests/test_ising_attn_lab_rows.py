"""Sweeps from a file of rows: reading, refusing, pairing and reporting, from run folders made up for the purpose."""

import json
import shlex
from pathlib import Path

import pytest

from ising_attn.lab.row_file import RowFile
from ising_attn.lab.row_report import RowReport, save_plot
from samplers.errors import InvalidOptionError

FILE = """
title = "A table"
experiment = "masked-text"
seeds = [3, 4, 5]
flags = ["--context=4"]
baseline = "plain"
[[measures]]
key = "test_perplexity"
name = "perplexity"
[rows.plain]
flags = ["--task=causal"]
[rows."both sides"]
flags = ["--task=butterfly"]
[rows.other]
baseline = ""
"""


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "rows.toml").write_text(text)
    return tmp_path / "rows.toml"


def finish(out: Path, file: RowFile, row: str, seed: int, value: float) -> None:
    """A run folder as a finished run leaves it."""
    (job,) = file.jobs(row, (seed,))
    folder = job.folder(out)
    folder.mkdir(parents=True)
    for name, content in {
        "config": {},
        "environment": {"command": shlex.join(["python", *job.command()]), "commit": "abc"},
        "summary": {"test_perplexity": value, "steps": 7},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_rows_become_commands_with_the_flags_of_all_and_their_own(tmp_path):
    file = RowFile.read(write(tmp_path, FILE))
    jobs = file.jobs("both sides")
    assert [job.seed for job in jobs] == [3, 4, 5]
    assert jobs[0].arguments == ("--context=4", "--task=butterfly")
    assert [file.baseline_of(row) for row in file.rows] == ["", "plain", ""]


def test_the_report_pairs_by_seed(tmp_path):
    file = RowFile.read(write(tmp_path, FILE))
    for seed, plain, other in ((3, 5.0, 4.0), (4, 6.0, 4.5), (5, 7.0, 6.0)):
        finish(tmp_path, file, "plain", seed, plain)
        finish(tmp_path, file, "both sides", seed, other)
    finish(tmp_path, file, "both sides", 6, 100.0)  # no partner
    report = RowReport(file, tmp_path)
    (measure,) = file.measures
    found = report.differences(measure)["both sides"]
    assert (found.count, round(found.mean, 9)) == (3, round(-3.5 / 3, 9))
    tables = report.tables()
    assert "28.625" in tables["results"].markdown()
    assert tables["difference_test_perplexity"].rows[0][:3] == ["both sides", "plain", 3]
    assert len(tables["runs"].rows) == 7
    pytest.importorskip("matplotlib")
    save_plot(report, measure, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_a_run_with_other_flags_is_not_a_row_s(tmp_path):
    file = RowFile.read(write(tmp_path, FILE))
    finish(tmp_path, file, "plain", 3, 5.0)
    changed = RowFile.read(write(tmp_path, FILE.replace("--context=4", "--context=6")))
    assert RowReport(changed, tmp_path).results == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("masked-text", "masked-texts", "masked-text"),
        ('baseline = "plain"', 'baseline = "plian"', "did you mean 'plain'"),
        ("title", "titel", "titel"),
        ('flags = ["--context=4"]', 'flags = ["context=4"]', "--context=12"),
        ("seeds = [3, 4, 5]", "seeds = []", "at least one"),
        ('name = "perplexity"', 'name = "perplexity"\nbetter = "higher"', "higher"),
        ('key = "test_perplexity"', "", "key missing"),
        ("title =", "title", "cannot be read"),
    ],
)
def test_files_that_make_no_table_are_refused(tmp_path, old, new, message):
    with pytest.raises(InvalidOptionError, match=message):
        RowFile.read(write(tmp_path, FILE.replace(old, new, 1)))


def test_the_file_that_is_shipped_reads():
    folder = Path(__file__).resolve().parent.parent / "experiments" / "rows"
    for path in folder.glob("*.toml"):
        assert RowFile.read(path).rows


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[rows.plain]", '[rows."../../plain"]', "cannot name a folder"),
        ("[rows.other]", '[rows."/tmp/other"]', "cannot name a folder"),
        ("[rows.other]", '[rows.""]', "cannot name a folder"),
        ("seeds = [3, 4, 5]", 'seeds = "345"', "must be a list"),
        ("seeds = [3, 4, 5]", 'seeds = ["../x"]', "integer"),
        ("seeds = [3, 4, 5]", "seeds = [1, 1]", "each once"),
        ('flags = ["--context=4"]', 'flags = ["--out=/tmp/x"]', "by itself"),
        ('name = "perplexity"', 'name = "perplexity"\nformat = "zzz"', "number format"),
        ('title = "A table"', "title = 3", "must be text"),
    ],
)
def test_rows_cannot_leave_their_folder_nor_give_what_the_sweep_gives(tmp_path, old, new, message):
    with pytest.raises(InvalidOptionError, match=message):
        RowFile.read(write(tmp_path, FILE.replace(old, new, 1)))
