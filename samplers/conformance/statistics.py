"""Are these draws from that law? Chi-square over states, z-tests of moments and of the mean energy."""

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.states import index_of_spins, spin_table


def chi_square_p(samples: Samples, probabilities: Float[Tensor, "*batch states"]) -> float:
    """p-value of Pearson's test over all states of all problems, cells below 5 expected counts pooled.

    Valid for independent draws of equal weight (occurrence counts are repeats and are fine).
    """
    num_states = probabilities.shape[-1]
    p = probabilities.reshape(-1, num_states).double()
    index = index_of_spins(samples.spins).reshape(len(p), -1)
    weights = samples.weights.reshape(len(p), -1).double()
    counts = torch.zeros_like(p).scatter_add_(1, index, weights)
    statistic, freedom = 0.0, 0
    for observed, expected in zip(counts, p * counts.sum(1, keepdim=True), strict=True):
        rare = expected < 5
        cells = [(observed[~rare], expected[~rare])]
        if expected[rare].sum() >= 1:
            cells.append((observed[rare].sum()[None], expected[rare].sum()[None]))
        elif observed[rare].sum() > 10:
            return 0.0
        statistic += sum(float(((o - e) ** 2 / e).sum()) for o, e in cells)
        freedom += sum(len(o) for o, _ in cells) - 1
    return float(stats.chi2.sf(statistic, freedom)) if freedom > 0 else 1.0


def worst_moment_z(samples: Samples, probabilities: Float[Tensor, "*batch states"]) -> float:
    """The largest |z| of all ⟨s_j⟩ and ⟨s_j s_k⟩ against the law's own values and variances."""
    table = spin_table(samples.spins.shape[-1], dtype=torch.float64)
    p = probabilities.double()
    size = samples.effective_sample_size().double()
    worst = 0.0
    for given, exact in (
        (samples.magnetization(), p @ table),
        (samples.correlations(), (table.mT * p.unsqueeze(-2)) @ table),
    ):
        tail = exact.ndim - size.ndim
        n = size.reshape(*size.shape, *[1] * tail)
        error = torch.sqrt((1 - exact**2).clamp_min(0) / n)
        # A moment of ±1 has no spread: it must be met to rounding (1/n stands for "not even one read").
        worst = max(worst, float(((given.double() - exact).abs() / error.clamp_min(1 / n)).max()))
    return worst


def mean_energy_z(samples: Samples, problem: IsingProblem, probabilities: Float[Tensor, "*batch states"]) -> float:
    """z of the energies summed over the batch against the law: the test that sees a wrong temperature best."""
    table = spin_table(problem.num_spins, dtype=problem.dtype)
    energies = problem.energy(table.expand(*problem.batch_shape, *table.shape)).double()
    p = probabilities.double()
    mean = (p * energies).sum(-1)
    variance = (p * energies**2).sum(-1) - mean**2
    size = samples.effective_sample_size().double()
    difference = (samples.mean_energy().double() - mean).sum()
    return float(difference / torch.sqrt((variance / size).sum().clamp_min(1e-300)))


def z_limit(alarm: float, tests: int = 1) -> float:
    """|z| that a normal variable passes with probability `alarm` in any of `tests` tests."""
    return float(stats.norm.isf(alarm / (2 * tests)))
