"""Independent draws and ground states of a grouped problem.

A draw is made in two stages: the state x of the high spins from its marginal law p(x) ∝ u(x) (Wv)(x), then the
state of the low spins from p(y | x) ∝ W[x, y] v(y). No table of 2^n states per query is made, except for queries
that leave the range of float64.
"""

import torch
from torch import Tensor

from samplers.exact.halves import Layout, balanced, compensated_fields, half_vector, log_weights, smallest_sum
from samplers.exact.logspace import half_scores, query_blocks, state_scores
from samplers.exact.sums import scaled
from samplers.problem import IsingProblem
from samplers.states import spins_of_index
from samplers.streams import uniforms_like

# Energies closer than this (relative) count as tied; the state of lowest index wins.
_TIE = 1e-12


def draw(inner: IsingProblem, num_reads: int, key: int, limit_bytes: int) -> Tensor:
    """Spins (G, Q, reads, n) int8, independent and from the exact law; clamped spins read +1."""
    fields, energies, clamped, layout = _prepared(inner)
    first = uniforms_like(fields, key, inner.streams, num_reads, 0)
    second = uniforms_like(fields, key, inner.streams, num_reads, 1)
    high = _inverse_cdf(_row_law(fields, energies, clamped, layout), first)
    cols = half_scores(fields[..., : layout.low], None if clamped is None else clamped[..., : layout.low])
    low = torch.empty_like(high)
    groups, queries = high.shape[:2]
    flat_energies, flat_low = energies.flatten(0, 1), low.view(groups * queries, num_reads)
    row = (high + torch.arange(groups, device=high.device)[:, None, None] * layout.rows).view_as(flat_low)
    flat_cols, flat_second = cols.flatten(0, 1), second.flatten(0, 1)
    step = max(1, limit_bytes // (4 * 8 * cols.shape[-1]))
    reads_step, query_step = min(step, num_reads), max(1, step // num_reads)
    for q in range(0, groups * queries, query_step):
        for r in range(0, num_reads, reads_step):
            at = (slice(q, q + query_step), slice(r, r + reads_step))
            scores = flat_energies[row[at]] + flat_cols[at[0], None, :]
            law = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            flat_low[at] = _inverse_cdf(law, flat_second[at].unsqueeze(-1)).squeeze(-1)
    return spins_of_index((high << layout.low) | low, inner.num_spins)


def ground_states(inner: IsingProblem, limit_bytes: int) -> Tensor:
    """Spins (G, Q, n) int8 of lowest energy; of tied states the one of lowest index. Cost: 2^n sums per query."""
    fields, energies, clamped, layout = _prepared(inner)
    index = torch.empty(fields.shape[:2], dtype=torch.int64, device=fields.device)
    for g, q in query_blocks(fields.shape[0], fields.shape[1], layout, limit_bytes):
        own = None if clamped is None else clamped[g, q]
        scores = state_scores(fields[g, q], energies[g], own, layout).flatten(-2)
        best = scores.amax(-1, keepdim=True)
        index[g, q] = (scores >= best - _TIE * best.abs().clamp_min(1.0)).to(torch.uint8).argmax(-1)
    return spins_of_index(index, inner.num_spins)


def _prepared(inner: IsingProblem) -> tuple[Tensor, Tensor, Tensor | None, Layout]:
    fields, couplings, triples = scaled(inner.to(torch.float64))
    fields = compensated_fields(fields, couplings, inner.allowed)
    layout = balanced(inner.num_spins, 1, 1 << 62, 8)
    energies = log_weights(couplings, triples, layout, slice(0, layout.rows))
    return fields, energies, None if inner.allowed is None else ~inner.allowed, layout


def _row_law(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout) -> Tensor:
    """p(x) of the high spins' states, unnormalised: (G, Q, rows)."""
    low = layout.low
    weights = (energies - energies.amax((-1, -2), keepdim=True)).exp_()
    u = half_vector(fields[..., low:], None if clamped is None else clamped[..., low:])
    v = half_vector(fields[..., :low], None if clamped is None else clamped[..., :low])
    law = u * (v @ weights.mT)
    lost = ~(law.sum(-1) >= smallest_sum(layout.num_spins, law.dtype))
    for group, query in lost.nonzero().tolist():
        own = None if clamped is None else clamped[group, query].expand(1, 1, -1)
        scores = state_scores(fields[group, query].expand(1, 1, -1), energies[group : group + 1], own, layout)
        law[group, query] = torch.logsumexp(scores[0, 0], -1).softmax(-1)
    return law


def _inverse_cdf(law: Tensor, uniforms: Tensor) -> Tensor:
    """The first state at which the cumulated law exceeds the uniform number: (…, states), (…, k) → (…, k)."""
    cumulated = law.cumsum(-1)
    return torch.searchsorted(cumulated, uniforms * cumulated[..., -1:], right=True).clamp_max(law.shape[-1] - 1)
