"""Sparser masks of the same order: the order, the layers, and that nothing is left to drop."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ising_attn import masks
from ising_attn.masks import InvalidMaskError, order_of, sparsify


def random_mask(n: int, seed: int, degree: float) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < degree / n


def grid(n: int) -> Tensor:
    return masks.product_order(masks.causal(n).allowed, masks.causal(n).allowed)


MASKS = {
    "chain": masks.causal(20).allowed,
    "grid": grid(5),
    "clique": torch.ones(9, 9, dtype=torch.bool),
    "block-two-stream": masks.block_two_stream(12, 3).allowed,
    "butterfly": masks.butterfly(7).allowed,
    "nothing": torch.eye(4, dtype=torch.bool),
    "one": torch.zeros(1, 1, dtype=torch.bool),
    **{f"random-{seed}": random_mask(40, seed, 0.7 + 0.3 * seed) for seed in range(4)},
    **{f"order-{seed}": random_mask(70, seed, 4.0).tril(-1) for seed in range(3)},
}


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7, None])
@pytest.mark.parametrize("name", MASKS)
def test_the_order_stays_and_converges_in_time(name: str, layers: int | None, prune: bool):
    before = order_of(MASKS[name])
    found = sparsify(MASKS[name], layers, prune=prune)
    after = order_of(found)
    assert after.same_as(before)
    assert layers is None or after.depth <= layers
    assert masks.reduction(MASKS[name]).sum() <= found.sum() <= (before.reach).sum()
    if layers == 1:
        assert after.is_dense
    if layers is None:
        assert torch.equal(found, masks.reduction(MASKS[name]))


@pytest.mark.parametrize("layers", [2, 3, 5])
@pytest.mark.parametrize("name", MASKS)
def test_no_entry_can_be_spared(name: str, layers: int):
    found = sparsify(MASKS[name], layers)
    if order_of(masks.reduction(MASKS[name])).depth <= layers:
        pytest.skip("converges as a Hasse diagram, which is tested as such")
    for row, column in found.nonzero().tolist():
        if row != column:
            fewer = found.clone()
            fewer[row, column] = False
            assert not torch.equal(masks.reachability(fewer, layers), masks.closure(found))


@pytest.mark.parametrize("name", MASKS)
def test_two_layers_through_hubs(name: str):
    closed = masks.closure(MASKS[name])
    cover = masks.hub_cover(closed)
    assert torch.equal((cover.double() @ cover.double()) > 0, closed)


def test_more_layers_need_fewer_entries():
    """On a chain: n²/2 in one layer, the balanced hubs' n log₂ n in two, then less and less, down to n − 1 covers."""
    n = 64
    counts = [int(sparsify(masks.causal(n).allowed, layers).sum()) for layers in (1, 2, 3, 4, 8, 63)]
    assert counts[0] == n * (n + 1) // 2 and counts[-1] == 2 * n - 1
    assert [count - n for count in counts] == [2016, 264, 194, 153, 104, 63]  # the table in docs/masks.md

    # Hubs at the middle, the quarters, …: f(n) = n − 1 + f(⌊(n−1)/2⌋) + f(⌈(n−1)/2⌉) pairs beside the diagonal.
    def pairs(m: int) -> int:
        return 0 if m < 2 else m - 1 + pairs((m - 1) // 2) + pairs(m // 2)

    assert counts[1] == n + pairs(n)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: sparsify(torch.ones(3, 3, dtype=torch.bool), 0), "layers=0; it must be an integer of at least 1"),
        (lambda: sparsify(torch.ones(2, 3, dtype=torch.bool), 2), r"shape \(2, 3\)"),
        (lambda: masks.hub_cover(torch.ones(2, 3, dtype=torch.bool)), r"shape \(2, 3\)"),
        (lambda: masks.hub_cover(masks.window(4, 2).allowed), "is no closure"),
    ],
)
def test_refused(refused: Any, words: str, unchecked: None):
    with pytest.raises(InvalidMaskError, match=words):
        refused()
