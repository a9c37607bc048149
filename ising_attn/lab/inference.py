"""A trained model's test set through its own sampler and through exact: scores, time and marginals of each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of, use_sampler
from ising_attn.lab.comparison import MarginalError, marginals
from samplers import ProblemTooLargeError, Sampler, get_sampler
from samplers.streams import derive_key

S = TypeVar("S")
_FAR = 0.05


@dataclass(frozen=True)
class Inference(Generic[S]):
    """One set of test sequences through one sampler, with the trained weights.

    Args:
        label: the sampler as a reader knows it.
        sequences: how many test sequences, from the first one on.
        scores: results on them.
        seconds: what that took.
        magnetizations: ⟨s⟩ of the spins that are compared; None where there are no spins (softmax).
    """

    label: str
    sequences: int
    scores: S
    seconds: float
    magnetizations: NDArray[np.float64] | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison(Generic[S]):
    """Inferences of one trained model; `chosen` is by the sampler it was trained with, `exact` may be the same one."""

    chosen: Inference[S]
    exact: Inference[S] | None = None
    notes: tuple[str, ...] = ()

    def error(self, inference: Inference[S]) -> MarginalError | None:
        """Its magnetizations against the exact ones of the same problems; None where either is missing."""
        exact, own = (None if i is None else i.magnetizations for i in (self.exact, inference))
        if exact is None or own is None:
            return None
        return MarginalError.between(own, exact[: len(own)])

    def inferences(self) -> list[Inference[S]]:
        """Each once, in the order of the table."""
        return [self.chosen] if self.exact in (None, self.chosen) else [self.chosen, self.exact]


def compare_with_exact(
    model: nn.Module, score: Callable[[], S], compared: Sequence[Tensor], *, label: str, sequences: int, seed: int
) -> Comparison[S]:
    """Score a model through its own sampler, and once more through exact where that can.

    Args:
        model: trained; with one sampler, or none (softmax and sigmoid attention).
        score: scores the model as it is at the time of the call.
        compared: batches of tokens whose magnetizations are compared.
        label: how to call the model's own way of computing weights.
        sequences: how many sequences `score` goes through.
        seed: of every sampler here; the samplers' own state is left alone.
    """
    model.eval()
    own = samplers_of(model)
    if not own:
        return Comparison(chosen=infer(model, score, (), None, label=label, sequences=sequences, seed=seed))
    (sampler,) = own
    chosen = infer(model, score, compared, sampler, label=label, sequences=sequences, seed=seed)
    if sampler.name == "exact":
        return Comparison(chosen=chosen, exact=chosen)
    try:
        exact = infer(model, score, compared, get_sampler("exact"), label="exact", sequences=sequences, seed=seed)
    except ProblemTooLargeError as refusal:
        return Comparison(chosen=chosen, notes=(f"no exact reference: {refusal}",))
    report = Comparison(chosen=chosen, exact=exact)
    error = report.error(chosen)
    if error is None or sampler.capabilities.boltzmann or error.mean < _FAR:
        return report
    far = (
        f"the law of {sampler.name!r} is not the Boltzmann law, here by {error.mean:.2f} in ⟨s⟩ on average; weights "
        "that were trained through one fit that one, and need not do as well through the other"
    )
    return Comparison(chosen=chosen, exact=exact, notes=(far,))


def infer(
    model: nn.Module,
    score: Callable[[], S],
    compared: Sequence[Tensor],
    sampler: Sampler | None,
    *,
    label: str,
    sequences: int,
    seed: int,
) -> Inference[S]:
    """Score the model with `sampler` in the place of its own; None where it has none."""
    if sampler is None:
        started = time.perf_counter()
        return Inference(label, sequences, score(), time.perf_counter() - started)
    with torch.no_grad():
        problems = [problem for tokens in compared for problem in model.problems(tokens)]  # type: ignore[operator]
    # Before the clock starts: a sampler's first call may compile kernels or circuits.
    magnetizations = marginals(sampler, problems, seed=derive_key(seed, -3))
    started = time.perf_counter()
    with use_sampler(model, sampler), sampler.seeded(derive_key(seed, -2)):
        scores = score()
    return Inference(label, sequences, scores, time.perf_counter() - started, magnetizations)
