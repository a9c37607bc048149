"""Simulated annealing by dwave-samplers' C++ kernel, run so that its reads follow the Boltzmann law at β.

Every read is an anneal of its own: heat-bath sweeps while the temperature falls to 1/β, then sweeps held there.
The kernel is called below the dimod interface, which costs ten times as much as a small problem itself; the reads
are those that `SimulatedAnnealingSampler.sample` returns for the same seeds and initial states, bit for bit.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplers.annealing_kernel import AnnealTask, run_anneals
from samplers.base import Capabilities, Sampler
from samplers.dimod_bridge.convert import dimod_biases, problem_seeds
from samplers.dimod_bridge.laws import anneal_schedule, cooling_schedule
from samplers.errors import NotSupportedError
from samplers.estimators import straight_through
from samplers.gibbs.gradient import covariance_magnetization
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.pseudolikelihood import local_fields
from samplers.samples import Samples
from samplers.streams import mix64, stream_keys
from samplers.supports import SupportPart, SupportSplit, graph_of

# xorshift128+ starts from (seed, 0): its first numbers are near 0. Reads that end before this many draws are spoilt.
_WARM_UP_DRAWS = 64


class AnnealingSampler(Sampler):
    """Boltzmann draws and ground states by simulated annealing (dwave-samplers, heat bath), one chain per read.

    The temperature is a straight ramp of β_k = β (k+1)/(ramp+1), then `held · num_sweeps` sweeps at β. Draws
    follow p ∝ exp(−βE) up to what those sweeps leave of the start: not exact where barriers are high against
    1/β; raise num_sweeps there. A magnetization is the mean of tanh(βF_j) over the reads, with F_j the local field of
    spin j (Rao–Blackwell): its standard error is at most √((1 − m²)/num_reads), and 0 where there are no couplings.

    Cost: num_problems · num_reads · num_sweeps · n spin updates, about 5e7 a second and core at n = 16, and
    about 15 µs per problem. Problems run in `workers` threads; the results do not depend on how many.

    Source: Kirkpatrick, Gelatt, Vecchi, Science 220, 671 (1983); heat bath: Glauber, J. Math. Phys. 4, 294 (1963).
    """

    name = "annealing"
    num_reads: int = option(default=256, help="independent anneals per problem", minimum=1)
    num_sweeps: int = option(default=32, help="sweeps of one anneal, the held ones included", minimum=1)
    held: float = option(default=0.5, help="share of the sweeps held at β, after the ramp", minimum=0.0, maximum=1.0)
    randomize_order: bool = option(default=False, help="update random spins instead of all in order")
    gradient: str = option(
        default="covariance",
        help="how magnetizations are differentiated",
        choices=("covariance", "straight-through", "none"),
    )
    workers: int | None = option(default=None, help="threads over problems; None: as many as torch uses", minimum=1)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=True, gradient=self.gradient, can_ground_state=True)  # type: ignore[arg-type]

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        split = SupportSplit(problem)
        schedule = self._schedule(problem.beta)
        finals = self._finals(split, self.num_reads, key, lambda linear, quadratic: schedule)
        self.last_info.update(self._info(schedule))
        if not finals:
            return graph_of(problem) - torch.ones_like(problem.fields)
        values = [averaged(part.problem, final, self.gradient) for part, final in zip(split.parts, finals, strict=True)]
        return split.merge(values, fill=-1.0)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        schedule = self._schedule(problem.beta)
        spins = self._anneal(problem, num_reads, key, lambda linear, quadratic: schedule)
        energies = problem.energy(spins)
        return Samples(spins, torch.ones_like(energies), energies, self._info(schedule))

    def _schedule(self, beta: float) -> list[float]:
        return [beta * share for share in anneal_schedule(self.num_sweeps, self.held)]

    def _info(self, schedule: list[float]) -> dict[str, Any]:
        return {"weights": "counts", "beta_schedule": schedule, "acceptance": "Gibbs", "energy_scale": 1.0}

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        steps = max(self.num_sweeps, 256)
        reads = min(self.num_reads, 64)
        spins = self._anneal(problem, reads, key, lambda linear, quadratic: cooling_schedule(linear, quadratic, steps))
        best = problem.energy(spins).argmin(-1)
        index = best[..., None, None].expand(*best.shape, 1, problem.num_spins)
        return spins.gather(-2, index).squeeze(-2)

    def _anneal(self, problem: IsingProblem, num_reads: int, key: int, schedule_of: Callable[..., Any]) -> Tensor:
        """Final spins (*batch, reads, n) of one anneal per problem and read; −1 where a spin is not allowed."""
        split = SupportSplit(problem)
        finals = self._finals(split, num_reads, key, schedule_of)
        if finals:
            return split.merge(finals, fill=-1)
        shape = (*problem.batch_shape, num_reads, problem.num_spins)
        return torch.full(shape, -1, dtype=torch.int8, device=problem.device)

    def _finals(self, split: SupportSplit, num_reads: int, key: int, schedule_of: Callable[..., Any]) -> list[Tensor]:
        """The final spins (g, q, reads, k) of every part."""
        finals, tasks = [], []
        for part in split.parts:
            spare = self._spare_reads(part.problem.num_spins)
            states = initial_states(key, part, spare + num_reads)
            tasks += self._tasks(part, states, key, schedule_of)
            finals.append(torch.from_numpy(states[..., spare:, :]))
        run_anneals(tasks, self.workers or torch.get_num_threads())
        return [final.to(part.problem.device) for part, final in zip(split.parts, finals, strict=True)]

    def _tasks(self, part: SupportPart, states: NDArray[np.int8], key: int, schedule_of: Callable[..., Any]):
        biases, seeds = dimod_biases(part.problem), problem_seeds(key, part)
        for g, quadratic in enumerate(biases.quadratic):
            rows, columns = np.nonzero(quadratic)
            pairs = rows.tolist(), columns.tolist(), quadratic[rows, columns].tolist()
            for q, linear in enumerate(biases.linear[g]):
                schedule = schedule_of(linear, quadratic)
                yield AnnealTask(linear.tolist(), pairs, schedule, int(seeds[g, q]), states[g, q], self.randomize_order)

    def _spare_reads(self, num_spins: int) -> int:
        """Reads that are run first and thrown away, where one read is too short to outlast the weak first numbers."""
        draws = num_spins * self.num_sweeps
        return 0 if draws >= _WARM_UP_DRAWS else math.ceil(_WARM_UP_DRAWS / draws)


def averaged(problem: IsingProblem, reads: Tensor, gradient: str) -> Tensor:
    """⟨s⟩ (g, q, k) of an unmasked grouped problem, from independent reads (g, q, reads, k), with the named gradient.

    Raises:
        NotSupportedError: a covariance gradient from one read.
    """
    with torch.no_grad():
        value = torch.tanh(problem.beta * local_fields(problem, reads)).mean(-2)
    if gradient == "none" or not torch.is_grad_enabled():
        return value
    if gradient == "straight-through":
        return straight_through(problem, value)
    if reads.shape[-2] < 2:
        raise NotSupportedError("a covariance gradient needs at least 2 reads, got 1; raise num_reads")
    return covariance_magnetization(problem, value, reads.unsqueeze(-2))


def initial_states(key: int, part: SupportPart, num_reads: int) -> NDArray[np.int8]:
    """Fair random spins (g, q, reads, k), a function of (key, stream, read) alone."""
    words = math.ceil(part.problem.num_spins / 64)
    keys = mix64(stream_keys(key, part.problem.streams) + np.uint64(1))
    with np.errstate(over="ignore"):
        counters = np.arange(1, num_reads * words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = mix64(keys[..., None] + counters).reshape(*keys.shape, num_reads, words)
    flat = np.unpackbits(bits.astype("<u8").view(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(1 - 2 * flat[..., : part.problem.num_spins].astype(np.int8))
