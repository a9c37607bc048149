"""Plain enumeration of all 2^n states: the slow, readable twin that fast backends are tested against."""

import torch
from torch import Tensor

from samplers.errors import ProblemTooLargeError
from samplers.problem import IsingProblem
from samplers.states import spin_table

MAX_SPINS = 20


def log_probabilities(problem: IsingProblem) -> tuple[Tensor, Tensor]:
    """log p(s) for every state, and log Z. Shapes (*batch, 2^n) and (*batch,); differentiable.

    A forbidden spin is held at −1: states in which it is +1 have log p = −∞.
    """
    n = problem.num_spins
    if n > MAX_SPINS:
        raise ProblemTooLargeError(
            f"{n} spins need 2^{n} states; enumeration takes {MAX_SPINS}; use the sampler 'exact'"
        )
    table = spin_table(n, dtype=problem.dtype, device=problem.device)
    rows = table.expand(*problem.batch_shape, *table.shape)
    scores = -problem.beta * problem.energy(rows)
    if problem.allowed is not None:
        forbidden = ((rows > 0) & ~problem.allowed.unsqueeze(-2)).any(-1)
        scores = scores.masked_fill(forbidden, -torch.inf)
    log_z = torch.logsumexp(scores, -1)
    return scores - log_z.unsqueeze(-1), log_z


def moments(problem: IsingProblem) -> tuple[Tensor, Tensor]:
    """⟨s_j⟩ (*batch, n) and ⟨s_j s_k⟩ (*batch, n, n) by summation over all states; differentiable."""
    log_p, _ = log_probabilities(problem)
    table = spin_table(problem.num_spins, dtype=problem.dtype, device=problem.device)
    p = log_p.exp()
    return p @ table, (table.mT * p.unsqueeze(-2)) @ table


def ground_states(problem: IsingProblem) -> Tensor:
    """Spins (*batch, n) int8 of the most probable state (the first one in a tie)."""
    log_p, _ = log_probabilities(problem)
    return spin_table(problem.num_spins, device=problem.device)[log_p.argmax(-1)].to(torch.int8)
