"""Advance chains: by the compiled kernel on CPUs, by torch elsewhere and for three-body terms."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samplers.compiled import has_kernels
from samplers.errors import NotSupportedError
from samplers.gibbs.chains import Chains, Plan


@dataclass(frozen=True)
class Schedule:
    """What a call of an engine does: the sweeps of `ramp`, then `rounds` times `stride` sweeps at β.

    Args:
        ladder: (T,) β of each temperature ÷ β, from 1 downwards. T > 1: neighbours exchange after every sweep.
        ramp: (burn_in,) β ÷ target of each burn-in sweep.
        keep: whether the state after each round is kept as a read.
    """

    ladder: NDArray[np.float32]
    ramp: NDArray[np.float32]
    rounds: int = 0
    stride: int = 1
    keep: bool = False

    @property
    def sweeps(self) -> int:
        return len(self.ramp) + self.rounds * self.stride


@dataclass(frozen=True)
class Advance:
    """What came of it.

    Args:
        up: (P, chains, 2, n) ΣP(s_j = +1 | the others) over the sweeps of the first ⌊rounds/2⌋ and of the other rounds.
        reads: (P, chains, rounds, n) int8 at β, 0 where a spin is absent; no rounds where none was kept.
        exchanges: (T − 1,) share of accepted exchanges between temperatures t and t+1; NaN where none was tried.
    """

    up: NDArray[np.float32]
    reads: NDArray[np.int8]
    exchanges: NDArray[np.float64]


def advance(
    plan: Plan, chains: Chains, schedule: Schedule, engine: str = "auto", active: NDArray[np.bool_] | None = None
) -> Advance:
    """Advance `chains` in place; with `active` (P,), only those of the problems where it is true.

    Raises:
        NotSupportedError: engine "numba" with three-body terms.
    """
    if engine == "numba" and plan.triples is not None:
        raise NotSupportedError("engine='numba' takes no three-body terms; use engine='auto' or 'torch'")
    if engine == "numba" or (engine == "auto" and plan.triples is None and has_kernels(plan.fields.device)):
        return _advance_compiled(plan, chains, schedule, active)
    from samplers.gibbs.torch_engine import advance_torch

    return advance_torch(plan, chains, schedule, active)


def outputs(plan: Plan, chains: Chains, schedule: Schedule) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Empty arrays for `Advance.up` and `Advance.reads`."""
    count, n = chains.spins.shape[1], plan.num_spins
    up = np.zeros((plan.num_problems, count, 2, n), np.float32)
    rounds = schedule.rounds if schedule.keep else 0
    return up, np.zeros((plan.num_problems, count, rounds, n), np.int8)


def present_blocks(plan: Plan) -> NDArray[np.bool_]:
    """(P, ⌈n/4⌉): which blocks of four sites hold a spin. Only in those does a chain draw random numbers."""
    allowed = plan.allowed.cpu().numpy()
    padded = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 4)))
    return np.any(padded.reshape(len(allowed), -1, 4), axis=-1)


def shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Accepted ÷ tried of (T, 2) counts, without the last temperature."""
    tried = counts[:-1, 1].astype(np.float64)
    return np.divide(counts[:-1, 0], tried, out=np.full(len(tried), np.nan), where=tried > 0)


def _advance_compiled(plan: Plan, chains: Chains, schedule: Schedule, active: NDArray[np.bool_] | None) -> Advance:
    from samplers.gibbs.kernels import ABSENT, run_tiles
    from samplers.kernels import in_threads

    blocks, kinds = np.unique(present_blocks(plan), axis=0, return_inverse=True)
    width = _width(plan, chains)
    kinds = (kinds.reshape(-1) if active is None else np.where(active, kinds.reshape(-1), -1)).reshape(
        plan.num_groups, -1
    )
    tiles, order = _tiles(kinds, chains.spins.shape[1], width // len(schedule.ladder))
    fields = np.where(plan.allowed.cpu().numpy(), plan.fields.cpu().numpy(), np.float32(ABSENT))
    couplings = plan.couplings.cpu().numpy()
    up, reads = outputs(plan, chains, schedule)
    swaps = np.zeros((len(tiles), len(schedule.ladder), 2), np.int64)

    def part(start: int, stop: int) -> None:
        run_tiles(
            start,
            stop,
            width,
            tiles,
            order,
            np.ascontiguousarray(fields),
            couplings,
            blocks,
            schedule.ladder,
            schedule.ramp,
            schedule.rounds,
            schedule.stride,
            chains.spins,
            chains.words,
            up,
            reads,
            swaps,
        )

    in_threads(part, len(tiles))
    return Advance(up, reads, shares(swaps.sum(0)))


def _width(plan: Plan, chains: Chains) -> int:
    """Lanes of a tile: wide hides the latency of the draws, narrow keeps the spins in the fastest cache."""
    from samplers.gibbs.kernels import PAIR

    best = 128 if plan.num_spins <= 128 else 64
    _, count, temperatures, _ = chains.spins.shape
    wanted = plan.num_problems // plan.num_groups * count * temperatures
    step = max(PAIR, temperatures)  # both are powers of two
    return min(best, -(-wanted // step) * step)


def _tiles(kinds: NDArray[np.int64], chains: int, slots: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut each set of problems that share couplings and present blocks into tiles of `slots` chains; none of kind −1.

    Returns:
        (tiles, 4) of group, kind, first and last+1 lane; and the problems in the order in which lanes list them.
    """
    groups, queries = kinds.shape
    tiles, order = [], np.argsort(kinds, axis=1, kind="stable")
    for group in range(groups):
        values, counts = np.unique(kinds[group], return_counts=True)
        begin = group * queries * chains
        for kind, count in zip(values, counts, strict=True):
            end = begin + count * chains
            if kind >= 0:
                tiles += [(group, kind, first, min(first + slots, end)) for first in range(begin, end, slots)]
            begin = end
    # Costly and cheap tiles alternate, so that contiguous parts of the list cost about the same.
    work = np.array(tiles, np.int64).reshape(-1, 4)
    flat = (order + queries * np.arange(groups)[:, None]).reshape(-1)
    return np.concatenate([work[i::8] for i in range(8)]), flat
