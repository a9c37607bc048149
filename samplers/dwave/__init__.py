"""The sampler `dwave`: D-Wave machines, with tiled clique embeddings and a tracked effective temperature."""

from samplers.dwave.sampler import DWaveSampler

__all__ = ["DWaveSampler"]
