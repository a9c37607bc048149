"""What a trained bracket matcher comes to: the test set through several samplers, as numbers, tables and plots."""

import functools
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of
from ising_attn.lab.bracket_task import BracketScores, BracketTask
from ising_attn.lab.brackets import BracketBatch
from ising_attn.lab.comparison import MarginalError
from ising_attn.lab.inference import Comparison, Inference, compare_with_exact, infer
from ising_attn.lab.tables import Table
from samplers import MissingDependencyError, ProblemTooLargeError, Sampler

ENGINES = {"statevector": "state vector", "aer": "Aer"}


@dataclass(frozen=True, kw_only=True)
class BracketReport(Comparison[BracketScores]):
    """All inferences of one trained model; `chosen` is by the sampler it was trained with.

    Args:
        engines: the other engine of the anneal, and the chosen one, on the same part of the test set.
    """

    engines: tuple[Inference[BracketScores], Inference[BracketScores]] | None = None

    def engine_difference(self) -> MarginalError | None:
        """Between the two engines of the anneal; None where only one ran."""
        if self.engines is None:
            return None
        one, other = (inference.magnetizations for inference in self.engines)
        return None if one is None or other is None else MarginalError.between(one, other)

    def inferences(self) -> list[Inference[BracketScores]]:
        return [*super().inferences(), *(self.engines or ())]

    def remarks(self) -> list[str]:
        """The accuracy on what no training has seen where that is a part of the test set; how far engines are apart."""
        found, scores, difference = [], self.chosen.scores, self.engine_difference()
        if scores.held_out_accuracy is not None and not scores.held_out.all():
            found.append(f"On the {scores.held_out.mean():.0%} of closings in sequences that no training has seen: "
                         f"{scores.held_out_accuracy:.2%}.")  # fmt: skip
        if difference is not None:
            found.append(f"Circuits on Aer against the state vector: largest difference {difference.largest:.1e} over "
                         f"{difference.count} marginals.")  # fmt: skip
        return found

    def summary(self) -> dict[str, Any]:
        """The numbers of summary.json that come from here."""
        error, difference = self.error(self.chosen), self.engine_difference()
        return {
            "test_accuracy": self.chosen.scores.accuracy,
            "test_accuracy_held_out": self.chosen.scores.held_out_accuracy,
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
            "by_depth": self._by_group(
                "nesting depth", "How many are open, the closed one included.", BracketScores.by_depth
            ),
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
        shown = super().inferences()
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
    test = task.split("test")
    comparison = compare_with_exact(
        model,
        lambda: task.scores(model, test),
        _batches(task, test[:marginal_sequences]),
        label=label,
        sequences=len(test),
        seed=seed,
    )
    notes, engines, own = list(comparison.notes), None, samplers_of(model)
    if own and aer_sequences:
        engines = _engines(model, task, test[:aer_sequences], own[0], seed, notes)
    return BracketReport(chosen=comparison.chosen, exact=comparison.exact, engines=engines, notes=tuple(notes))


def _batches(task: BracketTask, sequences: BracketBatch) -> list[Tensor]:
    return list(sequences.tokens.to(task.device).split(task.eval_batch_size))


def _engines(
    model: nn.Module, task: BracketTask, part: BracketBatch, sampler: Sampler, seed: int, notes: list[str]
) -> tuple[Inference[BracketScores], Inference[BracketScores]] | None:
    """The sampler's other engine and its own on the same sequences; None where it has no engines, or no Aer."""
    options = sampler.options()
    if options.get("engine") not in ENGINES:
        return None
    other = "aer" if options["engine"] == "statevector" else "statevector"
    pair = []
    try:
        for engine in (other, options["engine"]):
            same = type(sampler)(**{**options, "engine": engine})
            score, label = functools.partial(task.scores, model, part), f"{sampler.name}, {ENGINES[engine]}"
            pair.append(infer(model, score, _batches(task, part), same, label=label, sequences=len(part), seed=seed))
    except (MissingDependencyError, ProblemTooLargeError) as error:
        notes.append(f"the circuits did not run on the other engine: {error}")
        return None
    return pair[0], pair[1]
