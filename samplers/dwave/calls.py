"""Calls of a D-Wave machine: problems put side by side, submitted in gauges, read out, and their books."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import dimod
import numpy as np
import torch
from numpy.typing import NDArray

from samplers.dimod_bridge.convert import SampleSetError
from samplers.dwave.machine import machine_name
from samplers.dwave.tiles import Placed, Programme, Tile, place, read_out
from samplers.problem import IsingProblem
from samplers.pseudolikelihood import BetaEstimate, estimate_beta
from samplers.samples import Samples


class Query(NamedTuple):
    """One problem in dimod's sign, (k) and (k, k) above the diagonal, and its gauges (G, k).

    With an ancilla the last spin carries the fields as couplings, and is read as +1.
    """

    linear: NDArray[np.float64]
    quadratic: NDArray[np.float64]
    gauges: NDArray[np.int8]
    ancilla: bool


class PlannedCall(NamedTuple):
    """One submission to come: which queries, in which gauge, with how many reads."""

    queries: range
    gauge: int
    reads: int


class Run(NamedTuple):
    """Reads (reads, k) of every query, without ancilla, and the books of all calls."""

    spins: list[NDArray[np.int8]]
    info: dict[str, Any]


class _Call(NamedTuple):
    plan: PlannedCall
    placed: list[Placed]
    answer: Any


def make_query(
    linear: NDArray[np.float64], quadratic: NDArray[np.float64], gauges: NDArray[np.int8], ancilla: bool
) -> Query:
    """A problem ready to place."""
    if not ancilla:
        return Query(linear, quadratic, gauges, False)
    k = len(linear)
    wider = np.zeros((k + 1, k + 1))
    wider[:k, :k], wider[:k, k] = quadratic, linear
    ones = np.ones((len(gauges), 1), dtype=np.int8)
    return Query(np.zeros(k + 1), wider, np.concatenate([gauges, ones], axis=1), True)


def plan_calls(queries: int, tiles: int, num_reads: int, gauges: int, most: int) -> Iterator[PlannedCall]:
    """Calls of up to `tiles` queries; reads are split over the gauges and by the `most` one call may have."""
    gauges = min(num_reads, gauges)
    for first in range(0, queries, max(1, tiles)):
        for gauge in range(gauges):
            left = num_reads // gauges + (gauge < num_reads % gauges)
            while left > 0:
                yield PlannedCall(range(first, min(first + tiles, queries)), gauge, min(left, most))
                left -= most


def run_calls(
    machine: Any,
    queries: list[Query],
    tiles: list[Tile],
    scales: NDArray[np.float64],
    plan: list[PlannedCall],
    keywords: dict[str, Any],
    chain_strength: float,
) -> Run:
    """Submit every planned call with each query multiplied by its scale, and read the answers.

    Raises:
        SampleSetError: the machine returned fewer reads than it was asked for.
    """
    calls = []
    for step in plan:
        programme, placed = Programme(), []
        for tile, index in zip(tiles, step.queries, strict=False):
            query, g = queries[index], queries[index].gauges[step.gauge].astype(np.float64)
            linear, quadratic = scales[index] * query.linear * g, scales[index] * query.quadratic * np.outer(g, g)
            bond = _bond(linear, quadratic, machine, chain_strength)
            placed.append(place(programme, tile, linear, quadratic, bond))
        bqm = dimod.BinaryQuadraticModel(programme.linear, programme.quadratic, "SPIN")
        # Answers of a real machine are futures: all calls are sent before the first is waited for.
        calls.append(_Call(step, placed, machine.sample(bqm, num_reads=step.reads, **keywords)))
    return _collected(queries, calls, machine)


def programmed_beta(queries: list[Query], scales: NDArray[np.float64], run: Run) -> BetaEstimate:
    """β of the machine in units of its own biases: one pseudo-likelihood over every query as it was programmed."""
    sizes = [rows.shape[1] for rows in run.spins]
    most = max(sizes)
    fields = np.zeros((len(queries), most))
    couplings = np.zeros((len(queries), most, most))
    spins = np.full((len(queries), len(run.spins[0]), most), -1, dtype=np.int8)
    for i, (query, k) in enumerate(zip(queries, sizes, strict=True)):
        upper = -scales[i] * query.quadratic[:k, :k]
        fields[i, :k] = -scales[i] * (query.quadratic[:k, k] if query.ancilla else query.linear)
        couplings[i, :k, :k] = upper + upper.T
        spins[i, :, :k] = run.spins[i]
    allowed = torch.arange(most) < torch.tensor(sizes)[:, None]
    problem = IsingProblem(torch.from_numpy(fields), torch.from_numpy(couplings), allowed=allowed)
    ones = torch.ones(spins.shape[:2], dtype=torch.float64)
    return estimate_beta(problem, Samples(torch.from_numpy(spins), ones, ones, {"weights": "counts"}))


def _bond(linear: NDArray[np.float64], quadratic: NDArray[np.float64], machine: Any, strength: float) -> float:
    """Coupling inside chains: `strength` times the typical torque on a spin, within the machine's range.

    The torque is √(mean J² · degree) over the couplings that are there, or the largest field where that is more.
    """
    pairs = quadratic[quadratic != 0]
    degree = 2 * len(pairs) / max(1, len(linear))
    torque = math.sqrt(float((pairs**2).mean()) * degree) if len(pairs) else 0.0
    torque = max(torque, float(np.abs(linear).max(initial=0.0)))
    limits = machine.properties.get("extended_j_range", machine.properties["j_range"])
    return min(strength * torque, abs(limits[0]))


def _collected(queries: list[Query], calls: list[_Call], machine: Any) -> Run:
    """Wait for every call, undo embeddings, gauges and ancillas, and sum the books."""
    parts: list[list[NDArray[np.int8]]] = [[] for _ in queries]
    torn, chains = np.zeros(len(queries)), np.zeros(len(queries))
    seconds = 0.0
    for call in calls:
        rows, column = _raw_rows(call, machine)
        for index, placed in zip(call.plan.queries, call.placed, strict=True):
            spins, broken = read_out(rows, column, placed)
            spins = spins * queries[index].gauges[call.plan.gauge]
            parts[index].append(spins[:, :-1] * spins[:, -1:] if queries[index].ancilla else spins)
            torn[index] += broken.sum()
            chains[index] += broken.size
        seconds += float(call.answer.info.get("timing", {}).get("qpu_access_time", 0.0)) * 1e-6
    fractions = torn / np.maximum(chains, 1)
    info = {
        "machine": machine_name(machine),
        "calls": len(calls),
        "problems_per_call": max((len(call.plan.queries) for call in calls), default=0),
        "reads_sent": sum(call.plan.reads for call in calls),
        "qpu_seconds": seconds,
        "chain_break_fraction": float(fractions.mean()) if len(fractions) else 0.0,
        "worst_chain_break_fraction": float(fractions.max(initial=0.0)),
    }
    return Run([np.concatenate(rows) for rows in parts], info)


def _raw_rows(call: _Call, machine: Any) -> tuple[NDArray[np.int8], dict[int, int]]:
    """One row per read, and the column of each qubit."""
    counts = call.answer.record.num_occurrences
    if int(counts.sum()) != call.plan.reads:
        raise SampleSetError(f"{machine_name(machine)} returned {int(counts.sum())} of {call.plan.reads} reads")
    column = {qubit: position for position, qubit in enumerate(call.answer.variables)}
    return np.repeat(call.answer.record.sample, counts, axis=0), column
