"""Weights where every key is nearly off: float32 against float64, values and gradients."""

from typing import Any

import pytest
import torch

from ising_attn import BoltzmannAttention, IsingProblem, get_sampler
from ising_attn.attention import normalised_over_allowed
from ising_attn.marginal_weights import FAINT, marginal_weights


def problem_at(level: float, *, heads: int = 2, batch: int = 3, n: int = 6, triples: bool = False) -> Any:
    """Random causal problems with shared couplings and all fields lowered by `level`, in float64."""
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(batch, heads, n, n, generator=generator, dtype=torch.float64) + level
    raw = 0.3 * torch.randn(heads, 1, n, n, generator=generator, dtype=torch.float64)
    couplings = (raw + raw.mT).masked_fill(torch.eye(n, dtype=torch.bool), 0.0)
    third: Any = None
    if triples:
        cube = torch.randn(heads, 1, n, n, n, generator=generator, dtype=torch.float64).tril(-1)
        cube = cube * torch.ones(n, n, dtype=torch.bool).tril(-1).unsqueeze(-1)
        third = 0.2 * sum(cube.permute(0, 1, *(2 + torch.tensor(p)).tolist()) for p in PERMUTATIONS)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    return IsingProblem(fields.requires_grad_(), couplings.requires_grad_(), allowed=allowed, triples=third, beta=1.2)


PERMUTATIONS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


@pytest.mark.parametrize("level", [0.0, -2.0, -4.0, -6.0, -8.0])
@pytest.mark.parametrize("triples", [False, True])
def test_float32_weights_and_gradients_are_those_of_float64(level: float, triples: bool):
    precise = problem_at(level, triples=triples)
    exact = get_sampler("exact")
    single = precise.to(dtype=torch.float32)
    wanted, found = marginal_weights(exact, precise), marginal_weights(exact, single)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-4)
    probe = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sources = (precise.fields, precise.couplings)
    for a, b in zip(
        torch.autograd.grad((found.double() * probe).sum(), sources),
        torch.autograd.grad((wanted * probe).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4 * float(b.abs().max()))


def test_float32_magnetizations_alone_would_not_do():
    # Power: without the second summation the same comparison fails by orders of magnitude.
    precise = problem_at(-6.0)
    exact, single = get_sampler("exact"), precise.to(dtype=torch.float32)
    wanted = marginal_weights(exact, precise)
    naive = normalised_over_allowed((1 + exact.magnetization(single)) / 2, single.allowed)
    assert (naive.double() - wanted).abs().max() > 1e-2


def test_the_limit_of_rare_keys_is_softmax_of_twice_the_fields():
    precise = problem_at(-9.0)
    weights = marginal_weights(get_sampler("exact"), precise)
    # One spin up at most: α_j ∝ exp(2β(h_j − Σ_k J_jk)) over the allowed keys k.
    mask = precise.allowed
    pull = torch.einsum("hjk,ik->hij", precise.couplings.squeeze(1), mask.double())
    logits = (2 * precise.beta * (precise.fields - pull)).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(weights, logits.softmax(-1), rtol=1e-4, atol=1e-5)


def test_only_faint_rows_of_exact_samplers_are_summed_again(monkeypatch: pytest.MonkeyPatch):
    counts: list[int] = []
    exact = get_sampler("exact")
    original = exact.magnetization

    def counted(problem: IsingProblem) -> torch.Tensor:
        counts.append(problem.num_problems)
        return original(problem)

    monkeypatch.setattr(exact, "magnetization", counted)
    marginal_weights(exact, problem_at(2.0).to(dtype=torch.float32))
    assert counts == [36]
    counts.clear()
    lowered = problem_at(2.0).to(dtype=torch.float32)
    with torch.no_grad():
        lowered.fields[1, 0, 4] -= 8
        lowered.fields[0, 1, 0] -= 8  # One key alone has weight 1 at any field.
    alpha = (1 + original(lowered)) / 2
    assert alpha[1, 0, 4, :5].sum() < FAINT
    marginal_weights(exact, lowered)
    # One row, and one sound row of the other head to fill up.
    assert counts == [36, 2]


def test_a_layer_with_a_falling_bias_trains_with_sound_gradients():
    def gradient(dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(0)
        layer: Any = BoltzmannAttention(8, 2, 6, coupling_std=0.3, bias="scalar", bias_init=-6.0, sampler="exact")
        x = torch.randn(4, 6, 8)
        out = layer.to(dtype)(x.to(dtype))
        (out**2).sum().backward()
        return torch.cat([layer.query_key.weight.grad.flatten(), layer.couplings.values.grad.flatten()]).double()

    wanted, found = gradient(torch.float64), gradient(torch.float32)
    assert (found - wanted).norm() < 1e-3 * wanted.norm()
