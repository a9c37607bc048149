"""Memory does not grow with the steps of a training, through any sampler; a leak that is planted is found."""

import gc
import itertools
import resource
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from every_sampler import NAMES, cheap

from ising_attn import BoltzmannAttention
from samplers import Capabilities, IsingProblem, Sampler, get_sampler
from samplers.variational import ConvergenceWarning

ROUNDS = 5
# Of objects a step; a kept result with its graph takes five times as much.
_MOST = 2000


class Hoarder(Sampler):
    """The planted leak: every result is kept, with the graph behind it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept: list[torch.Tensor] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=True, boltzmann=True, gradient="exact", can_sample=False)

    def _magnetization(self, problem: IsingProblem, key: int) -> torch.Tensor:
        self.kept.append(get_sampler("exact").magnetization(problem))
        return self.kept[-1]


def trainer_of(sampler: Sampler) -> Callable[[], None]:
    """A step of training a layer of Boltzmann attention through the sampler."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = BoltzmannAttention(8, 2, context=4, sampler=sampler)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        out = layer(x)
        out.square().mean().backward()
        optimizer.step()

    return step


def growth(step: Callable[[], None], steps: int) -> tuple[int, int]:
    """Bytes that every round of so many steps adds at least: of Python's objects, and of the process.

    Caches fill once and allocators take memory in jumps, so some rounds may grow; a leak grows in every one. A step's
    tensors live outside Python's own allocator: the process sees those.
    """
    for _ in range(steps):
        step()
    tracemalloc.start()
    try:
        levels = []
        for _ in range(ROUNDS):
            for _ in range(steps):
                step()
            gc.collect()
            levels.append((tracemalloc.get_traced_memory()[0], _resident()))
    finally:
        tracemalloc.stop()
    pairs = list(itertools.pairwise(levels))
    return min(b[0] - a[0] for a, b in pairs), min(b[1] - a[1] for a, b in pairs)


def _resident() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def assert_bounded(name: str, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        objects, pages = growth(trainer_of(cheap(name)), steps)
    assert objects < _MOST * steps, f"{name}: {objects / steps:.0f} bytes of objects a step"
    assert pages < 8 * _MOST * steps, f"{name}: {pages / steps:.0f} bytes a step"


@pytest.mark.skipif(sys.platform == "win32", reason="no /proc")
@pytest.mark.parametrize("name", NAMES)
def test_memory_stays_through_every_sampler(name: str):
    assert_bounded(name, steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_memory_stays_over_a_thousand_steps_through_every_sampler(name: str):
    assert_bounded(name, steps=1000 // ROUNDS)


def test_a_planted_leak_is_found():
    objects, _ = growth(trainer_of(Hoarder()), 8)
    assert objects > 2 * _MOST * 8
