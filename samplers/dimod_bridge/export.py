"""`AsDimodSampler`: any of our samplers behind dimod's interface, so that Ocean tools and composites can use it."""

import dataclasses
from typing import Any

import dimod
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from samplers.base import Sampler
from samplers.dimod_bridge.convert import problem_of_bqm
from samplers.errors import InvalidOptionError, NotSupportedError, did_you_mean
from samplers.problem import IsingProblem
from samplers.registry import get_sampler


class AsDimodSampler(dimod.Sampler):
    """A `dimod.Sampler` over one of ours: AsDimodSampler("exact").sample(bqm, num_reads=100, beta=2.0).

    Takes models of any labels, SPIN or BINARY, with an offset, with or without variables. The rows are draws from
    p ∝ exp(−βE) with dimod's E (the sign is turned), energies are the model's own, offset included.

    Args:
        sampler: a sampler of ours, or a registered name.
        ground_state: rows are the state of lowest energy the sampler finds, instead of draws.
        options: of the sampler, where a name was given.

    Keywords of `sample`, each listed in `parameters`:
        num_reads: draws; by default the sampler's own number.
        beta: inverse temperature, 1 by default.
        seed: any integer; None takes the sampler's own seed and call number.
        marginals: also put `variable_marginals` {label: P(v = 1)} into `info`, from the sampler's magnetizations
            (exact where the sampler is), and `log_partition_function` (offset included) where it has one.

    Raises:
        NotSupportedError: the sampler has no draws and `ground_state` was not asked for, or the reverse.
    """

    parameters: Any = None
    properties: Any = None

    def __init__(self, sampler: Sampler | str, *, ground_state: bool = False, **options: Any):
        if options and not isinstance(sampler, str):
            raise InvalidOptionError(f"options {', '.join(options)} go with a sampler's name; the sampler here is made")
        self.sampler = get_sampler(sampler, **options) if isinstance(sampler, str) else sampler
        able, self._ground_state = self.sampler.capabilities, ground_state
        if ground_state and not able.can_ground_state:
            raise NotSupportedError(f"{self.sampler.name!r} finds no ground states; use 'exact' or 'annealing'")
        if not ground_state and not able.can_sample:
            raise NotSupportedError(
                f"{self.sampler.name!r} has no draws, and a dimod sampler returns rows; "
                "use 'exact', 'gibbs' or 'annealing', or ground_state=True where it has that"
            )
        self.parameters = {"num_reads": [], "beta": [], "seed": [], "marginals": []}
        self.properties = {
            "sampler": self.sampler.name,
            "options": self.sampler.options(),
            "ground_state": ground_state,
            **dataclasses.asdict(able),
        }

    @property
    def draws_boltzmann(self) -> bool:
        """True where the rows follow exp(−βE) of the model."""
        return self.sampler.capabilities.boltzmann and not self._ground_state

    def sample(self, bqm: "dimod.BinaryQuadraticModel", **parameters: Any) -> "dimod.SampleSet":
        for name in parameters:
            if name not in self.parameters:
                raise InvalidOptionError(
                    f"{self.sampler.name!r} as a dimod sampler has no parameter {name!r}"
                    f"{did_you_mean(name, self.parameters)}; its parameters are {', '.join(self.parameters)}"
                )
        beta, num_reads, seed = (parameters.get(name) for name in ("beta", "num_reads", "seed"))
        # A model without variables is sampled with one free spin, which is then dropped: all checks apply to it too.
        spare = bqm.num_variables == 0
        model = dimod.BinaryQuadraticModel({0: 0.0}, {}, "SPIN") if spare else bqm
        problem, labels, offset = problem_of_bqm(model, 1.0 if beta is None else beta)
        spins, counts, info = self._rows(problem, num_reads, seed)
        if spare:
            return dimod.SampleSet.from_samples_bqm((spins[:, :0], []), bqm, num_occurrences=counts, info=info)
        if parameters.get("marginals"):
            info |= self._marginals(problem, labels, offset, seed)
        values = spins if bqm.vartype is dimod.SPIN else (spins + 1) // 2
        return dimod.SampleSet.from_samples_bqm((values, labels), bqm, num_occurrences=counts, info=info)

    def _rows(
        self, problem: IsingProblem, num_reads: int | None, seed: int | None
    ) -> tuple[NDArray[np.int8], NDArray[np.int64], dict[str, Any]]:
        """Rows of weight > 0, their occurrences, and where they come from."""
        if self._ground_state:
            best = self.sampler.ground_state(problem, seed=seed)
            return _numpy(best[None]), np.array([num_reads or 1]), dict(self.sampler.last_info)
        samples = self.sampler.sample(problem, num_reads, seed=seed)
        weights = _numpy(samples.weights)
        counts = np.rint(weights).astype(np.int64)
        if not np.allclose(weights, counts, atol=1e-6):
            raise NotSupportedError(
                f"{self.sampler.name!r} gives weighted draws, and dimod's rows only have whole occurrences; "
                "use its Samples directly"
            )
        kept = counts > 0
        return _numpy(samples.spins)[kept], counts[kept], dict(samples.info)

    def _marginals(self, problem: IsingProblem, labels: list[Any], offset: float, seed: int | None) -> dict[str, Any]:
        up = (1 + self.sampler.magnetization(problem, seed=seed)) / 2
        found: dict[str, Any] = {"variable_marginals": dict(zip(labels, up.tolist(), strict=True))}
        if self.sampler.capabilities.can_log_partition:
            log_z = float(self.sampler.log_partition(problem, seed=seed))
            found["log_partition_function"] = log_z - problem.beta * offset
        return found


def _numpy(values: Tensor) -> NDArray[Any]:
    return values.detach().cpu().numpy()
