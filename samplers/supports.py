"""Masks for backends that have none: problems that share a set of allowed spins become one smaller problem."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from samplers.problem import GroupedProblem, IsingProblem


@dataclass(frozen=True)
class SupportPart:
    """The queries `rows` of the groups `groups`, reduced to their allowed spins.

    `problem` has fields (g, q, k), couplings (g, 1, k, k) or none, no mask, and 1 ≤ k ≤ n.
    """

    groups: Int[Tensor, "g"]
    rows: Int[Tensor, "q"]
    spins: Int[Tensor, "k"]
    problem: IsingProblem


class SupportSplit:
    """A problem as `parts` without masks (differentiable), and `merge` to put their results together.

    A causal mask gives n parts, the prefixes of 1…n spins. Queries with no allowed spin are in no part.
    """

    def __init__(self, problem: IsingProblem):
        self._grouped: GroupedProblem = problem.grouped()
        inner = self._grouped.problem
        self._shape = tuple(inner.fields.shape)
        self.parts: list[SupportPart] = list(_parts(inner))

    def merge(self, values: list[Tensor], fill: float, *, spin_axis: bool = True) -> Tensor:
        """Per-part values (g, q, *rest, k) to (*batch, *rest, n), `fill` for spins that are not allowed.

        With `spin_axis=False` the values are (g, q, *rest) and only queries without spins are filled.
        """
        groups, queries, n = self._shape
        whole = len(self.parts) == 1 and values[0].shape[:2] == (groups, queries)
        if whole and (not spin_axis or len(self.parts[0].spins) == n):
            return self._grouped.restore(values[0])
        if not values:
            raise ValueError("a problem without any allowed spin has no parts to merge")
        rest = tuple(values[0].shape[2:-1]) if spin_axis else tuple(values[0].shape[2:])
        tail = (n,) if spin_axis else ()
        out = values[0].new_full((groups, queries, *rest, *tail), fill)
        for part, value in zip(self.parts, values, strict=True):
            g, q = part.groups[:, None], part.rows[None, :]
            if spin_axis:
                full = value.new_full((*value.shape[:-1], n), fill)
                value = full.index_copy(-1, part.spins, value)
            out = out.index_put((g, q), value)
        return self._grouped.restore(out)


def _parts(inner: IsingProblem):
    groups, queries, n = inner.fields.shape
    device = inner.device
    all_groups = torch.arange(groups, device=device)
    if inner.allowed is None:
        rows, spins = torch.arange(queries, device=device), torch.arange(n, device=device)
        yield SupportPart(all_groups, rows, spins, inner)
        return
    if bool((inner.allowed == inner.allowed[:1]).all()):
        blocks = [(all_groups, inner.allowed[0])]
    else:
        blocks = [(all_groups[g : g + 1], inner.allowed[g]) for g in range(groups)]
    for which, allowed in blocks:
        supports, inverse = _distinct(allowed)
        for index, support in enumerate(supports):
            spins = support.nonzero().squeeze(-1)
            if len(spins):
                rows = (inverse == index).nonzero().squeeze(-1)
                yield SupportPart(which, rows, spins, _restricted(inner, which, rows, spins))


def _distinct(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of a (q, n) mask, and which of them each row is."""
    n = allowed.shape[-1]
    if n > 62:
        return torch.unique(allowed, dim=0, return_inverse=True)
    # One number per row: sorting numbers is far faster than sorting rows.
    shifts = torch.arange(n, device=allowed.device)
    codes, inverse = torch.unique((allowed.long() << shifts).sum(-1), return_inverse=True)
    return (codes.unsqueeze(-1) >> shifts) & 1 == 1, inverse


def _restricted(inner: IsingProblem, groups: Tensor, rows: Tensor, spins: Tensor) -> IsingProblem:
    def cut(t: Tensor | None, order: int) -> Tensor | None:
        if t is None:
            return None
        t = t if t.shape[0] == 1 else t.index_select(0, groups)
        for axis in range(-order, 0):
            t = t.index_select(axis, spins)
        return t

    fields = inner.fields.index_select(0, groups).index_select(1, rows).index_select(2, spins)
    streams = inner.streams.index_select(0, groups.to(inner.streams.device))
    return inner._rebuilt(
        fields=fields,
        couplings=cut(inner._couplings, 2),
        triples=cut(inner.triples, 3),
        allowed=None,
        streams=streams.index_select(1, rows.to(streams.device)),
    )
