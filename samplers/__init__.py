"""An Ising toolkit for batches of problems: one contract, many samplers.

    from samplers import IsingProblem, get_sampler
    magnetization = get_sampler("exact").magnetization(IsingProblem(fields, couplings))

Part of the distribution `ising-attn`; `ising_attn` re-exports everything here.
"""

from samplers.base import Capabilities, Sampler
from samplers.errors import (
    InvalidOptionError,
    InvalidProblemError,
    IsingAttnError,
    MissingDependencyError,
    NotSupportedError,
    ProblemTooLargeError,
    UnknownSamplerError,
)
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.registry import get_sampler, register_sampler, sampler_class, sampler_entries, sampler_names
from samplers.samples import Samples

# `samplers` is a common name: `ising_attn` looks for this mark before it trusts the package it found.
ISING_ATTN_PACKAGE = True

__all__ = [
    "Capabilities",
    "InvalidOptionError",
    "InvalidProblemError",
    "IsingAttnError",
    "IsingProblem",
    "MissingDependencyError",
    "NotSupportedError",
    "ProblemTooLargeError",
    "Sampler",
    "Samples",
    "UnknownSamplerError",
    "get_sampler",
    "option",
    "register_sampler",
    "sampler_class",
    "sampler_entries",
    "sampler_names",
]
