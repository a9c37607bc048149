"""Quantum-enhanced Markov chains: a symmetric quantum evolution proposes, Metropolis accepts.

Layden, Mazzola, Mishmash, Motta, Wocjan, Kim and Sheldon, Nature 619, 282 (2023). From a state s, evolve |s⟩ under
H = (1 − γ) α E(Z) − γ ΣX for a time t and measure s'. H is real and symmetric, so P(s → s') = P(s' → s), and
accepting with probability min(1, exp(−β(E(s') − E(s)))) leaves the Boltzmann law at β invariant, whatever γ and t.
α = ‖ΣX‖ / ‖E(Z)‖ (Frobenius) puts the two terms on one scale. γ and t are drawn anew for every step.

The evolution is Trotterised in palindromes, half of a problem step at either end, which keeps the symmetry exactly
(the halves at the ends are phases that no measurement sees): the proposal is symmetric at any step size, and a
coarse one costs acceptance alone.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.dqa import evolution
from samplers.dqa.angles import GateAngles, gate_angles
from samplers.dqa.layers import Layers
from samplers.errors import InvalidOptionError, ProblemTooLargeError
from samplers.problem import IsingProblem
from samplers.states import spin_table, spins_of_index
from samplers.streams import derive_key, uniforms, uniforms_like

MAX_SPINS = 16
# The state, its phase, a rotated copy and its cumulative probabilities.
_STATES = 5


@dataclass(frozen=True)
class QuantumProposal:
    """How proposals are drawn: γ and t uniform in their ranges, in Trotter steps of at most `step`.

    The defaults are those of the paper's experiment.
    """

    gamma: tuple[float, float] = (0.25, 0.6)
    time: tuple[float, float] = (2.0, 20.0)
    step: float = 0.8

    def __post_init__(self) -> None:
        for name, (low, high), most in (("gamma", self.gamma, 1.0), ("time", self.time, math.inf)):
            if not 0 <= low <= high <= most or not math.isfinite(high):
                raise InvalidOptionError(
                    f"QuantumProposal: {name}=({low}, {high}); it must be two numbers, 0 ≤ low ≤ high"
                    + (f" ≤ {most:g}" if math.isfinite(most) else "")
                )
        if not 0 < self.step < math.inf:
            raise InvalidOptionError(f"QuantumProposal: step={self.step}; it must be a number above 0")

    def draw(self, key: int, step_number: int) -> Layers:
        """The layers of one step of a chain, the same for every problem and chain: they know nothing of its state."""
        u = uniforms(derive_key(key, 2), torch.zeros(1, dtype=torch.int64), 2, step_number)[0]
        gamma, time = (low + (high - low) * x for (low, high), x in zip((self.gamma, self.time), u, strict=True))
        return self.layers(float(gamma), float(time))

    def layers(self, gamma: float, time: float) -> Layers:
        """The palindrome of a given γ and t, for problems whose energy is already scaled by α.

        A mixer, then (problem, mixer) again and again: the first layer has no problem part.
        """
        steps = max(2, math.ceil(time / self.step))
        mixer = torch.full((steps,), gamma * time / steps, dtype=torch.float64)
        phases = torch.full((steps,), (1 - gamma) * time / steps, dtype=torch.float64)
        phases[0] = 0.0
        return Layers(phases, phases, mixer)


@dataclass(frozen=True)
class QuantumChains:
    """Where chains ended and how they got there.

    Args:
        index: state indices (problems, chains) at the end.
        history: state indices (problems, chains, steps) after every step, where it was asked for.
        acceptance: accepted share of the proposals that moved, per problem; NaN where none moved.
        moved: share of proposals that were another state, per problem.
        layers: Trotter layers of all steps together.
    """

    index: Int[Tensor, "problems chains"]
    history: Int[Tensor, "problems chains steps"] | None
    acceptance: Float[Tensor, "problems"]
    moved: Float[Tensor, "problems"]
    layers: int


def scaled(problem: IsingProblem) -> tuple[Float[Tensor, "problems one n"], Float[Tensor, "problems 1 n n"] | None]:
    """α h and α J of every problem of a part without masks (g, q, n), each problem a group of its own.

    ‖ΣX‖² = n 2ⁿ and ‖E(Z)‖² = 2ⁿ (Σ h² + Σ_{j<k} J²). A problem without energy keeps α = 1.
    """
    groups, queries, n = problem.fields.shape
    fields = problem.fields.to(torch.float64).reshape(groups * queries, n)
    power = (fields**2).sum(-1)
    J = None
    if problem.has_couplings:
        J = problem.couplings.to(torch.float64).expand(groups, queries, n, n).reshape(groups * queries, n, n)
        power = power + 0.5 * (J**2).sum((-2, -1))
    alpha = torch.where(power > 0, (n / power.clamp_min(torch.finfo(torch.float64).tiny)).sqrt(), 1.0)
    return (alpha[:, None] * fields).unsqueeze(1), None if J is None else (alpha[:, None, None] * J).unsqueeze(1)


def proposal_angles(
    fields: Float[Tensor, "problems one n"],
    couplings: Float[Tensor, "problems 1 n n"] | None,
    index: Int[Tensor, "problems chains"],
    layers: Layers,
) -> GateAngles:
    """The proposal as a circuit: gate angles that start every chain in its own state and evolve it.

    The anneal's circuit starts in |+…+⟩. Its first layer, which has no problem part, makes the state: RZ(±π/2) turns
    |+⟩ to ±y and RX(π/2) on to |0⟩ or |1⟩; the layer's own mixer is added to that RX.

    Args:
        fields, couplings: of `scaled`.
        index: where the chains are.
        layers: of `QuantumProposal.layers`.
    """
    problems, chains = index.shape
    n = fields.shape[-1]
    angles = gate_angles(fields.expand(problems, chains, n), couplings, layers)
    rz, rx = angles.rz.clone(), angles.rx.clone()
    rz[:, 0] = torch.pi / 2 * spins_of_index(index, n).reshape(-1, n).to(rz)
    rx[:, 0] += torch.pi / 2
    return GateAngles(rz, angles.rzz, rx, angles.pairs)


def quantum_chains(
    problem: IsingProblem,
    *,
    num_chains: int,
    num_steps: int,
    key: int,
    proposal: QuantumProposal | None = None,
    start: Int[Tensor, "problems chains"] | None = None,
    keep_history: bool = False,
    memory_limit: float = 1.0,
    engine: Any = None,
) -> QuantumChains:
    """Run chains of every problem of a part without masks, (g, q, n).

    With an `engine` (`AerEngine`, `PrimitiveEngine`, or others with their `draw_at`) the proposals are its circuits,
    measured once for each chain and step. Noise that makes s → s' and s' → s unequally likely, such as relaxation,
    then biases the chain.

    Chains start from the Boltzmann law of the fields alone (J = 0) unless `start` says otherwise; their law tends to
    the Boltzmann law at β.
    Draws depend on (key, stream, chain, step) alone. The evolution is simulated as a state vector in double
    precision. Cost per step, for each chain or, if there are fewer, each of the 2ⁿ states: about t/step · n · 2ⁿ. Not
    exact for finite `num_steps`.

    Raises:
        ProblemTooLargeError: more than `MAX_SPINS` spins, or a problem that the memory limit (GiB) does not hold.
        InvalidOptionError: no chains, or fewer than 0 steps.
    """
    groups, queries, n = problem.fields.shape
    if num_chains < 1 or num_steps < 0:
        raise InvalidOptionError(f"num_chains={num_chains}, num_steps={num_steps}; at least 1 chain and 0 steps")
    if n > MAX_SPINS:
        raise ProblemTooLargeError(
            f"{n} spins were given; quantum-enhanced chains take at most {MAX_SPINS}; use get_sampler('gibbs')"
        )
    proposal = QuantumProposal() if proposal is None else proposal
    if getattr(engine, "fixed_seed", None) is not None:
        raise InvalidOptionError(
            f"this primitive starts every call from its seed {engine.fixed_seed}, so that every step of a chain would "
            "repeat the same random numbers; make it without a seed, or with a numpy Generator where it takes one"
        )
    fields, couplings = scaled(problem)
    table = spin_table(n, device=problem.device)
    weighted = problem.to(dtype=torch.float64)
    scores = (-problem.beta * weighted.energy(table.expand(groups, queries, *table.shape))).flatten(0, 1)
    streams = problem.streams.flatten()
    per_chain = _STATES * 16 * 2**n
    fitting = int(memory_limit * 2**30 // per_chain)
    if fitting < 1:
        raise ProblemTooLargeError(
            f"a chain of {n} spins needs {per_chain / 2**30:.3g} GiB; memory_limit allows {memory_limit:g} GiB"
        )
    size = max(1, fitting // num_chains)
    runs = []
    for first in range(0, groups * queries, size):
        part = slice(first, first + size)
        run = _Run(
            evolution.tables(fields[part], None if couplings is None else couplings[part]),
            scores[part],
            streams[part],
            key,
            fitting,
        )
        if engine is not None:
            run.device = _Device(engine, fields[part], None if couplings is None else couplings[part])
        own = _free_start(problem, num_chains, key)[part] if start is None else start[part].to(problem.device)
        runs.append(run.chains(proposal, num_steps, own, keep_history))
    return _joined(runs, problem)


class _Run:
    """Chains of the problems that fit in memory together: groups are problems, queries are chains."""

    def __init__(self, table: evolution.Tables, scores: Tensor, streams: Tensor, key: int, fitting: int):
        self.table, self.scores, self.streams, self.key, self.fitting = table, scores, streams, key, fitting
        self.device: _Device | None = None

    def chains(self, proposal: QuantumProposal, num_steps: int, start: Tensor, keep_history: bool) -> QuantumChains:
        problems, num_chains = start.shape
        index, history, layers = start.clone(), [], 0
        moved, accepted = (torch.zeros(problems, dtype=torch.float64, device=index.device) for _ in range(2))
        for step in range(num_steps):
            plan = proposal.draw(self.key, step)
            layers += plan.depth
            proposed = self._propose(index, plan, step)
            gain = self.scores.gather(1, proposed) - self.scores.gather(1, index)
            accept = torch.log(self._uniforms(num_chains, step, 4)) < gain
            other = proposed != index
            moved += other.sum(1)
            accepted += (other & accept).sum(1)
            index = torch.where(accept, proposed, index)
            if keep_history:
                history.append(index)
        kept = torch.stack(history, -1) if history else index.new_empty(problems, num_chains, 0)
        total = max(1, num_steps) * num_chains
        return QuantumChains(index, kept if keep_history else None, accepted / moved, moved / total, layers)

    def _propose(self, index: Tensor, plan: Layers, step: int) -> Tensor:
        """Measured states (problems, chains) after evolving each chain's own basis state."""
        problems, states = self.scores.shape
        uniform = self._uniforms(index.shape[1], step, 3)
        if self.device is not None:
            return self.device.measure(index, plan, seeds=(uniform * 2**62).to(torch.int64))
        width = max(1, self.fitting // problems)
        whole = None
        if index.shape[1] > states and width >= states:
            # Fewer states than chains: evolve each state once, and let every chain look its row up.
            whole = self._cumulative(torch.arange(states, device=index.device).expand(problems, states), plan)
        parts = []
        for own, u in zip(index.split(width, 1), uniform.split(width, 1), strict=True):
            if whole is None:
                cumulative = self._cumulative(own, plan)
            else:
                cumulative = whole.gather(1, own.unsqueeze(-1).expand(*own.shape, states))
            found = torch.searchsorted(cumulative, (u * cumulative[..., -1]).unsqueeze(-1), right=True)
            parts.append(found.squeeze(-1).clamp_max(states - 1))
        return torch.cat(parts, 1)

    def _cumulative(self, index: Tensor, plan: Layers) -> Tensor:
        """Cumulative probabilities (problems, columns, states) of measuring the evolved basis states `index`."""
        state = torch.zeros(self.scores.shape[1], *index.shape, dtype=torch.complex128, device=index.device)
        # In the rotated frame of `evolution` a basis state is itself, up to a phase.
        state.scatter_(0, index.unsqueeze(0), torch.ones_like(state[:1]))
        state = evolution.evolve(self.table, angle_rows(plan), state)
        return (state.real**2 + state.imag**2).cumsum(0).permute(1, 2, 0).contiguous()

    def _uniforms(self, num_chains: int, step: int, purpose: int) -> Tensor:
        return uniforms_like(self.scores, derive_key(self.key, purpose), self.streams, num_chains, step)


def _free_start(problem: IsingProblem, num_chains: int, key: int) -> Int[Tensor, "problems chains"]:
    """States drawn from the law of the fields alone, P(s_j = +1) = 1 / (1 + exp(−2βh_j))."""
    up = torch.sigmoid(2 * problem.beta * problem.fields.to(torch.float64)).flatten(0, 1)
    index = torch.zeros(len(up), num_chains, dtype=torch.int64, device=up.device)
    for k in range(problem.num_spins):
        u = uniforms_like(up, derive_key(key, 1), problem.streams.flatten(), num_chains, k)
        index += (u >= up[:, k : k + 1]).to(torch.int64) << k
    return index


@dataclass(frozen=True)
class _Device:
    """Proposals by circuits: an engine with the scaled problems that it runs."""

    engine: Any
    fields: Tensor
    couplings: Tensor | None

    def measure(self, index: Tensor, plan: Layers, seeds: Tensor) -> Tensor:
        """One measurement (problems, chains) of every chain's evolved state."""
        angles = proposal_angles(self.fields, self.couplings, index, plan)
        return self.engine.draw_at(angles, 1, seeds.flatten()).reshape(index.shape).to(index.device)


def angle_rows(layers: Layers) -> list[list[float]]:
    """(field, coupling, mixer) angles, layer by layer, as `evolution.evolve` takes them."""
    return torch.stack([layers.fields, layers.couplings, layers.mixer], 1).tolist()


def _joined(runs: list[QuantumChains], problem: IsingProblem) -> QuantumChains:
    if not runs:
        empty = torch.zeros(0, dtype=torch.float64, device=problem.device)
        return QuantumChains(torch.zeros(0, 1, dtype=torch.int64, device=problem.device), None, empty, empty, 0)
    history = [run.history for run in runs if run.history is not None]
    return QuantumChains(
        torch.cat([run.index for run in runs]),
        torch.cat(history) if history else None,
        torch.cat([run.acceptance for run in runs]),
        torch.cat([run.moved for run in runs]),
        runs[0].layers,
    )
