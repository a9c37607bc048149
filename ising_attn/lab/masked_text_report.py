"""What a model of a task with a mask comes to: perplexity and accuracy, through its own sampler and through exact."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import nn

from ising_attn.lab.inference import Comparison, compare_with_exact
from ising_attn.lab.masked_text_task import MaskedScores, MaskedTextTask
from ising_attn.lab.tables import Table


@dataclass(frozen=True, kw_only=True)
class MaskedTextReport(Comparison[MaskedScores]):
    """Inferences of one trained model.

    Args:
        score_from: the first place of a window that counts.
    """

    score_from: int

    def summary(self) -> dict[str, Any]:
        """The numbers of summary.json that come from here."""
        error, scores = self.error(self.chosen), self.chosen.scores
        return {
            "test_perplexity": scores.perplexity,
            "test_perplexity_exact": None if self.exact is None else self.exact.scores.perplexity,
            "test_accuracy": scores.accuracy,
            "test_nats": scores.loss,
            "test_bits_per_char": scores.bits_per_char,
            "test_characters": len(scores.nats),
            "score_from": self.score_from,
            "marginal_mae": None if error is None else error.mean,
            "marginal_max_error": None if error is None else error.largest,
            "notes": list(self.notes),
        }

    def tables(self) -> dict[str, Table]:
        """By sampler, and by place in the window."""
        return {"by_sampler": self._by_sampler(), "by_place": self._by_place()}

    def remarks(self) -> list[str]:
        return []

    def _by_sampler(self) -> Table:
        columns = ["sampler", "perplexity", "accuracy", "bits/char", "mean |Δ|", "characters", "seconds"]
        formats = {"perplexity": ".3f", "accuracy": ".1%", "bits/char": ".4f", "mean |Δ|": ".4f", "seconds": ".2f"}
        table = Table("Test text through each sampler, same weights", columns, formats)
        for one in self.inferences():
            error, scores = self.error(one), one.scores
            mean = None if error is None else error.mean
            numbers = (scores.perplexity, scores.accuracy, scores.bits_per_char, mean, len(scores.nats), one.seconds)
            table.add(one.label, *numbers)
        table.caption = f"Characters from place {self.score_from} of each window on, counted from 0."
        return table

    def _by_place(self) -> Table:
        columns = ["place", "characters", "perplexity", "accuracy"]
        table = Table("By place in the window", columns, {"perplexity": ".3f", "accuracy": ".1%"})
        for place, scores in self.chosen.scores.by_place().items():
            table.add(place, len(scores.nats), scores.perplexity, scores.accuracy)
        return table


def report_on(
    model: nn.Module, task: MaskedTextTask, *, label: str, seed: int, marginal_windows: int
) -> MaskedTextReport:
    """Run the test split through the model's own sampler and through exact.

    Args:
        model: trained; with one sampler, or none.
        label: how to call the model's own way of computing weights.
        seed: of every sampler here; the samplers' own state is left alone.
        marginal_windows: windows of the test split whose magnetizations are compared.
    """
    test = task.split("test")
    compared = [batch.tokens for batch in task.windows(test[: marginal_windows * task.context])]
    comparison = compare_with_exact(
        model,
        lambda: task.masked_scores(model, test),
        compared,
        label=label,
        sequences=len(test) // task.context,
        seed=seed,
    )
    parts = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    return MaskedTextReport(**parts, score_from=task.score_from)
