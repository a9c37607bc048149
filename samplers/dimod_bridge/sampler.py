"""`DimodSampler`: any dimod sampler object, or composite of them, as one of ours."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplers.base import Capabilities, Sampler
from samplers.dimod_bridge.convert import bqms, dimod_biases, problem_seeds, rows_of_sampleset
from samplers.dimod_bridge.laws import (
    Law,
    annealing_kwargs,
    check_schedule,
    cooling_schedule,
    describe,
    law_of,
)
from samplers.errors import InvalidOptionError, NotSupportedError, did_you_mean
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.supports import SupportPart, SupportSplit

_OURS = {
    "num_reads": "use the option or argument num_reads",
    "seed": "use the option or argument seed; every problem gets its own seed from it",
    "beta": "set it with IsingProblem(beta=…); β is folded into the problem",
}
# A field that changes no probability, for backends that treat 0 as "absent".
_NUDGE = 1e-30


class _Rows(NamedTuple):
    """What came back for one problem: spins (rows, k) and occurrences (rows,)."""

    spins: NDArray[np.int8]
    counts: NDArray[np.int64]


class DimodSampler(Sampler):
    """Draws from a dimod sampler: get_sampler("dimod", sampler=object, sample_kwargs={…}).

    Every problem is one call with the model βh, βJ in dimod's sign (`energy_scale` in `info` records β), so an
    object that samples at temperature 1 samples our law. Rows are weighted with their occurrences, so raw and
    aggregated sample sets give equal moments; problems with fewer rows are padded with rows of weight 0.

    dwave-samplers' `SimulatedAnnealingSampler` (also as `neal.SimulatedAnnealingSampler`, also inside composites) is
    by default an optimiser. Unless `sample_kwargs` gives a schedule, it gets heat-bath acceptance and a ramp to
    β = 1 that is held there. A schedule of your own must end at 1. For speed use `get_sampler("annealing")`.

    Optimisers and tables of states (`dimod.ExactSolver`, LeapHybrid, tabu, steepest descent, …) and composites of
    them are refused as sources of draws and magnetizations, and accepted for `ground_state`.

    Args:
        boltzmann: None looks the object up: dwave-samplers' annealing and tree decomposition, and our own samplers
            count as Boltzmann. The covariance gradient is unbiased for those and a surrogate for any other law.
        workers: more than one only for objects that may be called from several threads.

    An object without the parameter `seed` (see `seeded` in `info`) draws its randomness elsewhere and does not repeat.
    """

    name = "dimod"
    sampler: Any = option(default=None, help="the dimod sampler object; composites are fine")
    sample_kwargs: dict | None = option(default=None, help="keywords for its sample method")
    num_reads: int | None = option(
        default=None, help="reads per problem; None: 1000 draws, its own default else", minimum=1
    )
    gradient: str = option(
        default="covariance",
        help="how magnetizations are differentiated",
        choices=("covariance", "straight-through", "none"),
    )
    boltzmann: bool | None = option(
        default=None, help="whether its draws follow exp(−E) of the model it gets; None: look up"
    )
    workers: int = option(default=1, help="threads over problems", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.sampler, "sample", None)) or not hasattr(self.sampler, "parameters"):
            raise InvalidOptionError(
                f"sampler is {self.sampler!r}; it must be a dimod sampler object, e.g. "
                "get_sampler('dimod', sampler=dwave.samplers.SimulatedAnnealingSampler())"
            )
        self._spoken_object = describe(self.sampler)
        self._law: Law = law_of(self.sampler)
        self._given: dict[str, Any] = dict(self.sample_kwargs or {})
        self._known: frozenset[str] = frozenset(self.sampler.parameters)
        self._check_kwargs()

    @property
    def capabilities(self) -> Capabilities:
        draws = not self._law.refusal
        follows = self._law.boltzmann if self.boltzmann is None else self.boltzmann
        gradient: Any = self.gradient if draws else "none"
        return Capabilities(False, draws and follows, gradient, can_sample=draws, can_ground_state=True)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "sampler": self._spoken_object}

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        if self._law.refusal:
            raise NotSupportedError(self._no_draws())
        kwargs = self._draw_kwargs(num_reads)
        split = SupportSplit(problem)
        answers = [self._answers(part, key, kwargs, problem.beta) for part in split.parts]
        rows = max([num_reads, *(len(row.counts) for answer in answers for row in answer)])
        padded = [_padded(part, answer, rows) for part, answer in zip(split.parts, answers, strict=True)]
        info = {
            "weights": "counts",
            "backend": self._spoken_object,
            "backend_kwargs": kwargs,
            "energy_scale": problem.beta,
            "seeded": "seed" in self._known,
            "boltzmann": self.capabilities.boltzmann,
        }
        if not padded:
            spins = torch.full((*problem.batch_shape, rows, problem.num_spins), -1, dtype=torch.int8)
            weights = torch.ones(*problem.batch_shape, rows, dtype=problem.dtype)
        else:
            spins = split.merge([s for s, _ in padded], fill=-1)
            weights = split.merge([w for _, w in padded], fill=1.0, spin_axis=False)
        spins, weights = spins.to(problem.device), weights.to(problem.device, problem.dtype)
        return Samples(spins, weights, problem.energy(spins), info)

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        split = SupportSplit(problem)
        optimiser = bool(self._law.refusal) or self._law.anneals
        scale = 1.0 if optimiser else problem.beta
        kwargs = self._optimiser_kwargs() if optimiser else self._draw_kwargs(self._default_reads())
        found = []
        for part in split.parts:
            answers = self._answers(part, key, kwargs, scale, cool=self._law.anneals)
            shape = part.problem.fields.shape
            best = [_best(part.problem, divmod(i, shape[1]), rows) for i, rows in enumerate(answers)]
            found.append(torch.from_numpy(np.stack(best)).reshape(shape).to(problem.device))
        if not found:
            return torch.full(problem.fields.shape, -1, dtype=torch.int8, device=problem.device)
        return split.merge(found, fill=-1)

    def _default_reads(self) -> int:
        return self.num_reads or 1000

    # ---- calls of the object ----------------------------------------------------------------------------------

    def _answers(
        self, part: SupportPart, key: int, kwargs: dict[str, Any], scale: float, *, cool: bool = False
    ) -> list[_Rows]:
        """The rows of every problem of a part, in (g, q) order."""
        k = part.problem.num_spins
        calls = self._calls_of(part, key, kwargs, scale, cool)
        if self.workers > 1:
            with ThreadPoolExecutor(self.workers) as pool:
                return list(pool.map(lambda call: _Rows(*rows_of_sampleset(self._call(*call), k)), calls))
        # Sample sets may be futures: all calls are made before the first is waited for.
        sets = [self._call(*call) for call in calls]
        return [_Rows(*rows_of_sampleset(answer, k)) for answer in sets]

    def _calls_of(
        self, part: SupportPart, key: int, kwargs: dict[str, Any], scale: float, cool: bool
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        biases, seeds = dimod_biases(part.problem, scale), problem_seeds(key, part)
        if self._law.nudges:
            biases = biases._replace(linear=np.where(biases.linear == 0, _NUDGE, biases.linear))
        for g, quadratic in enumerate(biases.quadratic):
            for q, bqm in enumerate(bqms(biases.linear[g], quadratic)):
                own = dict(kwargs)
                if "seed" in self._known:
                    own["seed"] = int(seeds[g, q])
                if cool and "beta_schedule" not in own and "beta_range" not in own:
                    schedule = cooling_schedule(biases.linear[g, q], quadratic, steps=256)
                    own |= {"beta_schedule_type": "custom", "beta_schedule": schedule}
                yield bqm, own

    def _call(self, bqm: Any, kwargs: dict[str, Any]) -> Any:
        try:
            return self.sampler.sample(bqm, **kwargs)
        except Exception as error:
            error.add_note(f"raised by the dimod sampler {self._spoken_object} for a model of {len(bqm)} spins")
            raise

    # ---- keywords ---------------------------------------------------------------------------------------------

    def _check_kwargs(self) -> None:
        for name in self._given:
            if name in _OURS:
                raise InvalidOptionError(f"sample_kwargs has {name!r}; {_OURS[name]}")
            if name not in self._known:
                raise InvalidOptionError(
                    f"{self._spoken_object} has no parameter {name!r}{did_you_mean(name, self._known)}; "
                    f"its parameters are {', '.join(sorted(self._known))}"
                )
        if not self._law.refusal:
            check_schedule(self._given, self._law, self._spoken_object)

    def _draw_kwargs(self, num_reads: int) -> dict[str, Any]:
        kwargs = dict(self._given)
        if self._law.anneals:
            kwargs |= annealing_kwargs(kwargs)
        if "num_reads" in self._known:
            kwargs["num_reads"] = num_reads
        if "auto_scale" in self._known:
            # A machine that scales the model to its range samples at an unknown temperature.
            kwargs.setdefault("auto_scale", False)
        if "marginals" in self._known and not self._law.refusal:
            kwargs.setdefault("marginals", False)
        return kwargs

    def _optimiser_kwargs(self) -> dict[str, Any]:
        kwargs = dict(self._given)
        if "num_reads" in self._known and (self.num_reads or self._law.anneals):
            kwargs["num_reads"] = self.num_reads or 32
        return kwargs

    def _no_draws(self) -> str:
        return (
            f"{self._spoken_object} gives no draws or magnetizations ({self._law.refusal}); it can search a ground "
            "state; use 'exact', 'gibbs' or 'annealing' for magnetizations"
        )


def _padded(part: SupportPart, answers: list[_Rows], rows: int) -> tuple[Tensor, Tensor]:
    """Spins (g, q, rows, k) and weights (g, q, rows); missing rows weigh 0."""
    groups, queries, k = part.problem.fields.shape
    spins = np.full((groups * queries, rows, k), -1, dtype=np.int8)
    counts = np.zeros((groups * queries, rows))
    for i, answer in enumerate(answers):
        spins[i, : len(answer.counts)] = answer.spins
        counts[i, : len(answer.counts)] = answer.counts
    shape = groups, queries, rows
    return torch.from_numpy(spins).reshape(*shape, k), torch.from_numpy(counts).reshape(shape)


def _best(problem: IsingProblem, where: tuple[int, int], rows: _Rows) -> NDArray[np.int8]:
    """The row of lowest energy, by our own energies."""
    energies = problem[where].energy(torch.from_numpy(np.ascontiguousarray(rows.spins)))
    return rows.spins[int(energies.argmin())]
