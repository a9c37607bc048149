"""What a conformance check is, how one is run, and the problems and reference laws that the checks share."""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.base import Capabilities, Sampler
from samplers.enumeration import log_probabilities
from samplers.problem import IsingProblem

MakeSampler = Callable[[], Sampler]
# Draws of the statistical tests: at 16 000 a β that is 10 % off is rejected almost surely.
DRAWS = 16_000
# Draws of each side when two magnetizations are compared.
COMPARED_DRAWS = 8_000
# False-alarm rate of one statistical test; seeds are fixed, so a pass stays a pass.
ALARM = 1e-6
# Of every sampler that was asked: the checks ask before each measurement, and some calls are slow.
_noisy: weakref.WeakKeyDictionary[Sampler, bool] = weakref.WeakKeyDictionary()


class ConformanceError(AssertionError):
    """A sampler broke the contract; the message says how."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One property of the sampler contract. `run` raises ConformanceError where it does not hold."""

    name: str
    run: Callable[[MakeSampler], None]
    applies: Callable[[Sampler], bool]
    subject: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    check: Check
    status: Literal["passed", "failed", "does not apply"]
    detail: str = ""


_CHECKS: list[Check] = []


def check(subject: str, applies: Callable[[Sampler], bool] = lambda sampler: True):
    """Register a function as a check; its docstring's first line is what a report shows."""

    def register(function: Callable[[MakeSampler], None]) -> Callable[[MakeSampler], None]:
        name = function.__name__.removeprefix("check_").replace("_", "-")
        _CHECKS.append(Check(name, function, applies, (function.__doc__ or subject).strip().split("\n")[0]))
        return function

    return register


def all_checks() -> list[Check]:
    return list(_CHECKS)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConformanceError(message)


def able(sampler: Sampler) -> Capabilities:
    return sampler.capabilities


def has_law(sampler: Sampler) -> bool:
    """Whether the sampler claims a law that its draws can be held against."""
    return able(sampler).can_sample and (able(sampler).boltzmann or hasattr(sampler, "probabilities"))


def targets_boltzmann(sampler: Sampler) -> bool:
    """Whether it draws from the Boltzmann law, or approximates it (mean field) exactly where spins are free."""
    return able(sampler).boltzmann or not able(sampler).can_sample


def law(sampler: Sampler, problem: IsingProblem) -> Float[Tensor, "*batch states"]:
    """The law that the sampler claims, over all 2^n states: Boltzmann's, or its own `probabilities`."""
    if able(sampler).boltzmann:
        return log_probabilities(problem)[0].exp()
    return sampler.probabilities(problem).to(problem.dtype)  # type: ignore[attr-defined]


def random_problem(
    *batch: int,
    num_spins: int = 5,
    fields: float = 0.8,
    couplings: float = 0.4,
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    beta: float = 1.0,
    allowed: Tensor | None = None,
    own_couplings: bool = False,
) -> IsingProblem:
    """Gaussian fields and couplings from a fixed seed; J is shared by the batch unless `own_couplings`."""
    generator = torch.Generator().manual_seed(seed)
    h = fields * torch.randn(*batch, num_spins, generator=generator, dtype=torch.float64)
    lead = batch if own_couplings else ()
    a = couplings * torch.randn(*lead, num_spins, num_spins, generator=generator, dtype=torch.float64).tril(-1)
    return IsingProblem(h.to(dtype), (a + a.mT).to(dtype), allowed=allowed, beta=beta)


def is_noisy(sampler: Sampler) -> bool:
    """Whether two calls with different seeds give different magnetizations."""
    if sampler not in _noisy:
        problem = random_problem(3)
        first, second = (sampler.magnetization(problem, seed=seed) for seed in (1, 2))
        _noisy[sampler] = not torch.equal(first, second)
    return _noisy[sampler]


def measured(sampler: Sampler, problem: IsingProblem, seed: int, draws: int = COMPARED_DRAWS) -> Tensor:
    """⟨s⟩ for a comparison: `magnetization` where it is free of noise, else the mean of many draws."""
    if not is_noisy(sampler):
        return sampler.magnetization(problem, seed=seed)
    return sampler.sample(problem, draws, seed=seed).magnetization()


def slack(sampler: Sampler, draws: int = COMPARED_DRAWS) -> float:
    """How far two `measured` magnetizations of one law may be apart: rounding, or 6 σ of the difference."""
    return 6 * (2 / draws) ** 0.5 if is_noisy(sampler) else 1e-6


def averaged_magnetization(sampler: Sampler, problem: IsingProblem) -> tuple[Tensor, float]:
    """`magnetization` averaged over seeds until its noise is small, and the error that is left (6 σ at most)."""
    if not is_noisy(sampler):
        exact = able(sampler).exact or able(sampler).gradient == "adjoint"
        return sampler.magnetization(problem, seed=1), 1e-10 if exact else 1e-6
    repeats = min(32, -(-DRAWS // sampler._default_reads()))
    total = torch.stack([sampler.magnetization(problem, seed=100 + r) for r in range(repeats)])
    return total.mean(0), 6 / (repeats * sampler._default_reads()) ** 0.5
