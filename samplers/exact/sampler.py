"""`ExactSampler`: Boltzmann marginals by summation over all 2^n states, and everything that follows from them."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.base import Capabilities, Sampler
from samplers.errors import ProblemTooLargeError
from samplers.exact import draws, moments
from samplers.exact.sums import causal_sums, grouped_sums
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.streams import uniforms_like
from samplers.supports import SupportSplit, graph_of, largest_support, split_is_cheaper


class ExactSampler(Sampler):
    """Exact ⟨s⟩, log Z, correlations, entropies, ground states and independent draws, for up to about 24 spins.

    The states are summed by two halves of the spins (see `samplers.exact.halves`): per group of problems that share
    J, a table of 2^n weights once and 2·2^n multiply-adds per problem in matrix products, forward; twice that backward.
    A causal mask costs each query only its own prefix, and another mask that the batch shares only the spins that are
    allowed, where that is cheaper. Without J and K it is tanh(βh), for any number of spins.

    float32 problems are summed in float32; queries whose sum would under- or overflow are redone in float64, and
    in log space where that does not reach, so fields of 1e4 and couplings of 30 give finite, right results.
    Gradients are exact; a second derivative of a magnetization raises (correlations and entropies are plain
    autograd). With triples and a mask, problems are summed per distinct set of allowed spins.

    Raises:
        ProblemTooLargeError: more spins than `max_spins`.
    """

    name = "exact"
    splits_masks = True
    max_spins: int = option(
        default=24, help="most spins of one problem; time and memory double with each", minimum=1, maximum=30
    )
    memory_limit: float = option(
        default=2.0, help="GiB for tables of states; larger ones are made in blocks", minimum=0.01
    )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            exact=True,
            boltzmann=True,
            gradient="exact",
            can_ground_state=True,
            can_log_partition=True,
            max_spins=self.max_spins,
            higher_order=True,
            devices=("cpu", "cuda"),
        )

    def entropy(self, problem: IsingProblem) -> Float[Tensor, "*batch"]:
        """−Σ_s p(s) log p(s) over the allowed spins, in nats; 0 where no spin is allowed. Differentiable."""
        return self._run("entropy", problem, None, self._entropy, tail=(), masked=None)

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        if problem.is_independent:
            return torch.tanh(problem.beta * problem.fields)
        return self._sums(problem, 0)

    def _log_partition(self, problem: IsingProblem, key: int) -> Tensor:
        if problem.is_independent:
            each = torch.nn.functional.softplus(2 * problem.beta * problem.fields.abs())
            each = each - problem.beta * problem.fields.abs()
            return (each if problem.allowed is None else torch.where(problem.allowed, each, 0.0)).sum(-1)
        return self._sums(problem, 1)

    def _sums(self, problem: IsingProblem, which: int) -> Tensor:
        if problem.is_causal:
            # Prefixes need no mask, and grouping would copy it for every query.
            grouped = problem._rebuilt(allowed=None).grouped()
            return grouped.restore(causal_sums(grouped.problem, self._limit_bytes)[which])
        return _unmasked_where_needed(
            problem, lambda inner: grouped_sums(inner, self._limit_bytes)[which], spin_axes=1 - which, fill=which - 1.0
        )

    def _correlations(self, problem: IsingProblem, key: int) -> Tensor:
        if problem.is_independent:
            m = torch.tanh(problem.beta * problem.fields)
            eye = torch.eye(problem.num_spins, dtype=torch.bool, device=problem.device)
            return (m.unsqueeze(-1) * m.unsqueeze(-2)).masked_fill(eye, 1.0)
        return _unmasked_where_needed(problem, moments.correlations, spin_axes=2, fill=1.0).to(problem.dtype)

    def _entropy(self, problem: IsingProblem, key: int) -> Tensor:
        if problem.is_independent:
            two_x = 2 * problem.beta * problem.fields
            each = torch.nn.functional.softplus(two_x) - two_x * torch.sigmoid(two_x)
            return (each if problem.allowed is None else torch.where(problem.allowed, each, 0.0)).sum(-1)
        return _unmasked_where_needed(problem, moments.entropy, spin_axes=0, fill=0.0).to(problem.dtype)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        if problem.is_independent:
            probability = torch.sigmoid(2 * problem.beta * problem.fields.double())
            uniforms = [
                uniforms_like(problem.fields, key, problem.streams, num_reads, k) for k in range(problem.num_spins)
            ]
            spins = (torch.stack(uniforms, -1) < probability.unsqueeze(-2)).to(torch.int8) * 2 - 1
        elif largest_support(problem) == 0:
            spins = torch.full((*problem.batch_shape, num_reads, problem.num_spins), -1, dtype=torch.int8)
            spins = spins.to(problem.device)
        else:
            spins = _unmasked_where_needed(
                problem, lambda inner: draws.draw(inner, num_reads, key, self._limit_bytes), spin_axes=1, fill=-1
            )
        energies = problem.energy(spins)
        return Samples(spins, torch.ones_like(energies), energies, {"independent": True})

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        if problem.is_independent:
            return torch.where(problem.fields >= 0, 1, -1)
        return _unmasked_where_needed(
            problem, lambda inner: draws.ground_states(inner, self._limit_bytes), spin_axes=1, fill=-1
        )

    @property
    def _limit_bytes(self) -> int:
        return int(self.memory_limit * 2**30)

    def _check(self, problem: IsingProblem) -> None:
        if isinstance(problem, IsingProblem) and problem.num_spins > self.max_spins:
            if problem.is_independent:
                return
            if (n := self._spins(problem)) > self.max_spins:
                raise ProblemTooLargeError(
                    f"{n} spins need 2^{n} states; exact allows {self.max_spins} (option max_spins); "
                    "use get_sampler('gibbs'), or 'band' for couplings of short range"
                )
        super()._check(problem)


# More spins are never summed where the mask leaves fewer.
_MOST_WHOLE = 20


def _unmasked_where_needed(
    problem: IsingProblem, method: Callable[[IsingProblem], Tensor], *, spin_axes: int, fill: float
) -> Tensor:
    """`method` on the grouped problem; on each distinct set of allowed spins where that is cheaper or must be.

    With triples it must: a clamped spin's pull through a triple is on pairs, which fields cannot compensate.
    """
    must = problem.allowed is not None and (problem.triples is not None or problem.num_spins > _MOST_WHOLE)
    if not must and not split_is_cheaper(problem):
        grouped = problem.grouped()
        return grouped.restore(method(grouped.problem))
    split, n = SupportSplit(problem, join=problem.triples is None), problem.num_spins
    if not split.parts:
        shape = {0: (), 1: (n,), 2: (n, n)}[spin_axes]
        return graph_of(problem) + problem.fields.new_full((*problem.batch_shape, *shape), fill)
    values = []
    for part in split.parts:
        grouped = part.problem.grouped()
        value = grouped.restore(method(grouped.problem))
        if spin_axes == 2:
            full = value.new_full((*value.shape[:-2], n, value.shape[-1]), fill)
            value = full.index_copy(-2, part.spins, value)
        values.append(value)
    return split.merge(values, fill, spin_axis=spin_axes > 0)
