r"""A table of your own: rows of any experiment over several seeds, compared in pairs, resumable, in parallel.

The rows stand in a TOML file: an experiment, flags for all rows and for each, seeds, which numbers of summary.json are
compared, and against which row. Every run is one command (--list shows them) in OUT/runs/ROW/seed-K; what is finished
is skipped and what was interrupted goes on, so that the same command may be given again at any time.

    python experiments/sweep.py --file=experiments/rows/masked-text.toml --workers=2
    python experiments/sweep.py --file=mine.toml --seeds=0,1,2,3,4 --rows='butterfly*' --max-minutes=30
    python experiments/sweep.py --file=mine.toml --report-only
"""

import dataclasses
import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rich.console import Console  # noqa: E402

from ising_attn.lab.config import parse_settings  # noqa: E402
from ising_attn.lab.figures import draw_all  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.row_file import RowFile  # noqa: E402
from ising_attn.lab.row_report import RowReport, save_plot  # noqa: E402
from ising_attn.lab.sweep import Job, SweepSettings, interleaved, job_table, run_sweep  # noqa: E402
from ising_attn.lab.tables import write_tables  # noqa: E402
from samplers import InvalidOptionError  # noqa: E402


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSweepSettings(SweepSettings):
    """Settings of a sweep over the rows of a file."""

    file: Path | None = None
    """TOML file of the rows; see ising_attn/lab/row_file.py for all its keys."""
    out: Path | None = None
    """Folder of runs, tables and plots; by default results/NAME for a file NAME.toml."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts:
            raise InvalidOptionError("a file of rows has no --parts; choose rows with --rows")

    def read(self) -> RowFile:
        if self.file is None:
            raise InvalidOptionError("give the rows with --file=ROWS.toml")
        return RowFile.read(self.file)

    def folder(self) -> Path:
        return self.out or Path("results") / (self.file or Path("sweep")).stem

    def jobs(self, file: RowFile) -> list[Job]:
        """The first seed of every row, then the second, and so on."""
        chosen = [row for row in file.rows if self.takes(row)]
        if not chosen:
            raise InvalidOptionError(f"no row fits --rows={','.join(self.rows)}; the rows are {', '.join(file.rows)}")
        return interleaved(job for row in chosen for job in file.jobs(row, tuple(self.seeds)))


def main() -> int:
    settings = parse_settings(RowSweepSettings, prog="sweep", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    file, out = settings.read(), settings.folder()
    jobs = settings.jobs(file)
    if settings.list:
        console.print(job_table(jobs, out, settings.workers).markdown(), soft_wrap=True)
        return 0
    code = 0
    if not settings.report_only:
        code = run_sweep(settings, jobs, out, lambda line: console.print(line, soft_wrap=True))
    report = RowReport(file, out)
    if not report.results:
        console.print("no run is finished yet, so that there is nothing to report")
        return code
    tables = report.tables()
    write_tables(out, tables)
    plots = [lambda m=m: save_plot(report, m, out / "plots" / f"{m.key}.png") for m in file.measures]
    notes = draw_all(plots)
    for name, table in tables.items():
        if name != "runs":
            console.print()
            console.print(table.rich())
    for note in notes:
        console.print(f"note: {note}")
    console.print("\nAll tables (table.md, CSV) and plots:")
    console.print(str(out.resolve()), soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(run_main(main))
