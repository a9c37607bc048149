"""How far the magnetizations of several samplers are apart on the same problems."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from samplers import IsingProblem, Sampler


@dataclass(frozen=True)
class MarginalError:
    """How far two sets of magnetizations ⟨s⟩ ∈ [−1, 1] of the same spins are apart.

    Args:
        mean: mean of |difference|. Attention weights α = (1 + ⟨s⟩)/2 differ by half as much.
        largest: largest |difference|.
        count: how many spins were compared.
    """

    mean: float
    largest: float
    count: int

    @classmethod
    def between(cls, a: NDArray[np.floating], b: NDArray[np.floating]) -> "MarginalError":
        difference = np.abs(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64))
        return cls(float(difference.mean()), float(difference.max()), difference.size)


def marginals(sampler: Sampler, problems: Sequence[IsingProblem], *, seed: int = 0) -> Float[np.ndarray, "spins"]:
    """⟨s⟩ of every allowed spin of the problems, in one flat float64 array.

    The sampler is seeded for the call; its own seed and call number are left as they were.
    """
    parts: list[NDArray[np.float64]] = []
    with torch.no_grad(), sampler.seeded(seed):
        for problem in problems:
            values, allowed = sampler.magnetization(problem), problem.expanded_allowed()
            kept = values.flatten() if allowed is None else values[allowed]
            parts.append(kept.double().cpu().numpy())
    return np.concatenate(parts) if parts else np.zeros(0)
