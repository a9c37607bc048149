"""How far is one law from another, and what temperature do draws have?

Distances are in nats or as probabilities, batch axes first; states are in the order of `samplers.states`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.states import index_of_spins


def total_variation(p: Float[Tensor, "*batch states"], q: Float[Tensor, "*batch states"]) -> Float[Tensor, "*batch"]:
    """TV(p, q) = ½ Σ |p − q|, in [0, 1]."""
    return 0.5 * (p - q).abs().sum(-1)


def kl_divergence(p: Float[Tensor, "*batch states"], q: Float[Tensor, "*batch states"]) -> Float[Tensor, "*batch"]:
    """KL(p ‖ q) = Σ p log(p/q) in nats; 0 log 0 = 0, and infinite where q = 0 < p."""
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)


def empirical_law(samples: Samples) -> Float[Tensor, "*batch states"]:
    """Weighted frequencies of all 2^n states (n ≤ 20 or so: 2^n numbers per problem)."""
    weights = samples.weights / samples.weights.sum(-1, keepdim=True)
    law = weights.new_zeros(*weights.shape[:-1], 2 ** samples.spins.shape[-1])
    return law.scatter_add_(-1, index_of_spins(samples.spins), weights)


def marginal_errors(
    given: Float[Tensor, "*batch n"], exact: Float[Tensor, "*batch n"], problem: IsingProblem | None = None
) -> dict[str, float]:
    """Mean, root mean square and largest |⟨s⟩ − ⟨s⟩exact| over the allowed spins of a batch."""
    error = (given - exact).abs()
    allowed = None if problem is None else problem.expanded_allowed()
    error = error.flatten() if allowed is None else error[allowed]
    if not error.numel():
        return {"mae": 0.0, "rmse": 0.0, "max": 0.0}
    return {"mae": float(error.mean()), "rmse": float(error.pow(2).mean().sqrt()), "max": float(error.max())}


def regressed_beta(log_p: Float[Tensor, "states"], energies: Float[Tensor, "states"]) -> tuple[float, float]:
    """Least-squares slope of −log p on E over all states with equal weights: (β, R²).

    For a law that is Boltzmann at β it returns β and 1; the R² tells how Boltzmann another law is.
    """
    x, y = energies - energies.mean(), -(log_p - log_p.mean())
    slope = (x @ y) / (x @ x)
    residual = ((y - slope * x) ** 2).sum() / (y @ y).clamp_min(torch.finfo(y.dtype).tiny)
    return float(slope), float(1 - residual)
