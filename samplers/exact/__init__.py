"""The sampler `exact`: summation over all 2^n states by two halves, without ever listing them per query."""

from samplers.exact.sampler import ExactSampler

__all__ = ["ExactSampler"]
