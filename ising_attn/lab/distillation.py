"""Distillation in the training loop: a teacher from a checkpoint, and a task that learns from it."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ising_attn.distill import attention_matching, check_weights, distillation_loss, router_matching
from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.errors import CheckpointError
from ising_attn.lab.text_task import TextBatch, TextTask
from ising_attn.lab.wrapped_task import WrappedTask
from ising_attn.routers import recorded_routing, routers_of
from samplers import InvalidOptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """How a student learns from a teacher."""

    teacher: Path | None = None
    """Checkpoint of the teacher; None trains without one."""
    teacher_row: str | None = None
    """Instead of --teacher: the best checkpoint of ROW/seed-SEED beside the run folder of --out, which a sweep lays
    out so."""
    alpha: float = 0.5
    """Share of the teacher's loss, α: (1 − α)·CE + α·T²·KL."""
    softening: float = 4.0
    """Temperature T of both models' logits in the teacher's loss."""
    attention_matching: float = 0.0
    """Weight of the squared difference of head-mean attention maps; 0 matches none."""
    router_matching: float = 0.0
    """Weight of the cross-entropy of router choices against the teacher's; 0 matches none."""

    def __post_init__(self) -> None:
        check_weights(self.alpha, self.softening)
        for name in ("attention_matching", "router_matching"):
            value = getattr(self, name)
            if not (value >= 0 and value - value == 0):
                raise InvalidOptionError(f"--{name.replace('_', '-')} is {value}; it must be finite and at least 0")
        if self.teacher is not None and self.teacher_row is not None:
            raise InvalidOptionError("--teacher and --teacher-row both name a teacher; give one")
        if not self.has_teacher and (self.attention_matching or self.router_matching):
            raise InvalidOptionError("--attention-matching and --router-matching need a --teacher")

    @property
    def has_teacher(self) -> bool:
        return self.teacher is not None or self.teacher_row is not None

    def checkpoint(self, out: Path | None, seed: int) -> Path:
        """The teacher's checkpoint for a run in the folder `out`.

        Raises:
            InvalidOptionError: no teacher, or --teacher-row without --out.
        """
        if self.teacher is not None:
            return self.teacher
        if self.teacher_row is None or out is None:
            raise InvalidOptionError("--teacher-row names a run beside that of --out; give --out, or --teacher=FILE")
        return out.resolve().parent.parent / self.teacher_row / f"seed-{seed}" / "checkpoints" / "best.safetensors"


def load_teacher(
    checkpoint: Path, build: Callable[[dict[str, Any]], nn.Module], *, characters: str, context: int
) -> nn.Module:
    """The model of a checkpoint, frozen and in evaluation mode.

    Args:
        build: a fresh model from its configuration (`models.model_from_config`).
        characters: the student's vocabulary, in order.
        context: the student's.

    Raises:
        CheckpointError: a checkpoint that cannot be used, or a teacher of another vocabulary or context.
    """
    stored = load_checkpoint(checkpoint)
    _check_same(stored.model_config, checkpoint, characters, context)
    model = build(stored.model_config)
    try:
        model.load_state_dict(stored.model)
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint} does not fit the model that it names ({error})") from None
    return model.eval().requires_grad_(False)


class DistilledTask(WrappedTask):
    """`task` with the loss of `distillation_loss`, and the matching terms that the settings ask for.

    The teacher runs as it was configured (`routing` and gates included), without gradients and dropout.

    Args:
        task: text, at all positions or at the last one.
        teacher: on the device of the batches.
        settings: weights.

    Raises:
        InvalidOptionError: at the first loss, matching that student or teacher cannot do.
    """

    def __init__(self, task: TextTask, teacher: nn.Module, settings: DistillationSettings):
        super().__init__(task)
        self.text, self.teacher, self.settings = task, teacher, settings

    def loss(self, model: nn.Module, batch: TextBatch) -> tuple[Tensor, dict[str, float]]:
        settings = self.settings
        with torch.no_grad():
            wanted, maps, choices = self._run(self.teacher, batch)
        logits, own_maps, own_choices = self._run(model, batch)
        targets = batch.targets.flatten()
        loss = distillation_loss(logits, wanted, targets, alpha=settings.alpha, temperature=settings.softening)
        values = {"cross_entropy": nn.functional.cross_entropy(logits.detach(), targets).item()}
        if settings.attention_matching:
            loss = loss + settings.attention_matching * attention_matching(own_maps, maps)
        if settings.router_matching:
            loss = loss + settings.router_matching * router_matching(own_choices, choices)
        return loss, values

    def _run(self, model: nn.Module, batch: TextBatch) -> tuple[Tensor, list[Tensor], list[Any]]:
        """Logits (tokens, classes), attention maps and router choices of one model, as far as they are matched."""
        settings = self.settings
        if settings.router_matching:
            _require(bool(routers_of(model)), "--router-matching", "routers")
            with recorded_routing(model) as choices:
                return self.text.logits(model, batch).flatten(0, 1), [], choices
        if not settings.attention_matching:
            return self.text.logits(model, batch).flatten(0, 1), [], []
        _require(hasattr(model, "decoder_blocks"), "--attention-matching", "attention")
        logits, maps = self.text.logits_and_maps(model, batch)
        return logits.flatten(0, 1), maps, []


def _require(able: bool, flag: str, what: str) -> None:
    if not able:
        raise InvalidOptionError(f"{flag} compares {what}, and the student or the teacher has none; leave it at 0")


def _check_same(config: Mapping[str, Any], source: Path, characters: str, context: int) -> None:
    theirs, length = config.get("characters"), config.get("context")
    if theirs is None or length is None:
        raise CheckpointError(f"{source} is no language model that names its characters and context; use one that does")
    if theirs != characters:
        raise CheckpointError(
            f"the teacher {source} speaks {len(theirs)} characters and the student {len(characters)}"
            f"{_difference(theirs, characters)}; train both on the same text and protocol"
        )
    if length != context:
        raise CheckpointError(
            f"the teacher {source} sees {length} characters and the student {context}; give both the same --context"
        )


def _difference(theirs: str, ours: str) -> str:
    odd = sorted(set(theirs) ^ set(ours))
    return f" (only one of them has {', '.join(map(repr, odd[:5]))})" if odd else ", in another order"
