"""How weights are moved: training settings, learning rates, parameter groups."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from samplers import InvalidOptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the model is trained."""

    steps: int = 2000
    """Optimiser steps at most."""
    batch_size: int = 64
    """Sequences in one step."""
    learning_rate: float = 1e-3
    """AdamW's learning rate."""
    coupling_learning_rate: float | None = None
    """Learning rate of the couplings J; None takes that of the rest."""
    angle_learning_rate: float | None = None
    """Learning rate of the layer angles of --learn-schedule; None takes that of the rest."""
    weight_decay: float = 0.0
    """AdamW's decay of weight matrices; couplings, angles, biases and norms are never decayed."""
    clip: float | None = 1.0
    """Largest norm of the whole gradient; None does not clip."""
    warmup: int = 0
    """Steps over which the learning rates rise from zero."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rates after the warm-up: constant, or a cosine down to zero at the last step."""
    eval_every: int = 100
    """Steps between two evaluations on the validation split; each writes the last checkpoint."""
    patience: int | None = None
    """Stop after this many evaluations without improvement; None goes on."""
    monitor: str = "accuracy"
    """Validation number that decides which weights are best."""
    monitor_mode: Literal["max", "min"] = "max"
    """Whether the monitored number is better when larger or smaller."""
    target: float | None = None
    """Stop as soon as the monitored number is this good."""
    max_seconds: float | None = None
    """Stop at the first step after this much training time; None has no limit."""
    seed: int = 0
    """Seed of the training: initial weights, data order, dropout, sampler."""

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("batch_size", 1), ("eval_every", 1), ("warmup", 0), ("patience", 1)):
            _check(name, getattr(self, name), low)
        _check("learning_rate", self.learning_rate, 0, above=True)
        _check("coupling_learning_rate", self.coupling_learning_rate, 0)
        _check("angle_learning_rate", self.angle_learning_rate, 0)
        _check("weight_decay", self.weight_decay, 0)
        _check("clip", self.clip, 0, above=True)
        _check("max_seconds", self.max_seconds, 0, above=True)
        if self.target is not None and not math.isfinite(self.target):
            raise InvalidOptionError(f"--target is {self.target}; it must be finite, or None to train to the end")

    def better(self, value: float, than: float | None) -> bool:
        """Whether a monitored number beats another; any finite one beats None."""
        if not math.isfinite(value):
            return False
        return than is None or (value > than if self.monitor_mode == "max" else value < than)

    def reached(self, value: float | None) -> bool:
        """Whether a monitored number is as good as `target`."""
        return self.target is not None and value is not None and not self.better(self.target, value)

    def rate_factor(self, step: int) -> float:
        """What multiplies the learning rates at a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / max(1, self.steps - self.warmup)))


def parameter_groups(
    model: nn.Module,
    settings: TrainingSettings,
    couplings: Iterable[nn.Parameter],
    angles: Iterable[nn.Parameter] = (),
) -> list[dict]:
    """Groups for AdamW: weight matrices (decayed), vectors and scalars, couplings and angles at their own rates.

    Each has a `base_rate`, which `set_rates` multiplies by the schedule's factor.
    """
    coupled, turned = ({id(p) for p in part} for part in (couplings, angles))
    own = list(model.parameters())
    if (coupled | turned) - {id(p) for p in own}:
        raise InvalidOptionError("a coupling or angle parameter that was given is no parameter of the model")
    trained = [p for p in own if p.requires_grad]
    rest = [p for p in trained if id(p) not in coupled | turned]
    rate, decay = settings.learning_rate, settings.weight_decay
    coupling_rate = rate if settings.coupling_learning_rate is None else settings.coupling_learning_rate
    angle_rate = rate if settings.angle_learning_rate is None else settings.angle_learning_rate
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "base_rate": rate, "weight_decay": decay},
        {"params": [p for p in rest if p.ndim < 2], "base_rate": rate, "weight_decay": 0.0},
        {"params": [p for p in trained if id(p) in coupled], "base_rate": coupling_rate, "weight_decay": 0.0},
        {"params": [p for p in trained if id(p) in turned], "base_rate": angle_rate, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to its base rate times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_rate"] * factor


def _check(name: str, value: float | None, low: float, *, above: bool = False) -> None:
    if value is None:
        return
    if not (value > low if above else value >= low) or not math.isfinite(value):
        flag = "--" + name.replace("_", "-")
        finite = "" if math.isfinite(value) else "finite and "
        raise InvalidOptionError(f"{flag} is {value}; it must be {finite}{'above' if above else 'at least'} {low}")
