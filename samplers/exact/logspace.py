"""The slow, safe sum: every state of every query in log space, for queries that leave the floating-point range.

Same inputs and outputs as `samplers.exact.halves.HalvesSum`, without lost queries. Cost 2^n exponentials per
query, in blocks of queries that fit the memory limit.
"""

import torch
from torch import Tensor

from samplers.exact.halves import EnergyGradient, Layout, log_weights, refuse_second_derivative, signs


def half_scores(fields: Tensor, clamped: Tensor | None) -> Tensor:
    """Σ_k h_k s_k for all states of the k spins: (…, k) → (…, 2^k); −∞ where a clamped spin would be −1."""
    table = signs(fields.shape[-1], fields.dtype, fields.device)
    if clamped is None:
        return fields @ table.T
    scores = fields.masked_fill(clamped, 0.0) @ table.T
    return scores.masked_fill(clamped.to(fields.dtype) @ (table < 0).to(fields.dtype).T > 0, -torch.inf)


def state_scores(fields: Tensor, energies: Tensor, clamped: Tensor | None, layout: Layout) -> Tensor:
    """log of the unnormalised probability of every state: fields (g, q, n), energies (g, R, C) → (g, q, R, C)."""
    low = layout.low
    high = half_scores(fields[..., low:], None if clamped is None else clamped[..., low:])
    cols = half_scores(fields[..., :low], None if clamped is None else clamped[..., :low])
    return energies.unsqueeze(1) + high.unsqueeze(-1) + cols.unsqueeze(-2)


def query_blocks(groups: int, queries: int, layout: Layout, limit_bytes: int):
    """(slice of groups, slice of queries) in blocks whose tables of states fit `limit_bytes`."""
    fit = max(1, limit_bytes // (2**layout.num_spins * 8 * 4))
    group_step, query_step = max(1, fit // queries), min(fit, queries)
    for g in range(0, groups, group_step):
        for q in range(0, queries, query_step):
            yield slice(g, min(g + group_step, groups)), slice(q, min(q + query_step, queries))


def block_of(values: Tensor | None, groups: slice, queries: slice | None = None) -> Tensor | None:
    if values is None:
        return None
    return values[groups] if queries is None else values[groups, queries]


class LogSpaceSum(torch.autograd.Function):
    """(m, log Z) of queries (G, Q, n); see the module."""

    @staticmethod
    def forward(ctx, fields, couplings, triples, clamped, layout: Layout, limit_bytes: int):
        low, everything = layout.low, slice(0, layout.rows)
        m, log_z = torch.empty_like(fields), torch.empty_like(fields[..., 0])
        high_signs, low_signs = (signs(k, fields.dtype, fields.device) for k in (layout.high, low))
        for groups, queries in query_blocks(fields.shape[0], fields.shape[1], layout, limit_bytes):
            at = (groups, queries)
            energies = log_weights(block_of(couplings, groups), block_of(triples, groups), layout, everything)
            scores = state_scores(fields[at], energies, block_of(clamped, *at), layout)
            log_z[at] = torch.logsumexp(scores, (-1, -2))
            p = scores.sub_(log_z[at][..., None, None]).exp_()
            m[at] = torch.cat((p.sum(-2) @ low_signs, p.sum(-1) @ high_signs), -1)
        ctx.save_for_backward(fields, couplings, triples, clamped, m, log_z)
        ctx.layout, ctx.limit_bytes = layout, limit_bytes
        return m, log_z

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivative()
        g, g_log_z = gradients
        fields, couplings, triples, clamped, m, log_z = ctx.saved_tensors
        layout: Layout = ctx.layout
        low, everything = layout.low, slice(0, layout.rows)
        high_signs, low_signs = (signs(k, fields.dtype, fields.device) for k in (layout.high, low))
        fields_g = torch.empty_like(fields)
        couplings_g = None if couplings is None else torch.zeros_like(couplings)
        triples_g = None if triples is None else torch.zeros_like(triples)
        for groups, queries in query_blocks(fields.shape[0], fields.shape[1], layout, ctx.limit_bytes):
            at = (groups, queries)
            own_j, own_k = block_of(couplings, groups), block_of(triples, groups)
            energies = log_weights(own_j, own_k, layout, everything)
            p = state_scores(fields[at], energies, block_of(clamped, *at), layout)
            p = p.sub_(log_z[at][..., None, None]).exp_()
            offset = g_log_z[at] - (g[at] * m[at]).sum(-1)
            a_high = g[at][..., low:] @ high_signs.T + offset.unsqueeze(-1)
            a_low = g[at][..., :low] @ low_signs.T
            p *= a_high.unsqueeze(-1) + a_low.unsqueeze(-2)
            fields_g[at] = torch.cat((p.sum(-2) @ low_signs, p.sum(-1) @ high_signs), -1)
            collected = EnergyGradient(own_j, own_k, layout)
            collected.add(p.sum(1), everything)
            part_j, part_k = collected.finish()
            if couplings_g is not None and part_j is not None:
                couplings_g[groups] += part_j
            if triples_g is not None and part_k is not None:
                triples_g[groups] += part_k
        if clamped is not None:
            fields_g = fields_g.masked_fill(clamped, 0.0)
        return fields_g, couplings_g, triples_g, None, None, None
