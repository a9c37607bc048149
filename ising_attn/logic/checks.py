"""What may enter a logic layer: bits where it is hard, probabilities where it is soft."""

import torch
from torch import Tensor

from ising_attn.logic.errors import InvalidLogicError


def check_features(x: Tensor, in_features: int, owner: str) -> None:
    """Refuse a tensor whose last axis is not `in_features` long."""
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise InvalidLogicError(f"{owner} takes (…, {in_features}); the input is {tuple(x.shape)}")


def check_probabilities(x: Tensor, owner: str) -> None:
    """Refuse values outside [0, 1], but for rounding, and NaN."""
    if not x.is_floating_point():
        raise InvalidLogicError(f"{owner} takes floating point inputs, {x.dtype} was given; use x.float()")
    if x.numel() == 0:
        return
    low, high = (float(value) for value in x.detach().aminmax())
    slack = 16 * torch.finfo(x.dtype).eps
    if not (low >= -slack and high <= 1 + slack):
        raise InvalidLogicError(
            f"{owner} takes inputs in [0, 1], these lie in [{low:.6g}, {high:.6g}]; BitEncoder makes such"
        )


def check_bits(x: Tensor, owner: str) -> None:
    """Refuse anything but 0 and 1."""
    if x.dtype == torch.bool or x.numel() == 0:
        return
    bits = x.detach().bool().to(x.dtype)
    if not torch.equal(bits, x):
        wrong = x != bits
        raise InvalidLogicError(
            f"{owner} takes bits in hard mode, {float(x[wrong][0]):.6g} was given; threshold the input first, as "
            "BitEncoder in hard mode does, or use a soft mode"
        )
