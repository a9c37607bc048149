"""The Boolean ladder: Transformer → DLGN → looped DLGN → HBA v1 → HBA v2 → distilled, soft and hard, beside published.

Two parts: the protocol of the repository karumaru-kakikukekodoumei/boolean-attention, and our own. Each run is one
command of boolean_lm.py (--list shows them) in OUT/runs. What is finished there is skipped and what was interrupted
goes on, so that the same command may be given again at any time. Students learn from the teacher of their own seed.

    python experiments/boolean_ladder.py --quick
    python experiments/boolean_ladder.py
    python experiments/boolean_ladder.py --parts=tuned --rows='*router*,*-transformer' --max-minutes=30
    python experiments/boolean_ladder.py --budget=long --workers=16
    python experiments/boolean_ladder.py --report-only
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
from ising_attn.lab.figures import draw_all  # noqa: E402
from ising_attn.lab.ladder_plots import save_ladder  # noqa: E402
from ising_attn.lab.ladder_report import Measured, ladder_tables, measured, perplexities, spoken_claims  # noqa: E402
from ising_attn.lab.ladder_rows import PARTS, Row, rows  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.sweep import Job, Sweep, SweepSettings, interleaved, job_table  # noqa: E402
from ising_attn.lab.tables import write_tables  # noqa: E402
from ising_attn.lab.text import find_corpus  # noqa: E402
from samplers import InvalidOptionError  # noqa: E402

_TITLES = {
    "repository": "The Boolean ladder in the repository's protocol",
    "tuned": "The Boolean ladder in our protocol",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LadderSettings(SweepSettings):
    """Settings of the ladder."""

    out: Path | None = None
    """Folder of runs, tables and plots; by default results/boolean-ladder, with --budget=NAME
    results/boolean-ladder-NAME."""
    parts: tuple[str, ...] = ()
    """repository, tuned, or both (--parts=repository,tuned), in this order; by default both."""
    budget: Literal["medium", "long", "quick"] = "medium"
    """How long each rung trains: about a minute, about as long as in the repository, or a few steps."""
    quick: bool = False
    """The same as --budget=quick: everything on a small scale, in a few minutes; its numbers mean nothing."""

    @property
    def chosen_budget(self) -> str:
        return "quick" if self.quick else self.budget

    def folder(self) -> Path:
        budget = self.chosen_budget
        return self.out or Path("results") / ("boolean-ladder" if budget == "medium" else f"boolean-ladder-{budget}")

    def chosen_rows(self) -> list[Row]:
        """The rows, teachers of chosen students included, since those learn from nothing else."""
        every = rows(self.chosen_budget, self.parts or PARTS)
        wanted = {row.name for row in every if self.takes(row.name)}
        if not wanted:
            raise InvalidOptionError(f"no row fits --rows={','.join(self.rows)}; --list shows their names")
        for row in reversed(every):  # students come after their teachers
            if row.name in wanted and row.rung.teacher is not None:
                wanted.add(f"{row.part}-{row.rung.teacher}")
        return [row for row in every if row.name in wanted]

    def jobs(self, chosen: Sequence[Row]) -> list[Job]:
        """The first seed of every row of every part, then the second, so that little time gives the whole ladder."""
        return interleaved(job for row in chosen for job in row.jobs(self.seeds))

    def deciding_flags(self) -> list[str]:
        """The flags that decide which runs there are."""
        flags = [] if self.chosen_budget == "medium" else [f"--budget={self.chosen_budget}"]
        lists = (("parts", self.parts), ("rows", self.rows), ("seeds", self.seeds))
        return [*flags, *(f"--{name}={','.join(map(str, given))}" for name, given in lists if given)]


def main() -> int:
    settings = parse_settings(LadderSettings, prog="boolean-ladder", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    out, chosen = settings.folder(), settings.chosen_rows()
    jobs = settings.jobs(chosen)
    if settings.list:
        console.print(job_table(jobs, out, settings.workers).markdown(), soft_wrap=True)
        return 0
    code = 0 if settings.report_only else run_jobs(settings, out, jobs, console)
    results = measured(out, chosen)
    if not results:
        console.print("no run is finished yet, so that there is nothing to report")
        return code
    report(settings, out, results, console)
    return code


def run_jobs(settings: LadderSettings, out: Path, jobs: Sequence[Job], console: Console) -> int:
    """Run what is not finished; the exit code."""
    find_corpus()  # once, before many processes want it
    sweep = Sweep.of(settings, out)
    result = sweep.run(jobs)
    # A student that came before its teacher, as several workers may have it, gets its turn in the next round.
    while result.failed and result.done and not result.interrupted:
        result = sweep.run(jobs)
    for line in result.remarks(out):
        console.print(line, soft_wrap=True)
    return result.exit_code


def report(settings: LadderSettings, out: Path, results: Sequence[Measured], console: Console) -> None:
    """Tables and plots from what is finished."""
    tables = ladder_tables(results)
    write_tables(out, tables)
    command = shlex.join(["python", "experiments/boolean_ladder.py", *settings.deciding_flags()])
    notes = draw_all(_figure(out, part, results, command) for part in PARTS if any(m.row.part == part for m in results))
    if settings.chosen_budget == "quick":
        notes.append("this was the quick budget: it shows that everything works, and its numbers mean nothing")
    for name, table in tables.items():
        if name == "claims":
            console.print("\n".join(["", *spoken_claims(table)]))
        elif name != "runs":
            console.print()
            console.print(table.rich())
    for note in notes:
        console.print(f"note: {note}")
    console.print("\nTables (Markdown, CSV) and plots:")
    console.print(str(out.resolve()), soft_wrap=True)


def _figure(out: Path, part: str, results: Sequence[Measured], command: str):
    own = [m for m in results if m.row.part == part]
    logged = {
        m.row.rung.label: (m.row.rung.published.logged_soft, m.row.rung.published.logged_hard)
        for m in own
        if part == "repository" and m.row.rung.published is not None
    }
    return lambda: save_ladder(out / "plots", part, perplexities(own), logged, f"{_TITLES[part]}\n{command}")


if __name__ == "__main__":
    sys.exit(run_main(main))
