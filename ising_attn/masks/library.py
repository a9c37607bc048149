"""Masks by name, each with the inputs and labels it is for. `Task.allowed` is the mask alone.

Tokens are numbered from 0; the label n of a next-token task is the token after the last input. Each is what
`integrate` makes of the family of tasks named in its docstring (or a sparser mask of the same order).
"""

from collections.abc import Sequence

import torch

from ising_attn.masks.checks import checked_blocks, checked_size
from ising_attn.masks.errors import InvalidMaskError
from ising_attn.masks.tasks import Task
from samplers.errors import did_you_mean

CONTENTS = ("token", "block")


def causal(n: int) -> Task:
    """Predict token t from tokens 0 … t − 1, for every t: position j sees 0 … j and is asked for j + 1."""
    checked_size("n", n)
    return Task(torch.ones(n, n, dtype=torch.bool).tril(), range(n), range(1, n + 1))


def prefix(n: int, length: int) -> Task:
    """Predict token t ≥ length from all before it, where the first `length` tokens are a context that sees itself
    whole; its last position is asked for token `length`, the others for nothing."""
    checked_size("n", n)
    checked_size("length", length, maximum=n)
    allowed = causal(n).allowed.clone()
    allowed[:, :length] |= torch.arange(n)[:, None] < length
    return Task(allowed, range(n), [j + 1 if j >= length - 1 else None for j in range(n)])


def window(n: int, width: int) -> Task:
    """Position j sees the last `width` positions, itself included: `causal` in ⌈(n − 1)/(width − 1)⌉ layers instead
    of one, that is a sparse task of the same order (definition 3.8). A width of 1 sees nothing else, at any depth."""
    checked_size("width", width)
    whole = causal(n)
    return Task(whole.allowed.triu(1 - width), whole.inputs, whole.labels)


def document(lengths: Sequence[int]) -> Task:
    """Texts packed one after another, each causal within itself; the last position of a text is asked for nothing.

    Args:
        lengths: the number of tokens of each text.
    """
    if not lengths:
        raise InvalidMaskError("lengths is empty; give the length of each document, e.g. document([5, 3])")
    for length in lengths:
        checked_size("each of lengths", length)
    n = sum(lengths)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(list(lengths)))
    ends = {int(end) - 1 for end in torch.tensor(list(lengths)).cumsum(0)}
    return Task(
        causal(n).allowed & (owner[:, None] == owner[None, :]),
        range(n),
        [None if j in ends else j + 1 for j in range(n)],
    )


def block_causal(n: int, block: int) -> Task:
    """Predict the whole next block from all blocks so far, which see themselves whole: the j-th position of a block
    is asked for the j-th token of the next.

    Raises:
        InvalidMaskError: n is no multiple of `block`.
    """
    checked_blocks(n, block)
    number = torch.arange(n) // block
    return Task(number[:, None] >= number[None, :], range(n), range(block, n + block))


def two_stream(n: int, order: Sequence[int] | None = None) -> Task:
    """Predict the tokens one by one in a given order (XLNet, arXiv 1906.08237): 2n positions.

    Positions 0 … n − 1 hold the tokens (the content stream) and see themselves and what comes earlier in `order`;
    position n + k holds a mask at place k (the query stream), sees the contents of what comes earlier and itself,
    and is asked for token k. `order` lists the places from first to last; left to right by default.

    Raises:
        InvalidMaskError: `order` is no permutation of 0 … n − 1.
    """
    checked_size("n", n)
    places = list(range(n)) if order is None else list(order)
    if sorted(places) != list(range(n)):
        raise InvalidMaskError(f"order is {places}; it must hold each place from 0 to {n - 1} once")
    rank = torch.empty(n, dtype=torch.long)
    rank[torch.tensor(places)] = torch.arange(n)
    allowed = torch.eye(2 * n, dtype=torch.bool)
    allowed[:n, :n] = rank[:, None] >= rank[None, :]
    allowed[n:, :n] = rank[:, None] > rank[None, :]
    return Task(allowed, [*range(n), *(("mask", k) for k in range(n))], [None] * n + list(range(n)))


def block_two_stream(n: int, block: int, *, content: str = "token") -> Task:
    """Generate a block at a time: n clean tokens, then n masks (Li & Guo, arXiv 2606.09951): 2n positions.

    Position n + k holds a mask at place k, sees the clean tokens of earlier blocks and all masks of its own block, and
    is asked for token k. In generation the masks of one block stand at the end of the tokens so far, and see the
    same. Summaries of the paper do not say how clean tokens see one another, so both ways are offered:

    Args:
        content: "token": each those before it; "block": also those after it in its own block.

    Raises:
        InvalidMaskError: n is no multiple of `block`.
    """
    checked_blocks(n, block)
    if content not in CONTENTS:
        raise InvalidMaskError(f"content={content!r}; it must be 'token' or 'block'{did_you_mean(content, CONTENTS)}")
    number = torch.arange(n) // block
    allowed = torch.zeros(2 * n, 2 * n, dtype=torch.bool)
    allowed[:n, :n] = causal(n).allowed if content == "token" else block_causal(n, block).allowed
    allowed[n:, :n] = number[:, None] > number[None, :]
    allowed[n:, n:] = number[:, None] == number[None, :]
    return Task(allowed, [*range(n), *(("mask", k) for k in range(n))], [None] * n + list(range(n)))


def butterfly(n: int) -> Task:
    """Predict every token from all the others, without a mask token (Li & Guo, arXiv 2606.09951): 3n − 2 positions.

    First a forward chain over tokens 0 … n − 2, where each sees those before it; then a backward chain over tokens
    1 … n − 1, where each sees those after it; then n predictions. Prediction k sees the forward chain before k, the
    backward chain after k and itself; it holds the average of its neighbours and is asked for token k.

    Not the butterfly of FFT-like sparse attention.
    """
    checked_size("n", n)
    side = n - 1
    place = torch.arange(n)
    allowed = torch.eye(3 * n - 2, dtype=torch.bool)
    allowed[:side, :side] = place[:side, None] >= place[None, :side]
    allowed[side : 2 * side, side : 2 * side] = place[:side, None] <= place[None, :side]
    allowed[2 * side :, :side] = place[:, None] > place[None, :side]
    allowed[2 * side :, side : 2 * side] = place[:, None] < 1 + place[None, :side]
    neighbours = [tuple(t for t in (k - 1, k + 1) if 0 <= t < n) for k in range(n)]
    return Task(
        allowed,
        [*range(side), *range(1, n), *neighbours],
        [None] * (2 * side) + list(range(n)),
    )
