"""Running an experiment for one seed or several: what is announced, trained, evaluated, written and printed."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from rich.console import Console

from ising_attn.lab.config import parse_settings, settings_to_dict
from ising_attn.lab.distributed import current_team, joined
from ising_attn.lab.errors import RunFolderError, TrainingInterrupted
from ising_attn.lab.experiment import Experiment, ExperimentSettings
from ising_attn.lab.runs import RunFolder, check_usable
from ising_attn.lab.tables import Table, mean_and_std, spread, write_tables

S = TypeVar("S", bound=ExperimentSettings)
Make = Callable[[S, torch.device], Experiment]

_SLOW_SECONDS = 300
_OF_ONE_SEED = ("seed", "parameters", "data_remark")
_FILES = "table.md, summary.json"


def run_experiment(make: Make[S], settings: S, *, name: str) -> None:
    """Everything an experiment does after its settings are read; the path of the run folder is printed last.

    Under torchrun the processes train together, and the first one does everything else.

    Args:
        make: the experiment for the settings of one seed.
        name: of the run folder.

    Raises:
        RunFolderError: a resumption with other seeds than the run has; nothing was changed.
    """
    with joined(settings.device) as (team, device):
        team.check_batch(settings.training.batch_size)
        if team.leads:
            _lead(make, settings, device, name)
        elif settings.weights is None and not settings.dry_run:
            _follow(make, settings, device)


def _follow(make: Make[S], settings: S, device: torch.device) -> None:
    """What the other processes of a team do: train with the first one, seed by seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first one says them
        for seed in settings.all_seeds():
            make(settings.for_seed(seed), device).train(None, resume=False)


def _lead(make: Make[S], settings: S, device: torch.device, name: str) -> None:
    seeds = settings.all_seeds()
    if settings.out is not None:
        check_usable(settings.out, resume=settings.resume)
    if settings.resume:
        _check_seeds(settings)
    console = Console(highlight=False, markup=False)
    with _warnings_as_notes():
        first = make(settings.for_seed(seeds[0]), device)
        if settings.dry_run:
            console.print(first.dry_run())
            return
        notes = [] if settings.weights is None else first.load(settings.weights)
        _announce(console, first, device, notes)
        config = settings_to_dict(settings)
        with RunFolder.create(settings.out, config=config, name=name, resume=settings.resume, device=device) as run:
            if len(seeds) == 1:
                _run_seed(first, run, console, resume=settings.resume)
            else:
                _run_seeds(make, settings, run, console, device)
            console.print(f"\nRun folder with settings, metrics, checkpoints, plots and {_FILES}:")
            console.print(str(run.path), soft_wrap=True)


def _check_seeds(settings: ExperimentSettings) -> None:
    """A run keeps its seeds; one of several seeds may get more of them, since each has its own folder."""
    if settings.out is None or not (file := settings.out / "config.json").exists():
        return
    there, here = parse_settings(type(settings), [f"--config={file}"], prog="").all_seeds(), settings.all_seeds()
    if set(there) == set(here) or (len(there) > 1 and set(there) < set(here)):
        return
    spoken = [f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}" for seeds in (there, here)]
    raise RunFolderError(
        f"the run in {settings.out} has {spoken[0]}, not {spoken[1]}; resume without --seed and --seeds, "
        "or give another --out"
    )


def _run_seed(
    experiment: Experiment, run: RunFolder, console: Console, *, resume: bool, all_tables: bool = True
) -> dict[str, Any]:
    """Train (or take the given weights), evaluate, write everything; the summary."""
    training = {} if experiment.settings.weights is not None else experiment.train(run, resume=resume)
    if experiment.settings.rescale:
        training |= experiment.rescale(run)
        console.print(_spoken_rescale(**training["rescale"]))
    report = experiment.report()
    tables = list(report.tables().items())
    quick = ["this was a --quick run: it shows that everything works, and its numbers mean nothing"]
    notes = [*(quick if experiment.settings.quick else [])]
    if experiment.settings.plots:
        notes += experiment.save_figures(run, report)
    write_tables(run.path, dict(tables))
    summary = {"seed": experiment.seed, "train_seconds": None, **training, **report.summary(), **experiment.facts()}
    summary["quick"] = experiment.settings.quick
    run.write_summary(summary)
    for _, table in tables if all_tables else tables[:1]:
        console.print()
        console.print(table.rich(), soft_wrap=False)
    for line in (*report.remarks(), *(f"note: {note}" for note in (*report.notes, *notes)), *experiment.finish(run)):
        console.print(line)
    return summary


def _run_seeds(make: Make[S], settings: S, run: RunFolder, console: Console, device: torch.device) -> None:
    """Every seed in a run folder of its own, seed-K, and their mean and spread in this one."""
    summaries: dict[int, dict[str, Any]] = {}
    for seed in settings.all_seeds():
        own, path = settings.for_seed(seed), run.path / f"seed-{seed}"
        resume = (path / "config.json").exists()
        with RunFolder.create(path, config=settings_to_dict(own), resume=resume, device=device) as child:
            experiment = make(own, device)
            try:
                summaries[seed] = _run_seed(experiment, child, console, resume=resume, all_tables=False)
            except TrainingInterrupted as stop:
                run.write_config()
                raise TrainingInterrupted(str(stop).replace(str(child.path), str(run.path))) from None
    run.write_config()
    table = seeds_table(summaries, experiment.seed_columns)
    write_tables(run.path, {"seeds": table})
    run.write_summary(mean_summary(summaries))
    console.print()
    console.print(table.rich(), soft_wrap=False)


def seeds_table(summaries: Mapping[int, Mapping[str, Any]], columns: Sequence[tuple[str, str, str]]) -> Table:
    """Every seed's numbers, and their mean ± sample standard deviation in the last row.

    Args:
        columns: (title, key of the summary, format); one that no seed has is left out.
    """
    shown = [one for one in columns if any(s.get(one[1]) is not None for s in summaries.values())]
    table = Table("Seeds", ["seed", *(name for name, _, _ in shown)], {name: form for name, _, form in shown})
    for seed, summary in summaries.items():
        table.add(str(seed), *(summary.get(key) for _, key, _ in shown))
    table.add("mean ± std", *(spread([s.get(key) for s in summaries.values()], form) for _, key, form in shown))
    table.caption = f"Sample standard deviation over {len(summaries)} seeds."
    return table


def mean_summary(summaries: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """summary.json of several seeds: the mean of every number, `…_std` beside it, and each seed's own summary."""
    keys = [
        key for key, value in next(iter(summaries.values())).items() if not isinstance(value, list | str | bool | dict)
    ]
    keys = [key for key in keys if key not in _OF_ONE_SEED]
    combined: dict[str, Any] = {}
    for key in keys:
        mean, std = mean_and_std([summary.get(key) for summary in summaries.values()])
        combined |= {key: mean, f"{key}_std": std}
    return {**combined, "seeds": {str(seed): summary for seed, summary in summaries.items()}}


def _announce(console: Console, experiment: Experiment, device: torch.device, notes: Sequence[str]) -> None:
    """What will run, on what, and for about how long; refuses here what would fail later."""
    console.print(f"{experiment.title}: {experiment.facts()['parameters']} parameters, {device}")
    for remark in (*notes, *experiment.remarks()):
        console.print(f"note: {remark}")
    size, batch = current_team().size, experiment.settings.training.batch_size
    if size > 1:
        console.print(f"{size} processes train together, each on {batch // size} of the {batch} sequences of a step")
    step, evaluation = experiment.seconds_needed()
    if experiment.settings.weights is not None:
        return
    training = experiment.settings.training
    tried = len(set(experiment.settings.learning_rates)) * experiment.settings.rate_steps
    needed = (training.steps + tried) * (step + evaluation / training.eval_every)
    console.print(
        f"at most {training.steps} steps of {1000 * step:.0f} ms, {training.steps // training.eval_every} evaluations "
        f"of {evaluation:.1f} s: about {_spoken(needed)} of training per seed"
    )
    if needed > _SLOW_SECONDS:
        console.print(
            "note: to make it shorter, lower --steps, --batch-size, the size of the validation data or the sampler's "
            "own options, raise --eval-every, or train with --sampler=exact and evaluate the result with --weights"
        )


def _spoken_rescale(sequences: int, fields: float, couplings: float, before: float, after: float) -> str:
    return (
        f"rescale from {sequences} training sequences: fields × {fields:.3f}, couplings × {couplings:.3f}; "
        f"mean error of ⟨s⟩ there {before:.4f} before, {after:.4f} after"
    )


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Warnings in one line on stderr, without the source line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        sys.stderr.write(f"note: {message}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
