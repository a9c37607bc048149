"""Sparser masks of the same order: fewer entries per layer, paid for with more layers (Li & Guo, definition 3.8)."""

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ising_attn.masks.bits import packed, unpacked
from ising_attn.masks.checks import checked_mask, checked_size
from ising_attn.masks.errors import InvalidMaskError
from ising_attn.masks.reachability import distances
from ising_attn.masks.relations import closure, reduction


def sparsify(allowed: Bool[Tensor, "n n"], layers: int | None = None, *, prune: bool = True) -> Bool[Tensor, "n n"]:
    """A mask of the same order that converges within `layers` layers, with as few entries as we can find.

    1 gives the closure itself. None gives the Hasse diagram (`reduction`), the fewest entries in whatever number of
    layers; so does any number it converges in. Between them the sparser of two constructions is taken, and entries
    that can be spared are dropped one by one, those that span most positions first:

    - steps: all that ⌈depth/layers⌉ steps of the Hasse diagram see; on a chain a window.
    - hubs, two layers: every pair meets at a hub (`hub_cover`); on a chain about n log₂ n entries, not n²/2.

    The fewest entries possible are hard to find for a given number of layers (transitive-closure spanners), so only
    the two ends are optimal. A class of k positions needs k − 1 layers as a cycle and 2 through a hub.

    Args:
        prune: False leaves the entries in that could be spared. Dropping them takes seconds at 1024 positions, half a
            minute at 2048; everything else takes seconds at 4096.

    Raises:
        InvalidMaskError: a mask that is not square or not bool, fewer than 1 layer.
    """
    checked_mask(allowed)
    thinnest = reduction(allowed)
    if layers is None:
        return thinnest
    checked_size("layers", layers)
    steps = distances(thinnest)
    depth = int(steps.max())
    if depth <= layers:
        return thinnest
    closed = steps >= 0
    if layers == 1:
        return closed
    stepped = closed & (steps <= -(-depth // layers))
    sparser = min(stepped, _hubs(closed), key=lambda mask: int(mask.sum()))
    return _pruned(sparser, closed, layers) if prune else sparser


def hub_cover(closed: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """A mask with A ∘ A = `closed`, which must be a closure: every pair (i, j) goes i → hub → j.

    The hub that serves most open pairs comes first (a 2-hop cover, Cohen et al. 2003). Cost: n²/64 word operations
    each time that a hub is looked at, which is a few times for each position.

    Raises:
        InvalidMaskError: a mask that is not its own closure.
    """
    checked_mask(closed, name="closed")
    if not torch.equal(closed, closure(closed)):
        raise InvalidMaskError("closed is no closure: some positions reach others in more steps than one; see closure")
    return _hubs(closed)


def _hubs(closed: Tensor) -> Tensor:
    from ising_attn.masks.bit_kernels import cover_by_hubs

    unit = torch.eye(len(closed), dtype=torch.bool, device=closed.device)
    down, up = packed(closed), packed(closed.T)
    out = np.zeros_like(down)
    cover_by_hubs(packed(closed & ~unit), down, up, out)
    return unpacked(out, len(closed)).to(closed.device) | unit


def _pruned(mask: Tensor, closed: Tensor, layers: int) -> Tensor:
    """`mask` without the entries that `layers` layers can do without, the longest tried first."""
    from ising_attn.masks.bit_kernels import prune_edges

    unit = torch.eye(len(mask), dtype=torch.bool, device=mask.device)
    tails, heads = (mask & ~unit).nonzero(as_tuple=True)
    seen = closed.sum(1)
    longest_first = torch.argsort(seen[tails] - seen[heads], descending=True, stable=True)
    edges = torch.stack([tails, heads], 1)[longest_first].cpu().numpy()
    rows = packed(mask)
    prune_edges(rows, np.ascontiguousarray(edges), packed(closed.T), packed(closed), layers)
    return unpacked(rows, len(mask)).to(mask.device)
