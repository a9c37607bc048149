"""Magnetizations and log Z of a grouped problem: picks the method, and redoes what left the floating-point range."""

import torch
from torch import Tensor

from samplers.compiled import has_kernels
from samplers.exact.halves import HalvesSum, balanced, clamped_energy, compensated_fields
from samplers.exact.logspace import LogSpaceSum
from samplers.problem import IsingProblem

# On CPUs: up to here a kernel does all, up to there kernels prepare matrix products, above W is made in blocks.
_FUSED_SPINS, _GEMM_SPINS = 13, 20


def grouped_sums(inner: IsingProblem, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """⟨s⟩ (G, Q, n) and log Z (G, Q) of a grouped problem.

    A mask goes with no triples. Absent spins are clamped to +1 and their entries of ⟨s⟩ mean nothing.
    """
    if _is_compiled(inner):
        m, log_z, lost = _compiled_sums(inner)
        if lost is None:
            return m, log_z
        fields, couplings, triples = scaled(inner)
        fields = compensated_fields(fields, couplings, inner.allowed)
        clamped = None if inner.allowed is None else ~inner.allowed
        return _again(lost, m, log_z, fields, couplings, triples, clamped, inner.allowed, limit_bytes)
    fields, couplings, triples = scaled(inner)
    clamped = None if inner.allowed is None else ~inner.allowed
    fields = compensated_fields(fields, couplings, inner.allowed)
    return safe_sums(fields, couplings, triples, clamped, inner.allowed, limit_bytes)


def causal_sums(inner: IsingProblem, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """The same for a causal problem, each prefix as a problem of its own size."""
    n = inner.num_spins
    if not _is_compiled(inner):
        fields = inner.fields.unflatten(1, (-1, n))
        rows = [_prefix_sums(inner, fields, size, limit_bytes) for size in range(1, n + 1)]
        m, log_z = (torch.stack(part, 2).flatten(1, 2) for part in zip(*rows, strict=True))
        return m, log_z
    m, log_z, lost = _compiled_sums(inner, causal=True)
    if lost is None:
        return m, log_z
    fields, m, log_z, lost = (t.unflatten(1, (-1, n)) for t in (inner.fields, m, log_z, lost))
    for i in lost.any(0).any(0).nonzero().squeeze(-1).tolist():
        mean, z = _prefix_sums(inner, fields, i + 1, limit_bytes)
        redo = lost[:, :, i]
        m = m.select_scatter(torch.where(redo.unsqueeze(-1), mean, m[:, :, i]), 2, i)
        log_z = log_z.select_scatter(torch.where(redo, z, log_z[:, :, i]), 2, i)
    return m.flatten(1, 2), log_z.flatten(1, 2)


def _prefix_sums(inner: IsingProblem, fields: Tensor, size: int, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """⟨s⟩ (G, B, n) and log Z (G, B) of the queries that have the first `size` spins."""
    _, couplings, triples = scaled(inner)
    own = fields[:, :, size - 1, :size] * inner.beta
    m, log_z = safe_sums(own, *_prefix(couplings, triples, size), None, None, limit_bytes)
    return torch.nn.functional.pad(m, (0, inner.num_spins - size)), log_z


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


def _prefix(couplings: Tensor | None, triples: Tensor | None, size: int) -> tuple[Tensor | None, Tensor | None]:
    return (
        None if couplings is None else couplings[:, :size, :size],
        None if triples is None else triples[:, :size, :size, :size],
    )


def _is_compiled(inner: IsingProblem) -> bool:
    return has_kernels(inner.device) and inner.num_spins <= _GEMM_SPINS


def _compiled_sums(inner: IsingProblem, *, causal: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """(m, log Z, lost) of a grouped problem."""
    # It compiles kernels, so it is imported only where these are used.
    from samplers.exact.compiled import CompiledSum

    couplings = inner.couplings if inner.has_couplings else None
    return CompiledSum.apply(inner.fields, couplings, inner.triples, inner.allowed, inner.beta, causal, _FUSED_SPINS)


def safe_sums(
    fields: Tensor,
    couplings: Tensor | None,
    triples: Tensor | None,
    clamped: Tensor | None,
    allowed: Tensor | None,
    limit_bytes: int,
) -> tuple[Tensor, Tensor]:
    """`HalvesSum`, with lost queries redone in float64, and those lost there in log space."""
    groups, _, n = fields.shape
    layout = balanced(n, groups, limit_bytes, fields.element_size())
    m, log_z, lost = HalvesSum.apply(fields, couplings, triples, clamped, layout)
    log_z = log_z - clamped_energy(couplings, allowed)
    if not bool(lost.any()):
        return m, log_z
    return _again(lost, m, log_z, fields, couplings, triples, clamped, allowed, limit_bytes)


def _again(lost, m, log_z, fields, couplings, triples, clamped, allowed, limit_bytes) -> tuple[Tensor, Tensor]:
    """`m` and `log_z` with the lost queries redone: float32 ones in float64, float64 ones in log space."""
    counts = lost.sum(-1)
    group = counts.nonzero().squeeze(-1)
    # The lost rows of each group first; groups with fewer are filled up with sound rows.
    order = lost[group].to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
    at = (group.unsqueeze(-1), order[:, : int(counts.max())])
    own_fields = fields[at].double()
    own_j, own_k = (None if t is None else t[group].double() for t in (couplings, triples))
    own_clamped, own_allowed = (None if t is None else t[at] for t in (clamped, allowed))
    if fields.dtype == torch.float64:
        layout = balanced(fields.shape[-1], 1, 1 << 62, 8)
        m_again, z_again = LogSpaceSum.apply(own_fields, own_j, own_k, own_clamped, layout, limit_bytes)
        z_again = z_again - clamped_energy(own_j, own_allowed)
    else:
        m_again, z_again = safe_sums(own_fields, own_j, own_k, own_clamped, own_allowed, limit_bytes)
    return m.index_put(at, m_again.to(m.dtype)), log_z.index_put(at, z_again.to(m.dtype))
