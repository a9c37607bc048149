"""Masks for backends that have none, or that pay for every spin: queries with the same allowed spins, by themselves."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from samplers.problem import GroupedProblem, IsingProblem


@dataclass(frozen=True)
class SupportPart:
    """The queries `rows` of the groups `groups`, reduced to their allowed spins.

    `problem` has fields (g, q, k), couplings (g, 1, k, k) or none, 1 ≤ k ≤ n, and a mask only where queries of several
    supports were joined.
    """

    groups: Int[Tensor, "g"]
    rows: Int[Tensor, "q"]
    spins: Int[Tensor, "k"]
    problem: IsingProblem


class SupportSplit:
    """A problem as `parts` without masks (differentiable), and `merge` to put their results together.

    A causal mask gives n parts, the prefixes of 1…n spins. Queries with no allowed spin are in no part.

    Args:
        join: also put queries into a larger part that has all their spins, with a mask, where so few states are
            cheaper than a part of their own. For backends whose cost is a sum over states, and that know masks.
    """

    def __init__(self, problem: IsingProblem, *, join: bool = False):
        self._grouped: GroupedProblem = problem.grouped()
        inner = self._grouped.problem
        self._shape = tuple(inner.fields.shape)
        self.parts: list[SupportPart] = list(_parts(inner, join))

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


def graph_of(problem: IsingProblem) -> Tensor:
    """0, in the autograd graph of every part: what has no spin to sum over trains like any other batch."""
    parts = [problem.fields, problem._couplings, problem.triples]
    return sum((0.0 * part.sum() for part in parts if part is not None), start=problem.fields.new_zeros(()))


def largest_support(problem: IsingProblem) -> int:
    """Spins of the largest problem of the batch: all of them where there is no mask."""
    if problem.allowed is None or problem.num_problems == 0:
        return problem.num_spins
    return int(problem.allowed.sum(-1).max())


def split_is_cheaper(problem: IsingProblem) -> bool:
    """Whether summing 2^k states for each set of k allowed spins is less work than 2^n for every query.

    Masks of many different rows (one for each sequence of a batch) are left whole: they share no smaller problem.
    """
    allowed, n = problem.allowed, problem.num_spins
    if allowed is None or allowed.numel() > _MOST_ROWS * n:
        return False
    supports, counts = torch.unique(allowed.reshape(-1, n), dim=0, return_counts=True)
    each = problem.num_problems / int(counts.sum())
    split = float((counts * each * 2.0 ** supports.sum(-1)).sum()) + len(supports) * _PART_STATES
    return split < problem.num_problems * 2.0**n


# A part costs about as much as so many states of one problem.
_PART_STATES = 2.0**19
_MOST_ROWS = 4096


def _parts(inner: IsingProblem, join: bool) -> Iterator[SupportPart]:
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
        if join:
            supports, inverse = _joined(supports, inverse, len(which))
        for index, support in enumerate(supports):
            spins = support.nonzero().squeeze(-1)
            rows = (inverse == index).nonzero().squeeze(-1)
            if len(spins) and len(rows):
                yield SupportPart(which, rows, spins, _restricted(inner, which, rows, spins, allowed))


def _distinct(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of a (q, n) mask, and which of them each row is."""
    n = allowed.shape[-1]
    if n > 62:
        return torch.unique(allowed, dim=0, return_inverse=True)
    # One number per row: sorting numbers is far faster than sorting rows.
    shifts = torch.arange(n, device=allowed.device)
    codes, inverse = torch.unique((allowed.long() << shifts).sum(-1), return_inverse=True)
    return (codes.unsqueeze(-1) >> shifts) & 1 == 1, inverse


def _joined(supports: Tensor, inverse: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The same supports, and for each query the one that it is computed in: its own or a larger one."""
    sizes, counts = supports.sum(-1).tolist(), (groups * torch.bincount(inverse, minlength=len(supports))).tolist()
    where, kept = list(range(len(supports))), list[int]()
    for index in sorted(where, key=lambda i: -sizes[i]):
        for larger in kept:
            extra = counts[index] * (2.0 ** sizes[larger] - 2.0 ** sizes[index])
            if extra < _PART_STATES and not bool((supports[index] & ~supports[larger]).any()):
                where[index] = larger
                break
        else:
            kept.append(index)
    return supports, torch.tensor(where, device=inverse.device)[inverse]


def _restricted(inner: IsingProblem, groups: Tensor, rows: Tensor, spins: Tensor, allowed: Tensor) -> IsingProblem:
    def cut(t: Tensor | None, order: int) -> Tensor | None:
        if t is None:
            return None
        t = t if t.shape[0] == 1 else t.index_select(0, groups)
        for axis in range(-order, 0):
            t = t.index_select(axis, spins)
        return t

    fields = inner.fields.index_select(0, groups).index_select(1, rows).index_select(2, spins)
    streams = inner.streams.index_select(0, groups.to(inner.streams.device))
    own = allowed.index_select(0, rows).index_select(1, spins)
    return inner._rebuilt(
        fields=fields,
        couplings=cut(inner._couplings, 2),
        triples=cut(inner.triples, 3),
        allowed=None if bool(own.all()) else own,
        streams=streams.index_select(1, rows.to(streams.device)),
    )
