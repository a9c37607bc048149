"""Configurations of the logic language models."""

import dataclasses
import math
from typing import Any, ClassVar, TypeVar

from ising_attn.logic import GroupSum, LinearHead
from models.config import Config, require_characters
from samplers.errors import InvalidOptionError, did_you_mean

L = TypeVar("L", bound="LogicConfig")

LOGIC_HEADS = ("linear", "group-sum")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogicConfig(Config):
    """What the logic language models share.

    Args:
        vocabulary: number of characters.
        context: characters of a window.
        characters: the character of every token in order; None where the caller keeps them.
        widths: gates of each layer.
        parametrisation, mode, temperature, residual, noise: of the gates, see `ising_attn.logic.LogicLayer`. `mode` is
            that of training; `ising_attn.logic.forward_mode` runs the same weights softly or hard.
        reach: the first layer reads characters d places back with p ∝ exp(−d/reach); None reads all alike.
        head: "linear", a float map of the last bits, or "group-sum", counts of them.
        dropout: share of the last bits that a linear head does without, in training.

    Raises:
        InvalidOptionError: a value out of range.
    """

    model: ClassVar[str] = ""
    vocabulary: int = 61
    context: int = 16
    characters: str | None = None
    widths: tuple[int, ...] = (8192,)
    parametrisation: str = "light"
    mode: str = "hard"
    temperature: float = 1.0
    residual: float | None = 0.9
    noise: float = 0.25
    reach: float | None = 3.0
    head: str = "linear"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context"):
            require_integer(name, getattr(self, name), 1)
        if not self.widths:
            raise InvalidOptionError("widths is empty; give the number of gates of at least one layer")
        for width in self.widths:
            require_integer("widths", width, 1)
        require_characters(self.characters, self.vocabulary)
        if self.reach is not None and not (self.reach > 0 and math.isfinite(self.reach)):
            raise InvalidOptionError(f"reach={self.reach!r}; it must be a finite number above 0, or None")
        if self.head not in LOGIC_HEADS:
            raise InvalidOptionError(
                f"head={self.head!r}; it must be 'linear' or 'group-sum'{did_you_mean(self.head, LOGIC_HEADS)}"
            )
        if self.head == "group-sum" and self.widths[-1] % self.vocabulary:
            raise InvalidOptionError(
                f"a group-sum head shares the last width, {self.widths[-1]}, among {self.vocabulary} characters; it "
                "must be a multiple"
            )
        if not 0 <= self.dropout < 1:
            raise InvalidOptionError(f"dropout={self.dropout!r}; it must be at least 0 and below 1")

    def to_dict(self) -> dict[str, Any]:
        values = {"model": self.model, **super().to_dict()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls: type[L], values: dict[str, Any]) -> L:
        values = dict(values)
        name = values.pop("model", cls.model)
        if name != cls.model:
            raise InvalidOptionError(f"the configuration is of the model {name!r}, not of {cls.model!r}")
        return super().from_dict(
            {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        )

    def gate_options(self) -> dict[str, Any]:
        """Keywords of `LogicLayer`."""
        return {
            "parametrisation": self.parametrisation,
            "mode": self.mode,
            "temperature": self.temperature,
            "residual": self.residual,
            "noise": self.noise,
        }

    def make_head(self, width: int) -> GroupSum | LinearHead:
        """The head of `width` bits."""
        if self.head == "group-sum":
            return GroupSum(width, self.vocabulary)
        return LinearHead(width, self.vocabulary)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogicLMConfig(LogicConfig):
    """A flat logic network over a window."""

    model: ClassVar[str] = "logic-lm"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopedLogicLMConfig(LogicConfig):
    """One block of logic that is applied again and again.

    Args:
        form: "bits": only bits go round; "as-coded": the loop of the repository, with a float map inside it.
        iterations: how often the block is applied.
        state: bits (or floats) that go round.
        widths: gates of the block's layers; in the form "bits" the last one has `state`.
        gain: factor of the initial weights of the linear maps of the form "as-coded". At 1, as there, the loop
            forgets its input before training, and takes many epochs to say more than how often characters are.
    """

    model: ClassVar[str] = "looped-logic-lm"
    form: str = "bits"
    iterations: int = 8
    state: int = 2048
    widths: tuple[int, ...] = (2048,)
    gain: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("iterations", self.iterations, 1)
        require_integer("state", self.state, 2)
        if self.form not in ("bits", "as-coded"):
            raise InvalidOptionError(
                f"form={self.form!r}; it must be 'bits' or 'as-coded'{did_you_mean(self.form, ('bits', 'as-coded'))}"
            )
        if not (self.gain > 0 and math.isfinite(self.gain)):
            raise InvalidOptionError(f"gain={self.gain!r}; it must be a finite number above 0")
        if self.form == "bits" and self.widths[-1] != self.state:
            raise InvalidOptionError(
                f"the block of form 'bits' ends with widths={self.widths[-1]} gates and state={self.state}; what goes "
                "round must come out as it goes in"
            )

    @classmethod
    def as_coded(cls, **options: Any) -> "LoopedLogicLMConfig":
        """The sizes and gates of LoopedDLGN v1 (karumaru-kakikukekodoumei/boolean-attention), with fixed wiring."""
        coded: dict[str, Any] = {
            "form": "as-coded",
            "state": 128,
            "widths": (256, 256, 128),
            "parametrisation": "raw",
            "mode": "soft",
            "residual": None,
            "reach": None,
        }
        return cls(**{**coded, **options})


def require_integer(name: str, value: int, least: int) -> None:
    """Refuse what is no integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidOptionError(f"{name}={value!r}; it must be an integer of at least {least}")
