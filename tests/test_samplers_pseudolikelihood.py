"""Estimated temperatures: unbiased, with error bars that cover, for weights, masks and data that decide nothing."""

import math

import pytest
import torch

from samplers import IsingProblem, Samples, get_sampler
from samplers.enumeration import log_probabilities
from samplers.errors import InvalidProblemError
from samplers.pseudolikelihood import estimate_beta, local_fields
from samplers.states import spins_of_index


def random_problem(*shape: int, seed: int = 0, beta: float = 1.0, **kwargs) -> IsingProblem:
    generator = torch.Generator().manual_seed(seed)
    n = shape[-1]
    a = 0.4 * torch.randn(n, n, generator=generator, dtype=torch.float64)
    fields = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return IsingProblem(fields, (a + a.mT).fill_diagonal_(0), beta=beta, **kwargs)


def exact_draws(problem: IsingProblem, reads: int, seed: int) -> Samples:
    log_p, _ = log_probabilities(problem)
    generator = torch.Generator().manual_seed(seed)
    index = torch.multinomial(log_p.exp().reshape(-1, log_p.shape[-1]), reads, replacement=True, generator=generator)
    spins = spins_of_index(index.reshape(*problem.batch_shape, reads), problem.num_spins)
    ones = torch.ones(*problem.batch_shape, reads, dtype=problem.dtype)
    return Samples(spins, ones, problem.energy(spins), {"weights": "counts"})


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5, 2.0])
def test_recovers_the_temperature(beta: float):
    problem = random_problem(8, beta=beta)
    found = estimate_beta(problem, exact_draws(problem, 4000, seed=1))
    assert abs(float(found.value) - beta) < 4 * float(found.standard_error)
    assert 0.005 < float(found.standard_error) < 0.1 * beta


def test_annealed_reads_have_the_temperature_they_were_asked_for():
    problem = random_problem(8, 6, beta=1.5)
    samples = get_sampler("annealing", num_sweeps=64).sample(problem, 1000, seed=1)
    found = estimate_beta(problem, samples)
    assert abs(float(found.value) - 1.5) < 4 * float(found.standard_error)
    assert float(found.standard_error) < 0.05


def test_error_bars_cover():
    """400 repeats: the estimates scatter as their own error bars say, and are centred."""
    repeats = random_problem(6)[()]
    problem = IsingProblem(repeats.fields.expand(400, 6), repeats.couplings, beta=1.2)
    found = estimate_beta(problem, exact_draws(problem, 300, seed=2), pooled=False)
    z = (found.value - 1.2) / found.standard_error
    assert abs(float(z.mean())) < 5 / math.sqrt(400) + 0.1
    assert 0.88 < float(z.std()) < 1.12


def test_maximum_is_where_the_slope_vanishes():
    problem = random_problem(5)
    samples = exact_draws(problem, 200, seed=3)
    beta = estimate_beta(problem, samples).value.clone().requires_grad_()
    x = local_fields(problem, samples.spins) * samples.spins
    (slope,) = torch.autograd.grad(torch.nn.functional.logsigmoid(2 * beta * x).sum(), beta)
    assert abs(float(slope)) < 1e-8


def test_pooling_uses_all_problems_and_counts_equal_repeats():
    problem = random_problem(20, 5)
    samples = exact_draws(problem, 100, seed=4)
    one, each = estimate_beta(problem, samples), estimate_beta(problem, samples, pooled=False)
    assert each.value.shape == (20,) and one.value.shape == ()
    assert float(one.standard_error) < float(each.standard_error.min())
    rows = samples.spins[0, :2]
    repeated = Samples(rows[[0, 0, 0, 1]], torch.ones(4), torch.zeros(4), {"weights": "counts"})
    counted = Samples(rows, torch.tensor([3.0, 1.0]), torch.zeros(2), {"weights": "counts"})
    first, second = (estimate_beta(problem[0], s) for s in (repeated, counted))
    assert torch.allclose(first.value, second.value) and torch.allclose(first.standard_error, second.standard_error)


def test_weights_that_are_no_counts_do_not_shrink_the_error():
    problem = random_problem(5)
    samples = exact_draws(problem, 400, seed=5)
    scaled = Samples(samples.spins, 7 * samples.weights, samples.energies)
    plain, heavy = estimate_beta(problem, samples), estimate_beta(problem, scaled)
    assert torch.allclose(plain.value, heavy.value)
    assert torch.allclose(plain.standard_error, heavy.standard_error)


def test_rows_of_weight_zero_say_nothing():
    problem = random_problem(5)
    samples = exact_draws(problem, 100, seed=6)
    padded = Samples(
        torch.cat([samples.spins, -samples.spins[:7]]),
        torch.cat([samples.weights, torch.zeros(7, dtype=torch.float64)]),
        torch.cat([samples.energies, samples.energies[:7]]),
        samples.info,
    )
    assert torch.allclose(estimate_beta(problem, samples).value, estimate_beta(problem, padded).value)


def test_spins_that_are_not_allowed_say_nothing():
    allowed = torch.tensor([True, True, False, True, True])
    problem = random_problem(5, allowed=allowed, beta=1.5)
    kept = allowed.nonzero().squeeze(-1)
    small = IsingProblem(problem.fields[kept], problem.couplings[kept][:, kept], beta=1.5)
    samples = exact_draws(problem, 500, seed=7)
    part = Samples(samples.spins[:, kept], samples.weights, samples.energies, samples.info)
    whole, reduced = estimate_beta(problem, samples), estimate_beta(small, part)
    assert torch.allclose(whole.value, reduced.value) and torch.allclose(whole.standard_error, reduced.standard_error)


def test_three_body_terms_count():
    generator = torch.Generator().manual_seed(0)
    triples = torch.zeros(4, 4, 4, dtype=torch.float64)
    for j, k, m in ((0, 1, 2), (1, 2, 3)):
        value = torch.randn((), generator=generator, dtype=torch.float64)
        for order in ((j, k, m), (j, m, k), (k, j, m), (k, m, j), (m, j, k), (m, k, j)):
            triples[order] = value
    problem = IsingProblem(torch.full((4,), 0.3, dtype=torch.float64), triples=triples, beta=1.4)
    found = estimate_beta(problem, exact_draws(problem, 6000, seed=8))
    assert abs(float(found.value) - 1.4) < 4 * float(found.standard_error)


def test_local_minima_everywhere_give_infinity():
    problem = IsingProblem(torch.tensor([1.0, -1.0]))
    samples = Samples(torch.tensor([[1, -1]] * 5, dtype=torch.int8), torch.ones(5), torch.zeros(5))
    found = estimate_beta(problem, samples)
    assert float(found.value) == math.inf and float(found.standard_error) == math.inf
    opposite = Samples(-samples.spins, samples.weights, samples.energies)
    assert float(estimate_beta(problem, opposite).value) == -math.inf


def test_a_model_without_biases_has_no_temperature():
    problem = IsingProblem(torch.zeros(2, 3))
    samples = Samples(torch.ones(2, 4, 3, dtype=torch.int8), torch.ones(2, 4), torch.zeros(2, 4))
    found = estimate_beta(problem, samples, pooled=False)
    assert bool(found.value.isnan().all()) and bool(found.standard_error.isinf().all())


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_energy_do_not_matter(scale: float):
    problem = random_problem(5)
    samples = exact_draws(problem, 500, seed=9)
    scaled = IsingProblem(scale * problem.fields, scale * problem.couplings)
    assert float(estimate_beta(scaled, samples).value) * scale == pytest.approx(
        float(estimate_beta(problem, samples).value), rel=1e-6
    )


def test_draws_of_another_shape_are_refused():
    problem = random_problem(5)
    with pytest.raises(InvalidProblemError, match="shape"):
        estimate_beta(random_problem(6), exact_draws(problem, 10, seed=1))
