"""Importance weights: Boltzmann averages from anneals, their effective size, and refusals."""

import pytest
import torch

from samplers import IsingProblem, Samples, enumeration, get_sampler
from samplers.dqa import DQASampler
from samplers.dqa.reweighting import efficiency, log_partition_estimate, log_weights, reweighted
from samplers.errors import InvalidOptionError, InvalidProblemError
from samplers.states import spin_table

READS = 20_000


def make_problem(*batch: int, n: int = 5, scale: float = 0.8, seed: int = 0, **own) -> IsingProblem:
    generator = torch.Generator().manual_seed(seed)
    fields = scale * torch.randn(*batch, n, generator=generator, dtype=torch.float64)
    J = scale / 2 * torch.randn(n, n, generator=generator, dtype=torch.float64).triu(1)
    return IsingProblem(fields, J + J.mT, **own)


def deviations(sampler, problem: IsingProblem) -> torch.Tensor:
    """|⟨s⟩ − exact| in error bars of a self-normalised importance average (delta method)."""
    samples = sampler.sample(problem, READS, seed=1)
    exact, _ = enumeration.moments(problem)
    share = samples.weights / samples.weights.sum(-1, keepdim=True)
    spread = samples.spins.double() - exact.unsqueeze(-2)
    error = ((share.unsqueeze(-1) * spread) ** 2).sum(-2).sqrt().clamp_min(1e-12)
    return ((samples.magnetization() - exact) / error).abs()


def test_corrected_draws_are_boltzmann_and_plain_ones_are_not():
    problem = make_problem(4, beta=1.2)
    corrected = get_sampler("dqa", correction="importance", num_layers=8)
    assert corrected.capabilities.boltzmann and corrected.capabilities.gradient == "covariance"
    assert deviations(corrected, problem).max() < 4.5
    assert deviations(get_sampler("dqa", num_layers=8), problem).max() > 20


def test_masked_spins_do_not_count():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    problem = make_problem(4, n=4, allowed=mask)
    sampler = get_sampler("dqa", correction="importance", num_layers=6, num_reads=READS)
    mean, exact = sampler.magnetization(problem, seed=3), enumeration.moments(problem)[0]
    assert (mean - exact).abs().max() < 0.05
    assert bool((mean[~mask] == -1).all())


def test_weights_by_hand():
    problem = make_problem(n=2, beta=0.7)
    table = spin_table(2)
    law = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    draws = Samples(table.to(torch.int8), torch.ones(4, dtype=torch.float64), problem.energy(table))
    expected = torch.exp(-0.7 * problem.energy(table)) / law
    assert torch.allclose(log_weights(problem, draws, law).exp(), expected)
    weighted = reweighted(problem, draws, law)
    assert torch.allclose(weighted.weights, expected * 4 / expected.sum())
    assert weighted.info["effective_share"] == pytest.approx(float(expected.sum() ** 2 / (expected**2).sum() / 4))
    assert torch.allclose(log_partition_estimate(problem, draws, law), expected.mean().log())
    # Every state once, weighed by its own law, is enumeration: weights that were there before are kept.
    once = Samples(draws.spins, law, draws.energies)
    assert torch.allclose(reweighted(problem, once, law).magnetization(), enumeration.moments(problem)[0])
    assert torch.allclose(log_partition_estimate(problem, once, law), enumeration.log_probabilities(problem)[1])


def test_log_partition_and_effective_size_from_draws():
    problem = make_problem(3)
    sampler = DQASampler(num_layers=8)
    law, draws = sampler.probabilities(problem), sampler.sample(problem, READS, seed=2)
    log_p, log_z = enumeration.log_probabilities(problem)
    share = efficiency(law, log_p.exp())
    error = ((1 / share - 1) / READS).sqrt()
    assert ((log_partition_estimate(problem, draws, law) - log_z) / error).abs().max() < 4.5
    size = reweighted(problem, draws, law).effective_sample_size()
    assert torch.allclose(size / READS, share, rtol=0.2)
    assert torch.allclose(efficiency(law, law), torch.ones(3, dtype=torch.float64))
    assert float(efficiency(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))) == 0


def test_covariance_gradient_is_that_of_the_boltzmann_law():
    problem = make_problem(n=3, scale=0.5)
    fields = problem.fields.clone().requires_grad_()
    exact = torch.autograd.grad(enumeration.moments(IsingProblem(fields, problem.couplings))[0].sum(), fields)[0]
    sampler = get_sampler("dqa", correction="importance", num_layers=6, num_reads=READS)
    mean = sampler.magnetization(IsingProblem(fields, problem.couplings), seed=5)
    assert (torch.autograd.grad(mean.sum(), fields)[0] - exact).abs().max() < 0.06


def test_refusals():
    problem = make_problem(2)
    sampler = DQASampler(num_layers=4)
    draws, law = sampler.sample(problem, 5), sampler.probabilities(problem)
    with pytest.raises(InvalidProblemError, match=r"must be \(2, 32\)"):
        reweighted(problem, draws, law[0])
    with pytest.raises(InvalidProblemError, match="probability 0"):
        reweighted(problem, draws, torch.zeros_like(law))
    with pytest.raises(InvalidOptionError, match="gradient='covariance'"):
        get_sampler("dqa", correction="importance", gradient="adjoint")
    with pytest.raises(InvalidOptionError, match="correction"):
        get_sampler("dqa", correction="metropolis")
