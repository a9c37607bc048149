"""Text for models of tasks with masks: every character that the task asks for, the same ones for every task."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ising_attn.lab.text_task import CharacterScores, TextBatch, TextTask
from samplers.errors import InvalidOptionError


@dataclass(frozen=True)
class MaskedScores(CharacterScores):
    """How a model did, one entry for each character that was predicted.

    Args:
        correct: whether the likeliest character was right.
        places: number of the character in its window.
    """

    correct: Bool[np.ndarray, "characters"]
    places: Int[np.ndarray, "characters"]

    @property
    def accuracy(self) -> float:
        """Share of characters whose likeliest prediction is right."""
        return float(self.correct.mean())

    def since(self, place: int) -> "MaskedScores":
        """Of the characters from `place` of their windows on."""
        kept = self.places >= place
        return MaskedScores(self.nats[kept], self.correct[kept], self.places[kept])

    def by_place(self) -> dict[int, "MaskedScores"]:
        """Of each place of the windows."""
        groups = {int(place): self.places == place for place in np.unique(self.places)}
        return {
            place: MaskedScores(self.nats[kept], self.correct[kept], self.places[kept])
            for place, kept in groups.items()
        }


class MaskedTextTask(TextTask):
    """Characters of whole windows, for a model that predicts `label_tokens` of them (see `models.TaskLM`).

    In evaluation windows follow each other without overlap and what is left at the end is not used. Training is on all
    that the task asks for; what is reported is from place `score_from` of the windows on, so that the numbers of
    several tasks are of the same characters.

    Args:
        label_tokens: numbers in a window of the characters that the model predicts, in the order of its logits.
        score_from: the first place that counts.
        Others: see `TextTask`.

    Raises:
        InvalidOptionError: `score_from` leaves nothing, or asks for characters that the task does not predict.
    """

    metrics: tuple[str, ...] = ("loss", "perplexity", "bits_per_char", "accuracy")

    def __init__(self, *args: Any, label_tokens: Int[Tensor, " targets"], score_from: int, **options: Any):
        super().__init__(*args, **options)
        self.label_tokens, self.score_from = label_tokens.to(self.device), score_from
        first = int(label_tokens.min())
        if not first <= score_from < self.context:
            raise InvalidOptionError(
                f"--score-from is {score_from}; this task predicts the characters {first} to {self.context - 1} of a "
                "window, counted from 0"
            )

    def batch(self, step: int) -> TextBatch:
        """Windows at random places, and of each the characters that are asked for."""
        return self._with_targets(super().batch(step).tokens)

    def loss(self, model: nn.Module, batch: TextBatch) -> tuple[Tensor, dict[str, float]]:
        """Mean cross-entropy over all that the task asks for."""
        return cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten()), {}

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        scores = self.masked_scores(model, self.split(split))
        return {name: getattr(scores, name) for name in self.metrics}

    def windows(self, characters: Int[Tensor, "characters"], context: int | None = None) -> list[TextBatch]:
        """Whole windows in batches."""
        length = self.context if context is None else context
        whole = len(characters) // length * length
        parts = characters[:whole].view(-1, length).split(self.eval_batch_size)
        return [self._with_targets(part.to(self.device)) for part in parts if len(part)]

    def _with_targets(self, tokens: Int[Tensor, "batch context"]) -> TextBatch:
        return TextBatch(tokens, tokens[:, self.label_tokens])

    @torch.no_grad()
    def masked_scores(self, model: nn.Module, characters: Int[Tensor, "characters"]) -> MaskedScores:
        """The model's results from place `score_from` of every whole window on."""
        parts = []
        for batch in self.windows(characters):
            logits = model(batch.tokens).double().flatten(0, 1)
            targets = batch.targets.flatten()
            nats = cross_entropy(logits, targets, reduction="none")
            places = self.label_tokens.expand_as(batch.targets).flatten()
            correct = logits.argmax(-1) == targets
            parts.append([part.cpu().numpy() for part in (nats, correct, places)])
        return MaskedScores(*(np.concatenate(column) for column in zip(*parts, strict=True))).since(self.score_from)
