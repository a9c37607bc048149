"""What is refused before anything is computed from a mask."""

import torch
from torch import Tensor

from ising_attn.masks.errors import InvalidMaskError


def checked_mask(allowed: object, *, name: str = "allowed") -> Tensor:
    """`allowed` itself, if it is a bool tensor of shape (n, n), n ≥ 1.

    Raises:
        InvalidMaskError: anything else; the message says what was given.
    """
    mask = _checked_bool(allowed, name)
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or mask.shape[0] == 0:
        raise InvalidMaskError(f"{name} has shape {tuple(mask.shape)}; a mask is square, (n, n), with n of at least 1")
    return mask


def checked_layers(allowed: object, *, name: str = "allowed") -> Tensor:
    """`allowed` itself, if it is (n, n), one mask for all layers, or (layers, n, n), one for each."""
    mask = _checked_bool(allowed, name)
    if mask.ndim not in (2, 3) or mask.shape[-1] != mask.shape[-2] or 0 in mask.shape:
        raise InvalidMaskError(
            f"{name} has shape {tuple(mask.shape)}; it must be (n, n), or (layers, n, n) with a mask per layer"
        )
    return mask


def checked_size(name: str, value: object, *, minimum: int = 1, maximum: int | None = None) -> int:
    """`value` itself, if it is an integer in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidMaskError(f"{name}={value!r}; it must be an integer of at least {minimum}")
    if maximum is not None and value > maximum:
        raise InvalidMaskError(f"{name}={value}; it must be at most {maximum}")
    return value


def checked_blocks(n: int, block: int) -> int:
    """The number of blocks of size `block` in n positions."""
    checked_size("n", n)
    checked_size("block", block)
    if n % block:
        raise InvalidMaskError(f"n={n} positions are no multiple of block={block}: {n % block} would be left over")
    return n // block


def _checked_bool(allowed: object, name: str) -> Tensor:
    if not isinstance(allowed, Tensor):
        raise InvalidMaskError(
            f"{name} is a {type(allowed).__name__}; give a bool tensor, True where a row may attend to a column "
            "(torch.as_tensor(array) makes one of a NumPy array, task.allowed is that of a task)"
        )
    if allowed.dtype != torch.bool:
        raise InvalidMaskError(
            f"{name} has dtype {allowed.dtype}; a mask is bool, True where a row may attend to a column "
            "(weights > 0 makes one)"
        )
    return allowed
