"""Importance weights: Boltzmann averages from draws of an anneal whose output probabilities are known.

A draw s of law p gets the weight w = exp(−βE(s)) / p(s). Weighted averages tend to those of the Boltzmann law π as
1/√N, and the mean of w is an unbiased estimate of Z. What it costs is in the effective sample size: N draws are worth
about N / Σ_s π(s)²/p(s) draws of π (Kong 1992).
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.errors import InvalidProblemError
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.states import index_of_spins


def log_weights(
    problem: IsingProblem, draws: Samples, law: Float[Tensor, "*batch states"]
) -> Float[Tensor, "*batch reads"]:
    """−βE(s) − log p(s) of every draw, float64.

    Args:
        problem: what the weights aim at.
        draws: draws of `law`; spins that are not allowed read −1.
        law: probability of every state index (such as `DQASampler.probabilities`).

    Raises:
        InvalidProblemError: shapes that do not fit, or a draw that has probability 0 in `law`.
    """
    expected = (*problem.batch_shape, 2**problem.num_spins)
    if tuple(law.shape) != expected:
        raise InvalidProblemError(f"law has shape {tuple(law.shape)}; for this problem it must be {expected}")
    own = law.to(torch.float64).gather(-1, index_of_spins(draws.spins))
    if bool((own <= 0).any()):
        raise InvalidProblemError(
            f"{int((own <= 0).sum())} draws have probability 0 in the given law; they cannot have come from it"
        )
    return -problem.beta * problem.to(dtype=torch.float64).energy(draws.spins) - own.log()


def reweighted(problem: IsingProblem, draws: Samples, law: Float[Tensor, "*batch states"]) -> Samples:
    """The same draws with importance weights, mean 1 in each problem, on top of the weights they had.

    `effective_sample_size` of the result is Kish's; its info holds the smallest ratio of it to the draws. See
    `log_weights` for arguments and errors.
    """
    logs = log_weights(problem, draws, law)
    weights = draws.weights.to(torch.float64) * torch.exp(logs - logs.amax(-1, keepdim=True))
    weights = weights * (draws.num_reads / weights.sum(-1, keepdim=True))
    share = weights.sum(-1) ** 2 / (weights**2).sum(-1) / draws.num_reads
    smallest = float(share.min()) if share.numel() else None
    info = {**draws.info, "weights": "importance", "effective_share": smallest}
    return dataclasses.replace(draws, weights=weights.to(draws.weights.dtype), info=info)


def log_partition_estimate(
    problem: IsingProblem, draws: Samples, law: Float[Tensor, "*batch states"]
) -> Float[Tensor, "*batch"]:
    """log of the mean importance weight: Z without bias, log Z too low by about 1/(2 · effective draws)."""
    before = draws.weights.to(torch.float64)
    share = before / before.sum(-1, keepdim=True)
    return torch.logsumexp(log_weights(problem, draws, law) + share.log(), -1)


def efficiency(law: Float[Tensor, "*batch states"], target: Float[Tensor, "*batch states"]) -> Float[Tensor, "*batch"]:
    """1 / Σ_s π(s)²/p(s): draws of π that one draw of `law` is worth, at most 1; 0 where p misses a state."""
    p, pi = law.to(torch.float64), target.to(torch.float64)
    return 1 / torch.where(pi > 0, pi**2 / p, 0.0).sum(-1)
