"""What models that generate text share: the law that characters are drawn from, and evaluation mode meanwhile."""

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from samplers.errors import InvalidOptionError


def drawn(
    logits: Float[Tensor, "batch places classes"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, "batch places"]:
    """One class for each place, from softmax(logits / temperature); the likeliest at a temperature of 0.

    Args:
        generator: the source of randomness; None is torch's global one.
    """
    if temperature == 0:
        return logits.argmax(-1)
    chances = (logits / temperature).softmax(-1)
    return torch.multinomial(chances.flatten(0, 1), 1, generator=generator).view(logits.shape[:2])


@contextlib.contextmanager
def generating(model: nn.Module, temperature: float) -> Iterator[None]:
    """Within the block the model is in evaluation mode.

    Raises:
        InvalidOptionError: a temperature below 0.
    """
    if temperature < 0:
        raise InvalidOptionError(f"temperature={temperature!r}; it must be at least 0")
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
