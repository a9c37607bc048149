"""Learned schedules: layer angles fitted by gradient descent to exact marginals over a family of problems.

Minimises the mean over problems and spins of |⟨s⟩_circuit − ⟨s⟩_exact| in the field, coupling and mixer angle of
every layer, through the adjoint gradient. The target is marginals alone: the whole law is matched less well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from samplers.dqa import calibration
from samplers.dqa.layers import Layers
from samplers.dqa.schedules import AngleSchedule, linear_ramp
from samplers.dqa.statevector import StateVectorEngine
from samplers.errors import InvalidOptionError
from samplers.problem import IsingProblem


@dataclass(frozen=True)
class Family:
    """Gaussian problems: every h_j ~ N(0, fields²), every J_jk ~ N(0, couplings²), independent, at β = 1.

    Args:
        fields, couplings: standard deviations.
        num_spins: the sizes that training cycles through; large enough to cover where the schedule will be used.
    """

    fields: float
    couplings: float
    num_spins: tuple[int, ...] = (8,)

    def problems(self, num_spins: int, count: int, seed: int) -> IsingProblem:
        """`count` problems of one size, each with its own J, in float32; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        h = self.fields * torch.randn(count, 1, num_spins, generator=generator)
        a = self.couplings * torch.randn(count, 1, num_spins, num_spins, generator=generator).triu(1)
        return IsingProblem(h, a + a.mT)


WEAK, MEDIUM, STRONG = Family(0.3, 0.1), Family(1.0, 0.3), Family(2.0, 0.5)


@dataclass(frozen=True)
class FitStep:
    """What a progress callback sees: the step, of how many, and the mean |marginal error| on its own batch."""

    step: int
    steps: int
    error: float


def fit_schedule(
    family: Family,
    num_layers: int,
    *,
    name: str = "learned",
    steps: int = 600,
    batch: int = 64,
    learning_rate: float = 0.03,
    start: Layers | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[FitStep], None] | None = None,
) -> AngleSchedule:
    """Fit `num_layers` layers to a family by Adam with a cosine-decaying step.

    Args:
        family: the problems; fresh ones are drawn at every step.
        batch: problems per step at 8 spins; fewer at larger sizes, so that a step costs about the same.
        start: first angles; default a calibrated linear ramp of the same depth. `stretched` makes a good start
            of a schedule of another depth: the shipped 16 layers were fitted from 8.
        device: where the circuits are simulated; the problems are the same on any.
        progress: called after every step.

    Returns:
        A schedule whose `about` records family, steps, seed and the error on fresh problems of the family.

    Raises:
        InvalidOptionError: a start of another depth, or a step count below 1.
    """
    if steps < 1 or batch < 1:
        raise InvalidOptionError(f"steps={steps}, batch={batch}; both must be at least 1")
    start = calibration.calibrated(linear_ramp().layers(num_layers)) if start is None else start
    if start.depth != num_layers:
        raise InvalidOptionError(f"start has {start.depth} layers; num_layers={num_layers} asks for as many")
    angles = torch.stack([start.fields, start.couplings, start.mixer]).detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([angles], lr=learning_rate, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        n = family.num_spins[step % len(family.num_spins)]
        count = max(2, min(4 * batch, int(batch * 2.0 ** (8 - n))))
        problems = family.problems(n, count, seed=seed * 1_000_003 + step + 1).to(device=device)
        error = marginal_error(Layers(*angles), problems)
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        if progress is not None:
            progress(FitStep(step + 1, steps, float(error.detach())))
    final = Layers(*angles.detach().mul(1e6).round().div(1e6))
    errors = {str(n): round(measured_error(final, family, n), 5) for n in sorted(set(family.num_spins))}
    how = {"steps": steps, "batch": batch, "learning_rate": learning_rate, "seed": seed}
    about = {"family": {**asdict(family), "num_spins": list(family.num_spins)}, **how, "mean_marginal_error": errors}
    return AngleSchedule(final, name=name, about=about)


def stretched(layers: Layers, num_layers: int) -> Layers:
    """The same anneal in another number of layers: angles interpolated at the middles of layers, sums about kept."""
    ratio = layers.depth / num_layers
    places = (np.arange(num_layers) + 0.5) * ratio - 0.5

    def row(angles: Tensor) -> Tensor:
        return torch.from_numpy(np.interp(places, np.arange(layers.depth), angles.detach().numpy()) * ratio)

    return Layers(row(layers.fields), row(layers.couplings), row(layers.mixer))


def marginal_error(layers: Layers, problem: IsingProblem) -> Tensor:
    """Mean |⟨s⟩_circuit − ⟨s⟩_exact| over problems (g, q, n) and spins; differentiable in the angles."""
    engine = StateVectorEngine()
    found = engine.magnetization(problem.fields, problem._couplings, _at(problem.beta, layers))
    return (found - exact_magnetization(problem)).abs().mean()


def measured_error(layers: Layers, family: Family, num_spins: int, *, count: int = 256, seed: int = 2**40) -> float:
    """`marginal_error` on `count` problems that no fit with a small seed has seen."""
    with torch.no_grad():
        return float(marginal_error(layers, family.problems(num_spins, count, seed)))


@torch.no_grad()
def exact_magnetization(problem: IsingProblem) -> Tensor:
    from samplers.registry import get_sampler

    return get_sampler("exact").magnetization(problem).double()


def _at(beta: float, layers: Layers) -> Layers:
    return Layers(layers.fields * beta, layers.couplings * beta, layers.mixer)


def error_by_size(layers: Layers, family: Family, sizes: Sequence[int], *, count: int = 64) -> dict[int, float]:
    """`measured_error` at several sizes: how a schedule fitted at one n carries over to others."""
    return {n: measured_error(layers, family, n, count=count) for n in sizes}
