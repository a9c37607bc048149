"""What the draws of a dimod sampler follow: which objects are samplers at a temperature, and which optimisers.

An optimiser's rows say where the energy is low, not how probable a state is; a table of states (ExactSolver)
lists each state once. Averages over either are not magnetizations, so both are refused as sources of draws.
Objects are known by class name, through every child of a composite; unknown ones are taken at their word.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplers.errors import InvalidOptionError

_STATE_TABLE = "it lists states once each, whatever their probability"
_OPTIMISER = "it is an optimiser: its rows show where the energy is low, not how probable a state is"
_OTHER_PROBLEM = "it samples a changed problem (scaled, clipped or partly solved), so at another temperature or law"
_IGNORES = "its rows do not depend on the problem"

REFUSALS: Mapping[str, str] = {
    "ExactSolver": _STATE_TABLE,
    "ExactPolySolver": _STATE_TABLE,
    "TreeDecompositionSolver": _STATE_TABLE,
    "TruncateComposite": "it keeps the best rows only",
    "TabuSampler": _OPTIMISER,
    "SteepestDescentSolver": _OPTIMISER,
    "SteepestDescentSampler": _OPTIMISER,
    "SteepestDescentComposite": _OPTIMISER,
    "PlanarGraphSolver": _OPTIMISER,
    "KerberosSampler": _OPTIMISER,
    "HybridSampler": _OPTIMISER,
    "StrideHybridSolver": _OPTIMISER,
    "RoofDualityComposite": _OTHER_PROBLEM,
    "ConnectedComponentsComposite": _OPTIMISER,
    "ScaleComposite": _OTHER_PROBLEM,
    "ClipComposite": _OTHER_PROBLEM,
    "CutOffComposite": _OTHER_PROBLEM,
    "IdentitySampler": _IGNORES,
    "NullSampler": _IGNORES,
    "RandomSampler": _IGNORES,
}
_PREFIX_REFUSALS = {"LeapHybrid": _OPTIMISER}
# Annealers whose own default cools far below β = 1; `beta_range` and the like must say where they end.
_SCHEDULES = ("beta_range", "beta_schedule", "Hp_field")


@dataclass(frozen=True)
class Law:
    """What is known of a sampler object.

    Args:
        refusal: why its rows are no draws; empty where they are.
        boltzmann: its rows converge to the Boltzmann law of the model it is given, at β = 1.
        anneals: it is dwave-samplers' simulated annealing, whose schedule we set.
        needs_schedule: it cools for optimisation unless told where to end.
        nudges: it holds a spin without field and couplings at −1 (seen in dwave-samplers' tree decomposition,
            1.8.0), so such a spin needs a field that is not 0.
    """

    refusal: str
    boltzmann: bool
    anneals: bool
    needs_schedule: bool
    nudges: bool


def law_of(sampler: Any) -> Law:
    """Look a dimod sampler up, and everything it wraps; the strictest finding of the chain counts."""
    chain = list(_chain(sampler))
    refusal = next((f"{type(o).__name__}: {why}" for o in chain if (why := _refusal(o))), "")
    last = chain[-1]
    anneals = _is_a(last, "SimulatedAnnealingSampler") and "proposal_acceptance_criteria" in last.parameters
    tree = _is_a(last, "TreeDecompositionSampler")
    exact = tree or getattr(last, "draws_boltzmann", False) is True
    scheduled = not anneals and any(name in last.parameters for name in _SCHEDULES)
    return Law(refusal, not refusal and (anneals or exact), anneals, scheduled, tree)


def check_schedule(kwargs: Mapping[str, Any], law: Law, spoken: str) -> None:
    """Refuse a schedule that does not end at 1: β is folded into the problem, so 1 is the requested temperature."""
    given = [name for name in _SCHEDULES if kwargs.get(name) is not None]
    if not given and law.needs_schedule:
        raise InvalidOptionError(
            f"{spoken} cools for optimisation by default, far below the requested temperature; give its schedule, "
            "ending at 1 (β is folded into the problem), e.g. sample_kwargs={'beta_range': (0.1, 1.0)}"
        )
    for name in given:
        end = float(np.asarray(kwargs[name], dtype=float).reshape(-1)[-1])
        if not np.isclose(end, 1.0):
            raise InvalidOptionError(
                f"sample_kwargs has {name}, which ends at {end:g}; it must end at 1: β is folded into the problem, "
                "so set the temperature with IsingProblem(beta=…)"
            )


def anneal_schedule(num_sweeps: int, held: float) -> list[float]:
    """Temperatures of an anneal as shares of β: a straight ramp from near 0, then round(held · num_sweeps) sweeps at 1.

    The last sweep is always at 1.
    """
    hold = max(1, round(held * num_sweeps))
    ramp = num_sweeps - hold
    return [(step + 1) / (ramp + 1) for step in range(ramp)] + [1.0] * hold


def cooling_schedule(linear: NDArray[np.float64], quadratic: NDArray[np.float64], steps: int) -> list[float]:
    """Inverse temperatures of a search for the ground state of one problem: geometric, from free to frozen.

    It starts where the strongest local field flips a spin at odds of 2 to 1, and ends where the smallest bias is
    broken once in 100 sweeps of all spins (at most a factor 1e5 colder than the start).
    """
    pairs = np.abs(quadratic) + np.abs(quadratic).T
    biases = np.concatenate([np.abs(linear), pairs.ravel()])
    strongest = float((np.abs(linear) + pairs.sum(-1)).max())
    if strongest == 0:
        return [1.0]
    hot = math.log(2) / (2 * strongest)
    cold = math.log(100 * len(linear)) / (2 * float(biases[biases > 0].min()))
    return np.geomspace(hot, min(max(cold, 10 * hot), 1e5 * hot), steps).tolist()


def annealing_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that make dwave-samplers' annealing sample at β = 1, where `kwargs` gives no schedule of its own.

    Heat-bath acceptance (Metropolis in fixed order is not ergodic at zero field), 64 sweeps, half of them at 1.
    """
    filled: dict[str, Any] = {}
    if "proposal_acceptance_criteria" not in kwargs:
        filled["proposal_acceptance_criteria"] = "Gibbs"
    if not any(name in kwargs for name in (*_SCHEDULES, "beta_schedule_type")):
        per_beta = int(kwargs.get("num_sweeps_per_beta", 1))
        steps = max(1, int(kwargs.get("num_sweeps") or 64 * per_beta) // per_beta)
        filled |= {"beta_schedule_type": "custom", "beta_schedule": anneal_schedule(steps, held=0.5)}
    return filled


def describe(sampler: Any) -> str:
    """The classes of a sampler, outermost first: "TrackingComposite(SimulatedAnnealingSampler)"."""
    names = [type(o).__name__ for o in _chain(sampler)]
    return "(".join(names) + ")" * (len(names) - 1)


def _chain(sampler: Any) -> Iterator[Any]:
    yield sampler
    for child in getattr(sampler, "children", None) or ():
        yield from _chain(child)


def _refusal(sampler: Any) -> str:
    kinds = type(sampler).__mro__
    for kind in kinds:
        if kind.__name__ in REFUSALS:
            return REFUSALS[kind.__name__]
        for prefix, why in _PREFIX_REFUSALS.items():
            if kind.__name__.startswith(prefix):
                return why
    # dimod's own annealer is a test double: an optimiser's schedule, and it moves Python's global generator.
    return _OPTIMISER if any(k.__module__.startswith("dimod.") and _is_annealer(k) for k in kinds) else ""


def _is_annealer(kind: type) -> bool:
    return kind.__name__ == "SimulatedAnnealingSampler"


def _is_a(sampler: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(sampler).__mro__)
