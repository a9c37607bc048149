"""Boltzmann attention through every registered sampler: the same weights, masks, gradients, one call per layer."""

from typing import Any

import pytest
import torch

from ising_attn import BoltzmannAttention, Capabilities, get_sampler, sampler_entries, use_sampler

# What a marginal may be off by at n ≤ 4: by rounding, by approximation, by chance and annealing schedule.
TOLERANCE = {
    "exact": 1e-5,
    "band": 1e-5,
    "mean-field": 0.2,
    "tap": 0.2,
    "bethe": 0.1,
    "gibbs": 0.08,
    "annealing": 0.1,
    "dqa": 0.25,
}
NAMES = [name for name, entry in sampler_entries().items() if name in TOLERANCE and not entry.missing()]


def layer() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    made = BoltzmannAttention(4, 2, 4, coupling_std=0.15, sampler="exact")
    return made, torch.randn(3, 4, 4)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_runs_and_trains_through_the_sampler(name: str):
    made, x = layer()
    exact = made.weights(x)
    exact_grad = torch.autograd.grad((made(x) ** 2).sum(), made.query_key.weight)[0]
    options = {"num_reads": 2000} if name in ("gibbs", "annealing") else {}
    if name == "band":
        options = {"width": 3}
    with use_sampler(made, get_sampler(name, **options)) as sampler:
        out, weights = made(x, need_weights=True)
    assert isinstance(sampler.capabilities, Capabilities)
    assert weights.triu(1).abs().max() == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4))
    torch.testing.assert_close(weights[:, :, 0, 0], torch.ones(3, 2))
    assert (weights - exact).abs().max() < TOLERANCE[name]
    grad, coupling_grad = torch.autograd.grad((out**2).sum(), [made.query_key.weight, made.couplings.values])
    assert bool(torch.isfinite(coupling_grad).all())
    assert coupling_grad.abs().max() > 0
    # Every declared gradient points the way of the exact one here.
    cosine = (grad * exact_grad).sum() / (grad.norm() * exact_grad.norm())
    assert cosine > (0.999 if sampler.capabilities.exact else 0.7)


def test_the_comparison_would_notice_an_opposite_sign():
    made, x = layer()
    problem = made.problem(x)
    exact = get_sampler("exact")
    m = exact.magnetization(problem)
    flipped = torch.where(problem.allowed, -m, -1.0)
    weights = (1 + flipped) / (1 + flipped).sum(-1, keepdim=True)
    assert (weights - made.weights(x)).abs().max() > max(TOLERANCE.values())


def test_draws_are_fresh_at_every_call_and_repeat_with_the_sampler():
    made, x = layer()

    def run(seed: int) -> list[torch.Tensor]:
        with use_sampler(made, get_sampler("gibbs", num_reads=50, seed=seed)):
            return [made.weights(x) for _ in range(2)]

    first, again, other = run(1), run(1), run(2)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
