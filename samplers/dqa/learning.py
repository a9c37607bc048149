"""Learned schedules: layer angles fitted by gradient descent to exact marginals over a family of problems.

Minimises the mean over problems and spins of |⟨s⟩_circuit − ⟨s⟩_exact| in the field, coupling and mixer angle of
every layer, through the adjoint gradient; where asked for, also in how these follow a problem's scale
(`samplers.dqa.scaling`). The target is marginals alone: the whole law is matched less well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from samplers.dqa import calibration
from samplers.dqa.layers import Layers
from samplers.dqa.scaling import ScaleDependence
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

    def problems(self, num_spins: int, count: int, seed: int, *, queries: int = 1) -> IsingProblem:
        """`count` coupling matrices of one size, each with `queries` fields, in float32; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        h = self.fields * torch.randn(count, queries, num_spins, generator=generator)
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
    queries: int = 1,
    learning_rate: float = 0.03,
    follow_scale: bool = False,
    start: Layers | AngleSchedule | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[FitStep], None] | None = None,
) -> AngleSchedule:
    """Fit `num_layers` layers to a family by Adam with a cosine-decaying step.

    Args:
        family: the problems; fresh ones are drawn at every step.
        batch: coupling matrices per step at 8 spins; fewer at larger sizes, so that a step costs about the same.
        queries: fields drawn for each of them. Problems that share couplings share work: on a CPU up to 8 cost as
            much as one.
        follow_scale: also fit how the angles follow the size and the strength of a problem.
        start: first angles, or a schedule with its dependence on the scale; default a calibrated linear ramp of the
            same depth. `stretched` makes a good start of a schedule of another depth: the shipped 16 layers were
            fitted from 8.
        device: where the circuits are simulated; the problems are the same on any.
        progress: called after every step.

    Returns:
        A schedule whose `about` records family, steps, seed and the error on fresh problems of the family.

    Raises:
        InvalidOptionError: a start of another depth, or a step count below 1.
    """
    if min(steps, batch, queries) < 1:
        raise InvalidOptionError(f"steps={steps}, batch={batch}, queries={queries}; each must be at least 1")
    start = calibration.calibrated(linear_ramp().layers(num_layers)) if start is None else start
    first = start if isinstance(start, AngleSchedule) else AngleSchedule(start)
    if first.angles.depth != num_layers:
        raise InvalidOptionError(f"start has {first.angles.depth} layers; num_layers={num_layers} asks for as many")
    if follow_scale and first.scale is None:
        first = replace(first, scale=_scale_of(family, num_layers))
    trained = _Trained(first)
    optimiser = torch.optim.Adam(trained.parameters, lr=learning_rate, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        n = family.num_spins[step % len(family.num_spins)]
        count = max(2, min(4 * batch, int(batch * 2.0 ** (8 - n))))
        problems = family.problems(n, count, seed=seed * 1_000_003 + step + 1, queries=queries).to(device=device)
        error = marginal_error(trained.schedule(), problems)
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        if progress is not None:
            progress(FitStep(step + 1, steps, float(error.detach())))
    final = trained.schedule(decimals=6)
    errors = {str(n): round(measured_error(final, family, n), 5) for n in sorted(set(family.num_spins))}
    how = {"steps": steps, "batch": batch, "queries": queries, "learning_rate": learning_rate, "seed": seed}
    about = {"family": {**asdict(family), "num_spins": list(family.num_spins)}, **how, "mean_marginal_error": errors}
    return replace(final, name=name, about=about)


class _Trained:
    """The numbers of a schedule as leaves of the graph."""

    def __init__(self, first: AngleSchedule):
        a = first.angles
        self._first = first
        rows = [torch.stack([a.fields, a.couplings, a.mixer])]
        rows += [] if first.scale is None else [first.scale.weights, first.scale.field_weight]
        self.parameters = [row.detach().clone().requires_grad_() for row in rows]

    def schedule(self, decimals: int | None = None) -> AngleSchedule:
        """These very numbers; with `decimals` a rounded copy without a graph."""
        rows = self.parameters if decimals is None else [p.detach().round(decimals=decimals) for p in self.parameters]
        scale = self._first.scale
        if scale is not None:
            scale = replace(scale, weights=rows[1], field_weight=rows[2])
        return replace(self._first, angles=Layers(*rows[0]), scale=scale)


def _scale_of(family: Family, depth: int) -> ScaleDependence:
    """No dependence yet, around the scale of the family at 8 spins."""
    row_norm = family.couplings * math.sqrt(7)
    return ScaleDependence.constant(depth, row_norm=row_norm, field=family.fields, num_spins=8)


def stretched(layers: Layers, num_layers: int) -> Layers:
    """The same anneal in another number of layers: angles interpolated at the middles of layers, sums about kept."""
    ratio = layers.depth / num_layers
    places = (np.arange(num_layers) + 0.5) * ratio - 0.5

    def row(angles: Tensor) -> Tensor:
        return torch.from_numpy(np.interp(places, np.arange(layers.depth), angles.detach().numpy()) * ratio)

    return Layers(row(layers.fields), row(layers.couplings), row(layers.mixer))


def marginal_error(schedule: Layers | AngleSchedule, problem: IsingProblem) -> Tensor:
    """Mean |⟨s⟩_circuit − ⟨s⟩_exact| over problems (g, q, n) and spins; differentiable in the schedule's numbers."""
    return (circuit_magnetization(schedule, problem) - exact_magnetization(problem)).abs().mean()


def circuit_magnetization(schedule: Layers | AngleSchedule, problem: IsingProblem) -> Tensor:
    """⟨s⟩ of the state vector for problems (g, q, n) without a mask, float64."""
    engine = StateVectorEngine()
    scale = schedule.scale if isinstance(schedule, AngleSchedule) else None
    layers = schedule.angles if isinstance(schedule, AngleSchedule) else schedule
    if scale is None:
        return engine.magnetization(problem.fields, problem._couplings, _at(problem.beta, layers))
    fields = problem.fields * scale.field_factor(problem.fields, problem.beta)
    rows = scale.pieces(problem._rebuilt(fields=fields), layers)
    return torch.cat([engine.magnetization(piece.fields, piece._couplings, own) for piece, own in rows])


def measured_error(
    schedule: Layers | AngleSchedule, family: Family, num_spins: int, *, count: int = 256, seed: int = 2**40
) -> float:
    """`marginal_error` on `count` problems that no fit with a small seed has seen."""
    with torch.no_grad():
        return float(marginal_error(schedule, family.problems(num_spins, count, seed)))


@torch.no_grad()
def exact_magnetization(problem: IsingProblem) -> Tensor:
    from samplers.registry import get_sampler

    return get_sampler("exact").magnetization(problem).double()


def _at(beta: float, layers: Layers) -> Layers:
    return Layers(layers.fields * beta, layers.couplings * beta, layers.mixer)


def error_by_size(
    schedule: Layers | AngleSchedule, family: Family, sizes: Sequence[int], *, count: int = 64
) -> dict[int, float]:
    """`measured_error` at several sizes: how a schedule fitted at one n carries over to others."""
    return {n: measured_error(schedule, family, n, count=count) for n in sizes}
