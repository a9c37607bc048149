"""Batched heat-bath Monte Carlo: thousands of problems × chains at once."""

from samplers.gibbs.sampler import GibbsSampler

__all__ = ["GibbsSampler"]
