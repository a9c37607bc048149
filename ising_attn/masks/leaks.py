"""Leaks: positions that are asked for a token which reaches them, and so can copy it instead of predicting it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ising_attn.masks.checks import checked_layers, checked_size
from ising_attn.masks.content import checked_inputs, checked_labels
from ising_attn.masks.errors import LeakError
from ising_attn.masks.reachability import distances, reachability

_MOST_NAMED = 8


@dataclass(frozen=True)
class Leak:
    """`position` is asked for `token`, which is in the input of `source`, and depends on `source`.

    `layers` is the fewest layers after which it does (0: the token is in its own input); None where every layer has
    a mask of its own.
    """

    position: int
    token: int
    source: int
    layers: int | None

    def __str__(self) -> str:
        after = "" if self.layers is None else f" after {self.layers} layer{'s' * (self.layers != 1)}"
        where = "in its own input" if self.source == self.position else f"from position {self.source}{after}"
        return f"position {self.position} has token {self.token} {where}"


def leaks(
    allowed: Bool[Tensor, "*layers n n"],
    inputs: Sequence[Any] | Tensor,
    labels: Sequence[Any] | Tensor,
    *,
    layers: int | None = None,
) -> list[Leak]:
    """Every position whose target can reach its own prediction, with the nearest source; empty where none can.

    Args:
        allowed: (n, n), or (layers, n, n) with a mask per layer, the one next to the inputs first.
        inputs: for every position the number of the token it holds, a tuple of several (an average, …), or a symbol
            that holds none: () or text such as "mask". See `Task`.
        labels: for every position the number of the token it is asked for, a tuple of several, or None (or −100).
            Numbers are places in a text, not words of a vocabulary: a word that occurs twice is no leak.
        layers: of a model with that many; None is any depth.

    Raises:
        InvalidMaskError: a wrong mask.
        InvalidTaskError: inputs or labels of another number, or of a kind that means nothing.
    """
    mask = checked_layers(allowed)
    contents = checked_inputs(inputs, mask.shape[-1])
    targets = checked_labels(labels, mask.shape[-1])
    steps = _steps(mask, layers).cpu()
    holders: dict[int, list[int]] = {}
    for position, atoms in enumerate(contents):
        for token in {atom for atom in atoms if isinstance(atom, int)}:
            holders.setdefault(token, []).append(position)
    found = []
    for position, tokens in enumerate(targets):
        for token in tokens:
            sources = [s for s in holders.get(token, ()) if steps[position, s] >= 0]
            if sources:
                nearest = min(sources, key=lambda source: int(steps[position, source]))
                known = mask.ndim == 2 or nearest == position
                found.append(Leak(position, token, nearest, int(steps[position, nearest]) if known else None))
    return found


def check_no_leaks(
    allowed: Bool[Tensor, "*layers n n"],
    inputs: Sequence[Any] | Tensor,
    labels: Sequence[Any] | Tensor,
    *,
    layers: int | None = None,
) -> None:
    """Assert before training that no target reaches its own prediction. Arguments: see `leaks`.

    Raises:
        LeakError: some do; the message names them.
    """
    found = leaks(allowed, inputs, labels, layers=layers)
    raise_leaks(found, sum(map(bool, checked_labels(labels, len(labels)))))


def raise_leaks(found: Sequence[Leak], asked: int) -> None:
    """Raise `LeakError` for leaks that were found, if any, among so many positions with a label."""
    if not found:
        return
    positions = len({leak.position for leak in found})
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    raise LeakError(
        f"{positions} of {asked} positions with a label can see their own target: "
        f"{'; '.join(map(str, found[:_MOST_NAMED]))}{more}; forbid those ways in the mask, or drop the labels"
    )


def _steps(mask: Tensor, layers: int | None) -> Tensor:
    """Layers until a column is seen, −1 for never; with a mask per layer 0 on the diagonal and 1 for all others."""
    if mask.ndim == 3:
        seen = reachability(mask, layers)
        steps = torch.where(seen, 1, -1)
        return steps.fill_diagonal_(0)
    steps = distances(mask)
    return steps if layers is None else torch.where(steps <= checked_size("layers", layers, minimum=0), steps, -1)
