"""Whole transition matrices of Markov chains on small problems: the twin of `quantum_mcmc`, and spectral gaps.

The gap 1 − |λ₂| bounds how fast a chain forgets its start: about 1/gap steps per factor e. It is how Layden et al.
(2023) compare proposals. Every matrix is (problems, 2ⁿ, 2ⁿ), row s holding P(s → s'); for n ≤ 12 or so.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.dqa import evolution
from samplers.dqa.layers import Layers
from samplers.dqa.quantum_mcmc import QuantumProposal, angle_rows, scaled
from samplers.problem import IsingProblem
from samplers.states import spin_table


def proposal_matrix(problem: IsingProblem, layers: Layers) -> Float[Tensor, "problems states states"]:
    """P(s → s') of a quantum proposal of given layers (`QuantumProposal.layers`), before acceptance; symmetric.

    Args:
        problem: (g, q, n), without masks.
    """
    fields, couplings = scaled(problem)
    count, states = fields.shape[0], 2**problem.num_spins
    basis = torch.eye(states, dtype=torch.complex128, device=problem.device)
    state = basis.unsqueeze(1).expand(states, count, states).contiguous()
    law = evolution.evolve(evolution.tables(fields, couplings), angle_rows(layers), state).abs() ** 2
    return law.permute(1, 2, 0)


def metropolis_matrix(
    problem: IsingProblem, moves: Float[Tensor, "problems states states"]
) -> Float[Tensor, "problems states states"]:
    """Accept the moves of a symmetric proposal with probability min(1, exp(−β ΔE)), else stay."""
    energies = _energies(problem)
    uphill = energies.unsqueeze(1) - energies.unsqueeze(2)
    accepted = moves * torch.exp(-problem.beta * uphill).clamp_max(1.0)
    stays = 1 - accepted.sum(-1) + accepted.diagonal(dim1=-2, dim2=-1)
    return accepted.diagonal_scatter(stays, dim1=-2, dim2=-1)


def quantum_matrix(
    problem: IsingProblem, proposal: QuantumProposal, *, key: int = 0, draws: int = 20
) -> Float[Tensor, "problems states states"]:
    """One step of a quantum-enhanced chain, averaged over `draws` draws of γ and t."""
    moves = torch.stack([proposal_matrix(problem, proposal.draw(key, i)) for i in range(draws)]).mean(0)
    return metropolis_matrix(problem, moves)


def local_matrix(problem: IsingProblem) -> Float[Tensor, "problems states states"]:
    """One Metropolis step that proposes to flip a spin chosen at random."""
    n, states = problem.num_spins, 2**problem.num_spins
    index = torch.arange(states, device=problem.device)
    moves = torch.zeros(states, states, dtype=torch.float64, device=problem.device)
    for k in range(n):
        moves[index, index ^ (1 << k)] = 1 / n
    return metropolis_matrix(problem, moves.expand(problem.num_problems, states, states))


def uniform_matrix(problem: IsingProblem) -> Float[Tensor, "problems states states"]:
    """One Metropolis step that proposes any state with equal probability."""
    states = 2**problem.num_spins
    moves = torch.full((problem.num_problems, states, states), 1 / states, dtype=torch.float64, device=problem.device)
    return metropolis_matrix(problem, moves)


def heat_bath_matrix(problem: IsingProblem) -> Float[Tensor, "problems states states"]:
    """One sweep of heat bath: every spin in turn is drawn from its law given the others."""
    states = 2**problem.num_spins
    index = torch.arange(states, device=problem.device)
    scores = -problem.beta * _energies(problem)
    sweep = torch.eye(states, dtype=torch.float64, device=problem.device).expand(len(scores), states, states)
    for k in range(problem.num_spins):
        flipped = index ^ (1 << k)
        flips = torch.sigmoid(scores[:, flipped] - scores)
        update = torch.diag_embed(1 - flips)
        update[:, index, flipped] = flips
        sweep = sweep @ update
    return sweep


def spectral_gap(matrix: Float[Tensor, "problems states states"]) -> Float[Tensor, "problems"]:
    """1 − |λ₂|: the distance of the second largest eigenvalue, in modulus, from 1."""
    sizes = torch.linalg.eigvals(matrix).abs().sort(-1, descending=True).values
    return 1 - sizes[..., 1]


def _energies(problem: IsingProblem) -> Float[Tensor, "problems states"]:
    table = spin_table(problem.num_spins, device=problem.device)
    rows = table.expand(*problem.batch_shape, *table.shape)
    return problem.to(dtype=torch.float64).energy(rows).flatten(0, -2)
