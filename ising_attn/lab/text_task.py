"""Character language modelling for the training loop: loss at all positions, perplexity over whole splits."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ising_attn.lab.text import TextData
from samplers.errors import InvalidOptionError
from samplers.streams import derive_key


@dataclass(frozen=True)
class TextBatch:
    """Windows of text (batch, context) and the characters to predict, those that follow the last positions; int64."""

    tokens: Int[Tensor, "batch context"]
    targets: Int[Tensor, "batch targets"]


@dataclass(frozen=True)
class CharacterScores:
    """Cross-entropy of characters that were predicted.

    Args:
        nats: −log p(character), one entry for each.
    """

    nats: Float[np.ndarray, "characters"]

    @property
    def loss(self) -> float:
        """Mean nats per character; every character counts once."""
        return float(self.nats.mean())

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    @property
    def bits_per_char(self) -> float:
        return self.loss / math.log(2)


@dataclass(frozen=True)
class TextScores(CharacterScores):
    """How a model did, one entry for each character that was predicted.

    Args:
        positions: position in its window, so that position + 1 characters were seen.
    """

    positions: Int[np.ndarray, "characters"]

    def by_position(self) -> dict[int, tuple[int, float]]:
        """(characters, perplexity) at each number of characters seen."""
        return {
            int(seen) + 1: (int((self.positions == seen).sum()), math.exp(self.nats[self.positions == seen].mean()))
            for seen in np.unique(self.positions)
        }


class TextTask:
    """Next characters for `Trainer`.

    Training windows start anywhere in the training text. In evaluation the windows follow each other without
    overlap, so that every character of a split but its first is predicted exactly once, from the characters
    before it in its window.

    Args:
        data: the splits.
        context: characters of a window, T.
        batch_size: training windows of a step.
        seed: of the training windows.
        device: where batches are put.
        validation_characters, test_characters: use only the first so many of the split; None uses all.
        eval_batch_size: windows of one forward pass in evaluation.

    Raises:
        InvalidOptionError: a split that has no window.
    """

    metrics: tuple[str, ...] = ("loss", "perplexity", "bits_per_char")
    """What `evaluate` reports."""

    def __init__(
        self,
        data: TextData,
        *,
        context: int,
        batch_size: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        validation_characters: int | None = None,
        test_characters: int | None = None,
        eval_batch_size: int = 500,
    ):
        self.data, self.context, self.batch_size, self.seed = data, context, batch_size, seed
        self.device, self.eval_batch_size = torch.device(device), eval_batch_size
        self._splits = {"validation": data.validation[:validation_characters], "test": data.test[:test_characters]}
        for name, part in {"training": data.train, **self._splits}.items():
            if len(part) <= context:
                raise InvalidOptionError(
                    f"the {name} text has {len(part)} characters and --context={context} needs at least "
                    f"{context + 1}; use a longer text or a shorter context"
                )

    def batch(self, step: int) -> TextBatch:
        """Windows at random places, a function of (seed, step) alone."""
        rng = np.random.default_rng(derive_key(self.seed, 5, step))
        starts = torch.from_numpy(rng.integers(len(self.data.train) - self.context, size=self.batch_size))
        windows = self.data.train[starts[:, None] + torch.arange(self.context + 1)].to(self.device)
        return TextBatch(windows[:, :-1], windows[:, 1:])

    def loss(self, model: nn.Module, batch: TextBatch) -> tuple[Tensor, dict[str, float]]:
        """Mean cross-entropy over all targets of the batch."""
        return cross_entropy(self.logits(model, batch).flatten(0, 1), batch.targets.flatten()), {}

    def logits(self, model: nn.Module, batch: TextBatch) -> Float[Tensor, "batch targets classes"]:
        """Logits for each target of the batch."""
        return model(batch.tokens)

    def logits_and_maps(
        self, model: nn.Module, batch: TextBatch
    ) -> tuple[Float[Tensor, "batch targets classes"], list[Tensor]]:
        """Those, and the attention weights of each layer."""
        return model(batch.tokens, need_weights=True)

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        scores = self.scores(model, self.split(split))
        return {"loss": scores.loss, "perplexity": scores.perplexity, "bits_per_char": scores.bits_per_char}

    def split(self, name: str) -> Int[Tensor, "characters"]:
        """The characters of "validation" or "test"."""
        if name not in self._splits:
            raise InvalidOptionError(f"there is no split {name!r} to evaluate; use 'validation' or 'test'")
        return self._splits[name]

    def windows(self, characters: Int[Tensor, "characters"], context: int | None = None) -> list[TextBatch]:
        """Consecutive windows in batches, of the task's context or another; the last one holds what is left."""
        context = self.context if context is None else context
        whole = (len(characters) - 1) // context * context
        pairs = zip(
            characters[:whole].view(-1, context).split(self.eval_batch_size),
            characters[1 : whole + 1].view(-1, context).split(self.eval_batch_size),
            strict=True,
        )
        found = [TextBatch(tokens, targets) for tokens, targets in pairs if len(tokens)]
        if whole < len(characters) - 1:
            found.append(TextBatch(characters[None, whole:-1], characters[None, whole + 1 :]))
        return found

    @torch.no_grad()
    def scores(self, model: nn.Module, characters: Int[Tensor, "characters"], context: int | None = None) -> TextScores:
        """The model's results on all characters but the first, in order; see `windows`."""
        nats, positions = [], []
        for batch in self.windows(characters, context):
            batch = TextBatch(batch.tokens.to(self.device), batch.targets.to(self.device))
            logits = self.logits(model, batch).double().flatten(0, 1)
            nats.append(cross_entropy(logits, batch.targets.flatten(), reduction="none").cpu())
            seen = torch.arange(batch.tokens.shape[1])[-batch.targets.shape[1] :]
            positions.append(seen.expand_as(batch.targets).flatten())
        return TextScores(torch.cat(nats).numpy(), torch.cat(positions).numpy())
