"""The gradient of magnetizations from heat-bath reads: the covariance rule, Rao–Blackwellised.

With t_j(s) = tanh(βF_j(s)), F_j the local field, ⟨s_j⟩ = ⟨t_j⟩ under the Boltzmann law, and so for a parameter θ

    ∂⟨s_j⟩/∂θ = ⟨∂t_j/∂θ⟩ + Cov(t_j, β ∂(−E)/∂θ).

Both averages are over reads; with J = K = 0 the first is the whole answer and has no noise. It is the covariance
Cov(s_j, ∂(−βE)/∂θ) with s_j averaged over its own conditional law, hence of lower variance. The mean in the covariance
is that of the *other* chains, which makes the estimate unbiased for independent chains in equilibrium, however
correlated the reads of one chain are. For chains that are not in equilibrium it is a surrogate. There is no second
derivative: `create_graph=True` raises NotSupportedError.
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from samplers.problem import IsingProblem
from samplers.second_derivatives import refuse_second_derivative

# Reads are unpacked to floating point for at most this many numbers at a time.
_CHUNK = 2**22


def covariance_magnetization(
    inner: IsingProblem, magnetization: Float[Tensor, "G Q n"], reads: Int8[Tensor, "G Q chains kept n"]
) -> Float[Tensor, "G Q n"]:
    """`magnetization` with the module's gradient in the fields, J and K of a grouped problem.

    Args:
        inner: a grouped problem, fields (G, Q, n), couplings (G, 1, n, n), triples (G, 1, n, n, n) or none.
        reads: its reads, of at least two chains; 0 where a spin is absent.
    """
    couplings = inner.couplings if inner.has_couplings else None
    return _Covariance.apply(inner.fields, couplings, inner.triples, magnetization, reads, inner.beta)


class _Covariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fields, couplings, triples, magnetization, reads, beta):
        ctx.save_for_backward(fields, couplings, triples, reads)
        ctx.beta = beta
        return magnetization.clone()

    @staticmethod
    def backward(ctx, *grad_outputs):
        refuse_second_derivative("a magnetization estimated from reads")
        (grad,) = grad_outputs
        fields, couplings, triples, reads = ctx.saved_tensors
        groups, queries, chains, kept, n = reads.shape
        by_fields = torch.zeros_like(fields)
        by_couplings = None if couplings is None else torch.zeros_like(couplings)
        by_triples = None if triples is None else torch.zeros_like(triples)
        at_once = max(1, _CHUNK // (chains * kept * n))
        few, many = min(queries, at_once), max(1, at_once // queries)
        for g in range(0, groups, many):
            own = slice(g, g + many)
            for q in range(0, queries, few):
                part = own, slice(q, q + few)
                spins = reads[part].to(fields.dtype)
                local = _local_fields(spins, fields[part], _of(couplings, own), _of(triples, own))
                score, slope = _weights(spins, torch.tanh(ctx.beta * local), grad[part])
                spins = spins.flatten(2, 3)
                by_fields[part] = ctx.beta * ((score.unsqueeze(-1) * spins).sum(2) + slope.sum(2))
                spins, score, slope = spins.flatten(1, 2), score.flatten(1), slope.flatten(1, 2)
                if by_couplings is not None:
                    by_couplings[own, 0] += ctx.beta * _by_pairs(spins, score, slope)
                if by_triples is not None:
                    by_triples[own, 0] += ctx.beta * _by_triples(spins, score, slope)
        return by_fields, by_couplings, by_triples, None, None, None


def _of(interaction: Tensor | None, groups: slice) -> Tensor | None:
    """The interaction of some groups, (g, n, n) or (g, n, n, n)."""
    return None if interaction is None else interaction[groups, 0]


def _local_fields(spins: Tensor, fields: Tensor, couplings: Tensor | None, triples: Tensor | None) -> Tensor:
    """F, (g, q, chains, kept, n)."""
    flat = spins.flatten(1, 3)
    local = fields[:, :, None, None].expand(spins.shape)
    if couplings is not None:
        local = local + (flat @ couplings).reshape(spins.shape)
    if triples is not None:
        local = local + 0.5 * torch.einsum("grl,gjlm,grm->grj", flat, triples, flat).reshape(spins.shape)
    return local


def _weights(spins: Tensor, tanh: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Per read: the weight of the score, (g, q, reads), and g_j ∂t_j/∂(βF_j), (…, reads, n), both ÷ reads."""
    chains, kept = spins.shape[2:4]
    grad = torch.where(spins[:, :, :1, :1] != 0, grad[:, :, None, None], 0.0)
    projected = (tanh * grad).sum(-1)
    own = projected.mean(-1, keepdim=True)
    others = (own.sum(2, keepdim=True) - own) / (chains - 1)
    reads = chains * kept
    return ((projected - others) / reads).flatten(2), ((1 - tanh**2) * grad / reads).flatten(2, 3)


def _by_pairs(spins: Tensor, score: Tensor, slope: Tensor) -> Tensor:
    """Half the derivative of each pair, zero on the diagonal; (g, n, n)."""
    direct = slope.mT @ spins
    result = 0.5 * (spins.mT @ (score.unsqueeze(-1) * spins) + direct + direct.mT)
    result.diagonal(dim1=-2, dim2=-1).zero_()
    return result


def _by_triples(spins: Tensor, score: Tensor, slope: Tensor) -> Tensor:
    """A sixth of the derivative of each triple, zero where two indices coincide; (g, n, n, n)."""
    n = spins.shape[-1]
    direct = torch.einsum("grj,grk,grl->gjkl", slope, spins, spins)
    result = torch.einsum("gr,grj,grk,grl->gjkl", score, spins, spins, spins)
    result = (result + direct + direct.permute(0, 2, 1, 3) + direct.permute(0, 2, 3, 1)) / 6
    same = torch.eye(n, dtype=torch.bool, device=spins.device)
    return result.masked_fill(same[:, :, None] | same[:, None, :] | same[None], 0.0)
