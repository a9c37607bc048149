"""What heat-bath engines work on: the prepared problems, and the chains with their random generators."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplers.problem import GroupedProblem, IsingProblem
from samplers.streams import words as random_words


@dataclass(frozen=True)
class Plan:
    """A batch of problems as flat arrays, β included: G groups of Q problems, P = G Q.

    Args:
        grouped: the problem it was made from.
        fields: (P, n) float32 βh, 0 where a spin is absent.
        couplings: (G, n, n) float32 βJ (zeros where the problem has none).
        allowed: (P, n) bool.
        triples: (G, n, n, n) float32 βK or None.
    """

    grouped: GroupedProblem
    fields: Tensor
    couplings: Tensor
    allowed: Tensor
    triples: Tensor | None

    @classmethod
    def of(cls, problem: IsingProblem) -> "Plan":
        """Everything of a problem that chains need, in float32 (β times a number fits it: see `IsingProblem`)."""
        grouped = problem.grouped()
        inner = grouped.problem
        groups, queries, n = inner.fields.shape

        def scaled(values: Tensor, *shape: int) -> Tensor:
            return (values.detach().to(torch.float64) * problem.beta).to(torch.float32).reshape(shape).contiguous()

        allowed = inner.allowed if inner.allowed is not None else inner.fields.new_ones(1, 1, 1, dtype=torch.bool)
        return cls(
            grouped=grouped,
            fields=scaled(inner.fields, groups * queries, n),
            couplings=scaled(inner.couplings.expand(groups, 1, n, n), groups, n, n),
            allowed=allowed.expand(groups, queries, n).reshape(groups * queries, n),
            triples=None if inner.triples is None else scaled(inner.triples, groups, n, n, n),
        )

    def normalised(self) -> "Plan":
        """Each group divided by its typical local field, √⟨h² + Σ_k J²⟩ over allowed spins: for annealing."""
        groups, allowed = self.num_groups, self.allowed.reshape(self.num_groups, -1, self.num_spins)
        strength = self.fields.reshape(allowed.shape) ** 2 + (self.couplings**2).sum(-1)[:, None]
        if self.triples is not None:
            strength = strength + 0.5 * (self.triples**2).sum((-1, -2))[:, None]
        count = allowed.sum((1, 2)).clamp_min(1)
        scale = ((strength * allowed).sum((1, 2)) / count).sqrt().clamp_min(1e-20)
        return replace(
            self,
            fields=(self.fields.reshape(allowed.shape) / scale[:, None, None]).reshape(self.fields.shape),
            couplings=self.couplings / scale[:, None, None],
            triples=None if self.triples is None else self.triples / scale.reshape(groups, 1, 1, 1),
        )

    @property
    def num_groups(self) -> int:
        return len(self.couplings)

    @property
    def num_problems(self) -> int:
        return len(self.fields)

    @property
    def num_spins(self) -> int:
        return self.fields.shape[1]


@dataclass
class Chains:
    """Markov chains in problem order, advanced in place by an engine.

    Args:
        spins: (P, chains, temperatures, n) int8; 0 where a spin is absent or not drawn yet. Temperature 0 is β.
        words: (P, chains, temperatures, 4) uint32, the state of one xoshiro128+ per chain and temperature.
    """

    spins: NDArray[np.int8]
    words: NDArray[np.uint32]

    @classmethod
    def fresh(cls, plan: Plan, chains: int, temperatures: int, key: int) -> "Chains":
        """Chains that have not moved; chain c of a problem depends on (key, the problem's stream, c) alone.

        All spins 0 is a fair start: the first sweep draws each spin given those already drawn.
        """
        shape = (plan.num_problems, chains, temperatures)
        streams = plan.grouped.problem.streams.reshape(-1)
        halves = [random_words(key, streams, chains * temperatures, counter=c) for c in (0, 1)]
        generators = np.stack(halves, -1).view(np.uint32).reshape(*shape, 4)
        return cls(np.zeros((*shape, plan.num_spins), np.int8), np.ascontiguousarray(generators))

    def copy(self) -> "Chains":
        return Chains(self.spins.copy(), self.words.copy())

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; the generators' words as int32."""
        return {
            "spins": torch.from_numpy(self.spins.copy()),
            "words": torch.from_numpy(self.words.view(np.int32).copy()),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Chains":
        """Inverse of `tensors`."""
        words = tensors["words"].cpu().numpy().astype(np.int32).view(np.uint32)
        return cls(tensors["spins"].cpu().numpy().astype(np.int8), words)


def ladder(temperatures: int, hottest: float) -> NDArray[np.float32]:
    """β of each temperature divided by the target β: geometric from 1 down to `hottest`."""
    if temperatures == 1:
        return np.ones(1, np.float32)
    return np.geomspace(1.0, hottest, temperatures).astype(np.float32)


def ramp(burn_in: int, anneal: bool) -> NDArray[np.float32]:
    """β of each burn-in sweep divided by the target: rising linearly in the first half if `anneal`, then 1."""
    result = np.ones(burn_in, np.float32)
    if anneal:
        rising = burn_in // 2
        result[:rising] = np.arange(1, rising + 1) / (rising + 1)
    return result


def cooling(sweeps: int) -> NDArray[np.float32]:
    """β of each sweep of a search for ground states, in units of 1 ÷ a typical local field: hot, cold, then frozen."""
    frozen = max(2, sweeps // 16)
    falling = np.geomspace(0.05, 50.0, max(1, sweeps - frozen))
    return np.concatenate([falling, np.full(frozen, 1e4)]).astype(np.float32)
