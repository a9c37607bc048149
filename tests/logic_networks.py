"""Inputs and random Boolean networks for the tests of logic gate networks."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ising_attn import logic

HEADS = ["bits", "group-sum", "linear"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def every_input(n: int) -> torch.Tensor:
    """All 2^n rows of n bools."""
    return torch.tensor(list(itertools.product((False, True), repeat=n)))


def samples(count: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """Random bools."""
    return torch.rand(count, inputs, generator=generator(seed)) < 0.5


def boolean(
    inputs: int, widths: list[int], head: str = "bits", seed: int = 0, classes: int = 3
) -> logic.BooleanNetwork:
    """A network of random gates: constants, pass-throughs and duplicates are among them."""
    torch.manual_seed(seed)
    kinds: dict[str, Callable[[], Any]] = {
        "bits": lambda: None,
        "group-sum": lambda: logic.GroupSum(widths[-1], classes, tau=1.7, centred=seed % 2 == 1),
        "linear": lambda: logic.LinearHead(widths[-1], classes),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* features; the others have no effect")
        return logic.LogicNetwork(inputs, widths, head=kinds[head](), residual=None).harden()


def circuit_of(inputs: int, gates: list[tuple[int, int, int]], outputs: list[int]) -> logic.Circuit:
    """A circuit of (number, first, second) gates."""
    numbers, first, second = np.array(gates, dtype=np.int64).reshape(-1, 3).T
    return logic.Circuit(inputs, numbers.astype(np.uint8), first.copy(), second.copy(), np.array(outputs))
