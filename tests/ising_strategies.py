"""Ising problems for property tests: shapes, masks, dtypes, and numbers from 0 over 1e-30 to 1e10."""

import dataclasses

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st
from torch import Tensor

from samplers import IsingProblem

SIZES = (0.0, 1e-30, 1e-8, 1e-3, 0.1, 0.5, 1.0, 3.0, 30.0, 1e3, 1e6, 1e10)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FLOAT16_LARGEST = 6e4


def examples(count: int) -> hypothesis.settings:
    """So many examples, the same ones in every run; no time limit, since a first call compiles."""
    return hypothesis.settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What a problem is made of, so that variants of it can be made.

    Args:
        fields: (*batch, n); couplings: (n, n) or (*batch, n, n), or None; allowed: broadcastable to fields, or None.
        largest: the largest of the magnitudes that were drawn.
    """

    fields: Tensor
    couplings: Tensor | None
    allowed: Tensor | None
    beta: float
    largest: float

    def problem(self, **changes: object) -> IsingProblem:
        """The problem, with any of the parts replaced."""
        new = dataclasses.replace(self, **changes)  # type: ignore[arg-type]
        return IsingProblem(new.fields, new.couplings, allowed=new.allowed, beta=new.beta)

    def __repr__(self) -> str:
        return (
            f"Drawn({self.fields.dtype}, β={self.beta}, fields={self.fields.tolist()}, "
            f"couplings={None if self.couplings is None else self.couplings.tolist()}, "
            f"allowed={None if self.allowed is None else self.allowed.tolist()})"
        )


@st.composite
def drawn_problems(
    draw: st.DrawFn,
    sizes: tuple[float, ...] = SIZES,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    most_spins: int = 5,
    masks: bool = True,
    batches: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 2), (0,), (2, 0)),
) -> Drawn:
    """Problems whose numbers have magnitudes of `sizes`, mixed within one problem, and any signs."""
    n = draw(st.integers(1, most_spins), label="spins")
    batch = draw(st.sampled_from(batches), label="batch")
    dtype = draw(st.sampled_from(dtypes), label="dtype")
    beta = draw(st.sampled_from((1.0, 1.0, 0.3, 2.0)), label="beta")
    if dtype == torch.float16:
        sizes = tuple(min(size, _FLOAT16_LARGEST) for size in sizes)
    few = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3), label="sizes of fields")
    few_j = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=2), label="sizes of couplings")
    kind = draw(st.sampled_from(("none", "shared", "own")), label="couplings")
    mask = draw(st.sampled_from(("none", "random", "one query forbidden", "all forbidden")), label="mask")
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))

    def numbers(shape: tuple[int, ...], of: list[float]) -> Tensor:
        values = random.choice([-1.0, 1.0], shape) * random.choice(of, shape)
        # Equal magnitudes make degenerate states, different ones do not: both occur.
        values = values * random.choice([1.0, random.uniform(0.3, 1.0)], shape)
        return torch.from_numpy(np.asarray(values)).to(dtype)

    couplings = None
    if kind != "none":
        a = numbers((*(batch if kind == "own" else ()), n, n), few_j).tril(-1)
        couplings = a + a.mT
    allowed = None
    if masks and mask != "none":
        allowed = torch.from_numpy(np.asarray(random.random((*batch, n)) < 0.6))
        if mask == "all forbidden":
            allowed = torch.zeros_like(allowed)
        elif mask == "one query forbidden" and batch and batch[0]:
            allowed[0] = False
    return Drawn(numbers((*batch, n), few), couplings, allowed, beta, max(few + few_j))
