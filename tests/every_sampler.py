"""Every registered sampler with options that keep a call short: a new one is in every test that uses this list."""

from collections.abc import Callable
from typing import Any

import pytest

from samplers import Sampler, get_sampler
from samplers.registry import _BUILT_IN

# Of our own samplers alone: what an installed package registers is that package's to test.
NAMES = [entry.name for entry in _BUILT_IN]

# Nothing here is too cheap: the properties hold for one sweep as they do for a thousand.
_OPTIONS: dict[str, dict[str, Any]] = {
    # Couplings that are all 0 and want gradients need a width.
    "band": {"width": 6},
    "mean-field": {"max_iterations": 200},
    "tap": {"max_iterations": 200},
    "bethe": {"max_iterations": 200},
    "gibbs": {"num_chains": 8, "num_sweeps": 4, "burn_in": 4, "num_reads": 16},
    "annealing": {"num_reads": 16, "num_sweeps": 4},
    "dqa": {"num_layers": 4},
    "quantum-mcmc": {"num_reads": 8, "num_steps": 3},
}


def _dimod() -> Sampler:
    from dwave.samplers import SimulatedAnnealingSampler

    return get_sampler("dimod", sampler=SimulatedAnnealingSampler(), num_reads=16)


def _dwave() -> Sampler:
    pytest.importorskip("dwave.system")
    from dwave.samplers import SimulatedAnnealingSampler
    from dwave.system.testing import MockDWaveSampler

    machine = MockDWaveSampler(
        topology_type="pegasus",
        topology_shape=[2],
        substitute_sampler=SimulatedAnnealingSampler(),
        substitute_kwargs={"num_sweeps": 8, "seed": 1, "beta_range": [0.1, 1.0]},
        parameter_warnings=False,
    )
    return get_sampler("dwave", machine=machine, num_reads=8, device_beta=1.0, auto_scale=True, max_tiles=4)


_MAKERS: dict[str, Callable[[], Sampler]] = {"dimod": _dimod, "dwave": _dwave}


def cheap(name: str) -> Sampler:
    """The sampler of that name, made anew."""
    return _MAKERS[name]() if name in _MAKERS else get_sampler(name, **_OPTIONS.get(name, {}))
