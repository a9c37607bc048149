"""Pair correlations and entropies of a grouped problem, by matrix products in float64; differentiable by autograd."""

import itertools

import torch
from torch import Tensor

from samplers.exact.halves import (
    Layout,
    balanced,
    compensated_fields,
    half_vector,
    log_weights,
    signs,
    smallest_sum,
)
from samplers.exact.logspace import state_scores
from samplers.exact.sums import scaled
from samplers.problem import IsingProblem


def correlations(inner: IsingProblem) -> Tensor:
    """⟨s_j s_k⟩ (G, Q, n, n). Cost: one matrix product of the size of a magnetization per low spin."""
    return _by_group(inner, _halves_correlations, _table_correlations)


def entropy(inner: IsingProblem) -> Tensor:
    """−Σ p log p (G, Q) in nats. Cost: two matrix products."""
    return _by_group(inner, _halves_entropy, _table_entropy)


def _by_group(inner: IsingProblem, halves, table) -> Tensor:
    """`halves` for every query, and `table` (over all states, in log space) for those it reports as lost."""
    fields, couplings, triples = scaled(inner.to(torch.float64))
    couplings, triples = _symmetrised(couplings, triples)
    fields = compensated_fields(fields, couplings, inner.allowed)
    clamped = None if inner.allowed is None else ~inner.allowed
    layout = balanced(inner.num_spins, 1, 1 << 62, 8)
    energies = log_weights(couplings, triples, layout, slice(0, layout.rows))
    values, lost = halves(fields, energies, clamped, layout)
    if bool(lost.any()):
        group, row = lost.nonzero(as_tuple=True)
        own = None if clamped is None else clamped[group, row].unsqueeze(1)
        again = table(fields[group, row].unsqueeze(1), energies[group], own, layout)
        values = values.index_put((group, row), again.squeeze(1))
    return values


def _symmetrised(couplings: Tensor | None, triples: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The same values; their gradients are spread evenly over the entries of a pair and of a triple."""
    if couplings is not None:
        couplings = (couplings + couplings.mT) / 2
    if triples is not None:
        orders = itertools.permutations((1, 2, 3))
        triples = torch.stack([triples.permute(0, *order) for order in orders]).mean(0)
    return couplings, triples


def _vectors(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout):
    low = layout.low
    weights = (energies - energies.detach().amax((-1, -2), keepdim=True)).exp()
    u = half_vector(fields[..., low:], None if clamped is None else clamped[..., low:])
    v = half_vector(fields[..., :low], None if clamped is None else clamped[..., :low])
    total = (u * (v @ weights.mT)).sum(-1)
    lost = ~(total >= smallest_sum(layout.num_spins, fields.dtype))
    u = u / torch.where(lost, 1.0, total).unsqueeze(-1)
    return weights, u, v, lost


def _halves_correlations(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout):
    weights, u, v, lost = _vectors(fields, energies, clamped, layout)
    high, low = (signs(k, fields.dtype, fields.device) for k in (layout.high, layout.low))
    within_high = _second_moments(u * (v @ weights.mT), high)
    within_low = _second_moments(v * (u @ weights), low)
    groups, queries = fields.shape[:2]
    signed = (v.unsqueeze(-2) * low.T).flatten(1, 2)
    across = (signed @ weights.mT).unflatten(1, (queries, layout.low))
    across = (across * u.unsqueeze(-2)) @ high
    return _assembled(within_low, across, within_high), lost


def _second_moments(p: Tensor, table: Tensor) -> Tensor:
    k = table.shape[-1]
    return (p @ (table.unsqueeze(-1) * table.unsqueeze(-2)).flatten(-2)).unflatten(-1, (k, k))


def _assembled(within_low: Tensor, across: Tensor, within_high: Tensor) -> Tensor:
    result = torch.cat((torch.cat((within_low, across), -1), torch.cat((across.mT, within_high), -1)), -2)
    diagonal = torch.eye(result.shape[-1], dtype=torch.bool, device=result.device)
    return result.masked_fill(diagonal, 1.0)


def _table_correlations(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout) -> Tensor:
    p = state_scores(fields, energies, clamped, layout).flatten(-2).softmax(-1).unflatten(-1, energies.shape[-2:])
    high, low = (signs(k, fields.dtype, fields.device) for k in (layout.high, layout.low))
    across = low.T @ p.mT @ high
    return _assembled(_second_moments(p.sum(-2), low), across, _second_moments(p.sum(-1), high))


def _halves_entropy(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout):
    # With u normalised, log p = log u + log v + log W: each part's mean is one contraction.
    weights, u, v, lost = _vectors(fields, energies, clamped, layout)
    log_u, log_v = (x.clamp_min(torch.finfo(x.dtype).tiny).log() for x in (u, v))
    log_weights_ = energies - energies.detach().amax((-1, -2), keepdim=True)
    p_row, p_col = u * (v @ weights.mT), v * (u @ weights)
    mean_pair = (u * (v @ (weights * log_weights_).mT)).sum(-1)
    return -((p_row * log_u).sum(-1) + (p_col * log_v).sum(-1) + mean_pair), lost


def _table_entropy(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout) -> Tensor:
    log_p = state_scores(fields, energies, clamped, layout).flatten(-2).log_softmax(-1)
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)
