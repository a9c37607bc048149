"""Which rows of a whole batch a forward pass holds: a part of a batch draws the random numbers of its own rows."""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

_first_row: contextvars.ContextVar[int] = contextvars.ContextVar("first row of the batch", default=0)


@contextlib.contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Within the block, a model's input is the rows from `first` on of a larger batch.

    Samplers then draw for these rows what they draw for them in the whole batch, at the same call number.

        whole = model(tokens)
        with sampler.seeded(0), rows_from(32):
            part = model(tokens[32:])
    """
    token = _first_row.set(first)
    try:
        yield
    finally:
        _first_row.reset(token)


def problem_streams(batch_shape: Sequence[int]) -> Int[Tensor, "..."] | None:
    """The streams of problems whose first axis is the rows of a batch; None for those of a whole batch."""
    first = _first_row.get()
    if first == 0:
        return None
    of_row = math.prod(batch_shape[1:])
    return torch.arange(first * of_row, (first + batch_shape[0]) * of_row).reshape(tuple(batch_shape))
