"""The training loop: early stopping, best and last checkpoint, exact resumption, a clean Ctrl-C."""

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from ising_attn.lab.checkpoints import Checkpoint, check_fits, load_checkpoint, save_checkpoint
from ising_attn.lab.config import Hidden
from ising_attn.lab.errors import CheckpointError, TrainingDivergedError, TrainingInterrupted
from ising_attn.lab.runs import RunFolder
from samplers import InvalidOptionError, Sampler
from samplers.streams import derive_key

Callback = Callable[[int, nn.Module], None]


class Task(Protocol):
    """What is learnt. Batches are a function of the step (and the task's own seed), never of what came before."""

    def batch(self, step: int) -> Any:
        """The training batch of a step, counted from 0."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]:
        """The scalar to minimise, and numbers to report with it, such as {"accuracy": 0.5}."""

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Numbers over a whole split ("validation", "test"), such as {"loss": 0.3, "accuracy": 0.9}."""


class ProgressDisplay(Protocol):
    """Where a fit shows how far it is; see `progress.training_progress`."""

    def start(self, step: int, total: int) -> None: ...
    def advance(self, step: int, values: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, values: Mapping[str, float]) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained."""

    steps: int = 2000
    """Optimiser steps at most."""
    batch_size: int = 64
    """Sequences in one step."""
    learning_rate: float = 1e-3
    """AdamW's learning rate."""
    coupling_learning_rate: float | None = None
    """Learning rate of the couplings J; by default that of the rest."""
    weight_decay: float = 0.0
    """AdamW's decay of weight matrices; couplings, biases and norms are never decayed."""
    clip: float | None = 1.0
    """Largest norm of the whole gradient; None for no clipping."""
    warmup: int = 0
    """Steps over which the learning rates rise from zero."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rates after the warm-up: constant, or a cosine down to zero at the last step."""
    eval_every: int = 100
    """Steps between two evaluations on the validation split; each writes the last checkpoint."""
    patience: int | None = None
    """Stop after this many evaluations without improvement; None to go on."""
    monitor: str = "accuracy"
    """Validation number that decides which weights are best."""
    monitor_mode: Literal["max", "min"] = "max"
    """Whether the monitored number is better when larger or smaller."""
    target: float | None = None
    """Stop as soon as the monitored number is this good."""
    max_seconds: float | None = None
    """Stop at the first step after this much training time; None for no limit."""
    seed: Hidden[int] = 0
    """Seed of a run: initial weights, batches, dropout, samplers."""

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("batch_size", 1), ("eval_every", 1), ("warmup", 0), ("patience", 1)):
            _check(name, getattr(self, name), low)
        _check("learning_rate", self.learning_rate, 0, above=True)
        _check("coupling_learning_rate", self.coupling_learning_rate, 0)
        _check("weight_decay", self.weight_decay, 0)
        _check("clip", self.clip, 0, above=True)
        _check("max_seconds", self.max_seconds, 0, above=True)

    def better(self, value: float, than: float | None) -> bool:
        """Whether a monitored number beats another; anything beats None, NaN beats nothing."""
        if math.isnan(value):
            return False
        return than is None or (value > than if self.monitor_mode == "max" else value < than)

    def rate_factor(self, step: int) -> float:
        """What multiplies the learning rates at a step, counted from 0."""
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        if self.schedule == "constant" or step < self.warmup:
            return rise
        return 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / max(1, self.steps - self.warmup)))


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What a fit came to: validation numbers of the best weights, and how far it went."""

    best_metrics: dict[str, float]
    best_step: int
    steps: int
    seconds: float
    stopped_early: bool


class Trainer:
    """Trains one model on one task with AdamW, and resumes exactly.

    Exact because nothing depends on what went before but the weights, the optimiser and the samplers' call
    numbers: the batch is a function of the step, and the global generator (dropout) is seeded from (seed, step)
    inside each step, and put back after. On the CPU, 20 steps equal 10 steps, a resumption and 10 more, bit for bit.

    Args:
        model: on its device already; the task puts batches there.
        run: where checkpoints and metrics go; None keeps nothing on disk.
        label: sub-folder of checkpoints/ and mark of the metric rows, for several fits in one run ("seed-1").
        model_config: what the model was built from; stored, and compared on resumption.
        coupling_parameters: parameters that take `coupling_learning_rate`.
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
        samplers: Iterable[Sampler] = (),
        callbacks: Iterable[Callback] = (),
    ):
        self.model, self.task, self.settings, self.run, self.label = model, task, settings, run, label
        self.model_config = dict(model_config or {})
        self.samplers = list({id(s): s for s in samplers}.values())
        self.callbacks = list(callbacks)
        self.optimizer = _optimizer(model, settings, list(coupling_parameters))
        self.step = 0
        self._progress = _Progress()
        self._best_weights: dict[str, Tensor] | None = None

    def fit(self, progress: ProgressDisplay | None = None, *, resume: bool = False) -> TrainingResult:
        """Train to the end, then load the best weights back into the model.

        With `resume`, go on from the last checkpoint where there is one; a fit that was finished ends at once.

        Raises:
            TrainingDivergedError: the loss or the gradient is not finite; the last checkpoint stays.
            TrainingInterrupted: Ctrl-C; the step was finished and the last checkpoint written.
            CheckpointError: the checkpoint to resume from cannot be used.
        """
        if resume and self.run is not None and self._path("last").exists():
            self._restore()
        if progress is not None:
            progress.start(self.step, self.settings.steps)
        started = time.perf_counter() - self._progress.seconds
        with _interruptible() as interrupted:
            while not self._finished():
                self._train_step(progress)
                self._progress.seconds = time.perf_counter() - started
                if self.step % self.settings.eval_every == 0 or self._finished():
                    self._evaluate(progress)
                    self._progress.seconds = time.perf_counter() - started
                    self._save("last")
                if interrupted.is_set() and not self._finished():
                    self._save("last")
                    raise TrainingInterrupted(self._how_to_resume())
        if self._best_weights is not None:
            self.model.load_state_dict(self._best_weights)
        state = self._progress
        return TrainingResult(
            state.best_metrics, state.best_step, self.step, state.seconds, self.step < self.settings.steps
        )

    def evaluate(self, split: str) -> dict[str, float]:
        """The task's numbers over a split, in evaluation mode and without touching the training's randomness."""
        return evaluate(self.model, self.task, split, samplers=self.samplers, seed=self.settings.seed)

    def _train_step(self, progress: ProgressDisplay | None) -> None:
        for callback in self.callbacks:
            callback(self.step, self.model)
        factor = self.settings.rate_factor(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        self.model.train()
        with _seeded(derive_key(self.settings.seed, self.step)):
            loss, values = self.task.loss(self.model, self.task.batch(self.step))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip or math.inf)
        row = {"loss": loss.item(), **values}
        self._refuse_divergence(row["loss"], norm.item())
        self.optimizer.step()
        self.step += 1
        self._progress.add(row)
        if progress is not None:
            progress.advance(self.step, row)

    def _evaluate(self, progress: ProgressDisplay | None) -> None:
        state, metrics = self._progress, self.evaluate("validation")
        if self.settings.monitor not in metrics:
            raise InvalidOptionError(
                f"--monitor is {self.settings.monitor!r}; this task reports {', '.join(sorted(metrics))}"
            )
        value = metrics[self.settings.monitor]
        state.stale += 1
        if self.settings.better(value, state.best):
            state.best, state.best_metrics, state.best_step, state.stale = value, metrics, self.step, 0
            self._best_weights = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            self._save("best")
        if self.run is not None:
            label = {"label": self.label} if self.label else {}
            validation = {f"validation_{name}": number for name, number in metrics.items()}
            rate = self.optimizer.param_groups[0]["lr"]
            self.run.log(
                step=self.step, **label, **state.means(), **validation, learning_rate=rate, seconds=state.seconds
            )
        state.clear_means()
        if progress is not None:
            progress.evaluated(self.step, metrics)

    def _finished(self) -> bool:
        settings, state = self.settings, self._progress
        return (
            self.step >= settings.steps
            or (settings.patience is not None and state.stale >= settings.patience)
            or (settings.max_seconds is not None and state.seconds >= settings.max_seconds)
            or (
                settings.target is not None
                and state.best is not None
                and not settings.better(settings.target, state.best)
            )
        )

    # ---- checkpoints ------------------------------------------------------------------------------------------

    def _path(self, which: str):
        assert self.run is not None
        return self.run.checkpoints / self.label / f"{which}.safetensors"

    def _save(self, which: Literal["best", "last"]) -> None:
        if self.run is None:
            return
        checkpoint = Checkpoint(
            model=self.model.state_dict(),
            model_config=self.model_config,
            step=self.step,
            optimizer=self.optimizer.state_dict() if which == "last" else None,
            samplers=[sampler.state_dict() for sampler in self.samplers],
            progress=dataclasses.asdict(self._progress),
        )
        save_checkpoint(self._path(which), checkpoint)

    def _restore(self) -> None:
        source = self._path("last")
        last = load_checkpoint(source)
        check_fits(last, self.model, model_config=self.model_config, source=source)
        if last.optimizer is None or len(last.samplers) != len(self.samplers):
            raise CheckpointError(f"{source} cannot be resumed: it has {len(last.samplers)} samplers")
        self.model.load_state_dict(last.model)
        self.optimizer.load_state_dict(last.optimizer)
        for sampler, state in zip(self.samplers, last.samplers, strict=True):
            sampler.load_state_dict(state)
        self.step, self._progress = last.step, _Progress(**last.progress)
        if self._progress.best is not None:
            self._best_weights = load_checkpoint(self._path("best")).model

    def _how_to_resume(self) -> str:
        if self.run is None:
            return f"stopped after step {self.step}"
        return f"stopped after step {self.step}; continue with --resume --out={self.run.path}"

    def _refuse_divergence(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
        kept = "no checkpoint was written yet"
        if self.run is not None and self._path("last").exists():
            kept = f"the last checkpoint is {self._path('last')}"
        raise TrainingDivergedError(
            f"{what} at step {self.step + 1}; {kept}. Lower --learning-rate or --coupling-learning-rate, or set --clip"
        )


def evaluate(
    model: nn.Module, task: Task, split: str, *, samplers: Iterable[Sampler] = (), seed: int = 0
) -> dict[str, float]:
    """The task's numbers over a split: evaluation mode, no gradients, all randomness seeded and put back."""
    training = model.training
    model.eval()
    with contextlib.ExitStack() as stack:
        stack.callback(model.train, training)
        stack.enter_context(torch.no_grad())
        stack.enter_context(_seeded(derive_key(seed, -1)))
        for sampler in samplers:
            stack.enter_context(sampler.seeded(derive_key(seed, -1)))
        return task.evaluate(model, split)


@dataclasses.dataclass
class _Progress:
    """What the loop keeps between steps; stored in every checkpoint."""

    best: float | None = None
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    count: int = 0

    def add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def means(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self.sums.items()}

    def clear_means(self) -> None:
        self.sums, self.count = {}, 0


def _optimizer(model: nn.Module, settings: TrainingSettings, couplings: list[nn.Parameter]) -> torch.optim.AdamW:
    own = {id(p) for p in model.parameters()}
    if any(id(p) not in own for p in couplings):
        raise InvalidOptionError("a coupling parameter that was given is no parameter of the model")
    chosen = {id(p) for p in couplings}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    rate, decay = settings.learning_rate, settings.weight_decay
    coupling_rate = rate if settings.coupling_learning_rate is None else settings.coupling_learning_rate
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "base_lr": rate, "weight_decay": decay},
        {"params": [p for p in rest if p.ndim < 2], "base_lr": rate, "weight_decay": 0.0},
        {"params": [p for p in couplings if p.requires_grad], "base_lr": coupling_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=rate)


@contextlib.contextmanager
def _seeded(key: int) -> Iterator[None]:
    """The global generators seeded within the block, and put back after it."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key)
        yield


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts at once. Outside the main thread, never set."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def request(*_: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, request)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _check(name: str, value: float | None, low: float, *, above: bool = False) -> None:
    if value is None:
        return
    if not (value > low if above else value >= low) or not math.isfinite(value):
        flag = "--" + name.replace("_", "-")
        raise InvalidOptionError(f"{flag} is {value}; it must be {'above' if above else 'at least'} {low}")
