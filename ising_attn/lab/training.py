"""The training loop: early stopping, best and last checkpoint, exact resumption, a clean Ctrl-C."""

import contextlib
import dataclasses
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ising_attn.lab.checkpoints import (
    Checkpoint,
    check_fits,
    checkpoint_bytes,
    checkpoint_from_bytes,
    load_checkpoint,
    save_checkpoint,
)
from ising_attn.lab.distributed import Division, current_team
from ising_attn.lab.errors import CheckpointError, TrainingDivergedError, TrainingInterrupted
from ising_attn.lab.interruption import interruptible
from ising_attn.lab.optimisation import TrainingSettings, parameter_groups, set_rates
from ising_attn.lab.runs import RunFolder
from ising_attn.lab.stored_samplers import stored_states
from samplers import InvalidOptionError, Sampler
from samplers.plain_data import stored_name
from samplers.streams import derive_key

__all__ = ["ProgressDisplay", "Task", "Trainer", "TrainingResult", "TrainingSettings", "evaluate"]


@runtime_checkable
class Task(Protocol):
    """What is learnt. Batches are a function of the step (and the task's own seed), never of what came before."""

    def batch(self, step: int) -> Any:
        """The training batch of a step, counted from 0."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]:
        """The scalar to minimise, and numbers to report with it, such as {"accuracy": 0.5}."""

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Numbers over a whole split ("validation", "test"), such as {"loss": 0.3, "accuracy": 0.9}."""


@runtime_checkable
class ProgressDisplay(Protocol):
    """Where a fit shows how far it is; see `progress.training_progress`."""

    def start(self, step: int, total: int) -> None: ...
    def advance(self, step: int, values: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, values: Mapping[str, float]) -> None: ...
    def stopped_early(self, step: int) -> None: ...


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What a fit came to: validation numbers of the best weights, and how far it went."""

    best_metrics: dict[str, float]
    best_step: int
    steps: int
    seconds: float
    stopped_early: bool


@dataclasses.dataclass
class _State:
    """What the loop keeps between steps; stored in every checkpoint."""

    best: float | None = None
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    count: int = 0
    seed: int | None = None

    def add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def take_means(self) -> dict[str, float]:
        """Means since they were last taken."""
        means = {name: total / self.count for name, total in self.sums.items()}
        self.sums, self.count = {}, 0
        return means


class Trainer:
    """Trains one model on one task with AdamW, and resumes exactly.

    Exact because nothing depends on what went before but the weights, the optimiser and the samplers' call
    numbers: the batch is a function of the step, and torch's generators (dropout) are seeded from (seed, step)
    within each step and put back after it. On the CPU, 20 steps equal 10 steps, a resumption and 10 more, bit for bit.

    On several processes (`distributed.joined`) each trains on its part of every batch, with the same losses and weights
    as one process up to rounding; dropout alone draws other numbers. Process 0 evaluates, and has the `run`.

    Args:
        model: on its device already; the task puts batches there.
        run: where checkpoints and metrics go; None keeps nothing on disk, as all processes but the first do.
        label: sub-folder of checkpoints/ and mark of the metric rows, for several fits in one run ("seed-1").
        model_config: what the model was built from; stored, and compared on resumption.
        coupling_parameters: parameters that take `coupling_learning_rate`.
        angle_parameters: parameters that take `angle_learning_rate`.
        samplers: the samplers inside the model; their call numbers are stored, and evaluation is kept out of them.
        callbacks: called with (step, model) before each step, for temperature schedules and the like; they
            should depend on nothing but the step.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        settings: TrainingSettings,
        run: RunFolder | None = None,
        *,
        label: str = "",
        model_config: Mapping[str, Any] | None = None,
        coupling_parameters: Iterable[nn.Parameter] = (),
        angle_parameters: Iterable[nn.Parameter] = (),
        samplers: Iterable[Sampler] = (),
        callbacks: Iterable[Callable[[int, nn.Module], None]] = (),
    ):
        self.model, self.task, self.settings, self.run, self.label = model, task, settings, run, label
        self.model_config = dict(model_config or {})
        self.samplers = list({id(s): s for s in samplers}.values())
        self.callbacks = list(callbacks)
        self._groups = parameter_groups(model, settings, coupling_parameters, angle_parameters)
        # Fused: a small model's unfused update takes a tenth of its step.
        groups = [dict(group) for group in self._groups]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        self.step = 0
        self._state = _State(seed=settings.seed)
        self._best_weights: dict[str, Tensor] | None = None
        self._started, self._interrupted = 0.0, threading.Event()
        self._team = current_team()
        self._team.check_batch(settings.batch_size)
        self._division = None if self._team.size == 1 else Division(model, task, self._team)

    def fit(self, progress: ProgressDisplay | None = None, *, resume: bool = False) -> TrainingResult:
        """Train to the end, then load the best weights back into the model.

        With `resume`, go on from the last checkpoint where there is one; a fit that was finished ends at once.

        Raises:
            TrainingDivergedError: the loss or the gradient is not finite; the last checkpoint stays.
            TrainingInterrupted: Ctrl-C; the step was finished and the last checkpoint written.
            CheckpointError: the checkpoint to resume from cannot be used; nothing was changed.
        """
        if resume and self.run is not None:
            self._resume(self.run)
        self._follow_leader()
        if progress is not None:
            progress.start(self.step, self.settings.steps)
        state, self._started = self._state, time.perf_counter() - self._state.seconds
        with interruptible(once=self._division is None) as self._interrupted:
            while not self._finished():
                stop = self._train_step(progress)
                if self.step % self.settings.eval_every == 0 or self._finished():
                    self._evaluate(progress)
                    self._save("last")
                    if state.best_step == self.step:
                        self._save("best")  # after the last one, which holds the same weights if we are killed here
                    stop = stop or (self._division is None and self._interrupted.is_set())
                elif stop:
                    self._save("last")
                if stop:
                    raise TrainingInterrupted(self._how_to_resume())
        if self._best_weights is not None:
            self.model.load_state_dict(self._best_weights)
        early = self.step < self.settings.steps
        if early and progress is not None:
            progress.stopped_early(self.step)
        return TrainingResult(state.best_metrics, state.best_step, self.step, state.seconds, early)

    def evaluate(self, split: str) -> dict[str, float]:
        """The task's numbers over a split; see `evaluate`."""
        return evaluate(self.model, self.task, split, samplers=self.samplers, seed=self.settings.seed)

    def _train_step(self, progress: ProgressDisplay | None) -> bool:
        """One step; whether anyone was asked to stop."""
        for callback in self.callbacks:
            callback(self.step, self.model)
        self.model.train()
        set_rates(self.optimizer, self.settings.rate_factor(self.step))
        # Dropout differs between the rows of a batch, so also between the parts of it.
        own = (self._team.rank,) if self._team.rank else ()
        with _seeded(derive_key(self.settings.seed, self.step, *own)):
            loss, values = self._loss(self.task.batch(self.step))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip or math.inf)
        row, stop = self._agreed({"loss": loss.item(), **values})
        if not (math.isfinite(row["loss"]) and math.isfinite(norm.item())):
            raise TrainingDivergedError(self._how_it_diverged(row["loss"], norm.item()))
        self.optimizer.step()
        self.step += 1
        self._state.add(row)
        if progress is not None:
            progress.advance(self.step, row)
        return stop

    def _loss(self, batch: Any) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch, or this process's part of it."""
        return self.task.loss(self.model, batch) if self._division is None else self._division.loss(batch)

    def _agreed(self, row: dict[str, float]) -> tuple[dict[str, float], bool]:
        """What all processes go by: the numbers of the whole batch, whether to stop, and the time so far."""
        stop, seconds = self._interrupted.is_set(), time.perf_counter() - self._started
        if self._division is not None:
            row, stop, seconds = self._division.agreed(row, stop, seconds)
        self._state.seconds = seconds
        return row, stop

    def _evaluate(self, progress: ProgressDisplay | None) -> None:
        state, metrics = self._state, self.evaluate("validation") if self._team.leads else {}
        found = self._team.shared([metrics, time.perf_counter() - self._started])
        metrics, state.seconds = found
        if self.settings.monitor not in metrics:
            reported = ", ".join(sorted(metrics))
            raise InvalidOptionError(f"--monitor is {self.settings.monitor!r}; this task reports {reported}")
        value = metrics[self.settings.monitor]
        means = state.take_means()
        state.stale += 1
        if self.settings.better(value, state.best):
            state.best, state.best_metrics, state.best_step, state.stale = value, metrics, self.step, 0
            self._best_weights = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        if self.run is not None:
            label = {"label": self.label} if self.label else {}
            validation = {f"validation_{name}": number for name, number in metrics.items()}
            rate = {"learning_rate": self.optimizer.param_groups[0]["lr"], "seconds": state.seconds}
            self.run.log(step=self.step, **label, **means, **validation, **rate)
        if progress is not None:
            progress.evaluated(self.step, metrics)

    def _finished(self) -> bool:
        settings, state = self.settings, self._state
        return (
            self.step >= settings.steps
            or (settings.patience is not None and state.stale >= settings.patience)
            or (settings.max_seconds is not None and state.seconds >= settings.max_seconds)
            or settings.reached(state.best)
        )

    # ---- checkpoints ------------------------------------------------------------------------------------------

    def _path(self, run: RunFolder, which: Literal["best", "last"]) -> Path:
        return run.checkpoints / self.label / f"{which}.safetensors"

    def _save(self, which: Literal["best", "last"]) -> None:
        if self.run is not None:
            save_checkpoint(self._path(self.run, which), self._checkpoint(which))

    def _checkpoint(self, which: Literal["best", "last"]) -> Checkpoint:
        return Checkpoint(
            model=self.model.state_dict(),
            model_config=self.model_config,
            step=self.step,
            optimizer=self.optimizer.state_dict() if which == "last" else None,
            samplers=stored_states(self.model, self.samplers),
            progress=dataclasses.asdict(self._state),
        )

    def _resume(self, run: RunFolder) -> None:
        """Take up the last checkpoint, checked whole before anything of this trainer is changed."""
        source = self._path(run, "last")
        if source.exists():
            last = load_checkpoint(source)
            check_fits(last, self.model, model_config=self.model_config, source=source)
            self._check_resumable(last, source)
            state = self._state_of(last, source)
            best = None if state.best is None else self._best_of(run, last, state)
            self._take(last, state, best)
            if best is last.model:
                self._save("best")
        run.keep_metrics(lambda row: row.get("label", "") != self.label or row["step"] <= self.step)
        run.write_config()

    def _take(self, last: Checkpoint, state: _State, best: dict[str, Tensor] | None) -> None:
        self.model.load_state_dict(last.model)
        self._load_optimizer(last.optimizer)
        for sampler, saved in zip(self.samplers, last.samplers, strict=True):
            sampler.load_state_dict(saved["state"])
        self.step, self._state, self._best_weights = last.step, state, best

    def _follow_leader(self) -> None:
        """All processes start where process 0 does, which alone sees the run folder."""
        if self._division is None:
            return
        content = self._team.shared(checkpoint_bytes(self._checkpoint("last")) if self._team.leads else b"")
        best = Checkpoint(model=self._best_weights or {})
        weights = self._team.shared(checkpoint_bytes(best) if self._team.leads else b"")
        if not self._team.leads:
            last, kept = (checkpoint_from_bytes(part, "what process 0 sent") for part in (content, weights))
            self._take(last, _State(**last.progress), kept.model or None)

    def _state_of(self, last: Checkpoint, source: Path) -> _State:
        try:
            return _State(**last.progress | {"seed": self.settings.seed})
        except TypeError as error:
            raise CheckpointError(f"{source} is damaged (its progress cannot be read: {error})") from None

    def _best_of(self, run: RunFolder, last: Checkpoint, state: _State) -> dict[str, Tensor]:
        """The best weights, which must be those that the last checkpoint speaks of."""
        if state.best_step == last.step:
            return last.model
        source = self._path(run, "best")
        best = load_checkpoint(source)
        check_fits(best, self.model, model_config=self.model_config, source=source)
        if (best.step, best.progress.get("best")) != (state.best_step, state.best):
            raise CheckpointError(
                f"{source} is of step {best.step} with {self.settings.monitor} {best.progress.get('best')}, but "
                f"{self._path(run, 'last').name} beside it records step {state.best_step} with {state.best}; "
                "put the files of one training together, or start a new run"
            )
        return best.model

    def _check_resumable(self, last: Checkpoint, source: Path) -> None:
        seed = last.progress.get("seed")
        if seed not in (None, self.settings.seed):
            raise CheckpointError(
                f"{source} was trained with --seed={seed}, not {self.settings.seed}; resume with the same seed, "
                "or give another --out"
            )
        names = [str(saved.get("name")) for saved in last.samplers], [stored_name(s) for s in self.samplers]
        if names[0] != names[1]:
            there, here = (", ".join(n) or "no sampler" for n in names)
            raise CheckpointError(f"{source} was trained with {there}, not {here}; resume with the same sampler")
        if not all(isinstance(saved.get("state"), dict) for saved in last.samplers):
            raise CheckpointError(f"{source} holds no state of its samplers; start a new run")
        sizes = [len(group["params"]) for group in self._groups]
        if last.optimizer is None or sizes != [len(group["params"]) for group in last.optimizer["param_groups"]]:
            raise CheckpointError(f"{source} holds no optimiser state that fits this training; start a new run")

    def _load_optimizer(self, state: Any) -> None:
        """The moments of the checkpoint with the rates of the present settings, which a flag may have changed."""
        self.optimizer.load_state_dict(state)
        for group, ours in zip(self.optimizer.param_groups, self._groups, strict=True):
            group.update({key: value for key, value in ours.items() if key != "params"})

    # ---- what is said when training stops ---------------------------------------------------------------------

    def _how_to_resume(self) -> str:
        stopped = f"stopped after step {self.step}"
        if self.run is None:
            return stopped
        return f"{stopped}; continue with --resume --out={shlex.quote(str(self.run.path))}"

    def _how_it_diverged(self, loss: float, norm: float) -> str:
        what = f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
        kept = "no checkpoint was written before"
        if self.run is not None and self._path(self.run, "last").exists():
            kept = f"the last checkpoint is {self._path(self.run, 'last')}"
        advice = "lower --learning-rate or --coupling-learning-rate, or set --clip"
        return f"{what} at step {self.step + 1}; {kept}. To go further, {advice}"


def evaluate(
    model: nn.Module, task: Task, split: str, *, samplers: Iterable[Sampler] = (), seed: int = 0
) -> dict[str, float]:
    """The task's numbers over a split; see `evaluating`."""
    with evaluating(model, samplers=samplers, seed=seed):
        return task.evaluate(model, split)


@contextlib.contextmanager
def evaluating(model: nn.Module, *, samplers: Iterable[Sampler] = (), seed: int = 0) -> Iterator[None]:
    """The model in evaluation mode, without gradients; all randomness seeded and put back."""
    training = model.training
    model.eval()
    with contextlib.ExitStack() as stack:
        stack.callback(model.train, training)
        stack.enter_context(torch.no_grad())
        stack.enter_context(_seeded(derive_key(seed, -1)))
        for sampler in samplers:
            stack.enter_context(sampler.seeded(derive_key(seed, -1)))
        yield


@contextlib.contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Torch's generators seeded within the block, and put back after it."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if cuda else []):
        torch.default_generator.manual_seed(key)  # torch.manual_seed takes 40 times as long where CUDA is absent
        if cuda:
            torch.cuda.manual_seed_all(key)
        yield
