"""Learnable biases of the scores h_ij: one number per head, or one per distance, or one per key position."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from samplers.errors import InvalidOptionError, did_you_mean

BIASES = ("none", "scalar", "distance", "position", "offset")


class ScoreBias(nn.Module):
    """b added to the scores: h_ij + b, h_ij + b(|i − j|) or h_ij + b_j.

    A scalar lets sigmoid attention choose how many keys a query takes (b → −∞ gives softmax attention at twice
    the scores, since α → exp(2h) there); by position it is the only field left in a model without queries.

    "offset" is a bias by distance that starts with a head for each of the nearest characters: 1 above its initial value
    at distance k + 1 for head k (counted round the context), and 1 below it elsewhere. Hard attention learns from the
    keys that it uses, and from zero it starts with keys that the noise of the first weights chose.

    Args:
        kind: "scalar", "distance", "position" or "offset".
        num_heads: every head has its own.
        context: number of distances or positions. Longer distances take the value of the longest.
        initial: value at the start.
    """

    def __init__(self, kind: str, num_heads: int, context: int, *, initial: float = 0.0):
        super().__init__()
        self.kind = kind
        self.max_length = context if kind == "position" else None
        size = 1 if kind == "scalar" else context
        values = torch.full((num_heads, size), float(initial))
        if kind == "offset":
            head = torch.arange(num_heads)
            values = values - 1
            values[head, (head + 1) % context] += 2
        self.values = nn.Parameter(values)

    def forward(self, length: int) -> Float[Tensor, "heads queries keys"]:
        """(heads, 1, 1), (heads, T, T) or (heads, 1, T)."""
        if self.kind == "scalar":
            return self.values.unsqueeze(-1)
        if self.kind == "position":
            return self.values[:, None, :length]
        position = torch.arange(length, device=self.values.device)
        distance = (position[:, None] - position).abs().clamp_max(self.values.shape[1] - 1)
        return self.values.index_select(1, distance.flatten()).reshape(-1, length, length)


def make_bias(kind: str, num_heads: int, context: int, *, initial: float = 0.0) -> ScoreBias | None:
    """A `ScoreBias` by name; None for "none".

    Raises:
        InvalidOptionError: an unknown kind.
    """
    if kind not in BIASES:
        raise InvalidOptionError(
            f"bias={kind!r}; it must be one of {', '.join(map(repr, BIASES))}{did_you_mean(kind, BIASES)}"
        )
    return None if kind == "none" else ScoreBias(kind, num_heads, context, initial=initial)
