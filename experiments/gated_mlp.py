"""Does breaking the symmetry help? Gated MLPs against symmetric bilinear layers and MLPs, at equal parameters.

Every layer has the same number of parameters, so its number of hidden units is solved for; every variant chooses its
learning rate from the same grid, on validation text, with a seed that is not reported; then it is trained for every
seed on Tiny Shakespeare. Runs are commands of tiny_shakespeare.py in OUT/runs (--list shows them); what is finished is
skipped, so that the same command may be given again at any time.

    python experiments/gated_mlp.py --quick
    python experiments/gated_mlp.py --workers=8
    python experiments/gated_mlp.py --ranks=1,2 --activations=gelu,silu --seeds=0,1,2 --max-minutes=30
    python experiments/gated_mlp.py --report-only
"""

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rich.console import Console  # noqa: E402

from ising_attn.lab.checkpoints import load_checkpoint  # noqa: E402
from ising_attn.lab.config import Flat, parse_settings, settings_to_dict  # noqa: E402
from ising_attn.lab.errors import RunFolderError  # noqa: E402
from ising_attn.lab.files import write_json  # noqa: E402
from ising_attn.lab.gated_mlp_plots import save_figures  # noqa: E402
from ising_attn.lab.gated_mlp_report import Outcome, Report  # noqa: E402
from ising_attn.lab.gated_mlp_rows import CHOSEN, FORMS, Study, Variant  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.runs import environment, read_json  # noqa: E402
from ising_attn.lab.sweep import Job, State, Sweep, SweepResult, SweepSettings, interleaved, job_table  # noqa: E402
from ising_attn.lab.sweep_results import FinishedRun, finished_runs  # noqa: E402
from ising_attn.lab.tables import write_tables  # noqa: E402
from ising_attn.lab.text import Corpus, TextData, find_corpus  # noqa: E402
from ising_attn.lab.text_task import TextTask  # noqa: E402
from ising_attn.symmetry import FACTORS, exchanged, symmetry_gaps_in  # noqa: E402
from models import model_from_config  # noqa: E402
from samplers import InvalidOptionError  # noqa: E402
from samplers.errors import did_you_mean  # noqa: E402

_SEEDS = (0, 1, 2, 3, 4)
_GAP_CHARACTERS = 10_001


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedMLPSettings(SweepSettings):
    """Settings of the study of gated MLPs."""

    out: Path | None = None
    """Folder of runs, tables and plots; by default results/gated-mlp, with --quick results/gated-mlp-quick."""
    parts: tuple[str, ...] = ()
    """Only these layers: mlp, symmetric, gated; by default all."""
    quick: bool = False
    """A run of a minute or two that shows whether everything works; its numbers mean nothing."""
    study: Flat[Study] = Study()

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in self.parts:
            if part not in FORMS:
                raise InvalidOptionError(f"--parts has {part!r}{did_you_mean(part, FORMS)}; known: {', '.join(FORMS)}")

    def folder(self) -> Path:
        return self.out or Path("results") / ("gated-mlp-quick" if self.quick else "gated-mlp")

    def all_seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.seeds)) or (_SEEDS[:2] if self.quick else _SEEDS)

    def variants(self) -> list[Variant]:
        """Those that are asked for."""
        forms = self.parts or FORMS
        found = [v for v in self.study.variants() if v.form in forms and self.takes(v.name)]
        if not found:
            raise InvalidOptionError(f"no row fits --rows={','.join(self.rows)}; --list shows their names")
        return found


class StudyRuns:
    """The runs of a study in a folder."""

    def __init__(self, settings: GatedMLPSettings):
        self.settings, self.study, self.out = settings, settings.study, settings.folder()
        self.variants = settings.variants()

    def tuning_jobs(self) -> list[Job]:
        return [self.study.tuning_job(variant) for variant in self.variants]

    def rate(self, variant: Variant) -> float | None:
        """The learning rate that was chosen; None where its trainings are not finished."""
        job = self.study.tuning_job(variant)
        if job.state(self.out) is not State.DONE:
            return None
        return self.study.chosen_rate(read_json(job.folder(self.out) / "summary.json"))

    def jobs(self) -> list[Job]:
        """The first seed of every variant, then the second, and so on."""
        rates = {variant: self.rate(variant) for variant in self.variants}
        return interleaved(
            self.study.job(variant, seed, rates[variant])
            for variant in self.variants
            for seed in self.settings.all_seeds()
        )

    def run(self) -> SweepResult:
        """Choose the rates, then train; only variants whose rate is chosen are trained."""
        settings, started = self.settings, time.monotonic()
        parts = []
        for jobs in (self.tuning_jobs, lambda: [job for job in self.jobs() if not _undecided(job)]):
            minutes = settings.max_minutes
            if minutes is not None:
                minutes = max(minutes - (time.monotonic() - started) / 60, 1e-9)
            sweep = Sweep.of(dataclasses.replace(settings, max_minutes=minutes), self.out)
            parts.append(sweep.run(jobs()))
            if parts[-1].interrupted:
                break
        left = [job for job in self.jobs() if _undecided(job)]
        return SweepResult(
            done=[job for part in parts for job in part.done],
            skipped=[job for part in parts for job in part.skipped],
            failed={job: why for part in parts for job, why in part.failed.items()},
            changed=[job for part in parts for job in part.changed],
            left=[*(job for part in parts for job in part.left), *left],
            interrupted=any(part.interrupted for part in parts),
        )

    def finished(self) -> list[tuple[Variant, FinishedRun]]:
        """Trainings that are reported and done."""
        by_name = {variant.name: variant for variant in self.variants}
        found = finished_runs(self.out, {job.row: job.arguments for job in self.jobs()})
        seeds = self.settings.all_seeds()
        return [(by_name[row], run) for row, runs in found.items() for run in runs.values() if run.seed in seeds]


def _undecided(job: Job) -> bool:
    return f"--learning-rate={CHOSEN}" in job.arguments


def outcomes(runs: StudyRuns) -> list[Outcome]:
    """The numbers of every finished run, and the symmetry gaps of its weights on the first part of the test text."""
    finished = runs.finished()
    if not finished:
        return []
    data, study = TextData.tuned(Corpus.read().text), runs.study
    task = TextTask(data, context=study.context, batch_size=1, test_characters=_GAP_CHARACTERS)
    found = []
    for variant, run in finished:
        one = Outcome(
            variant,
            run.seed,
            validation=run.summary["validation_perplexity"],
            test=run.summary["test_perplexity"],
            learning_rate=float(runs.rate(variant) or 0),
            parameters=run.summary["parameters"],
        )
        found.append(with_gaps(one, run.folder, task) if variant.rank else one)
    return found


def with_gaps(outcome: Outcome, folder: Path, task: TextTask) -> Outcome:
    """Also the symmetry gaps of the run's best weights, and the perplexity with queries and keys exchanged."""
    checkpoint = load_checkpoint(folder / "checkpoints" / "best.safetensors")
    model = model_from_config(checkpoint.model_config)
    model.load_state_dict(checkpoint.model)
    model.eval()
    test = task.split("test")
    measured = symmetry_gaps_in(model, task.windows(test)[0].tokens).values()
    return dataclasses.replace(
        outcome,
        exchange=max(one.exchange for one in measured),
        scaling={a: max(one.scaling[a] for one in measured) for a in FACTORS},
        plain=task.scores(model, test).perplexity,
        exchanged=task.scores(exchanged(model), test).perplexity,
    )


def write_report(runs: StudyRuns, console: Console) -> None:
    """Tables, plots and settings in the study's folder; the first tables on the terminal."""
    found = outcomes(runs)
    if not found and runs.settings.report_only:
        raise RunFolderError(f"{runs.out} holds no finished run of this study; leave --report-only out to make them")
    if not found:
        return
    report = Report(runs.study, found)
    tables = report.tables()
    write_tables(runs.out, tables)
    write_json(
        runs.out / "summary.json", {**report.summary(), "commits": sorted({run.commit for _, run in runs.finished()})}
    )
    if not runs.settings.report_only:
        write_json(runs.out / "config.json", settings_to_dict(dataclasses.replace(runs.settings, max_minutes=None)))
        write_json(runs.out / "environment.json", environment())
    notes = save_figures(report, runs.out / "plots")
    for name in ("results", "best", "gated_minus_symmetric", "symmetry"):
        console.print()
        console.print(tables[name].rich())
    wanted = len(runs.variants) * len(runs.settings.all_seeds())
    if len(found) < wanted:
        notes.append(f"{wanted - len(found)} of {wanted} runs are missing")
    if runs.settings.quick:
        notes.append("this was a --quick run: it shows that everything works, and its numbers mean nothing")
    for line in (*report.remarks(), *(f"note: {note}" for note in notes)):
        console.print(line)


def main(argv: Sequence[str] | None = None) -> int:
    settings = parse_settings(GatedMLPSettings, argv, prog="gated-mlp", description=__doc__ or "")
    if settings.quick:
        settings = dataclasses.replace(settings, study=settings.study.shortened())
    console = Console(highlight=False, markup=False)
    runs = StudyRuns(settings)
    if settings.list:
        console.print(job_table([*runs.tuning_jobs(), *runs.jobs()], runs.out, settings.workers).markdown())
        return 0
    code = 0
    if not settings.report_only:
        find_corpus()  # once, before many processes want it
        result = runs.run()
        for line in result.remarks(runs.out):
            console.print(line, soft_wrap=True)
        code = result.exit_code
    write_report(runs, console)
    console.print("\nFolder with runs, table.md, CSV files and plots:")
    console.print(str(runs.out.resolve()), soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(run_main(main))
