"""Attention weights from the marginals of an Ising problem, precise also where every key is nearly off.

α_j = (1 + ⟨s_j⟩)/2 cancels as ⟨s_j⟩ → −1, yet only ratios of α matter, and a learnable bias that falls (towards
softmax attention) takes whole rows there: in float32 a row of Σα = 1e-4 has weights wrong by 1e-2 and a gradient for
the bias that is noise. So rows below `FAINT` are summed once more in float64 where the sampler is exact.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ising_attn.attention import normalised_over_allowed
from ising_attn.baselines import independent_weights
from samplers import IsingProblem, Sampler

# Σα of a row under which float32 magnetizations no longer give its weights to about 1e-4.
FAINT = 2.0**-6


def marginal_weights(sampler: Sampler, problem: IsingProblem) -> Float[Tensor, "batch heads queries keys"]:
    """α_ij / Σ_k α_ik of a problem with fields (batch, H, T, T) and a mask; 0 where not allowed.

    With an exact sampler the weights are right to about 1e-4 in float32 and 1e-10 in float64 for Σα down to 1e-10,
    below which a row fades to the mean of its keys; without J and K they are right at any Σα. With any other
    sampler they are as good as its magnetizations.
    """
    exact = sampler.capabilities.exact
    allowed = _mask(problem)
    if exact and problem.is_independent:
        return independent_weights(problem.fields, allowed, beta=problem.beta)
    alpha = (1 + sampler.magnetization(problem)) / 2
    weights = normalised_over_allowed(alpha, allowed)
    if not exact or problem.dtype != torch.float32:
        return weights
    kept = torch.where(allowed, alpha.detach(), 0.0)
    faint = (kept.sum(-1) < FAINT) & (allowed.sum(-1) > 1)
    return _redone(sampler, problem, weights, faint) if bool(faint.any()) else weights


def _redone(
    sampler: Sampler,
    problem: IsingProblem,
    weights: Float[Tensor, "batch heads queries keys"],
    faint: Bool[Tensor, "batch heads t"],
) -> Float[Tensor, "batch heads queries keys"]:
    """`weights` with the faint rows from float64. Heads stay apart, so that their couplings stay shared."""
    batch, heads, length, _ = weights.shape

    def by_head(t: Tensor) -> Tensor:
        return t.transpose(0, 1).flatten(1, 2)

    faint = by_head(faint)
    # The faint rows of each head first; heads with fewer are filled up with sound rows, which changes nothing.
    order = faint.sort(dim=-1, descending=True, stable=True).indices[:, : int(faint.sum(-1).max())]
    at = (torch.arange(heads, device=order.device).unsqueeze(-1), order)
    allowed = by_head(_mask(problem).expand(weights.shape))[at]
    again = IsingProblem(
        by_head(problem.fields)[at].double(),
        problem.couplings.double() if problem.has_couplings else None,
        triples=None if problem.triples is None else problem.triples.double(),
        allowed=allowed,
        beta=problem.beta,
    )
    precise = normalised_over_allowed((1 + sampler.magnetization(again)) / 2, allowed).to(weights.dtype)
    merged = by_head(weights).index_put(at, precise)
    return merged.unflatten(1, (batch, length)).transpose(0, 1)


def _mask(problem: IsingProblem) -> Tensor:
    if problem.allowed is None:
        return torch.ones(problem.num_spins, dtype=torch.bool, device=problem.device)
    return problem.allowed
