"""Reachability, classes, Hasse diagrams, closures and reductions against networkx and brute force."""

from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from ising_attn import masks
from ising_attn.masks import InvalidMaskError, Order, order_of
from ising_attn.masks.bits import boolean_product, packed, unpacked

SIZES = (1, 2, 5, 9, 31, 64, 65, 130)


def random_mask(n: int, seed: int, degree: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * n + seed)
    return torch.rand(n, n, generator=generator) < degree / n


def random_order(n: int, seed: int, degree: float = 3.0) -> Tensor:
    """A relation without cycles, its positions shuffled."""
    generator = torch.Generator().manual_seed(seed)
    shuffle = torch.randperm(n, generator=generator)
    return random_mask(n, seed, degree).tril(-1)[shuffle][:, shuffle]


MASKS = [random_mask(n, seed, degree) for n in SIZES for seed, degree in enumerate((0.5, 1.0, 2.0))] + [
    random_order(n, n) for n in SIZES
]


def graph_of(mask: Tensor) -> Any:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(mask)))
    graph.add_edges_from(mask.nonzero().tolist())
    return graph


def powers(mask: Tensor) -> list[Tensor]:
    """A^0, A^1, … up to the limit, by counting paths: the readable twin."""
    a = (mask | torch.eye(len(mask), dtype=torch.bool)).double()
    found = [torch.eye(len(mask), dtype=torch.bool)]
    while True:
        following = (found[-1].double() @ a) > 0
        if torch.equal(following, found[-1]):
            return found
        found.append(following)


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"n{len(m)}")
def test_reachability_is_the_boolean_power(mask: Tensor):
    expected = powers(mask)
    order = order_of(mask)
    assert order.depth == len(expected) - 1
    assert torch.equal(order.reach, expected[-1])
    assert order.is_dense == torch.equal(expected[min(1, order.depth)], expected[-1])
    for layers, power in enumerate(expected):
        assert torch.equal(masks.reachability(mask, layers), power)
    assert torch.equal(masks.reachability(mask), expected[-1])
    assert torch.equal(masks.reachability(mask, order.depth + 3), expected[-1])


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"n{len(m)}")
def test_distances_are_those_of_networkx(mask: Tensor):
    expected = torch.full((len(mask), len(mask)), -1, dtype=torch.int32)
    for source, lengths in nx.all_pairs_shortest_path_length(graph_of(mask)):
        for target, length in lengths.items():
            expected[source, target] = length
    assert torch.equal(masks.distances(mask), expected)


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"n{len(m)}")
def test_classes_and_hasse_diagram_are_those_of_networkx(mask: Tensor):
    order, graph = order_of(mask), graph_of(mask)
    assert sorted(map(sorted, nx.strongly_connected_components(graph))) == sorted(order.members)
    condensed = nx.condensation(graph, [set(members) for members in order.members])
    expected = nx.transitive_reduction(condensed)
    assert sorted(order.hasse_edges()) == sorted(expected.edges)
    # Classes are numbered upwards, and the level is the longest chain below.
    assert all(lower < upper for upper, lower in order.hasse_edges())
    longest = [len(nx.dag_longest_path(condensed.subgraph({c, *nx.descendants(condensed, c)}))) - 1 for c in condensed]
    assert order.levels.tolist() == longest


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"n{len(m)}")
def test_invariants(mask: Tensor):
    closed, reduced = masks.closure(mask), masks.reduction(mask)
    assert torch.equal(masks.closure(closed), closed)
    assert torch.equal(masks.closure(reduced), closed)
    assert torch.equal(masks.reduction(closed), reduced)
    assert order_of(closed).is_dense
    for position in range(0, len(mask), 7):
        assert order_of(mask).down_set(position) == [j for j in range(len(mask)) if closed[position, j]]
        assert order_of(mask).up_set(position) == [i for i in range(len(mask)) if closed[i, position]]
    shuffle = torch.randperm(len(mask), generator=torch.Generator().manual_seed(3))
    moved = order_of(mask[shuffle][:, shuffle])
    assert torch.equal(moved.reach, closed[shuffle][:, shuffle])
    assert moved.num_classes == order_of(mask).num_classes


@pytest.mark.parametrize("mask", [m for m in MASKS if len(m) <= 9], ids=lambda m: f"n{len(m)}")
def test_no_entry_of_a_reduction_can_be_dropped(mask: Tensor):
    reduced, closed = masks.reduction(mask), masks.closure(mask)
    for row, column in reduced.nonzero().tolist():
        if row != column:
            fewer = reduced.clone()
            fewer[row, column] = False
            assert not torch.equal(masks.closure(fewer), closed)


@pytest.mark.parametrize("n", SIZES)
def test_chains_antichains_and_cliques(n: int):
    chain = torch.eye(n, dtype=torch.bool) | torch.ones(n, n, dtype=torch.bool).tril(-1).triu(-1)
    assert torch.equal(masks.closure(chain), masks.causal(n).allowed)
    assert torch.equal(masks.reduction(masks.causal(n).allowed), chain)
    assert order_of(chain).depth == n - 1
    nothing = order_of(torch.zeros(n, n, dtype=torch.bool))
    assert torch.equal(nothing.reach, torch.eye(n, dtype=torch.bool)) and nothing.depth == 0
    assert nothing.is_dense and nothing.hasse_edges() == []
    clique = order_of(torch.ones(n, n, dtype=torch.bool))
    assert clique.num_classes == 1 and clique.members == [list(range(n))]
    assert clique.is_partial_order == (n == 1)


def test_product_order_is_two_dimensional_causality():
    product = masks.product_order(masks.causal(3).allowed, masks.causal(4).allowed)
    for i in range(12):
        for j in range(12):
            assert product[i, j] == (j // 4 <= i // 4 and j % 4 <= i % 4)
    order = order_of(product)
    assert order.is_dense and order.is_partial_order
    assert len(order.hasse_edges()) == 3 * 3 + 2 * 4  # a grid's edges
    assert int(order.levels.max()) == 5


def test_a_mask_per_layer():
    first, second = random_mask(70, 1, 2.0), random_mask(70, 2, 2.0)
    unit = torch.eye(70, dtype=torch.bool)
    # Position i mixes in the second layer what the first has mixed.
    expected = ((second | unit).double() @ (first | unit).double()) > 0
    assert torch.equal(masks.reachability(torch.stack([first, second])), expected)
    assert not torch.equal(masks.reachability(torch.stack([second, first])), expected)
    for layers in (1, 2, 3):
        assert torch.equal(masks.reachability(first.expand(layers, -1, -1)), masks.reachability(first, layers))


@pytest.mark.parametrize("n", SIZES)
def test_packed_bits(n: int):
    left, right = torch.rand(7, n) < 0.3, torch.rand(n, 11) < 0.1
    rows = packed(left)
    assert torch.equal(unpacked(rows, n), left)
    for row, words in zip(left.tolist(), rows.tolist(), strict=True):
        assert sum(word << 64 * k for k, word in enumerate(words)) == sum(1 << k for k, bit in enumerate(row) if bit)
    assert torch.equal(boolean_product(left, right), (left.double() @ right.double()) > 0)


def test_four_thousand_positions():
    n = 4096
    chain = torch.ones(n, n, dtype=torch.bool).tril().triu(-1)
    order = order_of(chain)
    assert order.depth == n - 1 and order.num_classes == n
    assert torch.equal(order.reach, masks.causal(n).allowed)
    assert torch.equal(order.covers | torch.eye(n, dtype=torch.bool), chain)


def test_orders_from_pairs():
    allowed = masks.mask_of_pairs(4, [(3, 1), (3, 2), (1, 0), (2, 0)])
    assert torch.equal(allowed, masks.product_order(masks.causal(2).allowed, masks.causal(2).allowed))
    order = masks.partial_order(allowed)
    assert isinstance(order, Order) and order.same_as(order_of(masks.reduction(allowed)))
    assert not order.same_as(order_of(torch.eye(4, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: order_of(torch.ones(3, 4, dtype=torch.bool)), r"shape \(3, 4\)"),
        (lambda: order_of(torch.ones(2, 3, 3, dtype=torch.bool)), r"shape \(2, 3, 3\)"),
        (lambda: order_of(torch.ones(0, 0, dtype=torch.bool)), r"shape \(0, 0\)"),
        (lambda: order_of(torch.ones(3, 3)), "dtype torch.float32"),
        (lambda: order_of([[True]]), "is a list"),  # type: ignore[arg-type]
        (lambda: masks.reachability(torch.ones(3, 3, dtype=torch.bool), -1), "layers=-1"),
        (lambda: masks.reachability(torch.ones(2, 3, 3, dtype=torch.bool), 3), "layers=3, but 2 masks"),
        (lambda: masks.reachability(torch.ones(3, dtype=torch.bool)), r"shape \(3,\)"),
        (lambda: masks.mask_of_pairs(4, [(1, 0), (3, 1), (0, 3)]), "0 > 3 > 1 > 0 is a cycle"),
        (lambda: masks.partial_order(torch.ones(5, 5, dtype=torch.bool)), "largest has 5"),
        (lambda: masks.mask_of_pairs(4, [(4, 0)]), r"the pair \(4, 0\)"),
        (lambda: masks.mask_of_pairs(0, []), "n=0"),
        (lambda: order_of(torch.eye(3, dtype=torch.bool)).down_set(3), "position=3"),
        (lambda: masks.product_order(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)), "outer has dtype"),
    ],
)
def test_refused(refused: Any, words: str, unchecked: None):
    with pytest.raises(InvalidMaskError, match=words):
        refused()
