"""Errors shared by the whole project: every message says what was given, what is allowed, what to do."""

import difflib
from collections.abc import Iterable


class IsingAttnError(Exception):
    """Base of every error this project raises on purpose."""


class InvalidProblemError(IsingAttnError, ValueError):
    """An Ising problem whose numbers or shapes cannot be used."""


class InvalidOptionError(IsingAttnError, ValueError):
    """An option that does not exist, or a value outside its range."""


class UnknownSamplerError(IsingAttnError, ValueError):
    """A sampler name that is not registered."""


class ProblemTooLargeError(IsingAttnError, ValueError):
    """More spins or memory than the method can take."""


class NotSupportedError(IsingAttnError, NotImplementedError):
    """The sampler cannot do this by its nature (an optimiser asked for marginals, …)."""


class EngineError(IsingAttnError, RuntimeError):
    """A simulator or a device answered with something that cannot be used."""


class MissingDependencyError(IsingAttnError, ImportError):
    """An optional package is absent."""

    def __init__(self, package: str, extra: str, purpose: str):
        self._given = package, extra, purpose
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'ising-attn[{extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        # From a worker to its caller, errors travel as pickles.
        return type(self), self._given


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest of `known`, or nothing where none is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
