"""Whether compiled kernels can be used. Where they cannot, on a GPU or without numba, torch does the same slower."""

import importlib.util
from functools import cache

import torch


def has_kernels(device: torch.device) -> bool:
    """Kernels run on CPUs, and need numba."""
    return device.type == "cpu" and _has_numba()


@cache
def _has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None
