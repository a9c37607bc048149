"""Error of marginals against what it costs, and against how strong the couplings are."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ising_attn.lab.marginal_report import Reference, reference_for
from ising_attn.lab.tables import Table
from samplers import IsingAttnError, IsingProblem, Sampler, get_sampler
from samplers.diagnostics import marginal_errors

# What is left of a deterministic sampler's error is rounding: nothing to draw.
ROUNDING = 1e-9

# The option that buys accuracy, and values to try. A sampler has a curve for each of these options that it has.
KNOBS: dict[str, tuple[int, ...]] = {
    "num_reads": (8, 32, 128, 512, 2048),
    "num_chains": (2, 8, 32, 128, 512),
    "num_sweeps": (2, 4, 16, 64, 256),
    "num_layers": (2, 4, 8, 16),  # those of the shipped schedules; a ramp takes them too
    "shots": (32, 128, 512, 2048, 8192),
    "max_iterations": (1, 2, 4, 8, 16, 32, 64),
}


@dataclass(frozen=True)
class SamplerSpec:
    """A sampler's name and the options it is made with, as in `annealing:num_reads=500:num_sweeps=50`."""

    label: str
    name: str
    options: dict[str, Any]

    def make(self, **changes: Any) -> Sampler:
        return get_sampler(self.name, **{**self.options, **changes})


@dataclass(frozen=True)
class CurvePoint:
    """One sampler with one option set to one value: RMSE of ⟨s⟩ and seconds of a call."""

    label: str
    knob: str
    value: float
    rmse: float
    seconds: float


def cost_curves(
    specs: Sequence[SamplerSpec], problem: IsingProblem, reference: Reference, *, seed: int, budget: float
) -> Iterator[CurvePoint]:
    """Points of every spec's knobs; a knob stops at the first value that takes longer than `budget` seconds."""
    for spec in specs:
        made = spec.make()
        names = {f.name for f in dataclasses.fields(made)}
        for knob, values in KNOBS.items():
            # shots=None is the exact output law: there is nothing to buy.
            if knob not in names or (knob == "shots" and made.options()[knob] is None):
                continue
            found: list[CurvePoint] = []
            for value in values:
                try:
                    point = _point(spec.label, knob, value, spec.make(**{knob: value}), problem, reference, seed)
                except IsingAttnError:
                    continue
                if found and point.rmse == found[-1].rmse:
                    break  # the option plays no part in the marginals, or all has been bought
                found.append(point)
                if point.seconds > budget:
                    break
            yield from found if len(found) > 1 else []


def coupling_curves(
    specs: Sequence[SamplerSpec],
    scales: Sequence[float],
    problem_at: Callable[[float], IsingProblem],
    *,
    seed: int,
    width: int | None = None,
) -> Iterator[CurvePoint]:
    """RMSE of every spec over problems of growing coupling scale σ_J."""
    for scale in scales:
        problem = problem_at(scale)
        reference = reference_for(problem, width=width, seed=seed)
        for spec in specs:
            try:
                yield _point(spec.label, "couplings", scale, spec.make(), problem, reference, seed)
            except IsingAttnError:
                continue


def curve_table(points: Sequence[CurvePoint], title: str) -> Table:
    formats = {"RMSE": ".5f", "seconds": ".4f", "value": "g"}
    table = Table(title, ["sampler", "option", "value", "RMSE", "seconds"], formats)
    for point in points:
        table.add(point.label, point.knob, point.value, point.rmse, point.seconds)
    return table


def _point(
    label: str, knob: str, value: float, sampler: Sampler, problem: IsingProblem, reference: Reference, seed: int
) -> CurvePoint:
    with torch.no_grad(), sampler.seeded(seed):
        sampler.magnetization(problem, seed=seed)  # compiles kernels and circuits
        times = []
        for _ in range(3):
            started = time.perf_counter()
            m = sampler.magnetization(problem, seed=seed)
            times.append(time.perf_counter() - started)
    return CurvePoint(label, knob, value, marginal_errors(m, reference.magnetization, problem)["rmse"], min(times))
