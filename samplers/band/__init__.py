"""Exact Boltzmann marginals for couplings of finite range, at any length."""

from samplers.band.sampler import BandSampler

__all__ = ["BandSampler"]
