"""One mask in the forms that attention code takes. `allowed` itself is what our layers and torch's SDPA take.

`Attention.forward(x, allowed)`, `IsingProblem(h, J, allowed=allowed)` and `scaled_dot_product_attention(q, k, v,
attn_mask=allowed)` share one polarity: True keeps. torch's MultiheadAttention has the opposite one.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ising_attn.masks.checks import checked_mask, checked_size
from ising_attn.masks.errors import InvalidMaskError

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's mask function: (batch, head, query, key) → whether the query may use the key."""


def attention_bias(allowed: Bool[Tensor, "n n"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "n n"]:
    """0 where allowed and −∞ elsewhere, to be added to scores before a softmax.

    A row without any allowed key makes a plain softmax NaN; torch's SDPA and our layers give 0.
    """
    checked_mask(allowed)
    if not dtype.is_floating_point:
        raise InvalidMaskError(f"dtype={dtype}; a bias is floating point, such as torch.float32")
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def multihead_mask(allowed: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """`attn_mask` of torch.nn.MultiheadAttention, which is True where a key is dropped."""
    return ~checked_mask(allowed)


def mask_mod(allowed: Bool[Tensor, "n n"]) -> MaskMod:
    """FlexAttention's mask function of this mask: it looks entries up, so that any mask works.

    The tensor must be on the device of the queries. Indices from n on are an error there, or undefined; pad first
    (`padded`), or use it at its own length.
    """
    table = checked_mask(allowed)
    # A lambda, which nothing wraps: FlexAttention counts its arguments to tell masks from score functions.
    return lambda batch, head, query, key: table[query, key]


def block_mask(allowed: Bool[Tensor, "n n"], **options: Any) -> Any:
    """FlexAttention's `BlockMask` of this mask, on its device, for all batches and heads.

    Blocks of it that are wholly forbidden are skipped, which is where sparse masks save time. FlexAttention has no
    backward pass on the CPU; use `allowed` there.

    Args:
        options: of `torch.nn.attention.flex_attention.create_block_mask`, such as BLOCK_SIZE.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    n = len(checked_mask(allowed))
    return create_block_mask(mask_mod(allowed), None, None, n, n, device=str(allowed.device), **options)


def padded(allowed: Bool[Tensor, "n n"], length: int) -> Bool[Tensor, "length length"]:
    """The mask with positions added at the end that see nothing, and that nothing sees."""
    n = len(checked_mask(allowed))
    checked_size("length", length, minimum=n)
    found = torch.zeros(length, length, dtype=torch.bool, device=allowed.device)
    found[:n, :n] = allowed
    return found
