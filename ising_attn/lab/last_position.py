"""Language modelling at the last position of a window alone, as boolean-attention's repository has it."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from ising_attn.lab.text import TextData
from ising_attn.lab.text_task import TextBatch, TextTask


class LastPositionTask(TextTask):
    """The character after each window of `context` characters; windows start at every character (stride 1).

    Of the first 80,000 characters of Tiny Shakespeare, at context 16, 71,984 windows are trained on and 7,984 are
    reported. A sixteenth of the predictions of a window are used, so that a training step costs as much as at all
    positions and says far less. Models with `next_logits(tokens)` compute the last position alone.

    The repository averages the means of its batches, so that the windows of its last, shorter batch count a little
    more; here every window counts once. Training windows are drawn with replacement, not shuffled epoch by epoch.

    Args:
        dense: train at all positions of the windows, and evaluate at the last one alone.
        Others: see `TextTask`.
    """

    def __init__(self, data: TextData, *, dense: bool = False, **options: Any):
        super().__init__(data, **options)
        self.dense = dense

    def batch(self, step: int) -> TextBatch:
        """Windows at random places and the character after each, targets (batch, 1), or (batch, context) if dense."""
        whole = super().batch(step)
        return whole if self.dense else TextBatch(whole.tokens, whole.targets[:, -1:])

    def logits(self, model: nn.Module, batch: TextBatch) -> Float[Tensor, "batch targets classes"]:
        """Logits for each target: of the character after the window alone where there is one."""
        if batch.targets.shape[1] > 1:
            return super().logits(model, batch)
        alone = getattr(model, "next_logits", None)
        return model(batch.tokens)[:, -1:] if alone is None else alone(batch.tokens).unsqueeze(1)

    def logits_and_maps(
        self, model: nn.Module, batch: TextBatch
    ) -> tuple[Float[Tensor, "batch targets classes"], list[Tensor]]:
        logits, maps = super().logits_and_maps(model, batch)
        return logits[:, -batch.targets.shape[1] :], maps

    def windows(self, characters: Int[Tensor, "characters"], context: int | None = None) -> list[TextBatch]:
        """Every window of `context` characters, or of another length, and the character after it."""
        length = self.context if context is None else context
        parts = characters.unfold(0, length + 1, 1).split(self.eval_batch_size)
        return [TextBatch(part[:, :-1], part[:, -1:]) for part in parts if len(part)]
