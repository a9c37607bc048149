"""Calibration of a trained Boolean model on validation data: the threshold of its hard routers, or its temperature."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ising_attn.boolean import boolean_parts, run_as, set_temperatures
from ising_attn.routers.router import routers_of, set_threshold
from samplers.errors import InvalidOptionError, did_you_mean

THRESHOLDS = (-1.0, -0.75, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.71, 1.0, 1.4, 2.0, 2.8, 4.0)
QUANTITIES = ("threshold", "temperature")


@dataclass(frozen=True)
class Calibration:
    """What a search found.

    Args:
        quantity: "threshold" or "temperature".
        value: the best one, None where the model's own, which may differ from layer to layer, was not beaten.
        own: loss with the model's own.
        losses: (value, loss) of every try, in the order of the grid.
    """

    quantity: str
    value: float | None
    own: float
    losses: tuple[tuple[float, float], ...]

    @property
    def loss(self) -> float:
        """The best loss."""
        return min(self.own, *(loss for _, loss in self.losses))

    @property
    def on_edge(self) -> bool:
        """Whether the optimum is the first or last value of the grid, so that a better one may lie beyond."""
        return self.value is not None and self.value in (self.losses[0][0], self.losses[-1][0])

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.quantity}: the model's own is the best of the grid"
        found = f"{self.quantity} {self.value:g}: loss {self.loss:.4f}, {self.own:.4f} before"
        return f"{found}; the optimum is on the edge of the grid, widen it" if self.on_edge else found


def calibrate(
    model: nn.Module, loss: Callable[[], float], quantity: str, grid: Sequence[float] | None = None
) -> Calibration:
    """Try each value of `grid` for all Boolean parts of `model`, and leave the best in it.

    Thresholds are those of hard routers, and are judged by the loss of the hard model; temperatures by that of the soft
    one. Where no value beats the model's own, or on an error, nothing is changed. The data must not be those that are
    reported.

    Args:
        loss: the model's loss on validation data, smaller is better; it is called under `torch.no_grad`.
        quantity: "threshold" or "temperature".
        grid: at least 3 ascending values; by default `THRESHOLDS` or `TEMPERATURES`.

    Raises:
        InvalidOptionError: an unknown quantity, a bad grid, or a model without what is searched.
    """
    if quantity not in QUANTITIES:
        raise InvalidOptionError(f"{quantity!r} cannot be calibrated{did_you_mean(quantity, QUANTITIES)}")
    thresholds = quantity == "threshold"
    values = tuple(grid) if grid is not None else THRESHOLDS if thresholds else TEMPERATURES
    if len(values) < 3 or any(a >= b for a, b in zip(values[:-1], values[1:], strict=True)):
        raise InvalidOptionError(f"the grid {values} is none; give at least 3 ascending values")
    parts: Sequence[nn.Module] = routers_of(model) if thresholds else boolean_parts(model)
    if not parts:
        raise InvalidOptionError(f"{type(model).__name__} has no {quantity} to calibrate")
    change, losses = set_threshold if thresholds else set_temperatures, []
    with run_as(model, "hard" if thresholds else "soft"), torch.no_grad():
        own = loss()
        with _put_back(parts, quantity):
            for value in values:
                change(model, value)
                losses.append((value, loss()))
    best, least = min(losses, key=lambda pair: pair[1])
    if least < own:
        change(model, best)
    return Calibration(quantity, best if least < own else None, own, tuple(losses))


@contextlib.contextmanager
def _put_back(parts: Sequence[nn.Module], quantity: str) -> Iterator[None]:
    buffers = [part.get_buffer(quantity) for part in parts]
    saved = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, before in zip(buffers, saved, strict=True):
            buffer.copy_(before)
