"""`Order`: what a mask means when layers are many: a preorder, its classes, its Hasse diagram.

Positions that reach one another form a class; the classes are partially ordered, and the covering relation of that
order, the smallest relation with the same closure, is what a Hasse diagram draws (Li & Guo, arXiv 2606.09951).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ising_attn.masks.bits import boolean_product
from ising_attn.masks.checks import checked_mask, checked_size
from ising_attn.masks.reachability import distances


@dataclass(frozen=True, eq=False)
class Order:
    """The order that a mask generates. Make it with `order_of`.

    Attributes:
        reach: R (n, n): row i depends on column j, after layers enough; reflexive and transitive.
        depth: the least L with A^L = R; 0 where no position sees another.
        classes: (n,) the class of each position. Classes are numbered upwards: what a class sees has lower numbers.
        below: (m, m) the order of the m classes, reflexive: row c sees column d.
    """

    reach: Bool[Tensor, "n n"]
    depth: int
    classes: Int[Tensor, " n"]
    below: Bool[Tensor, "m m"]

    @property
    def size(self) -> int:
        """n, the number of positions."""
        return len(self.reach)

    @property
    def num_classes(self) -> int:
        return len(self.below)

    @property
    def is_dense(self) -> bool:
        """Whether one layer suffices: A = R."""
        return self.depth <= 1

    @property
    def is_partial_order(self) -> bool:
        """Whether no two positions reach one another: every class is one position."""
        return self.num_classes == self.size

    @cached_property
    def members(self) -> list[list[int]]:
        """The positions of every class, in increasing order."""
        found: list[list[int]] = [[] for _ in range(self.num_classes)]
        for position, number in enumerate(self.classes.tolist()):
            found[number].append(position)
        return found

    @cached_property
    def covers(self) -> Bool[Tensor, "m m"]:
        """The covering relation: row c sees column d and nothing lies between. Its closure is `below`."""
        strict = self.below & ~torch.eye(self.num_classes, dtype=torch.bool, device=self.below.device)
        return strict & ~boolean_product(strict, strict)

    @cached_property
    def levels(self) -> Int[Tensor, " m"]:
        """The longest chain below each class, counted in covers; classes of level 0 see nothing but themselves."""
        level = [0] * self.num_classes
        for upper, lower in self.covers.nonzero().tolist():  # by rows: what is lower has its level already
            level[upper] = max(level[upper], level[lower] + 1)
        return torch.tensor(level, device=self.below.device)

    def hasse_edges(self) -> list[tuple[int, int]]:
        """The covers as pairs (class, class that it covers)."""
        return [(upper, lower) for upper, lower in self.covers.nonzero().tolist()]

    def down_set(self, position: int) -> list[int]:
        """The positions that `position` depends on, itself among them."""
        return self.reach[self._checked(position)].nonzero().flatten().tolist()

    def up_set(self, position: int) -> list[int]:
        """The positions that depend on `position`, itself among them."""
        return self.reach[:, self._checked(position)].nonzero().flatten().tolist()

    def same_as(self, other: "Order") -> bool:
        """Whether the same positions depend on the same ones, in whatever number of layers."""
        return torch.equal(self.reach.cpu(), other.reach.cpu())

    def _checked(self, position: int) -> int:
        return checked_size("position", position, minimum=0, maximum=self.size - 1)


def order_of(allowed: Bool[Tensor, "n n"]) -> Order:
    """The order that a mask generates when it is repeated in every layer, residual connections included.

    Cost: at most n³/64 word operations; the Hasse diagram, made when asked for, costs as much again.

    Raises:
        InvalidMaskError: a mask that is not square or not bool.
    """
    steps = distances(checked_mask(allowed))
    reach = steps >= 0
    # Classes by their first member; a class sees strictly more positions than anything below it.
    first = (reach & reach.T).int().argmax(1)
    heads = first.unique()
    heads = heads[torch.argsort(reach[heads].sum(1), stable=True)]
    number = torch.empty_like(first)
    number[heads] = torch.arange(len(heads), device=heads.device)
    return Order(reach, int(steps.max()), number[first], reach[heads][:, heads])
