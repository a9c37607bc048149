"""Choosing a learning rate on validation data: a short training with each, always from the same start."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from torch import nn

from ising_attn.boltzmann import samplers_of
from ising_attn.lab.errors import TrainingDivergedError
from ising_attn.lab.training import TrainingSettings

Fit = Callable[[TrainingSettings, str], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class RateChoice:
    """What the short trainings came to.

    Args:
        settings: the training settings with the chosen rates.
        values: the best monitored validation number at each learning rate that was tried; NaN where training diverged.
    """

    settings: TrainingSettings
    values: dict[float, float]


def with_rate(settings: TrainingSettings, rate: float) -> TrainingSettings:
    """The settings with another learning rate; those of couplings and angles, where set, keep their ratio to it."""

    def scaled(own: float | None) -> float | None:
        return None if own is None else own * rate / settings.learning_rate

    return dataclasses.replace(
        settings,
        learning_rate=rate,
        coupling_learning_rate=scaled(settings.coupling_learning_rate),
        angle_learning_rate=scaled(settings.angle_learning_rate),
    )


def choose_rate(
    model: nn.Module, settings: TrainingSettings, rates: Sequence[float], steps: int, fit: Fit
) -> RateChoice:
    """Train for `steps` with each rate and keep the one whose best validation number is best; of equals, the first.

    The whole schedule is run in those steps. Model and samplers are left as they were.

    Args:
        fit: trains the model with the settings given, under a label of its own ("rate-0.001"), and returns the
            validation numbers of its best weights.

    Raises:
        TrainingDivergedError: with every rate.
    """
    values: dict[float, float] = {}
    chosen, best = settings, None
    for rate in dict.fromkeys(rates):
        trial = dataclasses.replace(
            with_rate(settings, rate),
            steps=steps,
            warmup=min(settings.warmup, steps // 10),
            eval_every=min(settings.eval_every, steps),
            patience=None,
            target=None,
        )
        metrics: dict[str, float] = {}
        with _kept(model), contextlib.suppress(TrainingDivergedError):
            metrics = fit(trial, f"rate-{rate:g}")
        values[rate] = metrics.get(settings.monitor, math.nan)
        if settings.better(values[rate], best):
            chosen, best = with_rate(settings, rate), values[rate]
    if best is None:
        raise TrainingDivergedError(
            f"training diverges with each of {', '.join(f'{r:g}' for r in values)}; give smaller rates"
        )
    return RateChoice(chosen, values)


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Weights and samplers are put back after the block."""
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    samplers = [(sampler, sampler.state_dict()) for sampler in samplers_of(model)]
    try:
        yield
    finally:
        model.load_state_dict(weights)
        for sampler, state in samplers:
            sampler.load_state_dict(state)
