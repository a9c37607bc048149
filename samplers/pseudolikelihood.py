"""The inverse temperature at which draws look most like a Boltzmann law, by maximum pseudo-likelihood.

A spin given all others follows p(s_j | rest) = σ(2β s_j F_j), with the local field F_j = h_j + Σ_k J_jk s_k +
½ Σ_kl K_jkl s_k s_l. The estimate maximises Σ_r w_r Σ_j log σ(2β x_rj), x_rj = s_rj F_rj, which is concave in β
and needs no partition function (Besag, The Statistician 24, 179, 1975). It is consistent for Boltzmann draws.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.errors import InvalidProblemError
from samplers.problem import IsingProblem
from samplers.samples import Samples


@dataclass(frozen=True)
class BetaEstimate:
    """Estimated β with its one-sigma error, each of the shape asked for.

    `value` is +inf where no spin of any read opposes its local field (every read is a local minimum: the data
    allow any large β), −inf in the mirrored case, and NaN where all local fields vanish (a model without biases
    says nothing of β). `standard_error` is +inf in these cases.
    """

    value: Float[Tensor, "*shape"]
    standard_error: Float[Tensor, "*shape"]


def estimate_beta(problem: IsingProblem, samples: Samples, *, pooled: bool = True) -> BetaEstimate:
    """Maximum pseudo-likelihood β of draws, in units of the problem's energies (`problem.beta` plays no part).

    The error is the sandwich √(Σ_r w_r u_r²) / H, with u_r the score of read r and H the curvature: it holds for
    independent reads, whatever the correlations between the spins of one read. Weights that are no counts enter
    squared. Cost: one product with J and about ten passes over the reads.

    Args:
        pooled: one β for the whole batch (shape ()), else one per problem (shape (*batch)).

    Raises:
        InvalidProblemError: draws of another shape than the problem's.
    """
    expected = (*problem.batch_shape, samples.num_reads, problem.num_spins)
    if tuple(samples.spins.shape) != expected:
        raise InvalidProblemError(f"the draws have shape {tuple(samples.spins.shape)}, the problem needs {expected}")
    alignments = _alignments(problem, samples)
    weights = samples.weights.to(torch.float64)
    squared = weights if samples.info.get("weights") == "counts" else weights**2
    shape = () if pooled else problem.batch_shape
    batches = 1 if pooled else problem.num_problems
    x = alignments.reshape(batches, -1, problem.num_spins)
    w, w2 = weights.reshape(batches, -1, 1), squared.reshape(batches, -1, 1)
    value = _maximum(x, w)
    slope = 2 * x * torch.sigmoid(-2 * value[:, None, None] * x)
    curvature = (w * slope * (2 * x - slope)).sum((-2, -1))
    spread = (w2 * slope.sum(-1, keepdim=True) ** 2).sum((-2, -1)).sqrt()
    error = torch.where(value.isfinite() & (curvature > 0), spread / curvature, torch.inf)
    return BetaEstimate(value.reshape(shape), error.reshape(shape))


def local_fields(problem: IsingProblem, spins: Tensor) -> Float[Tensor, "*batch reads n"]:
    """F_j of the module's formula for given spins; spins that are not allowed neither act nor feel a field."""
    s = spins.to(problem.dtype)
    if problem.allowed is not None:
        s = s * problem.allowed.to(s.dtype).unsqueeze(-2)
    field = problem.fields.unsqueeze(-2).expand(s.shape)
    if problem.has_couplings:
        field = field + s @ problem.couplings
    if problem.triples is not None:
        field = field + 0.5 * torch.einsum("...jkl,...rk,...rl->...rj", problem.triples, s, s)
    return field if problem.allowed is None else field * problem.allowed.to(s.dtype).unsqueeze(-2)


def _alignments(problem: IsingProblem, samples: Samples) -> Float[Tensor, "*batch reads n"]:
    """x_rj = s_rj F_rj, double precision."""
    doubled = problem.detach().to(dtype=torch.float64)
    return local_fields(doubled, samples.spins) * samples.spins.to(torch.float64)


def _maximum(x: Float[Tensor, "batch reads n"], w: Float[Tensor, "batch reads one"]) -> Float[Tensor, "batch"]:
    """argmax_β Σ w log σ(2βx) per batch row, by bisection between bounds that enclose it."""
    counted = w > 0
    rising = ((x > 0) & counted).any(-1).any(-1)
    falling = ((x < 0) & counted).any(-1).any(-1)
    scale = (x.abs() * counted).amax((-2, -1)).clamp_min(torch.finfo(torch.float64).tiny)
    y = x / scale[:, None, None]

    def slope(beta: Tensor) -> Tensor:
        return (w * y * torch.sigmoid(-2 * beta[:, None, None] * y)).sum((-2, -1))

    low, high = -torch.ones_like(scale), torch.ones_like(scale)
    inside = rising & falling
    for _ in range(64):
        over, under = inside & (slope(high) > 0), inside & (slope(low) < 0)
        if not bool((over | under).any()):
            break
        high, low = torch.where(over, 4 * high, high), torch.where(under, 4 * low, low)
    for _ in range(80):
        middle = 0.5 * (low + high)
        positive = slope(middle) > 0
        low, high = torch.where(positive, middle, low), torch.where(positive, high, middle)
    value = 0.5 * (low + high) / scale
    value = torch.where(rising & ~falling, torch.inf, value)
    value = torch.where(falling & ~rising, -torch.inf, value)
    return torch.where(~rising & ~falling, torch.nan, value)
