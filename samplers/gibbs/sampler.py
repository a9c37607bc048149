"""`GibbsSampler`: the native Monte Carlo backend."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from samplers.base import Capabilities, Sampler
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError
from samplers.estimators import straight_through
from samplers.gibbs.chains import Chains, Plan, cooling, ladder, ramp
from samplers.gibbs.engine import Schedule, advance
from samplers.gibbs.estimate import Estimate
from samplers.gibbs.gradient import covariance_magnetization
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.samples import Samples


class GibbsSampler(Sampler):
    """Heat bath over many problems × chains at once, with annealing and parallel tempering.

    `magnetization` runs `num_chains` chains per problem: `burn_in` sweeps, then `num_sweeps` sweeps of which every
    one is averaged. The average is Rao–Blackwell's, ⟨tanh(βF_j)⟩ with F_j the local field, whose variance is below
    that of ⟨s_j⟩. `last_info` holds the standard error and the effective sample size of every spin (from the spread
    between chains), split-R̂, and the sweeps done. With `tolerance` it goes on until the standard error of every
    problem (root mean square over its spins) is below it, or `max_sweeps` is reached, which is told by a warning.

    `sample` gives every read a chain of its own (independent reads), or with `thinning=k` takes reads k sweeps apart
    from `num_chains` chains. Read r of a problem depends on the seed, the problem's stream and r alone: neither how
    a batch is split nor the number of threads changes it. `ground_state` anneals and freezes the chains.

    With `persistent=True` successive `magnetization` calls of one shape go on with the same chains: for training, where
    couplings and fields move slowly. Use one sampler per layer then; `state_dict` holds the chains.

    Not exact: errors fall as 1/√(chains × sweeps ÷ autocorrelation time). Strong couplings (σ_J√n of 1 and more) mix
    slowly; then use `num_temperatures` > 1 and look at R̂. Arithmetic is float32 whatever the problem's dtype.

    Cost: n² (dense J) or the number of coupled blocks of 4 × 8 spins, per sweep and chain. CPU: compiled, all
    threads torch uses. GPU and three-body terms: torch.

    Sources: heat bath, Creutz 1980; exchange, Hukushima and Nemoto 1996; Rao–Blackwell, Gelfand and Smith 1990.
    """

    name: ClassVar[str] = "gibbs"

    num_chains: int = option(default=64, help="chains per problem", minimum=1)
    num_sweeps: int = option(
        default=128, help="sweeps averaged after burn-in (between checks, with tolerance)", minimum=2
    )
    burn_in: int = option(default=64, help="sweeps of a new chain that are thrown away", minimum=1)
    anneal: bool = option(default=True, help="whether the first half of burn-in rises from a high temperature")
    num_reads: int = option(
        default=512, help="reads of `sample`, and of the covariance gradient (chains × kept)", minimum=1
    )
    thinning: int | None = option(
        default=None, help="sweeps between reads of a chain in `sample`; None: own chains", minimum=1
    )
    tolerance: float | None = option(default=None, help="go on until the standard error is below this", minimum=1e-5)
    max_sweeps: int = option(default=16384, help="sweeps per chain after which `tolerance` gives up", minimum=2)
    num_temperatures: int = option(
        default=1, help="replicas of parallel tempering: 1, 2, 4, 8, 16 or 32", minimum=1, maximum=32
    )
    hottest: float = option(default=0.1, help="lowest β of tempering, as a part of β", minimum=1e-3, maximum=1.0)
    persistent: bool = option(
        default=False, help="go on with the chains of the call before (same shape) without burn-in"
    )
    gradient: Literal["covariance", "straight-through", "none"] = option(
        default="covariance",
        help="how magnetizations are differentiated",
        choices=("covariance", "straight-through", "none"),
    )
    engine: Literal["auto", "numba", "torch"] = option(
        default="auto", help="numba on CPUs and torch elsewhere, or one of them", choices=("auto", "numba", "torch")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_temperatures & (self.num_temperatures - 1):
            raise InvalidOptionError(
                f"num_temperatures={self.num_temperatures}; it must be a power of two, at most 32, to fill vector lanes"
            )
        if self.tolerance is not None and self.num_chains < 2:
            raise InvalidOptionError("tolerance needs an error bar, and that needs num_chains of at least 2")
        self._kept_chains: Chains | None = None
        self._warned = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            exact=False,
            boltzmann=True,
            gradient=self.gradient,
            can_ground_state=True,
            higher_order=True,
            devices=("cpu", "cuda"),
        )

    # ---- averages ---------------------------------------------------------------------------------------------

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        needs_reads = torch.is_grad_enabled() and self.gradient == "covariance" and _is_differentiated(problem)
        if needs_reads and self.num_chains < 2:
            raise NotSupportedError("a covariance gradient needs num_chains of at least 2 (or gradient='none')")
        plan = Plan.of(problem)
        chains, begin = self._start(plan, key)
        kept = -(-self.num_reads // self.num_chains) if needs_reads else 2
        rounds = max(2, min(kept, self.num_sweeps))
        stride = max(1, self.num_sweeps // rounds)
        schedule = Schedule(ladder(self.num_temperatures, self.hottest), begin, rounds, stride, keep=needs_reads)
        estimate = Estimate(plan, self.num_chains)
        result = advance(plan, chains, schedule, self.engine)
        estimate.add(result.up, schedule)
        self._reach_tolerance(estimate, plan, chains, schedule)
        if self._is_persistent():
            self._kept_chains = chains
        self.last_info.update(estimate.info())
        self.last_info["exchange_acceptance"] = [round(float(x), 4) for x in result.exchanges]
        mean = estimate.magnetization().to(problem.device, problem.dtype)
        grouped = plan.grouped
        if needs_reads:
            reads = torch.from_numpy(result.reads).to(problem.device).unflatten(0, mean.shape[:2])
            return grouped.restore(covariance_magnetization(grouped.problem, mean, reads))
        mean = grouped.restore(mean)
        return straight_through(problem, mean) if self.gradient == "straight-through" else mean

    def _reach_tolerance(self, estimate: Estimate, plan: Plan, chains: Chains, schedule: Schedule) -> None:
        """Go on with the problems whose error is above the tolerance."""
        if self.tolerance is None:
            return
        while True:
            errors, done = estimate.problem_errors(), estimate.sweeps
            active = (errors > self.tolerance) & (done < self.max_sweeps)
            if not active.any():
                break
            # All that are active have done the same number of sweeps. By half as many at a time, whatever the
            # errors are, so that the sweeps of a problem do not depend on the others of its batch.
            before = int(done[active].max())
            more = max(2, min(before // 2, self.max_sweeps - before))
            again = Schedule(schedule.ladder, np.ones(0, np.float32), rounds=2, stride=-(-more // 2))
            estimate.add(advance(plan, chains, again, self.engine, active).up, again, active)
        missed = int((errors > self.tolerance).sum())
        self.last_info.update(tolerance=self.tolerance, tolerance_reached=missed == 0, tolerance_missed=missed)
        if missed and not self._warned:
            self._warned = True
            warnings.warn(
                f"gibbs: after {self.max_sweeps} sweeps of {self.num_chains} chains {missed} of {len(errors)} problems "
                f"have a standard error above tolerance={self.tolerance:g} (the worst: {errors.max():.2g}); raise "
                "max_sweeps, num_chains or num_temperatures (this is said once per sampler; "
                "last_info['tolerance_reached'] tells it for every call)",
                stacklevel=2,
            )

    # ---- draws ------------------------------------------------------------------------------------------------

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        plan = Plan.of(problem)
        count = num_reads if self.thinning is None else min(num_reads, self.num_chains)
        kept = -(-num_reads // count)
        chains = Chains.fresh(plan, count, self.num_temperatures, key)
        steps, begin = ladder(self.num_temperatures, self.hottest), ramp(self.burn_in, self.anneal)
        if kept == 1:
            result = advance(plan, chains, Schedule(steps, begin), self.engine)
            spins = chains.spins[:, :, 0]
        else:
            schedule = Schedule(steps, begin, kept, self.thinning or 1, keep=True)
            result = advance(plan, chains, schedule, self.engine)
            # Read r is the (r div chains)-th of chain r mod chains: more reads begin with the same ones.
            spins = result.reads.transpose(0, 2, 1, 3).reshape(plan.num_problems, -1, plan.num_spins)[:, :num_reads]
        drawn = self._restored(plan, spins)
        weights = torch.ones(*problem.batch_shape, num_reads, dtype=problem.dtype, device=problem.device)
        info = {
            "chains": count,
            "reads_per_chain": kept,
            "exchange_acceptance": [round(float(x), 4) for x in result.exchanges],
        }
        return Samples(drawn, weights, problem.energy(drawn), info)

    def _restored(self, plan: Plan, spins: np.ndarray) -> Tensor:
        """Spins (P, reads, n) to (*batch, reads, n), −1 where a spin is absent."""
        drawn = torch.from_numpy(np.where(spins == 0, np.int8(-1), spins)).to(plan.fields.device)
        return plan.grouped.restore(drawn.unflatten(0, plan.grouped.problem.fields.shape[:2]))

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        plan = Plan.of(problem).normalised()
        chains = Chains.fresh(plan, self.num_chains, 1, key)
        schedule = Schedule(ladder(1, 1.0), cooling(self.burn_in + self.num_sweeps))
        advance(plan, chains, schedule, self.engine)
        spins = self._restored(plan, chains.spins[:, :, 0])
        best = problem.energy(spins).argmin(-1)
        index = best[..., None, None].expand(*best.shape, 1, problem.num_spins)
        return spins.gather(-2, index).squeeze(-2)

    # ---- chains that persist ----------------------------------------------------------------------------------

    def _is_persistent(self) -> bool:
        """Calls with a seed of their own neither use nor move the chains that persist."""
        return self.persistent and self.last_info.get("call_number") is not None

    def _start(self, plan: Plan, key: int) -> tuple[Chains, np.ndarray]:
        kept = self._kept_chains
        shape = (plan.num_problems, self.num_chains, self.num_temperatures, plan.num_spins)
        if self._is_persistent() and kept is not None and kept.spins.shape == shape:
            return kept.copy(), np.ones(0, np.float32)
        return Chains.fresh(plan, self.num_chains, self.num_temperatures, key), ramp(self.burn_in, self.anneal)

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """As for every sampler; chains that persist begin anew within the block and are put back after it."""
        kept, self._kept_chains = self._kept_chains, None
        try:
            with super().seeded(seed):
                yield
        finally:
            self._kept_chains = kept

    def state_dict(self) -> dict[str, Any]:
        """The number of calls made, and the persistent chains where there are any (tensors)."""
        state: dict[str, Any] = super().state_dict()
        if self._kept_chains is not None:
            state["chains"] = self._kept_chains.tensors()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        chains = state.get("chains")
        if chains is not None and not self.persistent:
            raise InvalidProblemError("the state holds chains; make the sampler with persistent=True to load it")
        self._kept_chains = None if chains is None else Chains.from_tensors(chains)


def _is_differentiated(problem: IsingProblem) -> bool:
    parts = (problem.fields, problem.couplings, problem.triples)
    return any(t is not None and t.requires_grad for t in parts)
