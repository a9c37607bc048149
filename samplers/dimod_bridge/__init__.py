"""Both ways across the border to dimod: any dimod sampler as ours, and ours as dimod samplers."""

from samplers.dimod_bridge.export import AsDimodSampler
from samplers.dimod_bridge.sampler import DimodSampler

__all__ = ["AsDimodSampler", "DimodSampler"]
