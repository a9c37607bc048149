"""`LearnedSchedule`: the layer angles of a simulated anneal as parameters of the model that samples through it.

    model = BracketMatcher(config, sampler=get_sampler("dqa", num_layers=8))
    learned = learn_schedule(model)             # its angles are now among model.parameters()
    ...                                         # train
    save_schedule(learned.fixed(), "mine.json")  # get_sampler("dqa", schedule="mine.json")

The gradient is the adjoint one of the state vector, exact for the circuit. The angles start at those that the sampler
would run, calibration included, and are part of the model's state_dict.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of, set_sampler
from samplers import InvalidOptionError, NotSupportedError, Sampler
from samplers.dqa import AngleSchedule, DQASampler, Layers

# The name of the sub-module that holds the angles.
PART = "learned_schedule"
_ROWS = ("fields", "couplings", "mixer")


class LearnedSchedule(nn.Module):
    """Field, coupling and mixer angle of every layer, each (P,) float64, as parameters.

    Args:
        layers: the first angles.
    """

    fields: Float[Tensor, "layers"]
    couplings: Float[Tensor, "layers"]
    mixer: Float[Tensor, "layers"]

    def __init__(self, layers: Layers):
        super().__init__()
        for row in _ROWS:
            setattr(self, row, nn.Parameter(getattr(layers, row).detach().double().clone()))

    def schedule(self) -> AngleSchedule:
        """These very parameters as a schedule: what runs it is differentiable in them and follows them."""
        return AngleSchedule(Layers(self.fields, self.couplings, self.mixer), name="learned with the model")

    def fixed(self, name: str = "learned with a model", about: Mapping[str, Any] | None = None) -> AngleSchedule:
        """A copy of the present angles, without a gradient, to be saved."""
        rows = (getattr(self, row).detach().cpu().clone() for row in _ROWS)
        return AngleSchedule(Layers(*rows), name=name, about=dict(about or {}))

    def distance(self, other: AngleSchedule) -> float:
        """Mean |difference| of the angles, in radians, to a schedule of the same depth."""
        pairs = [(getattr(self.fixed().angles, row), getattr(other.angles, row)) for row in _ROWS]
        return float(torch.cat([(a - b).abs() for a, b in pairs]).mean())


def learn_schedule(model: nn.Module) -> LearnedSchedule:
    """Make the angles of the model's anneal parameters of the model, as `model.learned_schedule`.

    Every layer that used the sampler shares the one schedule; for other options of it, set them before.

    Raises:
        InvalidOptionError: the model has no sampler, or several.
        NotSupportedError: the sampler is no simulated anneal, its gradient does not reach the angles, or these follow
            the scale of each problem.
    """
    sampler = _anneal_of(model)
    kind = sampler.capabilities.gradient
    if kind != "adjoint":
        how = f"engine={sampler.engine!r}, shots={sampler.shots}, correction={sampler.correction!r}"
        raise NotSupportedError(
            f"layer angles are learned through the adjoint gradient of the state vector, and the gradient of this "
            f"'dqa' is {kind!r} ({how}); use engine='statevector' with gradient='auto', without shots and correction"
        )
    return run_schedule(model, fixed_layers(sampler))


def run_schedule(model: nn.Module, layers: Layers) -> LearnedSchedule:
    """Let the model's anneal, on any engine, run these layers, held as `model.learned_schedule`.

    Raises:
        InvalidOptionError: the model has no sampler, or several.
        NotSupportedError: the sampler is no simulated anneal.
    """
    sampler = _anneal_of(model)
    learned = LearnedSchedule(layers).to(next(model.parameters()).device)
    own = {"schedule": learned.schedule(), "num_layers": None, "calibrate": False}
    set_sampler(model, type(sampler)(**{**sampler.options(), **own}))
    model.add_module(PART, learned)
    return learned


def fixed_layers(sampler: DQASampler) -> Layers:
    """The layers that the sampler runs for every problem.

    Raises:
        NotSupportedError: its angles follow the scale of each problem.
    """
    if sampler.follows_scale:
        raise NotSupportedError(
            f"the angles of {sampler.description} follow the scale of each problem, and a model stores one set of "
            "angles; use a schedule such as 'learned-strong'"
        )
    return sampler.layers()


def schedule_of(model: nn.Module) -> LearnedSchedule | None:
    """The schedule that the model holds; None where it holds none."""
    part = getattr(model, PART, None)
    return part if isinstance(part, LearnedSchedule) else None


def angles_in(state: Mapping[str, Tensor]) -> Layers | None:
    """The angles in a model's state_dict; None where there are none."""
    rows = [state.get(f"{PART}.{row}") for row in _ROWS]
    found = [row for row in rows if row is not None]
    return Layers(*found) if len(found) == len(_ROWS) else None


def without_angles(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's state_dict without those angles: its weights alone, for any sampler."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(f"{PART}.")}


def take_angles(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Prepare `model` for a state_dict that may hold angles; what of it the model takes.

    An anneal that names no schedule of its own runs them. Any other sampler does without them.
    """
    angles, samplers = angles_in(state), samplers_of(model)
    if angles is None:
        return dict(state)
    if len(samplers) != 1 or not isinstance(samplers[0], DQASampler) or names_schedule(samplers[0].options()):
        return without_angles(state)
    run_schedule(model, angles)
    return dict(state)


def names_schedule(options: Mapping[str, Any]) -> bool:
    """Whether the options of an anneal choose what it runs."""
    return any(options.get(name) is not None for name in ("schedule", "num_layers", "calibrate"))


def _anneal_of(model: nn.Module) -> DQASampler:
    samplers: list[Sampler] = samplers_of(model)
    if len(samplers) != 1:
        count = "no sampler" if not samplers else f"{len(samplers)} samplers"
        raise InvalidOptionError(f"{type(model).__name__} has {count}; a schedule is learned for the one of the model")
    (sampler,) = samplers
    if not isinstance(sampler, DQASampler):
        raise NotSupportedError(
            f"the sampler {sampler.name!r} has no layer angles to learn; use 'dqa', the simulated anneal"
        )
    return sampler
