"""Checkpoints: one safetensors file that holds all that a run needs to go on exactly, and nothing executable."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ising_attn.lab.errors import CheckpointError
from ising_attn.lab.files import dump_json, write_bytes
from ising_attn.learned_schedule import schedule_of, without_angles

FORMAT = "ising-attn-checkpoint"
VERSION = 1


@dataclasses.dataclass(kw_only=True)
class Checkpoint:
    """What is stored.

    Args:
        model: the model's state_dict.
        model_config: what the model was built from, as plain values; a different one is refused on loading.
        step: steps done, which is also the position in the data (batches are a function of seed and step).
        optimizer: the optimiser's state_dict, None in a file of weights alone.
        samplers: name and state_dict of each sampler, in the order of `samplers_of(model)`, and what it takes to make
            it again; see `stored_samplers`.
        progress: what the training loop keeps: best metric, patience, running means, seconds.
    """

    model: dict[str, Tensor]
    model_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    step: int = 0
    optimizer: dict[str, Any] | None = None
    samplers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: a failure leaves the file that was there."""
    write_bytes(Path(path), checkpoint_bytes(checkpoint))


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    """The content of a checkpoint file."""
    tensors: dict[str, Tensor] = {}
    content = {f.name: _pack(getattr(checkpoint, f.name), tensors, f.name) for f in dataclasses.fields(Checkpoint)}
    metadata = {"format": FORMAT, "version": str(VERSION), "content": dump_json(content)}
    metadata["sha256"] = _digest(metadata, tensors)
    return safetensors.torch.save(tensors, metadata)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, whole and verified.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, not ours, or written by a newer version.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    # Read by us: safetensors opens no path that is not UTF-8.
    return checkpoint_from_bytes(path.read_bytes(), path)


def checkpoint_from_bytes(content: bytes, path: str | Path) -> Checkpoint:
    """The inverse of `checkpoint_bytes`; `path` says where the content comes from.

    Raises:
        CheckpointError: see `load_checkpoint`.
    """
    try:
        tensors = safetensors.torch.load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is truncated, damaged or no safetensors file ({error}); use another") from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a safetensors file but no checkpoint of ising-attn; use another")
    version = metadata.get("version", "")
    if not version.isdecimal() or len(version) > 9 or int(version) > VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {version[:9] or '?'}; this version reads up to {VERSION}; upgrade ising-attn"
        )
    if metadata.get("sha256") != _digest(metadata, tensors):
        raise CheckpointError(f"{path} is damaged (its checksum does not match); use another checkpoint")
    try:
        checkpoint = Checkpoint(**_unpack(json.loads(metadata["content"]), tensors))
        _check_types(checkpoint)
        return checkpoint
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged (its header cannot be read: {error})") from None


def _check_types(checkpoint: Checkpoint) -> None:
    """Refuse parts of another kind than those that are written."""
    kinds: dict[str, Any] = {"model": dict, "model_config": dict, "step": int, "optimizer": dict | None}
    for name, kind in (kinds | {"samplers": list, "progress": dict}).items():
        if not isinstance(getattr(checkpoint, name), kind):
            raise TypeError(f"{name} is a {type(getattr(checkpoint, name)).__name__}")
    for name, value in checkpoint.model.items():
        if not (isinstance(name, str) and isinstance(value, Tensor)):
            raise TypeError(f"{name!r} of the model is no tensor")
    if not all(isinstance(saved, dict) for saved in checkpoint.samplers):
        raise TypeError("samplers are no objects")


def load_weights(path: str | Path, model: nn.Module, *, model_config: Mapping[str, Any] | None = None) -> Checkpoint:
    """Load a checkpoint's weights into `model`; the model is untouched where anything does not fit.

    A schedule that was learned with the weights belongs to their sampler: a model that holds none does without it.

    Raises:
        CheckpointError: see `load_checkpoint`, or the checkpoint is from another model.
    """
    checkpoint = load_checkpoint(path)
    if schedule_of(model) is None:
        checkpoint.model = without_angles(checkpoint.model)
    check_fits(checkpoint, model, model_config=model_config, source=path)
    model.load_state_dict(checkpoint.model)
    return checkpoint


def check_fits(
    checkpoint: Checkpoint, model: nn.Module, *, model_config: Mapping[str, Any] | None, source: str | Path
) -> None:
    """Refuse a checkpoint that was made by another model, saying what differs."""
    if model_config is not None:
        ours = json.loads(dump_json(dict(model_config)))
        for key in sorted(ours.keys() | checkpoint.model_config.keys()):
            theirs = checkpoint.model_config.get(key)
            if theirs != ours.get(key):
                raise CheckpointError(
                    f"{source} is from another model: {key} is {theirs!r} there and {ours.get(key)!r} here; "
                    "use the settings it was trained with"
                )
    here = {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}
    there = {name: (tuple(t.shape), t.dtype) for name, t in checkpoint.model.items()}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise CheckpointError(
                f"{source} is from another model: {name!r} is {_spoken(there.get(name))} there "
                f"and {_spoken(here.get(name))} here; use the settings it was trained with"
            )


def _spoken(kind: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "absent" if kind is None else f"{str(kind[1]).removeprefix('torch.')} {list(kind[0])}"


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{metadata['version']} {metadata.get('content')} ".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """JSON with tensors taken out, and dicts with integer keys (as optimisers have) written as pairs."""
    if isinstance(value, Tensor):
        # A copy of its own for each: safetensors refuses tensors that share memory, as tied weights do.
        tensors[path] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"__tensor__": path}
    if isinstance(value, Mapping):
        return {"__items__": [[key, _pack(item, tensors, f"{path}.{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors, f"{path}.{k}") for k, item in enumerate(value)]
    return value


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if isinstance(value, dict) and "__tensor__" in value:
        return tensors[value["__tensor__"]]
    if isinstance(value, dict) and "__items__" in value:
        return {key: _unpack(item, tensors) for key, item in value["__items__"]}
    if isinstance(value, dict):
        return {key: _unpack(item, tensors) for key, item in value.items()}
    return value
