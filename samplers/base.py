"""`Sampler`: what every backend is. Public methods check, time and record; backends write the private ones."""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, dataclass_transform

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError, ProblemTooLargeError
from samplers.estimators import magnetization_from_samples
from samplers.options import check_options, option
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.streams import derive_key
from samplers.supports import graph_of, largest_support

Gradient = Literal["exact", "implicit", "adjoint", "parameter-shift", "covariance", "straight-through", "none"]


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a sampler, with the options it was made with, can do.

    Args:
        exact: magnetizations are those of the Boltzmann law up to rounding.
        boltzmann: draws converge to the Boltzmann law at β (a quantum anneal's do not).
        gradient: how `magnetization` is differentiated; backends declare it, nothing is assumed.
        can_sample, can_ground_state, can_log_partition: which methods work. A ground state is exact only
            where `exact` is true; otherwise it is the best state that was found.
        max_spins: the largest number of spins of one problem, None where only time limits it.
        higher_order: whether three-body terms are taken.
        devices: torch device types on which it computes without a copy to the CPU.
    """

    exact: bool
    boltzmann: bool
    gradient: Gradient
    can_sample: bool = True
    can_ground_state: bool = False
    can_log_partition: bool = False
    max_spins: int | None = None
    higher_order: bool = False
    devices: tuple[str, ...] = ("cpu",)


@dataclass_transform(kw_only_default=True, field_specifiers=(option, dataclasses.field))
@dataclasses.dataclass(kw_only=True, eq=False)
class Sampler(abc.ABC):
    """Base of all samplers: subclass, write `capabilities` and `_sample` (or `_magnetization`), register.

    Subclasses become keyword-only dataclasses by themselves; options are fields made with `option(...)`.

    A call without `seed` uses the sampler's own seed and its call number, so successive training steps see
    fresh randomness and a whole run repeats; `state_dict` holds the call number for exact resumption.
    """

    name: ClassVar[str] = ""
    # Whether spins that are not allowed cost nothing, so that `max_spins` counts those of one query alone.
    splits_masks: ClassVar[bool] = False
    seed: int = option(default=0, help="seed of the calls that are given none; any integer")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(kw_only=True, eq=False)(cls)

    def __post_init__(self) -> None:
        check_options(self)
        self._calls = 0
        self.last_info: dict[str, Any] = {}

    # ---- what a backend must write: `capabilities`, and at least one of `_magnetization` and `_sample` --------

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What this sampler can do."""

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        """⟨s⟩ (*batch, n), differentiable as declared; entries of forbidden spins may be anything finite."""
        with torch.no_grad():
            samples = self._sample(problem.detach(), self._default_reads(), key)
        self.last_info.update(samples.info)
        return magnetization_from_samples(problem, samples, self.capabilities.gradient)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        """`num_reads` draws of each problem. Randomness comes from (key, problem.streams, read) alone."""
        raise NotSupportedError(f"{self._spoken()} has no draws; use a sampler such as 'exact' or 'gibbs'")

    # ---- what a backend might write ---------------------------------------------------------------------------

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        """Spins (*batch, n) of lowest energy; by default the best of the draws."""
        samples = self._sample(problem, self._default_reads(), key)
        best = torch.where(samples.weights > 0, samples.energies, torch.inf).argmin(-1)
        index = best[..., None, None].expand(*best.shape, 1, problem.num_spins)
        return samples.spins.gather(-2, index).squeeze(-2)

    def _log_partition(self, problem: IsingProblem, key: int) -> Tensor:
        raise NotSupportedError(f"{self._spoken()} has no log partition function; use 'exact' or 'band'")

    def _correlations(self, problem: IsingProblem, key: int) -> Tensor:
        return self._sample(problem, self._default_reads(), key).correlations().to(problem.dtype)

    def _default_reads(self) -> int:
        return getattr(self, "num_reads", 1000)

    # ---- the public surface -----------------------------------------------------------------------------------

    def magnetization(self, problem: IsingProblem, *, seed: int | None = None) -> Float[Tensor, "*batch n"]:
        """⟨s_j⟩ of every spin, differentiable in the problem's fields, J and K as `capabilities.gradient` says.

        Returns:
            (*batch, n) in the dtype and on the device of the fields; −1 where a spin is not allowed.
        """
        return self._run("magnetization", problem, seed, self._magnetization, tail=(problem.num_spins,), masked=-1.0)

    def correlations(self, problem: IsingProblem, *, seed: int | None = None) -> Float[Tensor, "*batch n n"]:
        """⟨s_j s_k⟩ of every pair; 1 on the diagonal, −⟨s_j⟩ where only k is not allowed (it reads −1)."""
        n = problem.num_spins
        result = self._run("correlations", problem, seed, self._correlations, tail=(n, n), masked=None)
        if problem.allowed is None or problem.num_problems == 0:
            return result
        allowed = problem.allowed
        mean = torch.where(allowed, self.magnetization(problem, seed=seed), -1.0)
        both = allowed.unsqueeze(-1) & allowed.unsqueeze(-2)
        return torch.where(both, result, mean.unsqueeze(-1) * mean.unsqueeze(-2))

    def sample(self, problem: IsingProblem, num_reads: int | None = None, *, seed: int | None = None) -> Samples:
        """Draws of every problem: spins (*batch, reads, n), weights and energies (*batch, reads)."""
        reads = self._default_reads() if num_reads is None else num_reads
        if not isinstance(reads, int) or isinstance(reads, bool) or reads < 1:
            raise InvalidOptionError(f"num_reads is {reads!r}; it must be an integer of at least 1")
        if not self.capabilities.can_sample:
            raise NotSupportedError(self._no_draws())
        self._check(problem)
        key, started = self._next_key(seed), time.perf_counter()
        self.last_info = self._provenance(problem, seed)
        if problem.num_problems == 0:
            empty = problem.fields.new_zeros(*problem.batch_shape, reads)
            spins = torch.zeros(*problem.batch_shape, reads, problem.num_spins, dtype=torch.int8, device=problem.device)
            samples = Samples(spins, empty, empty)
        else:
            with torch.no_grad():
                samples = self._sample(_working(problem.detach()), reads, key)
        spins = samples.spins
        if problem.allowed is not None:
            spins = spins.masked_fill(~problem.allowed.unsqueeze(-2), -1)
        info = {**self.last_info, **samples.info, "seconds": time.perf_counter() - started}
        self.last_info = info
        energies, weights = samples.energies.to(problem.dtype), samples.weights.to(problem.dtype)
        return Samples(spins, weights, energies, info)

    def ground_state(self, problem: IsingProblem, *, seed: int | None = None) -> Int8[Tensor, "*batch n"]:
        """Spins of lowest energy, exact where `capabilities.exact`, else the best found."""
        if not self.capabilities.can_ground_state:
            raise NotSupportedError(f"{self._spoken()} cannot search ground states; use 'exact' or 'annealing'")
        with torch.no_grad():
            spins = self._run(
                "ground_state",
                problem.detach(),
                seed,
                self._ground_state,
                tail=(problem.num_spins,),
                masked=None,
                keep_dtype=False,
            )
        spins = spins.to(torch.int8)
        return spins if problem.allowed is None else spins.masked_fill(~problem.allowed, -1)

    def log_partition(self, problem: IsingProblem, *, seed: int | None = None) -> Float[Tensor, "*batch"]:
        """log Z = log Σ_s exp(−β E(s)) over the allowed spins; its h-gradient is β⟨s⟩ where it is exact."""
        if not self.capabilities.can_log_partition:
            raise NotSupportedError(f"{self._spoken()} has no log partition function; use 'exact' or 'band'")
        return self._run("log_partition", problem, seed, self._log_partition, tail=(), masked=None)

    @property
    def description(self) -> str:
        """The sampler as a reader should know it: its name, and what else decides its results."""
        return self.name or type(self).__name__

    # ---- randomness and state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, int]:
        """What an exact resumption needs: the number of calls made with the sampler's own seed."""
        return {"calls": self._calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._calls = int(state["calls"])

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Within the block, calls count from 0 under `seed`; afterwards the sampler goes on as before."""
        saved = self.seed, self._calls
        self.seed, self._calls = seed, 0
        try:
            yield
        finally:
            self.seed, self._calls = saved

    def options(self) -> dict[str, Any]:
        """The options this sampler was made with."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if "help" in f.metadata}

    # ---- shared work of the public methods --------------------------------------------------------------------

    def _next_key(self, seed: int | None) -> int:
        if seed is not None:
            return derive_key(seed)
        self._calls += 1
        return derive_key(self.seed, self._calls)

    def _run(
        self,
        what: str,
        problem: IsingProblem,
        seed: int | None,
        method: Any,
        *,
        tail: tuple[int, ...],
        masked: float | None,
        keep_dtype: bool = True,
    ) -> Tensor:
        self._check(problem)
        key, started = self._next_key(seed), time.perf_counter()
        self.last_info = {"call": what, **self._provenance(problem, seed)}
        if problem.num_problems == 0:
            return graph_of(problem) + problem.fields.new_zeros(*problem.batch_shape, *tail)
        result = method(_working(problem), key)
        if tuple(result.shape) != (*problem.batch_shape, *tail):
            raise RuntimeError(f"{type(self).__name__}._{what} returned {tuple(result.shape)} for {problem}")
        if masked is not None and problem.allowed is not None:
            result = torch.where(problem.allowed, result, masked)
        self.last_info["seconds"] = time.perf_counter() - started
        return result.to(problem.dtype) if keep_dtype else result

    def _check(self, problem: IsingProblem) -> None:
        if not isinstance(problem, IsingProblem):
            raise InvalidProblemError(f"expected an IsingProblem, got {type(problem).__name__}")
        able = self.capabilities
        if problem.triples is not None and not able.higher_order:
            raise NotSupportedError(f"{self._spoken()} takes no three-body terms; use 'exact' or 'gibbs'")
        if able.max_spins is not None and (spins := self._spins(problem)) > able.max_spins:
            raise ProblemTooLargeError(
                f"{spins} spins were given; {self._spoken()} takes at most {able.max_spins}; "
                "use get_sampler('gibbs'), or 'band' for couplings of short range"
            )

    def _spins(self, problem: IsingProblem) -> int:
        """What `max_spins` limits."""
        return largest_support(problem) if self.splits_masks else problem.num_spins

    def _provenance(self, problem: IsingProblem, seed: int | None) -> dict[str, Any]:
        return {
            "sampler": self.name or type(self).__name__,
            "options": self.options(),
            "seed": self.seed if seed is None else seed,
            "call_number": self._calls if seed is None else None,
            "beta_target": problem.beta,
            "num_problems": problem.num_problems,
            "num_spins": problem.num_spins,
        }

    def _no_draws(self) -> str:
        """Why there are no draws, where `capabilities.can_sample` is false."""
        return f"{self._spoken()} gives marginals but no draws; use 'exact' or 'gibbs'"

    def _spoken(self) -> str:
        return f"the sampler {self.name or type(self).__name__!r}"


def _working(problem: IsingProblem) -> IsingProblem:
    """Half-precision problems are computed in float32: 8 or 11 bits of mantissa carry no marginals."""
    return problem.to(dtype=torch.float32) if problem.dtype in (torch.float16, torch.bfloat16) else problem
