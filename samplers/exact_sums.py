"""Magnetizations and log Z of a grouped problem: picks the method, and redoes what left the floating-point range."""

import torch
from torch import Tensor

from samplers.exact_halves import HalvesSum, balanced, clamped_energy, compensated_fields
from samplers.exact_logspace import LogSpaceSum
from samplers.problem import IsingProblem


def scaled(inner: IsingProblem) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """βh (G, Q, n), βJ (G, n, n) and βK (G, n, n, n) of a grouped problem."""
    beta = inner.beta
    couplings = inner.couplings.squeeze(1) if inner.has_couplings else None
    triples = None if inner.triples is None else inner.triples.squeeze(1)
    if beta == 1.0:
        return inner.fields, couplings, triples
    return (
        inner.fields * beta,
        None if couplings is None else couplings * beta,
        None if triples is None else triples * beta,
    )


def grouped_sums(inner: IsingProblem, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """⟨s⟩ (G, Q, n) and log Z (G, Q); with triples, every spin must be allowed. Spins clamped read +1."""
    fields, couplings, triples = scaled(inner)
    fields = compensated_fields(fields, couplings, inner.allowed)
    clamped = None if inner.allowed is None else ~inner.allowed
    m, log_z = safe_sums(fields, couplings, triples, clamped, limit_bytes)
    return m, log_z - clamped_energy(couplings, inner.allowed)


def causal_sums(inner: IsingProblem, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """The same for a causal problem, each prefix as a problem of its own size."""
    n = inner.num_spins
    fields, couplings, triples = scaled(inner)
    fields = fields.unflatten(1, (-1, n))
    means, log_zs = [], []
    for size in range(1, n + 1):
        part_j = None if couplings is None else couplings[:, :size, :size]
        part_k = None if triples is None else triples[:, :size, :size, :size]
        m, log_z = safe_sums(fields[:, :, size - 1, :size], part_j, part_k, None, limit_bytes)
        means.append(torch.nn.functional.pad(m, (0, n - size), value=-1.0))
        log_zs.append(log_z)
    return torch.stack(means, 2).flatten(1, 2), torch.stack(log_zs, 2).flatten(1, 2)


def safe_sums(
    fields: Tensor, couplings: Tensor | None, triples: Tensor | None, clamped: Tensor | None, limit_bytes: int
) -> tuple[Tensor, Tensor]:
    """`HalvesSum`, with lost queries redone in float64, and those lost there in log space."""
    groups, _, n = fields.shape
    layout = balanced(n, groups, limit_bytes, fields.element_size())
    m, log_z, lost = HalvesSum.apply(fields, couplings, triples, clamped, layout)
    if not bool(lost.any()):
        return m, log_z
    counts = lost.sum(-1)
    group = counts.nonzero().squeeze(-1)
    # The lost rows of each group first; groups with fewer are filled up with sound rows.
    order = lost[group].to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
    at = (group.unsqueeze(-1), order[:, : int(counts.max())])
    inputs = (
        fields[at].double(),
        None if couplings is None else couplings[group].double(),
        None if triples is None else triples[group].double(),
        None if clamped is None else clamped[at],
    )
    if fields.dtype == torch.float64:
        m_again, log_z_again = LogSpaceSum.apply(*inputs, balanced(n, 1, 1 << 62, 8), limit_bytes)
    else:
        m_again, log_z_again = safe_sums(*inputs, limit_bytes)
    return m.index_put(at, m_again.to(m.dtype)), log_z.index_put(at, log_z_again.to(m.dtype))
