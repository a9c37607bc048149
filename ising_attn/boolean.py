"""Models with Boolean parts, routers and logic gates alike: run all of them softly or hard, at one temperature."""

import contextlib
from collections.abc import Iterator

from torch import nn

from ising_attn.logic.modes import Relaxed, forward_mode, relaxed_modules
from ising_attn.routers.router import Router, check_temperature, routers_of, use_routing
from samplers.errors import InvalidOptionError, did_you_mean

HARDNESS = ("soft", "hard")


def boolean_parts(model: nn.Module) -> list[Router | Relaxed]:
    """The routers and logic modules of `model`."""
    return [*routers_of(model), *relaxed_modules(model)]


@contextlib.contextmanager
def run_as(model: nn.Module, hardness: str) -> Iterator[None]:
    """Within the block all Boolean parts of `model` run "soft" (relaxed at their temperatures) or "hard".

    with run_as(model, "hard"):
        hard = perplexity(model)

    A model without Boolean parts runs as ever.

    Raises:
        InvalidOptionError: neither "soft" nor "hard".
    """
    if hardness not in HARDNESS:
        raise InvalidOptionError(f"{hardness!r} is neither 'soft' nor 'hard'{did_you_mean(hardness, HARDNESS)}")
    with contextlib.ExitStack() as stack:
        if routers_of(model):
            stack.enter_context(use_routing(model, hardness))
        stack.enter_context(forward_mode(model, hardness))
        yield


def set_temperatures(model: nn.Module, temperature: float) -> None:
    """Set the temperature of every router and logic module of `model`.

    Raises:
        InvalidOptionError: not a finite number above 0, or a model without Boolean parts.
    """
    value = check_temperature(temperature)
    for part in _some_parts(model):
        part.temperature.fill_(value)


def temperature_of(model: nn.Module) -> float:
    """The temperature that the Boolean parts of `model` have in common: that of the first one.

    Raises:
        InvalidOptionError: a model without Boolean parts.
    """
    return float(_some_parts(model)[0].temperature)


def _some_parts(model: nn.Module) -> list[Router | Relaxed]:
    parts = boolean_parts(model)
    if not parts:
        raise InvalidOptionError(f"{type(model).__name__} has no router and no logic gates, and so no temperature")
    return parts
