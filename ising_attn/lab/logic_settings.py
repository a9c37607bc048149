"""The flags that describe a language model of logic gates."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogicSettings:
    """Logic gates, for --model=logic and --model=looped."""

    widths: tuple[int, ...] = (8192,)
    """Gates of each layer (--widths=4096,4096); in a loop of bits the last one is --state."""
    gates: Literal["light", "raw", "walsh"] = "light"
    """Of each gate: 4 truth-table weights, 16 logits, or Walsh coefficients."""
    gate_mode: Literal["soft", "hard", "gumbel-soft", "gumbel-hard"] = "hard"
    """Forward pass in training; the hard ones have a soft gradient (straight-through)."""
    gate_temperature: float = 1.0
    """Temperature of the gates' relaxation; see --final-temperature."""
    residual: float | None = 0.9
    """Initial probability with which a gate passes its first input on; None starts from random gates."""
    reach: float | None = 3.0
    """The first layer reads a character d places back with p ∝ exp(−d / reach); None reads all alike."""
    logic_head: Literal["linear", "group-sum"] = "linear"
    """From the last bits to logits: a float map, or counts."""
    bit_dropout: float = 0.0
    """Share of the last bits that the head does without, in training."""
    loop: Literal["bits", "as-coded"] = "bits"
    """What goes round in --model=looped: bits alone, or floats through a linear map, as the repository codes it."""
    iterations: int = 8
    """Rounds of --model=looped."""
    state: int = 2048
    """Numbers that go round in --model=looped."""
    loop_gain: float = 1.0
    """Factor of the initial linear maps of --loop=as-coded; at 1, as there, the loop at first forgets its input."""

    def flat_options(self) -> dict[str, Any]:
        """Keywords of `models.LogicLMConfig`, but for the vocabulary and the context."""
        return {
            "widths": self.widths,
            "parametrisation": self.gates,
            "mode": self.gate_mode,
            "temperature": self.gate_temperature,
            "residual": self.residual,
            "reach": self.reach,
            "head": self.logic_head,
            "dropout": self.bit_dropout,
        }

    def looped_options(self) -> dict[str, Any]:
        """Keywords of `models.LoopedLogicLMConfig`, but for the vocabulary and the context."""
        return {
            **self.flat_options(),
            "form": self.loop,
            "iterations": self.iterations,
            "state": self.state,
            "gain": self.loop_gain,
        }

    def spoken(self, model: str) -> str:
        """The gates in a few words."""
        sizes = "-".join(map(str, self.widths))
        looped = f"{self.iterations} rounds of " if model == "looped" else ""
        coded = ", floats in the loop" if model == "looped" and self.loop == "as-coded" else ""
        return f"{looped}{sizes} {self.gates} gates ({self.gate_mode}){coded}, {self.logic_head} head"
