"""The state-vector engine against matrix exponentials, and its adjoint gradient against finite differences."""

import math

import pytest
import torch

from samplers.dqa import evolution, reference
from samplers.dqa.layers import Layers
from samplers.dqa.statevector import StateVectorEngine
from samplers.errors import ProblemTooLargeError
from samplers.states import spin_table


def gaussian(groups: int, queries: int, n: int, *, fields: float = 1.0, couplings: float = 0.4, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    h = fields * torch.randn(groups, queries, n, generator=generator, dtype=torch.float64)
    a = couplings * torch.randn(groups, 1, n, n, generator=generator, dtype=torch.float64).triu(1)
    return h, a + a.mT


def some_layers(depth: int, seed: int = 0) -> Layers:
    generator = torch.Generator().manual_seed(seed)
    return Layers(*(torch.rand(depth, generator=generator, dtype=torch.float64) for _ in range(3)))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("num_spins", [1, 2, 3, 4, 5, 7])
def test_double_precision_equals_matrix_exponentials(num_spins, compiled):
    h, j = gaussian(2, 3, num_spins)
    layers = some_layers(3)
    slow = torch.stack(
        [torch.stack([reference.probabilities(h[g, q], j[g, 0], layers) for q in range(3)]) for g in range(2)]
    )
    engine = StateVectorEngine("double", compiled=compiled)
    torch.testing.assert_close(engine.probabilities(h, j, layers), slow, atol=1e-12, rtol=0)
    magnetization = engine.magnetization(h, j, layers)
    torch.testing.assert_close(magnetization, slow @ spin_table(num_spins), atol=1e-12, rtol=0)


def test_without_couplings_every_spin_is_on_its_own():
    h, _ = gaussian(1, 4, 6)
    layers = some_layers(4)
    together = StateVectorEngine("double").magnetization(h, None, layers)
    alone = StateVectorEngine("double").magnetization(h.reshape(1, 24, 1), None, layers).reshape(1, 4, 6)
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_one_spin_one_layer_closed_form():
    # ⟨Z⟩ = sin(2 f h) sin(2 x): with f = 0.15, h = 0.7, x = 0.15, sin 0.21 sin 0.3 = 0.0616.
    layers = Layers(*(torch.tensor([v], dtype=torch.float64) for v in (0.15, 0.15, 0.15)))
    result = StateVectorEngine("double").magnetization(torch.tensor([[[0.7]]], dtype=torch.float64), None, layers)
    assert result.item() == pytest.approx(math.sin(0.21) * math.sin(0.3), abs=1e-12)


@pytest.mark.parametrize("num_spins", [5, 11])
def test_single_precision_is_close(num_spins):
    h, j = gaussian(2, 2, num_spins, fields=2.0)
    layers = some_layers(20)
    single = StateVectorEngine("single").probabilities(h.float(), j.float(), layers)
    double = StateVectorEngine("double").probabilities(h.float().double(), j.float().double(), layers)
    assert single.dtype == torch.float64
    assert (single - double).abs().max() < 5e-6
    torch.testing.assert_close(single.sum(-1), torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("marginals", [True, False])
def test_adjoint_gradient_of_fields_couplings_and_angles(marginals, compiled):
    h, j = gaussian(2, 2, 3)
    layers = some_layers(3)

    def run(h, j, f, c, x):
        j = (j + j.mT) / 2
        j = j - torch.diag_embed(j.diagonal(dim1=-2, dim2=-1))
        engine = StateVectorEngine("double", compiled=compiled)
        return (engine.magnetization if marginals else engine.probabilities)(h, j, Layers(f, c, x))

    inputs = [t.clone().requires_grad_() for t in (h, j, layers.fields, layers.couplings, layers.mixer)]
    assert torch.autograd.gradcheck(run, inputs)


def test_gradient_of_the_full_matrix_is_half_of_the_pair_each():
    h, j = gaussian(1, 1, 4)
    layers = some_layers(2)
    j.requires_grad_()
    weights = torch.randn(4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    StateVectorEngine("double").magnetization(h, j, layers)[0, 0].dot(weights).backward()
    grad = j.grad[0, 0]
    pair = torch.zeros(4, 4, dtype=torch.float64)
    pair[0, 2] = pair[2, 0] = 1e-6
    with torch.no_grad():
        up, down = (
            StateVectorEngine("double").magnetization(h, j + sign * pair, layers)[0, 0].dot(weights) for sign in (1, -1)
        )
    torch.testing.assert_close(grad, grad.mT)
    assert grad.diagonal().abs().max() == 0
    assert (grad[0, 2] + grad[2, 0]).item() == pytest.approx(((up - down) / 2e-6).item(), abs=1e-8)


def test_chunks_change_nothing_and_too_little_memory_is_refused():
    h, j = gaussian(3, 5, 6)
    layers = some_layers(2)
    whole, chunked = StateVectorEngine("double"), StateVectorEngine("double", memory_limit=2 * 8 * 16 * 64 / 2**30)
    assert chunked.chunk_size(6) == 2
    results = []
    for engine in (whole, chunked):
        own = h.clone().requires_grad_(), j.clone().requires_grad_()
        value = engine.magnetization(*own, layers)
        (value**2).sum().backward()
        results.append((value.detach(), own[0].grad, own[1].grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    with pytest.raises(ProblemTooLargeError, match="memory_limit"):
        StateVectorEngine("double", memory_limit=1e-7).magnetization(h, j, layers)


def test_pair_energies_by_doubling():
    _, j = gaussian(2, 1, 6)
    table = spin_table(6)
    slow = torch.stack([0.5 * ((table @ one) * table).sum(-1) for one in j.squeeze(1)])
    torch.testing.assert_close(evolution.pair_energies(j.squeeze(1)), slow)


# Every layout of the kernels: one and two passes in a tile, partly filled tiles, chunks with 0 to 5 upper qubits.
LAYOUTS = [(1, 1, 3), (2, 2, 3), (3, 1, 200), (4, 2, 70), (5, 1, 3), (6, 1, 300), (7, 2, 5), (8, 2, 70)]
LAYOUTS += [(9, 1, 9), (10, 2, 3), (11, 1, 2), (12, 1, 2), (13, 1, 1)]


@pytest.mark.parametrize(("num_spins", "groups", "queries"), LAYOUTS)
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("marginals", [True, False])
def test_kernels_equal_torch(num_spins, groups, queries, precision, marginals):
    h, j = gaussian(groups, queries, num_spins, seed=num_spins)
    # Mixers of either sign and beyond a quarter turn.
    fields, couplings = (2 * some_layers(3, seed).fields - 1 for seed in (1, 2))
    mixer = mixer_of_all_turns()
    weights, results = None, []
    for compiled in (False, True):
        engine = StateVectorEngine("double" if not compiled else precision, compiled=compiled)
        inputs = [t.clone().requires_grad_() for t in (h, j, fields, couplings, mixer)]
        law = engine.magnetization if marginals else engine.probabilities
        value = law(inputs[0], inputs[1], Layers(*inputs[2:]))
        if weights is None:
            weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            weights = weights - weights.mean(-1, keepdim=True)
        (value * weights).sum().backward()
        results.append((value.detach(), *(t.grad for t in inputs)))
    tolerance = 1e-11 if precision == "double" else 4e-6
    for slow, fast in zip(*results, strict=True):
        assert fast.shape == slow.shape
        assert (fast - slow).abs().max() <= tolerance * slow.abs().max().clamp_min(1e-3)


def mixer_of_all_turns() -> torch.Tensor:
    return torch.tensor([2.6, -1.0, 5.0], dtype=torch.float64)


def test_reduced_angles_are_small_and_the_flip_is_known():
    from samplers.dqa.tiles import reduced

    angles = torch.tensor([[0.3, 0.2, 2.0], [0.4, 0.1, 0.5], [0.5, 0.6, 0.1]], dtype=torch.float64)
    result = reduced(angles, 4)
    assert result.flipped
    assert result.table[:, 0].tolist() == pytest.approx([0.3, -0.4, -0.5])
    assert abs(result.table[:, 2]).max() <= 1
    assert result.table[0, 3] == pytest.approx(math.cos(2.0 - math.pi / 2) ** 4)
