"""The heat bath against enumeration, its torch twin against its kernel, and what its options promise."""

import pytest
import torch

from samplers import InvalidOptionError, IsingProblem, get_sampler
from samplers.enumeration import moments


def random_problem(
    n=7, batch=(2, 3), *, spread=0.4, seed=0, masked=False, triples=False, dtype=torch.float64, beta=0.8
):
    make = torch.Generator().manual_seed(seed)
    h = torch.randn(*batch, n, generator=make, dtype=dtype)
    a = torch.randn(batch[0], 1, n, n, generator=make, dtype=dtype) * spread
    j = torch.triu(a, 1) + torch.triu(a, 1).mT
    allowed = torch.rand(*batch, n, generator=make) > 0.3 if masked else None
    k = None
    if triples:
        raw = torch.randn(n, n, n, generator=make, dtype=dtype) * 0.3
        k = sum(raw.permute(p) for p in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]) / 6
        same = torch.eye(n, dtype=torch.bool)
        k = k.masked_fill(same[:, :, None] | same[:, None, :] | same[None], 0.0)
    return IsingProblem(h, j, allowed=allowed, beta=beta, triples=k)


def z_scores(problem, sampler, seed=1):
    m = sampler.magnetization(problem, seed=seed)
    exact, _ = moments(problem)
    z = (m - exact) / sampler.last_info["standard_error"].clamp_min(1e-6)
    return z if problem.allowed is None else z[problem.expanded_allowed()]


@pytest.mark.parametrize("options", [{}, {"num_temperatures": 4}, {"engine": "torch", "num_sweeps": 64}])
@pytest.mark.parametrize("masked", [False, True])
def test_magnetizations_agree_with_enumeration_within_their_error_bars(options, masked):
    problem = random_problem(batch=(12, 8), masked=masked)
    z = z_scores(problem, get_sampler("gibbs", **options))
    assert z.abs().max() < 5
    assert 0.6 < z.std() < 1.5  # the error bars are neither too small nor too large


def test_a_wrong_temperature_is_rejected():
    right, wrong = random_problem(beta=0.8), random_problem(beta=0.88)
    sampler = get_sampler("gibbs")
    exact, _ = moments(right)
    z = (sampler.magnetization(wrong) - exact) / sampler.last_info["standard_error"]
    assert z.abs().max() > 5


@pytest.mark.parametrize("temperatures", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_kernel_and_torch_twin_draw_the_same_spins(temperatures, masked):
    problem = random_problem(n=11, masked=masked)
    options = {"num_temperatures": temperatures, "burn_in": 6}
    fast = get_sampler("gibbs", engine="numba", **options).sample(problem, 40, seed=3).spins
    slow = get_sampler("gibbs", engine="torch", **options).sample(problem, 40, seed=3).spins
    assert (fast != slow).any(-1).double().mean() < 0.01  # rounding decides about once in 1e6 draws
    other = get_sampler("gibbs", engine="torch", **options).sample(problem, 40, seed=4).spins
    assert (fast != other).any(-1).double().mean() > 0.5


def test_powers_of_two_are_asked_for():
    with pytest.raises(InvalidOptionError, match="power of two"):
        get_sampler("gibbs", num_temperatures=3)
