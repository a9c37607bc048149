"""Masks from orders: closures, reductions, products, and orders given by hand as pairs."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool
from torch import Tensor

from ising_attn.masks.checks import checked_mask, checked_size
from ising_attn.masks.errors import InvalidMaskError
from ising_attn.masks.order import Order, order_of
from ising_attn.masks.reachability import reachability


def closure(allowed: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """The dense mask of the same order: one layer of it sees what many layers of `allowed` see."""
    return reachability(allowed)


def reduction(allowed: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """A mask of the same order with the fewest entries (Aho, Garey & Ullman 1972), the diagonal included.

    For a partial order that is the Hasse diagram, and unique. A class of several positions becomes a cycle through
    them, and covers join the first members of two classes.
    """
    order = order_of(allowed)
    found = torch.eye(order.size, dtype=torch.bool)
    for members in order.members:
        for position, following in zip(members, members[1:] + members[:1], strict=True):
            found[position, following] = True
    heads = torch.tensor([members[0] for members in order.members])
    upper, lower = order.covers.cpu().nonzero(as_tuple=True)
    found[heads[upper], heads[lower]] = True
    return found.to(allowed.device)


def product_order(outer: Bool[Tensor, "m m"], inner: Bool[Tensor, "n n"]) -> Bool[Tensor, "mn mn"]:
    """(a, b) sees (c, d) where a sees c and b sees d; position (a, b) is number a·n + b.

    The product of two causal masks is two-dimensional causality: above and to the left.
    """
    a, b = checked_mask(outer, name="outer"), checked_mask(inner, name="inner")
    size = len(a) * len(b)
    return (a[:, None, :, None] & b[None, :, None, :]).reshape(size, size)


def mask_of_pairs(n: int, pairs: Iterable[tuple[int, int]]) -> Bool[Tensor, "n n"]:
    """The dense mask of the partial order on n positions that pairs (upper, lower) generate; upper sees lower.

    Raises:
        InvalidMaskError: a pair outside 0 … n − 1, or pairs that form a cycle; the message names one.
    """
    checked_size("n", n)
    relation = torch.eye(n, dtype=torch.bool)
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(p, int) and 0 <= p < n for p in pair):
            raise InvalidMaskError(f"the pair {pair!r} is no (upper, lower) of two positions from 0 to {n - 1}")
        relation[pair[0], pair[1]] = True
    return partial_order(relation).reach


def partial_order(relation: Bool[Tensor, "n n"]) -> Order:
    """`order_of(relation)`, for a relation that must be a partial order: no two positions may reach one another.

    Raises:
        InvalidMaskError: the relation has a cycle; the message names a shortest one.
    """
    order = order_of(relation)
    if not order.is_partial_order:
        largest = max(order.members, key=len)
        way = _cycle(relation.cpu(), largest[0])
        raise InvalidMaskError(
            f"this is no partial order: {' > '.join(map(str, way))} is a cycle, one of "
            f"{sum(len(m) > 1 for m in order.members)} classes of positions that reach one another "
            f"(the largest has {len(largest)}); order_of takes it as the preorder it is"
        )
    return order


def _cycle(relation: Tensor, start: int) -> list[int]:
    """A shortest way from `start` back to it."""
    parents: dict[int, int] = {}
    frontier = [start]
    while start not in parents:
        following = []
        for position in frontier:
            for seen in relation[position].nonzero().flatten().tolist():
                if seen != position and seen not in parents:
                    parents[seen] = position
                    following.append(seen)
        frontier = following
    way = [start, parents[start]]
    while way[-1] != start:
        way.append(parents[way[-1]])
    return way[::-1]
