"""The reproduction of Boltzmann attention (Kim and Park, arXiv 2606.12478): every row, every seed, tables and plots.

Each run is one command of tiny_shakespeare.py or brackets.py (--list shows them). Runs go to OUT/runs. What is finished
there is skipped and what was interrupted goes on, so that the same command may be given again at any time.

    python experiments/reproduce.py --quick
    python experiments/reproduce.py --workers=8
    python experiments/reproduce.py --parts=text-paper,brackets --seeds=0,1,2 --max-minutes=120
    python experiments/reproduce.py --budget=paper --workers=32
    python experiments/reproduce.py --report-only
"""

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rich.console import Console  # noqa: E402

from ising_attn.lab.config import parse_settings  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.reproduction_claims import claims_table  # noqa: E402
from ising_attn.lab.reproduction_figures import save_all  # noqa: E402
from ising_attn.lab.reproduction_report import measured, part_tables  # noqa: E402
from ising_attn.lab.reproduction_rows import PARTS, TEXT, Row, rows  # noqa: E402
from ising_attn.lab.sweep import Job, SweepSettings, interleaved, job_table, run_sweep  # noqa: E402
from ising_attn.lab.sweep_results import changed_runs  # noqa: E402
from ising_attn.lab.tables import write_tables  # noqa: E402
from ising_attn.lab.text import find_corpus  # noqa: E402
from samplers import InvalidOptionError  # noqa: E402


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReproductionSettings(SweepSettings):
    """Settings of the reproduction."""

    out: Path | None = None
    """Folder of runs, tables and plots; by default results/boltzmann, with --budget=NAME results/boltzmann-NAME."""
    budget: Literal["medium", "paper", "quick"] = "medium"
    """How long each row trains: the paper's way, our own faster rates, or a few steps at few lengths."""
    quick: bool = False
    """The same as --budget=quick: everything on a small scale, within 15 minutes."""

    @property
    def chosen_budget(self) -> str:
        return "quick" if self.quick else self.budget

    def folder(self) -> Path:
        budget = self.chosen_budget
        return self.out or Path("results") / ("boltzmann" if budget == "medium" else f"boltzmann-{budget}")

    def chosen_rows(self) -> list[Row]:
        found = [row for row in rows(self.chosen_budget, self.parts or PARTS) if self.takes(row.name)]
        if not found:
            raise InvalidOptionError(f"no row fits --rows={','.join(self.rows)}; --list shows their names")
        return found

    def deciding_flags(self) -> list[str]:
        """The flags that decide which runs there are."""
        flags = [] if self.chosen_budget == "medium" else [f"--budget={self.chosen_budget}"]
        lists = (("parts", self.parts), ("rows", self.rows), ("seeds", self.seeds))
        return [*flags, *(f"--{name}={','.join(map(str, given))}" for name, given in lists if given)]

    def jobs(self, chosen: Sequence[Row]) -> list[Job]:
        """Part by part; within a part the first seed of every row comes first, then the second."""
        parts = dict.fromkeys(row.part for row in chosen)
        return [
            job
            for part in parts
            for job in interleaved(job for row in chosen if row.part == part for job in row.jobs(self.seeds))
        ]


def main() -> int:
    settings = parse_settings(ReproductionSettings, prog="reproduce", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    out, chosen = settings.folder(), settings.chosen_rows()
    jobs = settings.jobs(chosen)
    if settings.list:
        console.print(job_table(jobs, out, settings.workers).markdown(), soft_wrap=True)
        return 0
    code = 0
    if not settings.report_only:
        if any(job.experiment == TEXT for job in jobs):
            find_corpus()  # once, before many processes want it
        code = run_sweep(settings, jobs, out, lambda line: console.print(line, soft_wrap=True))
    changed = changed_runs(out, {row.name: row.arguments for row in chosen})
    if changed:
        console.print(
            f"note: {len(changed)} runs were made with other settings than these rows have and are left out, such as "
            f"{changed[0]}",
            soft_wrap=True,
        )
    results = measured(out, chosen)
    if not results:
        console.print("no run is finished yet, so that there is nothing to report")
        return code
    tables = part_tables(results)
    if (claims := claims_table(results)).rows:
        tables = {"claims": claims, **tables}
    write_tables(out, tables)
    command = shlex.join(["python", "experiments/reproduce.py", *settings.deciding_flags()])
    notes = save_all(out / "plots", results, command)
    named = {"claims", *(m.table for m in results)}
    for name, table in tables.items():
        if name in named:
            console.print()
            console.print(table.rich())
    for note in notes:
        console.print(f"note: {note}")
    console.print("\nAll tables, with paired tests (table.md, CSV), and plots:")
    console.print(str(out.resolve()), soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(run_main(main))
