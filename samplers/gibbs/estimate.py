"""Averages over sweeps of many chains, with error bars from the spread between chains."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplers.chains import rhat_of_spin_means
from samplers.gibbs.chains import Plan
from samplers.gibbs.engine import Schedule


class Estimate:
    """Running Rao–Blackwell averages of the spins of a plan.

    The standard error of ⟨s_j⟩ is the spread of the chains' own averages divided by √chains: it holds whatever the
    autocorrelation, once the chains have forgotten their start. The effective sample size is (1 − m²) / error²: how
    many independent draws would be as accurate; with Rao–Blackwell it can exceed the number of sweeps.
    """

    def __init__(self, plan: Plan, num_chains: int):
        self._plan = plan
        self._up = np.zeros((plan.num_problems, num_chains, 2, plan.num_spins))
        self._counts = np.zeros((plan.num_problems, 2))

    def add(self, up: NDArray[np.float32], schedule: Schedule, active: NDArray[np.bool_] | None = None) -> None:
        """Count the sums (P, chains, 2, n) of an advance of the active problems."""
        moved = np.ones(len(up), np.bool_) if active is None else active
        first = schedule.rounds // 2 * schedule.stride
        self._up[moved] += up[moved]
        self._counts[moved] += (first, schedule.rounds * schedule.stride - first)

    @property
    def sweeps(self) -> NDArray[np.int64]:
        """(P,) sweeps averaged so far."""
        return self._counts.sum(1).astype(np.int64)

    def _chain_means(self) -> NDArray[np.float64]:
        return 2 * self._up.sum(2) / self._counts.sum(1)[:, None, None] - 1

    def magnetization(self) -> Tensor:
        """(G, Q, n), float64, on the CPU; −1 where a spin is absent."""
        return self._grouped(self._chain_means().mean(1))

    def standard_error(self) -> NDArray[np.float64]:
        """(P, n); NaN with a single chain."""
        means = self._chain_means()
        if means.shape[1] < 2:
            return np.full((means.shape[0], means.shape[2]), math.nan)
        return means.std(1, ddof=1) / math.sqrt(means.shape[1])

    def problem_errors(self) -> NDArray[np.float64]:
        """(P,) root mean square, over the spins of a problem, of the standard error."""
        allowed = self._plan.allowed.cpu().numpy()
        squares = np.where(allowed, self.standard_error() ** 2, 0.0).sum(1)
        return np.sqrt(squares / np.maximum(1, allowed.sum(1)))

    def info(self) -> dict[str, Any]:
        """Error bars and mixing, per spin (*batch, n) and their worst; 0, ∞ and 1 for absent spins."""
        allowed, error = self._plan.allowed.cpu().numpy(), np.maximum(self.standard_error(), 1e-7)
        mean = self._chain_means().mean(1)
        size = np.where(allowed, (1 - mean**2) / error**2, math.inf)
        halves = 2 * self._up / self._counts[:, None, :, None] - 1
        steps = int(self._counts.min())
        split = torch.from_numpy(halves.reshape(len(halves), -1, halves.shape[-1]))
        rhat = torch.where(self._plan.allowed.cpu(), rhat_of_spin_means(split, steps), 1.0)
        restore = self._plan.grouped.restore
        return {
            "sweeps": int(self.sweeps.max()),
            "mean_sweeps": float(self.sweeps.mean()),
            "chains": self._up.shape[1],
            "standard_error": restore(self._grouped(np.where(allowed, error, 0.0))),
            "effective_sample_size": restore(self._grouped(size)),
            "rhat": restore(self._grouped(rhat.numpy())),
            "max_standard_error": float(np.where(allowed, error, 0.0).max()),
            "min_effective_sample_size": float(size.min()),
            "max_rhat": float(rhat.max()),
        }

    def _grouped(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(values).unflatten(0, tuple(self._plan.grouped.problem.fields.shape[:2]))
