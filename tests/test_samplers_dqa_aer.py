"""The Aer engine against a plain matrix simulation, by probabilities and by shots."""

import pytest
import torch
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.errors import EngineError, InvalidOptionError, InvalidProblemError, ProblemTooLargeError
from samplers.states import spin_table

pytest.importorskip("qiskit_aer")

from samplers.dqa.aer import AerEngine  # noqa: E402

PLUS, FLIP = torch.eye(2, dtype=torch.complex128), torch.tensor([[0, 1], [1, 0]], dtype=torch.complex128)


def make_layers(depth: int, seed: int = 0) -> Layers:
    generator = torch.Generator().manual_seed(seed)
    f, c, x = 0.2 + 0.6 * torch.rand(3, depth, generator=generator, dtype=torch.float64)
    return Layers(f, c, x)


def make_problem(groups: int, queries: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    fields = torch.randn(groups, queries, n, generator=generator, dtype=torch.float64)
    J = 0.5 * torch.randn(groups, 1, n, n, generator=generator, dtype=torch.float64)
    J = torch.triu(J, 1)
    return fields, J + J.mT


def dense_probabilities(fields: Tensor, couplings: Tensor | None, layers: Layers) -> Tensor:
    """The twin: whole 2^n × 2^n matrices, one problem at a time, straight from the docstring of layers.py."""
    groups, queries, n = fields.shape
    table = spin_table(n)
    result = torch.empty(groups, queries, 2**n, dtype=torch.float64)
    mixer = torch.zeros(2**n, 2**n, dtype=torch.complex128)
    for j in range(n):
        left, right = torch.eye(2 ** (n - 1 - j)), torch.eye(2**j)
        mixer += torch.kron(torch.kron(left, FLIP), right)
    for g in range(groups):
        for q in range(queries):
            state = torch.full((2**n,), 2 ** (-n / 2), dtype=torch.complex128)
            for f, c, x in zip(layers.fields, layers.couplings, layers.mixer, strict=True):
                phase = f * (table @ fields[g, q])
                if couplings is not None:
                    J = couplings[g if len(couplings) > 1 else 0, 0]
                    phase = phase + c * 0.5 * ((table @ J) * table).sum(-1)
                state = torch.linalg.matrix_exp(1j * x * mixer) @ (torch.exp(1j * phase) * state)
            result[g, q] = state.abs() ** 2
    return result


@pytest.mark.parametrize(("n", "depth"), [(1, 1), (2, 3), (3, 2), (5, 4)])
def test_probabilities_are_those_of_the_matrices(n: int, depth: int):
    layers = make_layers(depth)
    fields, couplings = make_problem(2, 3, n)
    expected = dense_probabilities(fields, couplings, layers)
    assert (AerEngine().probabilities(fields, couplings, layers) - expected).abs().max() < 1e-10


def test_couplings_shared_by_groups_and_absent():
    layers = make_layers(3)
    fields, couplings = make_problem(2, 2, 3)
    engine = AerEngine()
    shared = engine.probabilities(fields, couplings[:1], layers)
    assert (shared - dense_probabilities(fields, couplings[:1], layers)).abs().max() < 1e-10
    free = engine.probabilities(fields, None, layers)
    assert (free - dense_probabilities(fields, None, layers)).abs().max() < 1e-10
