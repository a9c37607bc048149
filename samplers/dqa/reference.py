"""The slow, readable twin of both engines: every layer as matrix exponentials of 2^n × 2^n operators.

Straight from the definition in `samplers.dqa.layers`; nothing of the fast paths is used. For n ≤ 8 or so.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.states import spin_table


def probabilities(
    fields: Float[Tensor, "n"], couplings: Float[Tensor, "n n"] | None, layers: Layers
) -> Float[Tensor, "states"]:
    """|ψ|² of one problem, complex128, differentiable by autograd. Cost: P products of 2^n × 2^n matrices."""
    n = fields.shape[0]
    z = spin_table(n, dtype=torch.float64)
    field_part = z @ fields.double()
    pair_part = torch.zeros_like(field_part)
    for j in range(n):
        for k in range(j + 1, n):
            if couplings is not None:
                pair_part = pair_part + couplings[j, k].double() * z[:, j] * z[:, k]
    flips = sum((_on_qubit(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), k, n) for k in range(n)), torch.tensor(0.0))
    state = torch.full((2**n,), 2 ** (-n / 2), dtype=torch.complex128)
    for f, c, x in zip(layers.fields, layers.couplings, layers.mixer, strict=True):
        state = torch.exp(1j * (f.double() * field_part + c.double() * pair_part)) * state
        state = torch.linalg.matrix_exp(1j * x.double() * flips) @ state
    return state.abs() ** 2


def anneal_probabilities(
    fields: Float[Tensor, "n"],
    couplings: Float[Tensor, "n n"],
    drive,
    problem,
    steps: int = 2000,
) -> Float[Tensor, "states"]:
    """|ψ|² after the continuous anneal H(s) = −A(s) ΣX + B(s) E, 0 ≤ s ≤ 1, by midpoint exponentials of all of H."""
    n = fields.shape[0]
    z = spin_table(n, dtype=torch.float64)
    energy = -(z @ fields.double()) - 0.5 * ((z @ couplings.double()) * z).sum(-1)
    flips = sum((_on_qubit(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), k, n) for k in range(n)), torch.tensor(0.0))
    state = torch.full((2**n,), 2 ** (-n / 2), dtype=torch.complex128)
    for step in range(steps):
        s = (step + 0.5) / steps
        hamiltonian = -drive(s) * flips + problem(s) * torch.diag(energy)
        state = torch.linalg.matrix_exp(-1j / steps * hamiltonian) @ state
    return state.abs() ** 2


def _on_qubit(operator: Tensor, qubit: int, num_spins: int) -> Tensor:
    """`operator` on bit `qubit` of the state index, the identity on the others."""
    low, high = torch.eye(2**qubit), torch.eye(2 ** (num_spins - qubit - 1))
    return torch.kron(high, torch.kron(operator, low)).double()
