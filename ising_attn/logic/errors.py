"""Errors of logic gate networks."""

from samplers.errors import IsingAttnError


class InvalidLogicError(IsingAttnError, ValueError):
    """Inputs that are no bits or no probabilities, or sizes and options that make no logic layer."""


class WiringError(IsingAttnError, ValueError):
    """Wiring that cannot exist, or one that belongs to a layer of another size."""


class CircuitFileError(IsingAttnError, ValueError):
    """A file that is missing or holds no circuit."""
