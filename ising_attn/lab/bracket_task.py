"""The bracket-matching task for the training loop: loss at closing brackets, accuracy by depth and by distance."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ising_attn.lab.brackets import IGNORE, BracketBatch, BracketData
from samplers.errors import InvalidOptionError


@dataclass(frozen=True)
class BracketScores:
    """How a model did on closing brackets, one entry for each.

    Args:
        correct: whether the largest logit is at the matching `(`.
        nats: cross-entropy −log p(match).
        depths: nesting depth, 1 is outermost.
        distances: how many positions back the match is.
        held_out: whether the sequence is in no training data; common ones of a short context are.
    """

    correct: Bool[np.ndarray, "closings"]
    nats: Float[np.ndarray, "closings"]
    depths: Int[np.ndarray, "closings"]
    distances: Int[np.ndarray, "closings"]
    held_out: Bool[np.ndarray, "closings"]

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def held_out_accuracy(self) -> float | None:
        """Accuracy on sequences that are in no training data; None where all are."""
        return float(self.correct[self.held_out].mean()) if self.held_out.any() else None

    @property
    def loss(self) -> float:
        return float(self.nats.mean())

    def by_depth(self) -> dict[int, tuple[int, float]]:
        """(closings, accuracy) at each nesting depth that occurs."""
        return _grouped(self.depths, self.correct)

    def by_distance(self) -> dict[int, tuple[int, float]]:
        """(closings, accuracy) at each distance that occurs."""
        return _grouped(self.distances, self.correct)


class BracketTask:
    """Bracket matching for `Trainer`.

    Args:
        data: the splits.
        batch_size: training sequences of a step.
        seed: of the training batches.
        device: where batches are put.
        eval_batch_size: sequences of one forward pass in evaluation.
    """

    metrics = ("loss", "accuracy")
    """What `evaluate` reports."""

    def __init__(
        self,
        data: BracketData,
        *,
        batch_size: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        eval_batch_size: int = 500,
    ):
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.device, self.eval_batch_size = torch.device(device), eval_batch_size

    def batch(self, step: int) -> BracketBatch:
        return self.data.train_batch(self.batch_size, seed=self.seed, step=step).to(self.device)

    def loss(self, model: nn.Module, batch: BracketBatch) -> tuple[Tensor, dict[str, float]]:
        """Mean cross-entropy over the closing brackets of the batch, and the accuracy on them."""
        logits = model(batch.tokens)
        loss = cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
        closing = batch.targets != IGNORE
        correct = (logits.detach().argmax(-1) == batch.targets)[closing]
        return loss, {"accuracy": float(correct.float().mean())}

    def targets(self, batch: BracketBatch) -> int:
        """What the loss is a mean over: closing brackets."""
        return int((batch.targets != IGNORE).sum())

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        scores = self.scores(model, self.split(split))
        return {"loss": scores.loss, "accuracy": scores.accuracy}

    def split(self, name: str) -> BracketBatch:
        """The held-out sequences "validation" or "test"."""
        if name not in ("validation", "test"):
            raise InvalidOptionError(f"there is no split {name!r} to evaluate; use 'validation' or 'test'")
        return self.data.validation if name == "validation" else self.data.test

    @torch.no_grad()
    def scores(self, model: nn.Module, sequences: BracketBatch) -> BracketScores:
        """The model's results on all closing brackets of `sequences`, in order."""
        parts: list[tuple[Tensor, ...]] = []
        for start in range(0, len(sequences), self.eval_batch_size):
            batch = sequences[start : start + self.eval_batch_size].to(self.device)
            logits = model(batch.tokens).double()
            closing = batch.targets != IGNORE
            nats = cross_entropy(logits[closing], batch.targets[closing], reduction="none")
            correct = logits.argmax(-1)[closing] == batch.targets[closing]
            held_out = self.data.is_held_out(batch).to(self.device)[:, None].expand_as(closing)
            parts.append((correct, nats, batch.depths[closing], batch.distances[closing], held_out[closing]))
        columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
        return BracketScores(*columns)


def _grouped(keys: NDArray[np.int64], correct: NDArray[np.bool_]) -> dict[int, tuple[int, float]]:
    return {int(k): (int((keys == k).sum()), float(correct[keys == k].mean())) for k in np.unique(keys)}
