"""Torch's default dtype for a while: of what a module makes by itself, such as bits and distances."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """`dtype` is the default within the block; what it was before comes back after it, also after an error."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
