"""Distillation losses: a student learns from a teacher's logits, from its attention maps, or from its routers."""

import math
from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, cross_entropy, kl_div

from ising_attn.routers.router import Routing
from samplers.errors import InvalidOptionError, InvalidProblemError


def distillation_loss(
    student: Float[Tensor, "tokens classes"],
    teacher: Float[Tensor, "tokens classes"],
    targets: Int[Tensor, "tokens"],
    *,
    alpha: float = 0.5,
    temperature: float = 4.0,
) -> Float[Tensor, ""]:
    """(1 − α)·CE(student, targets) + α·T²·KL(softmax(teacher/T) ‖ softmax(student/T)), the mean over tokens.

    T² keeps the gradient of the second term at the size of the first (Hinton et al., arXiv 1503.02531). No gradient
    goes to the teacher.

    Raises:
        InvalidOptionError: an α outside [0, 1], a T that is not a finite number above 0.
        InvalidProblemError: logits of different shapes.
    """
    check_weights(alpha, temperature)
    if student.shape != teacher.shape:
        raise InvalidProblemError(
            f"the student's logits have shape {tuple(student.shape)}, the teacher's {tuple(teacher.shape)}; both must "
            "speak the same vocabulary"
        )
    wanted = (teacher.detach() / temperature).log_softmax(-1)
    softened = kl_div((student / temperature).log_softmax(-1), wanted, reduction="batchmean", log_target=True)
    return (1 - alpha) * cross_entropy(student, targets) + alpha * temperature**2 * softened


def attention_matching(
    student: Sequence[Float[Tensor, "..."]], teacher: Sequence[Float[Tensor, "..."]]
) -> Float[Tensor, ""]:
    """Σ over keys of the squared difference of head-mean attention weights, the mean over queries and layers.

    Every map is (batch, heads, T, T).

    Layers are matched from the last one back, so that their numbers may differ; so may those of the heads.

    Raises:
        InvalidProblemError: a side without attention, or maps of other sequences.
    """
    if not student or not teacher:
        raise InvalidProblemError("attention maps are matched, and one of the two models has none")
    losses = []
    for own, other in zip(reversed(student), reversed(teacher), strict=False):
        if own.shape[0] != other.shape[0] or own.shape[-2:] != other.shape[-2:]:
            raise InvalidProblemError(f"attention maps of shapes {tuple(own.shape)} and {tuple(other.shape)} differ")
        losses.append((own.mean(1) - other.detach().mean(1)).square().sum(-1).mean())
    return sum(losses[1:], losses[0]) / len(losses)


def router_matching(student: Sequence[Routing], teacher: Sequence[Routing]) -> Float[Tensor, ""]:
    """Cross-entropy of the student's probabilities of using each key against the teacher's, over allowed keys.

    Raises:
        InvalidProblemError: routers of another number, other heads or other sequences.
    """
    shapes = [[tuple(one.chosen.shape) for one in side] for side in (student, teacher)]
    if not student or shapes[0] != shapes[1]:
        raise InvalidProblemError(
            f"the routers of student and teacher choose {shapes[0]} and {shapes[1]}; matching them needs the same "
            "number of routers and heads"
        )
    losses = []
    for own, other in zip(student, teacher, strict=True):
        allowed = own.allowed.expand(own.chosen.shape)
        # Away from 0 and 1, where a hard choice has no finite loss.
        probability = own.chosen[allowed].clamp(1e-6, 1 - 1e-6)
        losses.append(binary_cross_entropy(probability, other.chosen.detach()[allowed]))
    return sum(losses[1:], losses[0]) / len(losses)


def check_weights(alpha: float, temperature: float) -> None:
    """Refuse an α that is no share, and a T that is no temperature."""
    if not 0 <= alpha <= 1:
        raise InvalidOptionError(f"alpha={alpha!r}; it is the share of the teacher's loss, from 0 to 1")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise InvalidOptionError(f"temperature={temperature!r} of distillation; it must be a finite number above 0")
