"""What an experiment that trains a model consists of: its settings, and `Experiment`, one seed of it."""

import abc
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of, use_sampler
from ising_attn.couplings import coupling_parameters
from ising_attn.lab.checkpoints import Checkpoint, load_checkpoint, load_weights, save_checkpoint
from ising_attn.lab.config import Flat, SamplerSettings
from ising_attn.lab.distributed import current_team, num_rows, rows_of
from ising_attn.lab.progress import training_progress
from ising_attn.lab.rates import choose_rate
from ising_attn.lab.runs import RunFolder
from ising_attn.lab.stored_samplers import stored_samplers
from ising_attn.lab.tables import Table
from ising_attn.lab.temperature import Cooling, TemperatureSettings
from ising_attn.lab.training import Task, Trainer, TrainingResult, TrainingSettings
from ising_attn.learned_schedule import (
    angles_in,
    fixed_layers,
    learn_schedule,
    names_schedule,
    run_schedule,
    schedule_of,
)
from ising_attn.routers import routers_of
from samplers import InvalidOptionError, NotSupportedError, ProblemTooLargeError, Sampler
from samplers.dqa import DQASampler, save_schedule
from samplers.dqa.rescaling import fit_rescaling
from samplers.dqa.statevector import MAX_SPINS
from samplers.streams import derive_key

Self = TypeVar("Self", bound="ExperimentSettings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentSettings(SamplerSettings):
    """Settings of an experiment that trains one model per seed."""

    seeds: tuple[int, ...] = ()
    """Train once for each of these seeds (--seeds=0,1,2), each in its own folder; by default once, with --seed."""
    weights: Path | None = None
    """Checkpoint to evaluate through the sampler instead of training."""
    learning_rates: tuple[float, ...] = ()
    """Train briefly with each first, then go on with the best on validation data; J's rate keeps its ratio."""
    rate_steps: int = 1000
    """Steps with each of --learning-rates."""
    learn_schedule: bool = False
    """Train the layer angles of --sampler=dqa with the model, from those of its schedule on."""
    rescale: int = 0
    """After training, or with --weights, scale fields and couplings of --sampler=dqa so that ⟨s⟩ is nearest to exact
    on so many training sequences; 0 for none."""
    plots: bool = True
    """Draw the plots of the run; --no-plots saves seconds where there are many runs."""
    dry_run: bool = False
    """Say what the run would send to a D-Wave machine, and its QPU time, and end; nothing is sent."""
    quick: bool = False
    """A run of seconds that shows whether everything works; its numbers mean nothing."""
    training: Flat[TrainingSettings] = TrainingSettings()
    temperatures: Flat[TemperatureSettings] = TemperatureSettings()

    def __post_init__(self) -> None:
        self.require_at_least(rate_steps=1, rescale=0)
        for rate in self.learning_rates:
            if not (rate > 0 and math.isfinite(rate)):
                raise InvalidOptionError(f"--learning-rates has {rate}; each must be finite and above 0")
        if self.weights is not None and (self.resume or len(self.seeds) > 1):
            raise InvalidOptionError("--weights evaluates one checkpoint; leave out --resume and several --seeds")

    def all_seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.seeds)) or (self.training.seed,)

    def for_seed(self: Self, seed: int) -> Self:
        """The same settings for this one seed."""
        return dataclasses.replace(self, seeds=(), training=dataclasses.replace(self.training, seed=seed))

    def require_at_least(self, **lowest: int) -> None:
        """Refuse a setting, named with its least value, that is smaller; None passes."""
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InvalidOptionError(f"--{name.replace('_', '-')} is {value}; it must be at least {low}")


@runtime_checkable
class Report(Protocol):
    """What a trained model came to."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers must know."""

    def summary(self) -> dict[str, Any]:
        """Numbers for summary.json."""

    def tables(self) -> Mapping[str, Table]:
        """By name; the first one is the most important."""

    def remarks(self) -> list[str]:
        """Lines to print below the tables."""


S = TypeVar("S", bound=ExperimentSettings)
R = TypeVar("R", bound=Report)


class Experiment(abc.ABC, Generic[S, R]):
    """One seed: the model, its task and its trainer. Subclass it for each experiment.

    Args:
        settings: of this one seed.
        make_model: the model for a sampler (None where its attention uses none); it has `config.to_dict()`.
        task: what it learns; where it has `metrics`, the names that `evaluate` reports, --monitor is checked at once.
        context: spins of the largest problem.
        device: of the model.

    Raises:
        InvalidOptionError: --monitor names no number that the task reports.
        ProblemTooLargeError, NotSupportedError: a sampler that cannot be trained through, or has no schedule to learn.
    """

    seed_columns: ClassVar[Sequence[tuple[str, str, str]]]
    """(title, key of the summary, format) of each column of the table of several seeds."""
    title: str
    """What is trained, in one line."""

    def __init__(
        self,
        settings: S,
        make_model: Callable[[Sampler | None], nn.Module],
        task: Task,
        *,
        uses_sampler: bool,
        context: int,
        device: torch.device,
    ):
        self.settings, self.task, self.seed = settings, task, settings.training.seed
        monitor, reported = settings.training.monitor, getattr(task, "metrics", None)
        if settings.weights is None and reported is not None and monitor not in reported:
            raise InvalidOptionError(f"--monitor is {monitor!r}; this task reports {', '.join(sorted(reported))}")
        sampler = settings.make_sampler(seed=self.seed) if uses_sampler else None
        if sampler is not None:
            _check_sampler(sampler, context)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_key(self.seed, -4))
            self.model = make_model(sampler).to(device)
        if sampler is not None:
            _check_routing(self.model, sampler)
        # Taken here, where the model has the temperature that it was configured with.
        self.cooling = Cooling.of(self.model, settings.temperatures)
        # The sampler with what decides its results, for titles.
        self.sampler_words = "" if sampler is None else sampler.description
        self.model_config: dict[str, Any] = self.model.config.to_dict()  # type: ignore[union-attr, operator]
        if settings.learn_schedule and not uses_sampler:
            raise InvalidOptionError(
                "--learn-schedule trains the angles of a simulated anneal, and this attention uses no sampler; "
                "use --attention=boltzmann --sampler=dqa"
            )
        if settings.learn_schedule and settings.weights is None:
            learn_schedule(self.model)
        if settings.rescale and not isinstance(sampler, DQASampler):
            raise InvalidOptionError("--rescale finds factors for the angles of a simulated anneal; use --sampler=dqa")
        if settings.rescale and context > MAX_SPINS:
            raise ProblemTooLargeError(
                f"--rescale simulates {context} spins as a state vector, which takes at most {MAX_SPINS}; "
                "use a shorter --context, or leave --rescale out"
            )

    @abc.abstractmethod
    def evaluate_part(self) -> float:
        """Evaluate the model on a part of the validation split; what share of the split that was."""

    @abc.abstractmethod
    def report(self) -> R:
        """Evaluate the trained model on the test split."""

    @abc.abstractmethod
    def save_figures(self, run: RunFolder, report: R) -> list[str]:
        """Write the plots; remarks."""

    def facts(self) -> dict[str, Any]:
        """What is known before training, for summary.json."""
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def remarks(self) -> list[str]:
        """What to know about the data and settings before the numbers are read."""
        return []

    def finish(self, run: RunFolder) -> list[str]:
        """Anything else to do with the trained model; lines to print."""
        return []

    def load(self, weights: Path) -> list[str]:
        """Take the weights of a checkpoint, and the schedule that is stored with them where there is one; remarks.

        The schedule is left out where the sampler is no anneal, or its options choose another schedule.
        """
        angles, notes = angles_in(load_checkpoint(weights).model), []
        if angles is None and self.settings.learn_schedule:
            raise InvalidOptionError(f"{weights} holds no schedule of its own; leave --learn-schedule out")
        if angles is not None:
            chosen = names_schedule(self.settings.sampler_options)
            anneals = any(isinstance(sampler, DQASampler) for sampler in samplers_of(self.model))
            if anneals and (self.settings.learn_schedule or not chosen):
                run_schedule(self.model, angles)
                notes = [f"the anneal runs the {angles.depth} layers that are stored with the weights"]
            elif anneals:
                notes = ["the schedule that is stored with the weights is left out; --learn-schedule takes it"]
        load_weights(weights, self.model, model_config=self.model_config)
        return notes

    def rescale(self, run: RunFolder) -> dict[str, Any]:
        """Find the factors of --rescale and run with them from now on; numbers for summary.json.

        The problems are those that the layers meet where the sampler is exact. The rescaled angles are written with
        the weights, as checkpoints/rescaled.safetensors, and as schedule.json.
        """
        count, (sampler,) = self.settings.rescale, samplers_of(self.model)
        if not isinstance(sampler, DQASampler):
            raise NotSupportedError(f"the sampler {sampler.name!r} has no angles to rescale; use 'dqa'")
        batches: list[Tensor] = []
        while sum(map(len, batches)) < count:
            batches.append(self.task.batch(len(batches)).tokens)
        self.model.eval()
        with torch.no_grad(), use_sampler(self.model, "exact"):
            problems = self.model.problems(torch.cat(batches)[:count])  # type: ignore[operator]
        found = fit_rescaling(fixed_layers(sampler), problems)
        learned = run_schedule(self.model, found.layers)
        numbers = {key: getattr(found, key) for key in ("fields", "couplings", "before", "after")}
        about = {"model": self.model_config, "seed": self.seed, "rescaled": {"sequences": count, **numbers}}
        save_schedule(learned.fixed(about=about), run.path / "schedule.json")
        weights = Checkpoint(
            model=self.model.state_dict(), model_config=self.model_config, samplers=stored_samplers(self.model)
        )
        save_checkpoint(run.checkpoints / "rescaled.safetensors", weights)
        return {"rescale": {"sequences": count, **numbers}}

    def seconds_needed(self) -> tuple[float, float]:
        """Seconds of one training step and of one evaluation, measured on this machine; nothing is changed by it."""
        batch, team = self.task.batch(0), current_team()
        batch = rows_of(batch, 0, num_rows(batch) // team.size) if team.size > 1 else batch
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            for sampler in samplers_of(self.model):
                stack.enter_context(sampler.seeded(0))
            for _ in range(2):  # the first one also compiles kernels
                started = time.perf_counter()
                self.task.loss(self.model, batch)[0].backward()
                step = time.perf_counter() - started
                share = self.evaluate_part()
                evaluation = (time.perf_counter() - started - step) / share
        self.model.zero_grad()
        return step, evaluation

    def dry_run(self) -> str:
        """What training would send to a machine, worked out from its first batch. Nothing is sent.

        Raises:
            InvalidOptionError: a sampler that sends nothing anywhere.
        """
        samplers = samplers_of(self.model)
        plan = getattr(samplers[0], "dry_run", None) if samplers else None
        if plan is None:
            raise InvalidOptionError(
                "--dry-run tells what would be sent to a D-Wave machine; use it with --sampler=dwave"
            )
        tokens, steps = self.task.batch(0).tokens, self.settings.training.steps
        # Deeper layers see what the one before them makes of its marginals: here a local sampler's.
        with torch.no_grad(), use_sampler(self.model, "mean-field"):
            problems = self.model.problems(tokens)  # type: ignore[operator]
        calls = [plan(problem) for problem in problems]
        step = sum(call.qpu_seconds for call in calls)
        return "\n".join(
            [
                *(f"layer {number}: {call}" for number, call in enumerate(calls)),
                f"a training step of {len(tokens)} sequences: {step:.3g} s of QPU time; {steps} steps: "
                f"{step * steps:.3g} s; evaluation: {step / len(tokens):.3g} s a sequence",
            ]
        )

    def train(self, run: RunFolder | None, *, resume: bool) -> dict[str, Any]:
        """Train to the end; numbers for summary.json. The model has the best weights after it.

        Without a `run`, nothing is written or shown: another process does that (`distributed.joined`).
        """
        settings, rates = self.settings.training, self.settings.learning_rates
        tried: dict[str, Any] = {}
        learned = schedule_of(self.model)
        start = None if learned is None else learned.fixed()
        if rates:
            fit = functools.partial(self._best_metrics, run=run, resume=resume)
            choice = choose_rate(self.model, settings, rates, self.settings.rate_steps, fit)
            settings = choice.settings
            tried = {"learning_rates": {"chosen": settings.learning_rate, settings.monitor: choice.values}}
        result = self._fit(settings, "", run, resume)
        best = {f"validation_{name}": value for name, value in result.best_metrics.items()}
        if learned is not None and start is not None:
            about = {"model": self.model_config, "seed": self.seed, "best_step": result.best_step}
            if run is not None:
                save_schedule(learned.fixed(about=about), run.path / "schedule.json")
            best["mean_angle_change"] = learned.distance(start)
        return {"train_seconds": result.seconds, "steps": result.steps, "best_step": result.best_step, **best, **tried}

    def _best_metrics(
        self, settings: TrainingSettings, label: str, *, run: RunFolder | None, resume: bool
    ) -> dict[str, float]:
        return self._fit(settings, label, run, resume).best_metrics

    def _fit(self, settings: TrainingSettings, label: str, run: RunFolder | None, resume: bool) -> TrainingResult:
        trainer = Trainer(
            self.model,
            self.task,
            settings,
            run,
            label=label,
            model_config=self.model_config,
            coupling_parameters=coupling_parameters(self.model),
            angle_parameters=() if (learned := schedule_of(self.model)) is None else learned.parameters(),
            samplers=samplers_of(self.model),
            callbacks=() if self.cooling is None else [self.cooling.over(settings.steps)],
        )
        if run is None:
            return trainer.fit(resume=resume)
        with training_progress(" ".join(["seed", str(self.seed), label]).strip()) as progress:
            return trainer.fit(progress, resume=resume)


def _check_sampler(sampler: Sampler, context: int) -> None:
    able = sampler.capabilities
    if able.max_spins is not None and context > able.max_spins:
        raise ProblemTooLargeError(
            f"--context={context} needs {context} spins; the sampler {sampler.name!r} takes at most {able.max_spins}; "
            "use a shorter --context, or --sampler=annealing"
        )
    if able.gradient == "none":
        raise NotSupportedError(f"the sampler {sampler.name!r} has no gradient with these options; choose another")


def _check_routing(model: nn.Module, sampler: Sampler) -> None:
    if sampler.capabilities.can_ground_state or all(router.routing == "soft" for router in routers_of(model)):
        return
    raise NotSupportedError(
        f"the sampler {sampler.name!r} finds no ground states, which a hard router uses; use --routing=soft, or "
        "--sampler=exact, band or annealing"
    )
