"""Magnetizations and log Z of a grouped problem: picks the method, and redoes what left the floating-point range."""

import torch
from torch import Tensor

from samplers.exact_halves import HalvesSum, balanced, clamped_energy, compensated_fields
from samplers.exact_logspace import LogSpaceSum
from samplers.problem import IsingProblem

# Compiled kernels win below, matrix products above (measured on CPUs with AVX-512; they cross near 14 spins).
_FUSED_SPINS = 13


def grouped_sums(inner: IsingProblem, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """⟨s⟩ (G, Q, n) and log Z (G, Q) of a grouped problem.

    A mask goes with no triples. Absent spins are clamped to +1 and their entries of ⟨s⟩ mean nothing.
    """
    fields, couplings, triples = scaled(inner)
    clamped = None if inner.allowed is None else ~inner.allowed
    if _fused(fields, inner.num_spins):
        m, log_z, lost = (t.squeeze(2) for t in _fused_sums(inner, inner.fields.unsqueeze(2), inner.num_spins))
        if not bool(lost.any()):
            return m, log_z
        fields = compensated_fields(fields, couplings, inner.allowed)
        return _again(lost, m, log_z, fields, couplings, triples, clamped, inner.allowed, limit_bytes)
    fields = compensated_fields(fields, couplings, inner.allowed)
    return safe_sums(fields, couplings, triples, clamped, inner.allowed, limit_bytes)


def causal_sums(inner: IsingProblem, limit_bytes: int) -> tuple[Tensor, Tensor]:
    """The same for a causal problem, each prefix as a problem of its own size."""
    n = inner.num_spins
    fields, couplings, triples = scaled(inner)
    fields = fields.unflatten(1, (-1, n))
    means, log_zs, compiled = [], [], 0
    if _fused(fields, 1):
        compiled = min(n, _FUSED_SPINS)
        m, log_z, lost = _fused_sums(inner, inner.fields.unflatten(1, (-1, n))[:, :, :compiled, :compiled], compiled)
        redone = lost.any(0).any(0).nonzero().squeeze(-1).tolist()
        if not redone and compiled == n:
            return m.flatten(1, 2), log_z.flatten(1, 2)
        means, log_zs = list(m.unbind(2)), list(log_z.unbind(2))
        for i in redone:
            part = (fields[:, :, i, : i + 1], *_prefix(couplings, triples, i + 1), None, None, limit_bytes)
            mean, log_zs[i] = _again(lost[:, :, i], means[i][..., : i + 1], log_zs[i], *part)
            means[i] = torch.nn.functional.pad(mean, (0, compiled - i - 1))
        means = [torch.nn.functional.pad(mean, (0, n - compiled)) for mean in means]
    for size in range(compiled + 1, n + 1):
        part = (fields[:, :, size - 1, :size], *_prefix(couplings, triples, size), None, None, limit_bytes)
        mean, log_z = safe_sums(*part)
        means.append(torch.nn.functional.pad(mean, (0, n - size)))
        log_zs.append(log_z)
    return torch.stack(means, 2).flatten(1, 2), torch.stack(log_zs, 2).flatten(1, 2)


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


def _fused(fields: Tensor, num_spins: int) -> bool:
    return fields.device.type == "cpu" and num_spins <= _FUSED_SPINS


def _fused_sums(inner: IsingProblem, fields: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    from samplers.exact_fused import FusedSum  # compiles kernels, so only where they are used

    couplings = inner.couplings.squeeze(1) if inner.has_couplings else None
    triples = None if inner.triples is None else inner.triples.squeeze(1)
    couplings, triples = _prefix(couplings, triples, size)
    allowed = None if inner.allowed is None or fields.shape[2] > 1 else inner.allowed.unsqueeze(2)
    return FusedSum.apply(fields, couplings, triples, allowed, inner.beta)


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
