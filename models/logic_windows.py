"""Windows of characters as bits: what every logic language model reads."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from samplers.errors import InvalidProblemError


def one_hot_windows(tokens: Int[Tensor, "batch t"], vocabulary: int, context: int) -> Float[Tensor, "batch t features"]:
    """The last `context` characters up to each position as one-hot codes, oldest first: context · vocabulary bits.

    Places before the first character are all 0. Nothing after a position enters its bits.
    """
    codes = pad(_one_hot(tokens, vocabulary, context), (0, 0, context - 1, 0))
    return codes.unfold(1, context, 1).mT.flatten(2)


def one_hot_window(tokens: Int[Tensor, "batch t"], vocabulary: int, context: int) -> Float[Tensor, "batch features"]:
    """`one_hot_windows` at the last position alone."""
    codes = _one_hot(tokens[:, -context:], vocabulary, context)
    return pad(codes, (0, 0, context - codes.shape[1], 0)).flatten(1)


def recent_pairs(
    vocabulary: int, context: int, gates: int, *, reach: float, generator: torch.Generator | None = None
) -> Int[Tensor, "2 gates"]:
    """Two different bits of a window for every gate, each of a character that is d places back with p ∝ exp(−d/reach).

    Uniform wiring spends most gates on pairs of old characters, which say next to nothing about the next one.
    """
    weights = torch.exp(-torch.arange(context - 1, -1, -1) / reach)
    place = torch.multinomial(weights, 2 * gates, replacement=True, generator=generator).view(2, gates)
    first, second = place * vocabulary + torch.randint(vocabulary, (2, gates), generator=generator)
    # Bits of one character exclude each other, and a gate of one bit is wasted: step to the neighbour.
    second = torch.where(first == second, (second + 1) % (context * vocabulary), second)
    return torch.stack([first, second])


def check_tokens(tokens: Tensor, context: int) -> None:
    """Refuse windows of no character, or of more than `context`."""
    if tokens.shape[-1] == 0 or tokens.shape[-1] > context:
        raise InvalidProblemError(f"{tokens.shape[-1]} tokens were given; this model takes 1 to {context}")


def _one_hot(tokens: Tensor, vocabulary: int, context: int) -> Tensor:
    check_tokens(tokens, context)
    return one_hot(tokens, vocabulary).to(torch.get_default_dtype())
