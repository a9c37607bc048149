"""Sampler calls spread over workers: a batch is split, its parts are computed elsewhere, and the results put together.

A problem's random numbers depend on (key, its stream, read) alone, so that its draws are the same in any part. Draws
come back, and the gradient rule is applied to all of them here. Where a sampler has a magnetization of its own, the
backward pass runs on the workers as well: each computes its part again and sends back the derivatives.
"""

import abc
import concurrent.futures
import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from samplers.base import Sampler
from samplers.errors import InvalidOptionError
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.second_derivatives import refuse_second_derivative
from samplers.spread_tasks import Task, Workers, sent


def spread_sampler(
    sampler: Sampler, executor: concurrent.futures.Executor | None = None, *, workers: int | None = None
) -> "SpreadSampler":
    """The same sampler whose calls are spread over workers; of a subclass of its class, with `close()`.

    A batch is split along its first axis of more than one problem, into at most `workers` parts. Draws, energies and
    ground states equal those of the unsplit call bit for bit. Marginals that a sampler sums itself do so as far as its
    sums do not depend on the size of the batch, else up to rounding; so do derivatives with respect to couplings that
    several parts share, which are sums over the parts.

    Cost: a part and its results travel as bytes, about a millisecond for small ones; a magnetization that is
    differentiated by a rule of the sampler's own is computed twice, once in each direction. It pays where a call takes
    much longer than that. Angles that are trained with a model stay in this process, with the calls that differentiate
    them. There is no second derivative.

    Args:
        sampler: what to spread. Its state and call number are copied.
        executor: where the parts run, for instance `samplers.cluster.RayExecutor`. None: processes of this machine with
            one thread each, made on first use; `close()` ends them.
        workers: parts of a call, and processes where there is no executor; 2 by default.

    Raises:
        InvalidOptionError: no workers, or a sampler that keeps its states for its next call (persistent=True,
            warm_start=True).
    """
    count = 2 if workers is None else workers
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidOptionError(f"workers is {workers!r}; it must be an integer of at least 1")
    for name in ("persistent", "warm_start"):
        if getattr(sampler, name, False):
            raise InvalidOptionError(
                f"with {name}=True a call of the sampler {sampler.name!r} starts where the one before ended, in the "
                f"same process; use {name}=False to spread its calls over workers"
            )
    plain: Any = sampler.plain() if isinstance(sampler, SpreadSampler) else sampler
    spread: Any = copy.copy(plain)
    spread.__class__ = _spread_class(type(plain))
    spread._workers = Workers(executor, count)
    return spread


class SpreadSampler(Sampler, abc.ABC):
    """What `spread_sampler` adds to the class of a sampler."""

    if TYPE_CHECKING:  # an annotation would make it an option
        _workers: Workers

    def plain(self) -> Sampler:
        """The sampler without workers, as it is now."""
        plain: Any = copy.copy(self)
        del plain._workers
        plain.__class__ = plain_class(self)
        return plain

    def close(self) -> None:
        """End the processes that were made for this sampler; a later call makes new ones."""
        self._workers.close()

    def __enter__(self) -> "SpreadSampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        # An executor stays where it is: elsewhere there are processes of that machine.
        return _restored, (self.plain(), self._workers.count)

    def __copy__(self) -> "SpreadSampler":
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> "SpreadSampler":
        new = object.__new__(type(self))
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    # ---- the private methods of the sampler, by parts ---------------------------------------------------------------

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        whole, parts = super()._magnetization, self._parts(problem)
        from_draws = plain_class(self)._magnetization is Sampler._magnetization
        if from_draws or parts is None or (torch.is_grad_enabled() and self._is_trained()):
            return whole(problem, key)
        if not _is_differentiated(problem) or self.capabilities.gradient == "none":
            return self._joined("_magnetization", parts, key)
        # autograd puts the gradients of the parts together, as it took the problem apart.
        tensors = [t for one in parts.problems for t in (one.fields, one._couplings, one.triples)]
        return _SpreadMagnetization.apply(self, parts, key, *tensors)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        parts = self._parts(problem)
        if parts is None:
            return super()._sample(problem, num_reads, key)
        found: list[Samples] = self._answers("_sample", parts, (num_reads, key))
        rows = max(one.num_reads for one in found)
        found = [_padded(one, rows) for one in found]
        spins, weights, energies = (
            parts.joined([getattr(one, name) for one in found]) for name in ("spins", "weights", "energies")
        )
        return Samples(spins, weights, energies, parts.agreed([one.info for one in found]))

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        parts = self._parts(problem)
        return super()._ground_state(problem, key) if parts is None else self._joined("_ground_state", parts, key)

    def _log_partition(self, problem: IsingProblem, key: int) -> Tensor:
        parts = self._parts(problem)
        if parts is None or _is_differentiated(problem):
            return super()._log_partition(problem, key)
        return self._joined("_log_partition", parts, key)

    def _correlations(self, problem: IsingProblem, key: int) -> Tensor:
        parts = self._parts(problem)
        if parts is None or _is_differentiated(problem):
            return super()._correlations(problem, key)
        return self._joined("_correlations", parts, key)

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _parts(self, problem: IsingProblem) -> "_Parts | None":
        """The parts of a batch; None where there is nothing to split."""
        axis = next((a for a, size in enumerate(problem.batch_shape) if size > 1), None)
        if axis is None or self._workers.count == 1:
            return None
        size = problem.batch_shape[axis]
        count = min(self._workers.count, size)
        ends = [size * k // count for k in range(count + 1)]
        before = (slice(None),) * axis
        return _Parts(axis, problem.device, [problem[(*before, slice(a, b))] for a, b in itertools.pairwise(ends)])

    def _joined(self, method: str, parts: "_Parts", key: int, *, graph: bool = False) -> Tensor:
        return parts.joined(self._answers(method, parts, (key,), graph=graph))

    def _answers(self, method: str, parts: "_Parts", arguments: tuple, *, graph: bool = False) -> list[Any]:
        """What the method returns for each part; what it notes is noted here."""
        plain = self.plain()
        tasks = [Task(plain, method, sent(one), arguments, graph) for one in parts.problems]
        answers = self._workers.map(tasks)
        self.last_info |= {**parts.agreed([one.info for one in answers]), "parts": len(answers)}
        return [one.value for one in answers]

    def _derivatives(self, parts: "_Parts", key: int, grad: Tensor) -> list[Tensor | None]:
        """Of Σ grad·⟨s⟩ with respect to the fields, J and K of the first part, then of the second, and so on."""
        plain, pieces = self.plain(), grad.detach().cpu().split(parts.sizes, parts.axis)
        tasks = [
            Task(plain, "_magnetization", sent(one), (key,), graph=True, grad=piece.clone())
            for one, piece in zip(parts.problems, pieces, strict=True)
        ]
        found = [t for answer in self._workers.map(tasks) for t in answer.value]
        return [None if t is None else t.to(grad.device) for t in found]

    def _is_trained(self) -> bool:
        """Whether the angles of an anneal are trained."""
        layers = getattr(self, "layers", None)
        if layers is None:
            return False
        return any(t.requires_grad for t in vars(layers()).values() if isinstance(t, Tensor))


def plain_class(sampler: Sampler) -> type[Sampler]:
    """The class of a sampler, whether its calls are spread or not."""
    kind = type(sampler)
    return kind.__bases__[1] if isinstance(sampler, SpreadSampler) else kind


_classes: dict[type[Sampler], type[Sampler]] = {}


def _spread_class(base: type[Sampler]) -> type[Sampler]:
    """The one class of a sampler's class with workers, so that types can be compared."""
    if base not in _classes:
        own = {"__module__": __name__, "__doc__": base.__doc__}
        _classes[base] = type(f"Spread{base.__name__}", (SpreadSampler, base), own)
    return _classes[base]


def _restored(plain: Sampler, count: int) -> Sampler:
    return spread_sampler(plain, workers=count)


class _SpreadMagnetization(torch.autograd.Function):
    """⟨s⟩ by parts. Backward computes every part again, with the same random numbers, and differentiates it there."""

    @staticmethod
    def forward(ctx, sampler: SpreadSampler, parts: "_Parts", key: int, *tensors: Tensor | None) -> Tensor:
        ctx.sampler, ctx.parts, ctx.key = sampler, parts, key
        return sampler._joined("_magnetization", parts, key, graph=True)

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        refuse_second_derivative("a magnetization that is spread over workers")
        (grad,) = grad_outputs
        return None, None, None, *ctx.sampler._derivatives(ctx.parts, ctx.key, grad)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """A batch cut along one axis."""

    axis: int
    device: torch.device
    problems: list[IsingProblem]

    @property
    def sizes(self) -> list[int]:
        return [one.batch_shape[self.axis] for one in self.problems]

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(values), self.axis).to(self.device)

    def agreed(self, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What is noted of all parts alike; a tensor over problems joined; else the notes of each part in a list."""
        return {key: self._agreed([info.get(key) for info in infos]) for key in infos[0]}

    def _agreed(self, values: list[Any]) -> Any:
        shapes = [tuple(v.shape[: self.axis + 1]) if isinstance(v, Tensor) else None for v in values]
        if shapes == [one.batch_shape[: self.axis + 1] for one in self.problems]:
            return self.joined(values)
        first = values[0]
        if all(_same(first, value) for value in values[1:]):
            return first
        return values


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):  # arrays within
        return False


def _padded(samples: Samples, rows: int) -> Samples:
    """Rows of weight 0 to make `rows` of them, where other problems have more."""
    more = rows - samples.num_reads
    if more == 0:
        return samples
    pad = torch.nn.functional.pad
    spins = pad(samples.spins, (0, 0, 0, more), value=-1)
    return dataclasses.replace(
        samples, spins=spins, weights=pad(samples.weights, (0, more)), energies=pad(samples.energies, (0, more))
    )


def _is_differentiated(problem: IsingProblem) -> bool:
    parts = (problem.fields, problem._couplings, problem.triples)
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in parts)
