"""What a trained bracket matcher comes to: the test set through several samplers, as numbers, tables and plots."""

import dataclasses
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ising_attn.boltzmann import samplers_of, use_sampler
from ising_attn.lab.bracket_task import BracketScores, BracketTask
from ising_attn.lab.brackets import BracketBatch
from ising_attn.lab.comparison import MarginalError, marginals
from ising_attn.lab.tables import Table, mean_and_std, spread
from samplers import MissingDependencyError, ProblemTooLargeError, Sampler, get_sampler
from samplers.streams import derive_key

_FAR = 0.05
_OF_ONE_SEED = ("seed", "parameters", "data_remark")
ENGINES = {"statevector": "state vector", "aer": "Aer"}


@dataclasses.dataclass(frozen=True)
class Inference:
    """One set of test sequences through one sampler, with the trained weights.

    Args:
        label: the sampler as a reader knows it.
        sequences: how many test sequences, from the first one on.
        scores: results on their closing brackets.
        seconds: what that took.
        magnetizations: ⟨s⟩ of the spins that are compared; None where there are no spins (softmax).
    """

    label: str
    sequences: int
    scores: BracketScores
    seconds: float
    magnetizations: NDArray[np.float64] | None = None


@dataclasses.dataclass(frozen=True)
class BracketReport:
    """All inferences of one trained model; `chosen` is by the sampler it was trained with."""

    chosen: Inference
    exact: Inference | None = None
    engines: tuple[Inference, Inference] | None = None
    """The other engine of the anneal, and the chosen one, on the same part of the test set."""
    notes: tuple[str, ...] = ()

    def error(self, inference: Inference) -> MarginalError | None:
        """Its magnetizations against the exact ones of the same problems; None where either is missing."""
        exact, own = (None if i is None else i.magnetizations for i in (self.exact, inference))
        if exact is None or own is None:
            return None
        return MarginalError.between(own, exact[: len(own)])

    def engine_difference(self) -> MarginalError | None:
        """Between the two engines of the anneal; None where only one ran."""
        if self.engines is None:
            return None
        one, other = (inference.magnetizations for inference in self.engines)
        return None if one is None or other is None else MarginalError.between(one, other)

    def inferences(self) -> list[Inference]:
        """Each once, in the order of the table."""
        others = [] if self.exact is None or self.exact is self.chosen else [self.exact]
        return [self.chosen, *others, *(self.engines or ())]

    def summary(self) -> dict[str, Any]:
        """The numbers of summary.json that come from here."""
        error, difference = self.error(self.chosen), self.engine_difference()
        return {
            "test_accuracy": self.chosen.scores.accuracy,
            "test_accuracy_exact": None if self.exact is None else self.exact.scores.accuracy,
            "test_loss": self.chosen.scores.loss,
            "marginal_mae": None if error is None else error.mean,
            "marginal_max_error": None if error is None else error.largest,
            "test_sequences": self.chosen.sequences,
            "aer_test_accuracy": None if self.engines is None else self.engines[0].scores.accuracy,
            "aer_max_difference": None if difference is None else difference.largest,
            "aer_sequences": None if self.engines is None else self.engines[0].sequences,
            "notes": list(self.notes),
        }

    def tables(self) -> dict[str, Table]:
        """By sampler, by nesting depth and by distance."""
        return {
            "by_sampler": self._by_sampler(),
            "by_depth": self._by_group("nesting depth", "Depth 1 is the outermost pair.", BracketScores.by_depth),
            "by_distance": self._by_group("distance", "Positions from `)` back to its `(`.", BracketScores.by_distance),
        }

    def _by_sampler(self) -> Table:
        columns = ["sampler", "accuracy", "loss", "mean |Δ|", "max |Δ|", "inputs", "seconds"]
        formats = {"accuracy": ".2%", "loss": ".4f", columns[3]: ".4f", columns[4]: ".4f", "seconds": ".2f"}
        table = Table("Test set through each sampler, same weights", columns, formats)
        for one in self.inferences():
            error = self.error(one)
            errors = (None, None) if error is None else (error.mean, error.largest)
            table.add(one.label, one.scores.accuracy, one.scores.loss, *errors, one.sequences, one.seconds)
        own = self.chosen.magnetizations
        if self.exact is not None and own is not None:
            fewer = "" if self.engines is None else ", fewer in the last two rows"
            table.caption = f"|Δ|: error of ⟨s⟩ against exact, over {own.size} spins{fewer}."
        return table

    def _by_group(self, name: str, caption: str, group: Any) -> Table:
        shown = [self.chosen] if self.exact in (None, self.chosen) else [self.chosen, self.exact]
        table = Table(f"Test accuracy by {name}", [name, "closings", *(i.label for i in shown)], caption=caption)
        table.formats = {i.label: ".2%" for i in shown}
        groups = [group(i.scores) for i in shown]
        for key, (count, _) in groups[0].items():
            table.add(key, count, *(g[key][1] for g in groups))
        return table


def report_on(
    model: nn.Module, task: BracketTask, *, label: str, seed: int, marginal_sequences: int, aer_sequences: int
) -> BracketReport:
    """Run the test set through the model's own sampler and through exact, and part of it through the other engine.

    Args:
        model: trained; with one sampler, or none (softmax and sigmoid attention).
        label: how to call the model's own way of computing weights.
        seed: of every sampler here; the samplers' own state is left alone.
        marginal_sequences: test sequences whose magnetizations are compared.
        aer_sequences: test sequences that also run on the other engine of a simulated anneal; 0 for none.
    """
    model.eval()
    test = task.split("test")
    own = samplers_of(model)
    if not own:
        return BracketReport(_infer(model, task, test, label, None, seed, 0))
    (sampler,) = own
    chosen = _infer(model, task, test, label, sampler, seed, marginal_sequences)
    notes: list[str] = []
    exact = chosen if sampler.name == "exact" else _exact(model, task, test, seed, marginal_sequences, notes)
    engines = _engines(model, task, test[:aer_sequences], sampler, seed, notes) if aer_sequences else None
    report = BracketReport(chosen, exact, engines, tuple(notes))
    error = report.error(chosen)
    if error is None or sampler.capabilities.boltzmann or error.mean < _FAR:
        return report
    far = (
        f"the law of {sampler.name!r} is not the Boltzmann law, here by {error.mean:.2f} in ⟨s⟩ on average; weights "
        "that were trained through one fit that one, and need not do as well through the other"
    )
    return dataclasses.replace(report, notes=(*notes, far))


def _exact(
    model: nn.Module, task: BracketTask, test: BracketBatch, seed: int, marginal_sequences: int, notes: list[str]
) -> Inference | None:
    try:
        return _infer(model, task, test, "exact", get_sampler("exact"), seed, marginal_sequences)
    except ProblemTooLargeError as error:
        notes.append(f"no exact reference: {error}")
        return None


def _engines(
    model: nn.Module, task: BracketTask, part: BracketBatch, sampler: Sampler, seed: int, notes: list[str]
) -> tuple[Inference, Inference] | None:
    """The sampler's other engine and its own on the same sequences; None where it has no engines, or no Aer."""
    options = sampler.options()
    if options.get("engine") not in ENGINES:
        return None
    other = "aer" if options["engine"] == "statevector" else "statevector"
    pair = []
    try:
        for engine in (other, options["engine"]):
            same = type(sampler)(**{**options, "engine": engine})
            label = f"{sampler.name}, {ENGINES[engine]}"
            pair.append(_infer(model, task, part, label, same, seed, len(part)))
    except (MissingDependencyError, ProblemTooLargeError) as error:
        notes.append(f"the circuits did not run on the other engine: {error}")
        return None
    return pair[0], pair[1]


def _infer(
    model: nn.Module,
    task: BracketTask,
    sequences: BracketBatch,
    label: str,
    sampler: Sampler | None,
    seed: int,
    marginal_sequences: int,
) -> Inference:
    started = time.perf_counter()
    if sampler is None:
        scores = task.scores(model, sequences)
        return Inference(label, len(sequences), scores, time.perf_counter() - started)
    with use_sampler(model, sampler), sampler.seeded(derive_key(seed, -2)):
        scores = task.scores(model, sequences)
    seconds = time.perf_counter() - started
    compared = sequences[:marginal_sequences].tokens.to(task.device).split(task.eval_batch_size)
    with torch.no_grad():
        problems = [problem for tokens in compared for problem in model.problems(tokens)]  # type: ignore[operator]
    return Inference(label, len(sequences), scores, seconds, marginals(sampler, problems, seed=derive_key(seed, -3)))


def seeds_table(summaries: dict[int, dict[str, Any]]) -> Table:
    """Every seed's numbers, and their mean ± sample standard deviation in the last row."""
    shown = [
        ("test accuracy", "test_accuracy", ".2%"),
        ("through exact", "test_accuracy_exact", ".2%"),
        ("on Aer", "aer_test_accuracy", ".2%"),
        ("mean |Δ|", "marginal_mae", ".4f"),
        ("best step", "best_step", ".0f"),
        ("train seconds", "train_seconds", ".1f"),
    ]
    shown = [one for one in shown if any(s.get(one[1]) is not None for s in summaries.values())]
    table = Table("Seeds", ["seed", *(name for name, _, _ in shown)], {name: form for name, _, form in shown})
    for seed, summary in summaries.items():
        table.add(str(seed), *(summary.get(key) for _, key, _ in shown))
    table.add("mean ± std", *(spread([s.get(key) for s in summaries.values()], form) for _, key, form in shown))
    table.caption = f"Sample standard deviation over {len(summaries)} seeds."
    return table


def mean_summary(summaries: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """summary.json of several seeds: the mean of every number, `…_std` beside it, and each seed's own summary."""
    keys = [key for key, value in next(iter(summaries.values())).items() if not isinstance(value, list | str)]
    keys = [key for key in keys if key not in _OF_ONE_SEED]
    combined: dict[str, Any] = {}
    for key in keys:
        mean, std = mean_and_std([summary.get(key) for summary in summaries.values()])
        combined |= {key: mean, f"{key}_std": std}
    return {**combined, "seeds": {str(seed): summary for seed, summary in summaries.items()}}
