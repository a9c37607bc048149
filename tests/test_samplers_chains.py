"""Autocorrelation times, effective sizes and R̂ against processes whose answers are known."""

import pytest
import torch

from samplers import InvalidOptionError
from samplers.chains import (
    autocorrelation,
    autocorrelation_time,
    effective_sample_size,
    rhat_of_spin_means,
    split_rhat,
)


def autoregressive(chains, steps, memory, seed=0):
    """x_t = memory · x_t−1 + noise, in equilibrium: ρ_k = memory^k, τ = (1 + memory) / (1 − memory)."""
    noise = torch.randn(chains, steps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = [noise[:, 0]]
    for t in range(1, steps):
        x.append(memory * x[-1] + (1 - memory**2) ** 0.5 * noise[:, t])
    return torch.stack(x, 1)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, -0.5])
def test_autocorrelation_times_of_autoregressive_chains(memory):
    series = autoregressive(64, 2000, memory)
    expected = (1 + memory) / (1 - memory)
    assert float(autocorrelation_time(series)) == pytest.approx(expected, rel=0.08)
    assert float(effective_sample_size(series)) == pytest.approx(64 * 2000 / expected, rel=0.08)
    rho = autocorrelation(series)
    torch.testing.assert_close(rho[:4], torch.tensor([memory**k for k in range(4)]).double(), rtol=0, atol=0.03)


def test_error_bars_from_the_effective_size_hold():
    means = torch.stack([autoregressive(4, 1000, 0.8, seed=s).mean() for s in range(40)])
    size = effective_sample_size(autoregressive(4, 1000, 0.8))
    assert float(means.std() * size**0.5) == pytest.approx(1.0, rel=0.35)


def test_a_batch_is_the_same_as_its_members():
    series = torch.stack([autoregressive(3, 200, 0.3), autoregressive(3, 200, 0.7)])
    both = autocorrelation_time(series)
    assert both.shape == (2,)
    torch.testing.assert_close(both, torch.stack([autocorrelation_time(s) for s in series]))


def test_rhat_is_one_for_mixed_chains_and_large_for_others():
    mixed = autoregressive(8, 1000, 0.2)
    assert 0.99 < float(split_rhat(mixed)) < 1.01
    apart = mixed + torch.arange(8).double()[:, None]
    assert float(split_rhat(apart)) > 2
    drifting = mixed + torch.linspace(-3, 3, 1000)
    assert float(split_rhat(drifting)) > 1.5  # only the split sees a drift that all chains share


def test_chains_that_never_move():
    frozen = torch.ones(4, 100)
    assert float(split_rhat(frozen)) == 1.0
    assert float(autocorrelation_time(frozen)) > 50  # one independent draw per chain at most
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert torch.isinf(split_rhat(frozen * signs[:, None]))
    assert torch.isinf(rhat_of_spin_means(signs[:, None], steps=100)).all()
    assert (rhat_of_spin_means(torch.ones(4, 1), steps=100) == 1).all()


def test_rhat_of_spin_means_is_that_of_the_spins():
    p = torch.tensor([0.3, 0.5, 0.6, 0.8])[:, None]
    spins = torch.where(torch.rand(4, 2000, generator=torch.Generator().manual_seed(0)) < p, 1.0, -1.0)
    halves = torch.cat([spins[:, :1000], spins[:, 1000:]])
    fast = rhat_of_spin_means(halves.mean(1, keepdim=True), steps=1000)
    torch.testing.assert_close(fast, split_rhat(spins)[None], rtol=1e-3, atol=0)


def test_shapes_that_make_no_sense_are_refused():
    with pytest.raises(InvalidOptionError, match="chains, steps"):
        autocorrelation(torch.zeros(5, 1))
    with pytest.raises(InvalidOptionError, match="at least 4 steps"):
        split_rhat(torch.zeros(2, 3))
