"""Temperatures over training: warm, hold, decay. A callback of the training loop."""

import dataclasses
import math
from collections.abc import Callable

from torch import nn

from ising_attn.boolean import boolean_parts, set_temperatures, temperature_of
from samplers import InvalidOptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemperatureSettings:
    """Temperature of routers and logic gates over training."""

    final_temperature: float | None = None
    """Temperature of routers and logic gates at the last step; None keeps the first one."""
    warm: float = 0.0
    """Share of the steps at the first temperature."""
    hold: float = 0.0
    """Share of the steps after that at --hold-temperature; then it decays exponentially to the final one."""
    hold_temperature: float | None = None
    """Temperature of --hold; None is the first one."""

    def __post_init__(self) -> None:
        for name in ("final_temperature", "hold_temperature"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidOptionError(f"{_flag(name)} is {value}; it must be finite and above 0")
        for name in ("warm", "hold"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InvalidOptionError(f"{_flag(name)} is {value}; it is a share of the steps, from 0 to 1")
        if self.warm + self.hold > 1:
            raise InvalidOptionError(f"--warm {self.warm} and --hold {self.hold} are more than all steps together")
        if self.hold_temperature is not None and not self.hold:
            raise InvalidOptionError("--hold-temperature needs the share of the steps that it is held for: --hold")

    @property
    def changes(self) -> bool:
        """Whether the temperature ever moves."""
        return self.final_temperature is not None or self.hold_temperature is not None

    def at(self, step: int, steps: int, start: float) -> float:
        """The temperature of a step, counted from 0, of so many; `start` is the first one."""
        share = step / max(steps - 1, 1)
        if share < self.warm:
            return start
        held = start if self.hold_temperature is None else self.hold_temperature
        if share < self.warm + self.hold or self.final_temperature is None:
            return held
        begun = self.warm + self.hold
        done = (share - begun) / (1 - begun) if begun < 1 else 1.0
        return held * (self.final_temperature / held) ** done


@dataclasses.dataclass(frozen=True)
class Cooling:
    """A schedule and the temperature that it starts from.

    The temperature is a part of the weights, so the best checkpoint keeps the one that it was chosen at.
    """

    settings: TemperatureSettings
    start: float

    @classmethod
    def of(cls, model: nn.Module, settings: TemperatureSettings) -> "Cooling | None":
        """From the model's present temperature on; None where the temperature never changes.

        Raises:
            InvalidOptionError: a schedule for a model without Boolean parts.
        """
        if not settings.changes:
            return None
        if not boolean_parts(model):
            raise InvalidOptionError(
                "--final-temperature and --hold-temperature are for routers and logic gates, and this model has none; "
                "use --attention=router or --ffn=logic"
            )
        return cls(settings, temperature_of(model))

    def over(self, steps: int) -> Callable[[int, nn.Module], None]:
        """A callback of the training loop that sets the temperature before each of so many steps."""

        def cool(step: int, model: nn.Module) -> None:
            set_temperatures(model, self.settings.at(step, steps, self.start))

        return cool


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
