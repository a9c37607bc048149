"""What a trained Boolean language model comes to: its soft and hard perplexity side by side, never one alone."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ising_attn.boltzmann import samplers_of
from ising_attn.boolean import boolean_parts, run_as, temperature_of
from ising_attn.lab.calibration import Calibration
from ising_attn.lab.tables import Table
from ising_attn.lab.text_task import TextBatch, TextScores, TextTask
from ising_attn.lab.training import evaluating
from ising_attn.routers import Routing, recorded_routing, routers_of


@dataclass(frozen=True, kw_only=True)
class BooleanReport:
    """Test results of one trained model.

    Args:
        soft: relaxed, at the temperature of the checkpoint; of a model without Boolean parts, as it is.
        hard: decided, with threshold 0; None without Boolean parts.
        calibrated: hard, with the threshold that `calibration` found on validation data; None where none was sought.
        temperature: of the Boolean parts.
        entropy, share_up: of the soft routers on test data: nats of a choice, and mean probability of using a key.
        selected_on_test: whether the characters that are reported also chose the weights.
    """

    soft: TextScores
    hard: TextScores | None = None
    calibrated: TextScores | None = None
    calibration: Calibration | None = None
    temperature: float | None = None
    entropy: float | None = None
    share_up: float | None = None
    selected_on_test: bool = False

    @property
    def gap(self) -> float | None:
        """Hard perplexity over soft perplexity, less 1."""
        return None if self.hard is None else self.hard.perplexity / self.soft.perplexity - 1

    @property
    def notes(self) -> tuple[str, ...]:
        found = [] if self.calibration is None else [f"calibration on validation data: {self.calibration}"]
        if self.selected_on_test:
            found.append("the characters that are reported also chose the weights, as in the repository")
        return tuple(found)

    def summary(self) -> dict[str, Any]:
        """The numbers of summary.json that come from here."""
        calibration = self.calibration
        return {
            "test_perplexity_soft": self.soft.perplexity,
            "test_perplexity_hard": _perplexity(self.hard),
            "test_perplexity_calibrated": _perplexity(self.calibrated),
            "gap": self.gap,
            "test_characters": len(self.soft.nats),
            "temperature": self.temperature,
            "threshold": None if calibration is None else calibration.value or 0.0,
            "threshold_on_edge": None if calibration is None else float(calibration.on_edge),
            "routing_entropy": self.entropy,
            "routing_share_up": self.share_up,
            "notes": list(self.notes),
        }

    def tables(self) -> dict[str, Table]:
        table = Table(
            "Test perplexity", ["model", "perplexity", "nats", "against soft"],
            {"perplexity": ".3f", "nats": ".4f", "against soft": "+.1%"},
        )  # fmt: skip
        rows = {"as it is" if self.hard is None else "soft": self.soft, "hard": self.hard}
        for name, scores in {**rows, "hard, calibrated": self.calibrated}.items():
            if scores is not None:
                against = None if scores is self.soft else scores.perplexity / self.soft.perplexity - 1
                table.add(name, scores.perplexity, scores.loss, against)
        if self.temperature is not None:
            table.caption = f"Temperature of the checkpoint: {self.temperature:g}."
        if self.entropy is not None and self.share_up is not None:
            table.caption += f" A soft router's choice has {self.entropy:.3f} nats of 0.693"
            table.caption += f", and uses {self.share_up:.0%} of the keys."
        return {"hardness": table}

    def remarks(self) -> list[str]:
        return []


def report_on(model: nn.Module, task: TextTask, *, seed: int, calibration: Calibration | None) -> BooleanReport:
    """Run the test split softly, hard, and hard with the threshold of the calibration.

    Args:
        model: with the weights of its best checkpoint; it is left as it was.
        seed: of everything random in evaluation.
        calibration: of the threshold; the model's routers have threshold 0 otherwise.
    """
    if not boolean_parts(model):
        return BooleanReport(soft=_test_scores(model, task, seed), selected_on_test=task.data.selects_on_test)
    values: dict[str, Any] = {"temperature": temperature_of(model), "selected_on_test": task.data.selects_on_test}
    thresholds = [router.threshold.clone() for router in routers_of(model)]
    with run_as(model, "soft"):
        values["soft"] = _test_scores(model, task, seed)
        if routers_of(model):
            kept = _routing(model, task, seed)
            values["entropy"] = sum(one.entropy().item() for one in kept) / len(kept)
            values["share_up"] = sum(one.share_up() for one in kept) / len(kept)
    with run_as(model, "hard"):
        if calibration is not None:
            values |= {"calibrated": _test_scores(model, task, seed), "calibration": calibration}
            for router in routers_of(model):
                router.set_threshold(0.0)
        values["hard"] = _test_scores(model, task, seed)
    for router, threshold in zip(routers_of(model), thresholds, strict=True):
        router.threshold.copy_(threshold)
    return BooleanReport(**values)


def _test_scores(model: nn.Module, task: TextTask, seed: int) -> TextScores:
    with evaluating(model, samplers=samplers_of(model), seed=seed):
        return task.scores(model, task.split("test"))


def _routing(model: nn.Module, task: TextTask, seed: int) -> list[Routing]:
    """Of the first batch of test windows."""
    first = task.windows(task.split("test"))[0]
    with evaluating(model, samplers=samplers_of(model), seed=seed), recorded_routing(model) as kept:
        task.logits(model, TextBatch(first.tokens.to(task.device), first.targets.to(task.device)))
    return kept


def _perplexity(scores: TextScores | None) -> float | None:
    return None if scores is None else scores.perplexity
