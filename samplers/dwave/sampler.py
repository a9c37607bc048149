"""`DWaveSampler`: draws from a D-Wave quantum annealer at a requested temperature, many problems per call."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplers.annealing import initial_states
from samplers.base import Capabilities, Sampler
from samplers.dimod_bridge.convert import dimod_biases
from samplers.dwave.calls import PlannedCall, Query, Run, make_query, plan_calls, programmed_beta, run_calls
from samplers.dwave.machine import (
    DryRun,
    access_seconds,
    check_timing,
    connect,
    machine_name,
    reads_per_call,
)
from samplers.dwave.temperature import DeviceBeta
from samplers.dwave.tiles import Tile, find_tiles, room
from samplers.errors import InvalidOptionError, NotSupportedError, did_you_mean
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.pseudolikelihood import estimate_beta
from samplers.samples import Samples
from samplers.supports import SupportSplit

_OURS = ("num_reads", "answer_mode", "auto_scale", "annealing_time", "anneal_schedule", "fast_anneal")
_PILOT_READS = 500


class DWaveSampler(Sampler):
    """Draws from a D-Wave machine: get_sampler("dwave", annealing_time=20.0).

    Problems are embedded as cliques (one embedding per size, kept), many side by side in one call. A machine samples
    roughly p ∝ exp(−β_dev E) of the biases it is programmed with, where β_dev is unknown and drifts. Biases are
    therefore programmed as (β/β_dev) h and (β/β_dev) J with the machine's own auto-scaling off. β_dev starts from
    `device_beta` or from a short pilot call, and, with `feedback`, follows the pseudo-likelihood estimate of every
    call. `info` has β_dev before and after, the estimated β with its error, broken chains, calls and QPU time.

    The law is that of a quantum anneal, only roughly Boltzmann: the covariance gradient is a surrogate here.

    Args:
        machine: a dimod sampler of D-Wave's interface (`dwave.system.DWaveSampler`, or its mock). None connects to
            the configured account on the first call; nothing is sent before.
        fast_anneal: the coherent protocol, which takes no fields: they are carried by one more spin.
        auto_scale: where β needs larger biases than the machine has, shrink that problem (and say so in
            `info["beta_reached"]`) instead of refusing it.

    Raises:
        MachineNotConfiguredError: no token or no machine.
        ProblemTooLargeError: no clique of that size on the machine.
        NotSupportedError: β needs biases out of the machine's range, and `auto_scale` is off.
    """

    name = "dwave"
    num_reads: int = option(default=1000, help="reads per problem", minimum=1)
    machine: Any = option(default=None, help="a connected sampler; None: the configured account, on first use")
    solver: str | None = option(default=None, help="name of the machine; None: the configured one")
    profile: str | None = option(default=None, help="profile of the D-Wave configuration file")
    annealing_time: float | None = option(default=None, help="µs per anneal; None: the machine's default", minimum=0.0)
    anneal_schedule: list | None = option(
        default=None, help="points [time in µs, s] of the anneal, instead of its time"
    )
    fast_anneal: bool = option(default=False, help="the fast-anneal protocol")
    num_spin_reversals: int = option(default=2, help="random gauges the reads are split over; 0: none", minimum=0)
    max_tiles: int = option(default=64, help="problems per call at most", minimum=1)
    chain_strength: float = option(
        default=1.5, help="coupling inside chains over the typical torque on a spin", minimum=0.0
    )
    device_beta: float | None = option(default=None, help="β of the machine per unit of its biases; None: a pilot call")
    feedback: bool = option(default=True, help="correct the machine's β by what each call's reads say")
    auto_scale: bool = option(default=False, help="shrink problems that do not fit the range, instead of refusing them")
    machine_kwargs: dict | None = option(
        default=None, help="further keywords of the machine, e.g. readout_thermalization"
    )
    gradient: str = option(
        default="covariance",
        help="how magnetizations are differentiated",
        choices=("covariance", "straight-through", "none"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device_beta is not None and not (math.isfinite(self.device_beta) and self.device_beta > 0):
            raise InvalidOptionError(f"DWaveSampler: device_beta={self.device_beta!r}; it must be a number > 0")
        if self.machine is not None and not all(hasattr(self.machine, a) for a in ("sample", "properties", "edgelist")):
            raise InvalidOptionError(
                f"DWaveSampler: machine={self.machine!r} is no structured dimod sampler such as "
                "dwave.system.DWaveSampler(); to choose a machine by name, use solver="
            )
        for name in self.machine_kwargs or {}:
            if name in _OURS:
                raise InvalidOptionError(f"machine_kwargs has {name!r}; the sampler sets it, by its own options")
        self._device = DeviceBeta(self.device_beta)
        self._tiles: dict[int, list[Tile]] = {}
        self._connected: Any = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(False, False, self.gradient, can_ground_state=True)  # type: ignore[arg-type]

    def options(self) -> dict[str, Any]:
        return {**super().options(), "machine": None if self.machine is None else type(self.machine).__name__}

    def state_dict(self) -> dict[str, Any]:
        """The call number and what is known of the machine's temperature."""
        return {**super().state_dict(), "device_beta": self._device.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "device_beta" in state:
            self._device.load(state["device_beta"])

    def dry_run(self, problem: IsingProblem, num_reads: int | None = None) -> DryRun:
        """What `sample(problem, num_reads)` would send, and about how much QPU time it would take. Sends nothing."""
        self._check(problem)
        machine, reads = self._ready(), num_reads or self.num_reads
        queries = self._queries(SupportSplit(problem), key=0)
        tiles = self._tiles_for(queries, machine)
        plan = self._plan(len(queries), len(tiles), reads, machine)
        if self._device.value is None and queries:
            plan.insert(0, PlannedCall(range(min(len(queries), len(tiles))), 0, min(reads, _PILOT_READS)))
        qubits = [sum(len(c) for tile in tiles[: len(step.queries)] for c in tile.chains) for step in plan]
        keywords = self._keywords()
        times = [access_seconds(machine, q, step.reads, keywords) for q, step in zip(qubits, plan, strict=True)]
        return DryRun(
            machine=machine_name(machine),
            problems=problem.num_problems,
            calls=len(plan),
            problems_per_call=max((len(step.queries) for step in plan), default=0),
            reads=reads,
            qubits=max(qubits, default=0),
            qpu_seconds=sum(seconds for seconds, _ in times),
            machine_estimate=all(own for _, own in times) and bool(times),
        )

    # ---- draws ------------------------------------------------------------------------------------------------

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        machine, split = self._ready(), SupportSplit(problem)
        queries = self._queries(split, key)
        tiles = self._tiles_for(queries, machine)
        pilot = self._pilot(queries, tiles, machine, num_reads) if queries and self._device.value is None else None
        # Still unknown only where no problem has any bias: then no scale matters.
        device_beta = self._device.value or 1.0
        wanted = problem.beta / device_beta
        scales = self._scales(queries, tiles, machine, wanted)
        run = self._execute(machine, queries, tiles, scales, self._plan(len(queries), len(tiles), num_reads, machine))
        spins = self._merged(split, run.spins, num_reads, problem)
        energies = problem.energy(spins)
        samples = Samples(spins, torch.ones_like(energies), energies, {"weights": "counts"})
        info = run.info | {"pilot": pilot, "device_beta": device_beta, "energy_scale": wanted}
        info |= self._temperature(problem, samples, queries, scales, run)
        info["beta_reached"] = problem.beta * float(scales.min(initial=wanted)) / wanted
        info["problems_shrunk"] = int((scales < wanted).sum())
        info["gradient"] = f"{self.gradient} (a surrogate: a quantum anneal is not a Boltzmann law)"
        return Samples(spins, samples.weights, energies, samples.info | info)

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        machine, split = self._ready(), SupportSplit(problem)
        queries = self._queries(split, key)
        tiles = self._tiles_for(queries, machine)
        scales = self._scales(queries, tiles, machine, math.inf)
        plan = self._plan(len(queries), len(tiles), self.num_reads, machine)
        run = self._execute(machine, queries, tiles, scales, plan)
        self.last_info |= run.info
        spins = self._merged(split, run.spins, self.num_reads, problem)
        best = problem.energy(spins).argmin(-1)
        return spins.gather(-2, best[..., None, None].expand(*best.shape, 1, problem.num_spins)).squeeze(-2)

    def _queries(self, split: SupportSplit, key: int) -> list[Query]:
        queries = []
        for part in split.parts:
            biases = dimod_biases(part.problem)
            gauges = initial_states(key, part, max(1, self.num_spin_reversals))
            if not self.num_spin_reversals:
                gauges = np.ones_like(gauges)
            ancilla = self.fast_anneal and bool((biases.linear != 0).any())
            for g, quadratic in enumerate(biases.quadratic):
                for q, linear in enumerate(biases.linear[g]):
                    queries.append(make_query(linear, quadratic, gauges[g, q], ancilla))
        return queries

    def _tiles_for(self, queries: list[Query], machine: Any) -> list[Tile]:
        size = max((len(query.linear) for query in queries), default=0)
        if size and size not in self._tiles:
            self._tiles[size] = find_tiles(machine, size, self.max_tiles)
        return self._tiles[size] if size else []

    def _scales(self, queries: list[Query], tiles: list[Tile], machine: Any, wanted: float) -> NDArray[np.float64]:
        """The factor of every problem: `wanted`, or what the ranges leave. Infinity asks for the largest."""
        limits = np.array([room(tiles[0], query.linear, query.quadratic, machine.properties) for query in queries])
        if math.isinf(wanted):
            return np.where(np.isfinite(limits), limits, 1.0)
        short = int((limits < wanted).sum())
        if short and not self.auto_scale:
            raise NotSupportedError(
                f"{short} of {len(queries)} problems need biases {wanted:.3g} times their size, up to "
                f"{wanted / limits.min():.3g} times the range of {machine_name(machine)}; lower beta or the fields "
                "and couplings, anneal longer (a colder machine), or set auto_scale=True to shrink them"
            )
        return np.minimum(limits, wanted)

    # ---- temperature ------------------------------------------------------------------------------------------

    def _pilot(self, queries: list[Query], tiles: list[Tile], machine: Any, num_reads: int) -> str:
        """A first β of the machine, from one call's worth of problems, at first at a tenth of their range."""
        few = queries[: len(tiles)]
        plan = [PlannedCall(range(len(few)), 0, min(num_reads, _PILOT_READS))]
        largest, share = self._scales(few, tiles, machine, math.inf), 0.1
        for _ in range(4):
            found = programmed_beta(few, share * largest, self._execute(machine, few, tiles, share * largest, plan))
            value, error = float(found.value), float(found.standard_error)
            done = self._device.update(value, error)
            if math.isnan(value) or error < 0.5 * value:
                return done
            # All local minima: too cold a scale. Lost in noise: too hot a one.
            share = share / 4 if math.isinf(value) else min(1.0, 4 * share)
        if self._device.value is None:
            raise NotSupportedError(
                f"four pilot calls found no temperature of {machine_name(machine)} (last: {done}); give device_beta=…"
            )
        return done

    def _temperature(
        self, problem: IsingProblem, samples: Samples, queries: list[Query], scales: NDArray[np.float64], run: Run
    ) -> dict[str, Any]:
        """Estimated β in the problem's units, and the machine's β after this call."""
        found, update = estimate_beta(problem, samples), "off"
        if self.feedback and queries:
            device = programmed_beta(queries, scales, run)
            update = self._device.update(float(device.value), float(device.standard_error))
        return {
            "beta_estimated": float(found.value),
            "beta_estimated_error": float(found.standard_error),
            "device_beta_update": update,
            "device_beta_next": self._device.value,
        }

    # ---- calls ------------------------------------------------------------------------------------------------

    def _ready(self) -> Any:
        if self._connected is None:
            machine = connect(self.solver, self.profile) if self.machine is None else self.machine
            check_timing(machine, self.annealing_time, self.fast_anneal)
            for name in self.machine_kwargs or {}:
                if name not in machine.parameters:
                    raise InvalidOptionError(
                        f"{machine_name(machine)} has no parameter {name!r}{did_you_mean(name, machine.parameters)}"
                    )
            self._connected = machine
        return self._connected

    def _keywords(self) -> dict[str, Any]:
        """What every call is made with, besides its reads."""
        keywords: dict[str, Any] = {"answer_mode": "raw", "auto_scale": False}
        if self.annealing_time is not None:
            keywords["annealing_time"] = self.annealing_time
        if self.anneal_schedule is not None:
            keywords["anneal_schedule"] = self.anneal_schedule
        if self.fast_anneal:
            keywords["fast_anneal"] = True
        return {**keywords, **(self.machine_kwargs or {})}

    def _plan(self, queries: int, tiles: int, num_reads: int, machine: Any) -> list[PlannedCall]:
        most = reads_per_call(machine, self._keywords())
        return list(plan_calls(queries, tiles, num_reads, max(1, self.num_spin_reversals), most))

    def _execute(
        self,
        machine: Any,
        queries: list[Query],
        tiles: list[Tile],
        scales: NDArray[np.float64],
        plan: list[PlannedCall],
    ) -> Run:
        return run_calls(machine, queries, tiles, scales, plan, self._keywords(), self.chain_strength)

    # ---- back to our shapes -----------------------------------------------------------------------------------

    def _merged(self, split: SupportSplit, flat: list[NDArray[np.int8]], reads: int, problem: IsingProblem) -> Tensor:
        if not split.parts:
            shape = (*problem.batch_shape, reads, problem.num_spins)
            return torch.full(shape, -1, dtype=torch.int8, device=problem.device)
        values, start = [], 0
        for part in split.parts:
            groups, queries, k = part.problem.fields.shape
            rows = np.stack(flat[start : start + groups * queries])
            values.append(torch.from_numpy(rows).reshape(groups, queries, reads, k).to(problem.device))
            start += groups * queries
        return split.merge(values, fill=-1)
