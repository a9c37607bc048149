"""The samplers of a model as a file keeps them: which layers use which, by name and options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ising_attn.boltzmann import layers_with, samplers_of
from ising_attn.lab.errors import CheckpointError
from ising_attn.learned_schedule import schedule_of
from samplers import IsingAttnError, Sampler
from samplers.plain_data import sampler_from_dict, sampler_to_dict, stored_name

_KEYS = {"name", "options", "layers"}


def stored_samplers(model: nn.Module) -> list[dict[str, Any]]:
    """{"name", "options", "layers"} of each sampler of `model`, in the order of `samplers_of`.

    `options` is None where they are no plain data, see `samplers.plain_data`. A schedule that is learned with the model
    is left to its weights.
    """
    found = []
    for sampler in samplers_of(model):
        values = sampler_to_dict(sampler)
        if values["options"] is not None and schedule_of(model) is not None:
            values["options"] |= {"schedule": None, "num_layers": None, "calibrate": None}
        found.append({**values, "layers": layers_with(model, sampler)})
    return found


def stored_states(model: nn.Module, samplers: Sequence[Sampler]) -> list[dict[str, Any]]:
    """What `stored_samplers` has of these samplers, and the state of each, for an exact resumption."""
    known = dict(zip(map(id, samplers_of(model)), stored_samplers(model), strict=True))
    return [{**known.get(id(s), {"name": stored_name(s)}), "state": s.state_dict()} for s in samplers]


def set_stored_samplers(model: nn.Module, stored: Sequence[Any], source: str | Path) -> None:
    """Give the layers of `model` the samplers that a file keeps; the model is untouched where that fails.

    Raises:
        CheckpointError: a sampler that cannot be made, layers that the model does not have, or a layer left over.
    """
    made: dict[str, Sampler] = {}
    for values in stored:
        if not isinstance(values, dict) or not set(values) >= _KEYS or not isinstance(values["layers"], list):
            raise CheckpointError(
                f"{source} does not say which options its samplers had, as files of older versions do not; "
                "give the sampler with sampler="
            )
        try:
            sampler = sampler_from_dict({key: values[key] for key in ("name", "options")}, source)
        except IsingAttnError as error:
            raise CheckpointError(f"{error}; sampler= takes another one") from None
        made |= {layer: sampler for layer in values["layers"] if isinstance(layer, str)}
    own = {layer for sampler in samplers_of(model) for layer in layers_with(model, sampler)}
    if made.keys() != own:
        odd = ", ".join(sorted(made.keys() ^ own))
        raise CheckpointError(f"{source} has samplers for other layers than its model: they differ in {odd}")
    for name, sampler in made.items():
        model.get_submodule(name).sampler = sampler  # type: ignore[assignment]
