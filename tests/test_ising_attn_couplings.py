"""Parameterised J and K: exact symmetry, counts, leading blocks, other lengths; score biases."""

import itertools
import math
from typing import Any

import pytest
import torch

from ising_attn import BoltzmannAttention, InvalidOptionError
from ising_attn.bias import make_bias
from ising_attn.couplings import (
    DistanceCouplings,
    DistanceTriples,
    FreeCouplings,
    LowRankCouplings,
    TripleCouplings,
    make_couplings,
)

HEADS, CONTEXT = 2, 6
KINDS: dict[str, Any] = {
    "free": (lambda n: FreeCouplings(HEADS, n, std=1.0), 15),
    "band": (lambda n: FreeCouplings(HEADS, n, width=2, std=1.0), 9),
    "distance": (lambda n: DistanceCouplings(HEADS, width=4, std=1.0), 4),
    "low-rank": (lambda n: LowRankCouplings(HEADS, n, rank=2, std=1.0), 24),
    "triples": (lambda n: TripleCouplings(HEADS, n, std=1.0), 20),
    "band triples": (lambda n: TripleCouplings(HEADS, n, width=3, std=1.0), 10),
    "distance triples": (lambda n: DistanceTriples(HEADS, width=4, std=1.0), 6),
}


def made(kind: str, context: int = CONTEXT) -> Any:
    torch.manual_seed(0)
    return KINDS[kind][0](context)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 5, CONTEXT])
def test_the_tensor_is_symmetric_to_the_bit_and_zero_where_indices_coincide(kind: str, length: int):
    tensor = made(kind)(length)
    order = tensor.ndim - 1
    assert tuple(tensor.shape) == (HEADS, *[length] * order)
    for axes in itertools.permutations(range(1, order + 1)):
        assert torch.equal(tensor, tensor.permute(0, *axes))
    assert tensor.diagonal(dim1=-2, dim2=-1).abs().sum() == 0
    if length >= order:
        assert tensor[0].abs().max() > 0.1
        assert not torch.equal(tensor[0], tensor[1])


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_as_many_numbers_as_degrees_of_freedom(kind: str):
    count = sum(p.numel() for p in made(kind).parameters())
    assert count == HEADS * KINDS[kind][1]


@pytest.mark.parametrize("kind", ["free", "band", "triples", "band triples"])
def test_every_number_is_one_independent_entry(kind: str):
    module = made(kind)
    jacobian = torch.autograd.functional.jacobian(
        lambda v: torch.func.functional_call(module, {"values": v}, (CONTEXT,)), module.values.detach()
    )
    copies = math.factorial(jacobian.ndim - 3)
    flat = jacobian.reshape(HEADS * CONTEXT ** (jacobian.ndim - 3), -1)
    assert set(flat.unique().tolist()) == {0.0, 1.0}
    assert flat.sum(0).unique().tolist() == [copies]
    assert flat.sum(1).max() == 1


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "low-rank"])
def test_a_shorter_length_is_the_leading_block(kind: str):
    module = made(kind)
    whole = module(CONTEXT)
    for length in range(1, CONTEXT):
        block = whole[(slice(None), *[slice(length)] * (whole.ndim - 1))]
        torch.testing.assert_close(module(length), block, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["free", "band", "triples", "band triples"])
def test_the_numbers_of_a_short_context_are_the_first_of_a_long_one(kind: str):
    short, long = made(kind, 4), made(kind, CONTEXT)
    with torch.no_grad():
        short.values.copy_(long.values[:, : short.values.shape[1]])
    torch.testing.assert_close(short(4), long(4), rtol=0, atol=0)


def test_bands_and_distances_are_what_they_say():
    position = torch.arange(CONTEXT)
    distance = (position[:, None] - position).abs()
    band, by_distance = made("band")(CONTEXT), made("distance")
    assert band[:, distance > 2].abs().max() == 0
    assert band[:, (distance <= 2) & (distance > 0)].abs().min() > 0
    assert band[0][distance == 1].unique().numel() == CONTEXT - 1
    longer = by_distance(9)
    for d in range(1, 9):
        expected = by_distance.values[:, d - 1] if d <= 4 else torch.zeros(HEADS)
        torch.testing.assert_close(longer.diagonal(d, 1, 2), expected[:, None].expand(-1, 9 - d), rtol=0, atol=0)


def test_banded_and_by_distance_triples_are_what_they_say():
    width, length = 4, 8
    by_distance, band = made("distance triples")(length), made("band triples")(CONTEXT)
    free = TripleCouplings(HEADS, CONTEXT, std=1.0)(CONTEXT)
    by_gaps: dict[tuple[int, int], set[float]] = {}
    for j, k, m in itertools.combinations(range(length), 3):
        by_gaps.setdefault((k - j, m - k), set()).add(float(by_distance[0, j, k, m].detach()))
    assert all(len(values) == 1 for values in by_gaps.values())
    near = [gaps for gaps in by_gaps if sum(gaps) <= width]
    assert len(set.union(*(by_gaps[gaps] for gaps in near))) == len(near) == 6
    assert all(by_gaps[gaps] == {0.0} for gaps in by_gaps if sum(gaps) > width)
    for j, k, m in itertools.combinations(range(CONTEXT), 3):
        assert (band[0, j, k, m] != 0) == (m - j <= 3)
        assert free[0, j, k, m] != 0


def test_low_rank_is_of_low_rank_off_the_diagonal_and_takes_either_sign():
    module = LowRankCouplings(1, 8, rank=1, std=1.0)
    with torch.no_grad():
        product = module.left[0] @ module.right[0].T
    full = (product + product.T) / 2
    assert torch.linalg.matrix_rank(full) == 2
    torch.testing.assert_close(module(8)[0] + torch.diag(full.diagonal()), full)
    values = torch.linalg.eigvalsh(full)
    assert values[0] < -1e-3
    assert values[-1] > 1e-3


@pytest.mark.parametrize("kind", ["free", "distance", "band", "low-rank"])
def test_training_leaves_zero_couplings_at_once(kind: str):
    torch.manual_seed(0)
    options: Any = {"band": {"width": 2}, "low-rank": {"rank": 2}}.get(kind, {})
    layer: Any = BoltzmannAttention(4, 2, 5, couplings=kind, sampler="exact", **options)
    assert layer.couplings(5).abs().max() == 0
    (layer(torch.randn(3, 5, 4)) ** 2).sum().backward()
    assert max(p.grad.abs().max() for p in layer.couplings.parameters()) > 1e-4


def test_distance_couplings_carry_over_to_longer_sequences():
    # Trained at context 4, used at 9: the first queries must not notice, in any bias without positions.
    torch.manual_seed(0)
    layer: Any = BoltzmannAttention(
        4, 2, 4, couplings="distance", width=3, coupling_std=0.5, bias="distance", bias_init=0.1, sampler="exact"
    )
    assert layer.max_length is None
    x = torch.randn(2, 9, 4)
    out = layer(x)
    torch.testing.assert_close(out[:, :4], layer(x[:, :4]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.problem(x).couplings[0, 0, 5, 1:5], layer.couplings(5)[0, 4, 0:4].mul(1))
    longer: Any = BoltzmannAttention(
        4, 2, 9, couplings="distance", width=3, coupling_std=0.5, bias="none", sampler="exact"
    )
    longer.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("bias")})
    torch.testing.assert_close(longer.couplings(9), layer.couplings(9), rtol=0, atol=0)


def test_biases_are_what_they_say():
    with torch.no_grad():
        for kind, size, shape in (("scalar", 1, (2, 1, 1)), ("distance", 4, (2, 6, 6)), ("position", 4, (2, 1, 3))):
            bias = make_bias(kind, 2, 4, initial=0.5)
            assert bias is not None
            assert bias.values.eq(0.5).all()
            bias.values.copy_(torch.arange(2 * size).reshape(2, size))
            found = bias(3 if kind == "position" else 6)
            assert tuple(found.shape) == shape
            if kind == "distance":
                assert found[1, 5].tolist() == [7, 7, 7, 6, 5, 4]
                assert found[1, 0, 2] == found[1, 2, 0] == 6
            if kind == "position":
                assert found[1, 0].tolist() == [4, 5, 6]
    assert make_bias("none", 2, 4) is None


def test_nothing_is_made_for_none_and_nonsense_is_refused():
    assert make_couplings("none", 2, 4) is None
    with pytest.raises(InvalidOptionError, match="width=0"):
        make_couplings("band", 2, 4, width=0)
    with pytest.raises(InvalidOptionError, match="has no rank"):
        make_couplings("distance", 2, 4, rank=2)
    with pytest.raises(InvalidOptionError, match="coupling_std"):
        make_couplings("free", 2, 4, std=math.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_position_has_no_couplings(kind: str):
    module = made(kind, 1)
    assert module(1).abs().sum() == 0
    module(1).sum().backward()
