"""Many small problems through dwave-samplers' annealing kernel: one call per problem, in threads.

The kernel releases Python's lock while it anneals and keeps its random state per thread, and each task carries its
own seed and start, so the results do not depend on the number of threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class AnnealTask(NamedTuple):
    """One problem: `linear` (k), `pairs` (rows, columns, values), both in dimod's sign; `states` is overwritten."""

    linear: list[float]
    pairs: tuple[list[int], list[int], list[float]]
    schedule: Sequence[float]
    seed: int
    states: NDArray[np.int8]
    randomize_order: bool


def run_anneals(tasks: Sequence[AnnealTask], workers: int) -> None:
    """Anneal every task in place, by heat bath."""
    anneal = _kernel() or anneal_through_dimod
    if workers == 1 or len(tasks) < 2 * workers:
        _run(anneal, tasks)
        return
    # A few chunks per worker: small problems finish at different times.
    size = -(-len(tasks) // (4 * workers))
    chunks = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda chunk: _run(anneal, chunk), chunks))


def _run(anneal: Callable[[AnnealTask], None], tasks: Sequence[AnnealTask]) -> None:
    for task in tasks:
        anneal(task)


def _kernel() -> Callable[[AnnealTask], None] | None:
    """The C++ entry point below dimod's interface; None where this version of dwave-samplers has it elsewhere."""
    try:
        from dwave.samplers.sa.simulated_annealing import simulated_annealing
    except ImportError:
        return None

    def anneal(task: AnnealTask) -> None:
        simulated_annealing(
            len(task.states),
            task.linear,
            *task.pairs,
            1,
            task.schedule,
            task.seed,
            task.states,
            task.randomize_order,
            "Gibbs",
            None,
        )

    return anneal


def anneal_through_dimod(task: AnnealTask) -> None:
    """The readable twin of the kernel: the same reads through `SimulatedAnnealingSampler.sample`."""
    import dimod
    from dwave.samplers import SimulatedAnnealingSampler

    bqm: Any = dimod.BinaryQuadraticModel("SPIN")
    bqm.add_linear_from(enumerate(task.linear))
    bqm.add_quadratic_from(zip(*task.pairs, strict=True))
    sampleset = SimulatedAnnealingSampler().sample(
        bqm,
        num_reads=len(task.states),
        initial_states=(task.states.copy(), list(bqm.variables)),
        beta_schedule_type="custom",
        beta_schedule=list(task.schedule),
        proposal_acceptance_criteria="Gibbs",
        randomize_order=task.randomize_order,
        seed=task.seed,
    )
    order = [list(sampleset.variables).index(v) for v in range(task.states.shape[-1])]
    task.states[:] = sampleset.record.sample[:, order]
