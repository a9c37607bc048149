"""What a trained language model comes to: perplexity through its own sampler and through exact, published beside it."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ising_attn.boltzmann import samplers_of
from ising_attn.lab.inference import Comparison, compare_with_exact
from ising_attn.lab.published import Published
from ising_attn.lab.tables import Table
from ising_attn.lab.text_task import TextScores, TextTask
from samplers.streams import derive_key


@dataclass(frozen=True, kw_only=True)
class TextReport(Comparison[TextScores]):
    """Inferences of one trained language model.

    Args:
        selected_on_test: whether the characters that are reported also chose the weights.
        published: the paper's number for this variant; None where there is none.
        other_contexts: perplexity on windows of other lengths, through the chosen sampler.
    """

    selected_on_test: bool
    published: Published | None = None
    other_contexts: Mapping[int, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The numbers of summary.json that come from here."""
        error, scores = self.error(self.chosen), self.chosen.scores
        return {
            "test_perplexity": scores.perplexity,
            "test_perplexity_exact": None if self.exact is None else self.exact.scores.perplexity,
            "test_nats": scores.loss,
            "test_bits_per_char": scores.bits_per_char,
            "test_characters": len(scores.nats),
            "published_perplexity": None if self.published is None else self.published.value,
            "marginal_mae": None if error is None else error.mean,
            "marginal_max_error": None if error is None else error.largest,
            "perplexity_by_context": {str(context): value for context, value in self.other_contexts.items()},
            "notes": list(self.notes),
        }

    def tables(self) -> dict[str, Table]:
        """By sampler, by how many characters were seen and, where others were asked for, by the windows' length."""
        tables = {"by_sampler": self._by_sampler(), "by_position": self._by_position()}
        if self.other_contexts:
            tables["by_context"] = self._by_context()
        return tables

    def remarks(self) -> list[str]:
        return []

    def _by_sampler(self) -> Table:
        columns = ["sampler", "perplexity", "bits/char", "mean |Δ|", "max |Δ|", "characters", "seconds"]
        formats = dict.fromkeys(columns[2:5], ".4f") | {"perplexity": ".3f", "seconds": ".2f"}
        what = "The held-out tenth" if self.selected_on_test else "Test text"
        table = Table(f"{what} through each sampler, same weights", columns, formats)
        for one in self.inferences():
            error, scores = self.error(one), one.scores
            errors = (None, None) if error is None else (error.mean, error.largest)
            table.add(one.label, scores.perplexity, scores.bits_per_char, *errors, len(scores.nats), one.seconds)
        if self.published is not None:
            table.add("published", self.published.value, *[None] * 5)
        table.caption = " ".join(self._caption())
        return table

    def _caption(self) -> list[str]:
        lines = []
        if self.selected_on_test:
            lines.append("The same characters chose the weights, as in the paper.")
        own = self.chosen.magnetizations
        if self.exact is not None and own is not None:
            lines.append(f"|Δ|: error of ⟨s⟩ against exact, over {own.size} spins.")
        if self.published is not None:
            lines.append(f"Published: {self.published}.")
        return lines

    def _by_position(self) -> Table:
        shown = self.inferences()
        table = Table("Perplexity by the number of characters seen", ["seen", "characters", *(i.label for i in shown)])
        table.formats = {i.label: ".3f" for i in shown}
        groups = [i.scores.by_position() for i in shown]
        for seen, (count, _) in groups[0].items():
            table.add(seen, count, *(group[seen][1] for group in groups))
        return table

    def _by_context(self) -> Table:
        table = Table("Perplexity by the length of the windows", ["context", "perplexity"], {"perplexity": ".3f"})
        for context, perplexity in self.other_contexts.items():
            table.add(context, perplexity)
        return table


def report_on(
    model: nn.Module,
    task: TextTask,
    *,
    label: str,
    seed: int,
    marginal_windows: int,
    published: Published | None,
    other_contexts: Sequence[int] = (),
) -> TextReport:
    """Run the test split through the model's own sampler and through exact.

    Args:
        model: trained; with one sampler, or none (softmax and sigmoid attention).
        label: how to call the model's own way of computing weights.
        seed: of every sampler here; the samplers' own state is left alone.
        marginal_windows: windows of the test split whose magnetizations are compared.
        other_contexts: lengths of windows on which the model is evaluated as well.
    """
    test = task.split("test")
    batches = task.windows(test)
    compared = [batch.tokens.to(task.device) for batch in task.windows(test[: marginal_windows * task.context + 1])]
    comparison = compare_with_exact(
        model,
        lambda: task.scores(model, test),
        compared,
        label=label,
        sequences=sum(len(batch.tokens) for batch in batches),
        seed=seed,
    )
    parts = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    others = {context: _perplexity(model, task, context, seed) for context in other_contexts}
    return TextReport(**parts, selected_on_test=task.data.selects_on_test, published=published, other_contexts=others)


def _perplexity(model: nn.Module, task: TextTask, context: int, seed: int) -> float:
    with contextlib.ExitStack() as stack:
        for sampler in samplers_of(model):
            stack.enter_context(sampler.seeded(derive_key(seed, -2)))
        return task.scores(model, task.split("test"), context).perplexity
