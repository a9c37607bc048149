"""Learned anneals: fit the layer angles of a simulated quantum anneal to exact spin marginals, and test them.

A schedule gives every layer an angle for the fields, one for the couplings and one for the mixer. They are fitted by
gradient descent over a family of random problems, then tested on fresh problems at other sizes, beside calibrated
ramps of equal depth and the schedules that are shipped.

    python experiments/anneal_schedule.py --family=medium --spins=8 --layers=2,4,8 --test-spins=4,8,12,16
    python experiments/anneal_schedule.py --fields=1.5 --couplings=0.4 --spins=4,8,12 --layers=8 --name=mine
    python experiments/anneal_schedule.py --follow-scale --queries=8 --start=learned-medium --spins=4,8,12,16 --layers=8
    python experiments/anneal_schedule.py --evaluate --family=strong
    python experiments/brackets.py --sampler=dqa --sampler.schedule=RUN/schedules/mine-8.json
"""

import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402

from ising_attn.lab.config import RunSettings, parse_settings, settings_to_dict  # noqa: E402
from ising_attn.lab.device import resolve_device  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.progress import work_progress  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.schedule_report import (  # noqa: E402
    Candidate,
    HeldOutProblems,
    ScheduleError,
    error_table,
    long_table,
    save_error_curves,
)
from ising_attn.lab.tables import write_tables  # noqa: E402
from samplers import InvalidOptionError, MissingDependencyError  # noqa: E402
from samplers.dqa import AngleSchedule, DQASampler, load_schedule, save_schedule  # noqa: E402
from samplers.dqa.learning import MEDIUM, STRONG, WEAK, Family, FitStep, fit_schedule, stretched  # noqa: E402
from samplers.dqa.schedules import as_schedule, learned_depths  # noqa: E402
from samplers.dqa.statevector import MAX_SPINS  # noqa: E402

FAMILIES = {"weak": WEAK, "medium": MEDIUM, "strong": STRONG}
ANNEALS = ("ramp", "constant", "fast-anneal")  # take any number of layers
_LOGGED = 10  # times per fit


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleSettings(RunSettings):
    """Settings of the fits and of their test."""

    family: Literal["weak", "medium", "strong"] = "medium"
    """Strength of the random problems: h ~ N(0, f²), J ~ N(0, c²) with (f, c) = (0.3, 0.1), (1, 0.3) or (2, 0.5)."""
    fields: float | None = None
    """Standard deviation of the fields h, instead of the family's."""
    couplings: float | None = None
    """Standard deviation of the couplings J, instead of the family's."""
    spins: tuple[int, ...] = (8,)
    """Sizes of the problems to fit to; several take turns, step by step. A size may be given more than once."""
    layers: tuple[int, ...] = (2, 4, 8)
    """Numbers of layers; one schedule is fitted for each."""
    steps: int = 600
    """Steps of Adam for each fit."""
    batch: int = 64
    """Coupling matrices in a step at 8 spins; fewer at larger sizes, more at smaller ones."""
    queries: int = 1
    """Problems with different fields for each of them; on a CPU up to 8 take about as long as one."""
    learning_rate: float = 0.03
    """Adam's first step size; it falls to zero along a cosine."""
    follow_scale: bool = False
    """Also fit how the angles follow the size of a problem and the strength of its couplings and fields."""
    start: str = "ramp"
    """Where fits start: ramp or constant (calibrated), or a learned schedule (name or file), stretched to the depth."""
    name: str = "fitted"
    """The schedules are written as NAME-LAYERS.json."""
    evaluate: bool = False
    """Only test the ramps, the shipped schedules and those of --schedules; fit nothing."""
    schedules: tuple[str, ...] = ()
    """Further schedules to test: JSON files, or names."""
    test_spins: tuple[int, ...] = (4, 8, 12, 16)
    """Sizes of the problems to test on."""
    test_problems: int = 64
    """Test problems of each size."""
    seed: int = 0
    """Seed of the problems."""

    def __post_init__(self) -> None:
        for name in ("spins", "layers", "test_spins"):
            if not getattr(self, name):
                raise InvalidOptionError(f"--{_flag(name)} is empty; give at least one number")
            self._require(name, min(getattr(self, name)), 1)
        for name in ("steps", "batch", "queries", "test_problems"):
            self._require(name, getattr(self, name), 1)
        for name in ("spins", "test_spins"):
            if (most := max(getattr(self, name))) > MAX_SPINS:
                raise InvalidOptionError(
                    f"--{_flag(name)} has {most}; the state vector takes at most {MAX_SPINS} spins"
                )
        for name in ("fields", "couplings"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InvalidOptionError(f"--{name} is {value}; it must be a finite number of at least 0")
        if not 0 < self.learning_rate < float("inf"):
            raise InvalidOptionError(f"--learning-rate is {self.learning_rate}; it must be above 0")
        if not self.name or Path(self.name).name != self.name:
            raise InvalidOptionError(f"--name is {self.name!r}; give a file name without a folder")

    @staticmethod
    def _require(name: str, value: int, low: int) -> None:
        if value < low:
            raise InvalidOptionError(f"--{_flag(name)} is {value}; it must be at least {low}")

    def problems(self) -> Family:
        """The family to fit to and to test on."""
        own = FAMILIES[self.family]
        fields = own.fields if self.fields is None else self.fields
        couplings = own.couplings if self.couplings is None else self.couplings
        return Family(fields, couplings, num_spins=self.spins)

    def depths(self) -> list[int]:
        return sorted(set(self.layers))


def main() -> None:
    settings = parse_settings(ScheduleSettings, prog="anneal-schedule", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    family = settings.problems()
    device = resolve_device(settings.device)
    others = list(_others(settings))
    starts = {} if settings.evaluate else {depth: _start(settings.start, depth) for depth in settings.depths()}
    what = f"h ~ N(0, {family.fields:g}²), J ~ N(0, {family.couplings:g}²)"
    console.print(what)
    config = settings_to_dict(settings)
    with RunFolder.create(settings.out, config=config, name="anneal-schedule", resume=settings.resume) as run:
        run.write_config()
        fitted = {depth: _fitted(settings, family, start, run, device) for depth, start in starts.items()}
        own = [Candidate(settings.name, schedule) for schedule in fitted.values()]
        errors = _test(settings, family, [*own, *others], device)
        title = f"Mean |⟨s⟩ − exact|, {what}"
        tables = {"errors": error_table(errors, title, _caption(settings)), "numbers": long_table(errors)}
        write_tables(run.path, tables)
        run.write_summary(_summary(settings, family, errors))
        console.print()
        console.print(tables["errors"].rich(), soft_wrap=False)
        try:
            save_error_curves(run.plots / "error_by_layers.png", errors, title)
        except MissingDependencyError as error:
            console.print(f"note: no plot: {error}")
        if fitted:
            console.print("\nUse a fitted schedule with --sampler=dqa and one of")
            for depth in fitted:
                console.print(f"--sampler.schedule={shlex.quote(str(_file(settings, run, depth)))}", soft_wrap=True)
        console.print("\nRun folder with tables (Markdown, CSV), schedules, plot and summary.json:")
        console.print(str(run.path), soft_wrap=True)


# ---- fitting --------------------------------------------------------------------------------------------------


def _fitted(
    settings: ScheduleSettings, family: Family, start: AngleSchedule, run: RunFolder, device: torch.device
) -> AngleSchedule:
    """The schedule fitted from `start`; a resumed run keeps those that it has, if they were fitted in the same way."""
    depth = start.angles.depth
    file = _file(settings, run, depth)
    names = ("steps", "batch", "queries", "learning_rate", "follow_scale", "seed", "start")
    how: dict[str, Any] = {name: getattr(settings, name) for name in names}
    how["family"] = {**dataclasses.asdict(family), "num_spins": list(family.num_spins)}
    if file.exists():
        before = load_schedule(file)
        if isinstance(before, AngleSchedule) and {key: before.about.get(key) for key in how} == how:
            return before
    every = max(1, settings.steps // _LOGGED)
    started, errors = time.perf_counter(), []
    with work_progress(f"fit of {depth} layers", settings.steps // every) as advance:

        def progress(step: FitStep) -> None:
            errors.append(step.error)
            if step.step % every == 0:
                error = sum(errors) / len(errors)
                run.log(layers=depth, step=step.step, error=error, seconds=time.perf_counter() - started)
                advance(f"step {step.step} of {step.steps}, mean error {error:.4f}")
                errors.clear()

        schedule = fit_schedule(
            family,
            depth,
            name=file.stem,
            steps=settings.steps,
            batch=settings.batch,
            queries=settings.queries,
            learning_rate=settings.learning_rate,
            follow_scale=settings.follow_scale,
            start=start,
            seed=settings.seed,
            device=device,
            progress=progress,
        )
    schedule = dataclasses.replace(schedule, about={**schedule.about, **how})
    file.parent.mkdir(exist_ok=True)
    save_schedule(schedule, file)
    return schedule


def _start(name: str, depth: int) -> AngleSchedule:
    """The schedule from which a fit starts; of another depth only its angles."""
    if name in ANNEALS or depth in learned_depths(name):
        return _schedule(name, depth)
    given = _schedule(name)
    return given if given.angles.depth == depth else AngleSchedule(stretched(given.angles, depth))


def _schedule(name: str, depth: int | None = None) -> AngleSchedule:
    """What the sampler runs for a name or file: calibrated where the schedule says so."""
    given = as_schedule(name, depth)
    layers = DQASampler(schedule=given, num_layers=depth).layers()
    return AngleSchedule(layers, scale=given.scale if isinstance(given, AngleSchedule) else None)


def _file(settings: ScheduleSettings, run: RunFolder, depth: int) -> Path:
    return run.path / "schedules" / f"{settings.name}-{depth}.json"


# ---- testing --------------------------------------------------------------------------------------------------


def _others(settings: ScheduleSettings) -> Iterator[Candidate]:
    """What fits are compared with: calibrated ramps, shipped schedules, those of --schedules."""
    for depth in settings.depths():
        yield Candidate("calibrated ramp", _schedule("ramp", depth))
        for name in (f"{kind}-{family}" for kind in ("learned", "adaptive") for family in FAMILIES):
            if depth in learned_depths(name):
                yield Candidate(name, _schedule(name, depth))
    for name in settings.schedules:
        yield Candidate(Path(name).stem, _schedule(name))


def _test(
    settings: ScheduleSettings, family: Family, candidates: list[Candidate], device: torch.device
) -> list[ScheduleError]:
    errors = []
    sizes = sorted(set(settings.test_spins))
    with work_progress("test", len(sizes)) as advance:
        for n in sizes:
            problems = HeldOutProblems.draw(family, n, settings.test_problems, settings.seed, device)
            errors += [problems.error_of(one) for one in candidates]
            advance(f"{n} spins")
    return errors


def _caption(settings: ScheduleSettings) -> str:
    fitted = "" if settings.evaluate else f" {settings.name}: fitted at n = {', '.join(map(str, settings.spins))}."
    return f"{settings.test_problems} fresh problems of each size.{fitted}"


def _summary(settings: ScheduleSettings, family: Family, errors: list[ScheduleError]) -> dict[str, Any]:
    depths = [] if settings.evaluate else settings.depths()
    return {
        "family": {"fields": family.fields, "couplings": family.couplings, "spins": list(family.num_spins)},
        "schedules": {str(depth): f"schedules/{settings.name}-{depth}.json" for depth in depths},
        "errors": [dataclasses.asdict(one) for one in errors],
    }


def _flag(name: str) -> str:
    return name.replace("_", "-")


if __name__ == "__main__":
    sys.exit(run_main(main))
