"""Forward modes: how relaxed bits and choices are made of logits, softly or hard, with or without noise.

| mode | forward | backward |
|---|---|---|
| soft | σ(l/T), softmax(l/T) | of the forward |
| hard | l > 0, argmax l | of "soft" (straight-through) |
| gumbel-soft | as soft, of l + Gumbel noise | of the forward |
| gumbel-hard | as hard, of l + Gumbel noise | of "gumbel-soft" (straight-through) |

A bit is a choice of two, and the difference of two Gumbel variables is logistic. Noise is drawn in training mode alone,
from torch's generator as dropout's is; `eval()` gives the mode without noise.
"Mind the Gap" (arXiv 2506.07500) uses gumbel-hard, T about 0.25 to 1; a soft network is hardened at a loss.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ising_attn.logic.errors import InvalidLogicError
from samplers.errors import did_you_mean

_LOWEST = 1e-30
MODES = ("soft", "hard", "gumbel-soft", "gumbel-hard")


class Relaxed(nn.Module):
    """A module with a forward mode and a temperature. The temperature is part of the state dict.

    Args:
        mode: see the table above.
        temperature: T > 0 of every sigmoid and softmax.
    """

    temperature: Tensor

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state_dict.get(f"{prefix}temperature")
        if stored is not None:
            if stored.numel() != 1 or stored.is_complex():
                raise InvalidLogicError(
                    f"{prefix}temperature is {stored.dtype} of shape {tuple(stored.shape)}; it must be one real number"
                )
            check_temperature(float(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __init__(self, *, mode: str = "soft", temperature: float = 1.0):
        super().__init__()
        self._mode = check_mode(mode)
        self.register_buffer("temperature", torch.tensor(check_temperature(temperature)))

    @property
    def mode(self) -> str:
        """The forward mode; may be set at any time."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode = check_mode(mode)

    @property
    def is_hard(self) -> bool:
        """Whether the forward pass gives bits."""
        return self._mode.endswith("hard")

    @property
    def is_noisy(self) -> bool:
        """Whether the next forward pass draws noise."""
        return self.training and self._mode.startswith("gumbel")

    def relaxed_bits(self, logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Bits, or their probabilities, of logits."""
        return relaxed_bits(logits, self.temperature, hard=self.is_hard, noise=self.is_noisy)

    def relaxed_choice(self, logits: Float[Tensor, "*shape k"]) -> Float[Tensor, "*shape k"]:
        """One-hot choices of the last axis, or their probabilities."""
        return relaxed_choice(logits, self.temperature, hard=self.is_hard, noise=self.is_noisy)


def relaxed_bits(
    logits: Float[Tensor, "*shape"], temperature: Float[Tensor, ""] | float, *, hard: bool, noise: bool
) -> Float[Tensor, "*shape"]:
    """σ((logits + logistic noise) / temperature), or whether that is above ½ with its gradient."""
    if noise:
        uniform = torch.rand_like(logits).clamp_(torch.finfo(logits.dtype).tiny, 1 - torch.finfo(logits.dtype).eps)
        logits = logits + torch.logit(uniform)
    soft = torch.sigmoid(logits / temperature)
    return _straight_through((logits > 0).to(soft.dtype), soft) if hard else soft


def relaxed_choice(
    logits: Float[Tensor, "*shape k"], temperature: Float[Tensor, ""] | float, *, hard: bool, noise: bool
) -> Float[Tensor, "*shape k"]:
    """softmax((logits + Gumbel noise) / temperature), or the one-hot largest with its gradient."""
    if noise:
        logits = logits + gumbel_like(logits)
    soft = torch.softmax(logits / temperature, -1)
    if not hard:
        return soft
    return _straight_through(torch.zeros_like(soft).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0), soft)


def gumbel_like(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Gumbel(0, 1) noise."""
    return -torch.empty_like(logits).exponential_().clamp_min_(torch.finfo(logits.dtype).tiny).log()


def _straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    # The bracket is an exact 0, so that bits stay bits.
    return hard + (soft - soft.detach())


def set_temperature(module: nn.Module, temperature: float) -> None:
    """Set the temperature of every logic module inside `module`."""
    value = check_temperature(temperature)
    for part in relaxed_modules(module):
        part.temperature.fill_(value)


def set_mode(module: nn.Module, mode: str) -> None:
    """Set the forward mode of every logic module inside `module`."""
    check_mode(mode)
    for part in relaxed_modules(module):
        part.mode = mode


@contextmanager
def forward_mode(module: nn.Module, mode: str) -> Iterator[None]:
    """Within the block, every logic module inside `module` runs in `mode`: soft and hard values of one model.

    with forward_mode(model, "hard"):
        hard = perplexity(model)
    """
    check_mode(mode)
    before = [(part, part.mode) for part in relaxed_modules(module)]
    try:
        set_mode(module, mode)
        yield
    finally:
        for part, own in before:
            part.mode = own


def relaxed_modules(module: nn.Module) -> list[Relaxed]:
    """Every logic module inside `module`."""
    return [part for part in module.modules() if isinstance(part, Relaxed)]


def check_mode(mode: str) -> str:
    """Refuse an unknown mode."""
    if mode not in MODES:
        raise InvalidLogicError(
            f"mode={mode!r}; it must be one of {', '.join(map(repr, MODES))}{did_you_mean(str(mode), MODES)}"
        )
    return mode


def check_temperature(temperature: float) -> float:
    """Refuse a temperature that is no positive number, or that float32 does not hold with its inverse."""
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not _LOWEST <= temperature <= 1 / _LOWEST:
        raise InvalidLogicError(f"temperature={temperature!r}; it must be above 0, from {_LOWEST:g} to {1 / _LOWEST:g}")
    return float(temperature)
