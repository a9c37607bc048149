"""Models as folders: `model.save_pretrained(folder)`, `CharLM.from_pretrained(folder)`, `from_pretrained(folder)`.

    FOLDER/model.safetensors   weights, with the settings that they belong to in the header
    FOLDER/config.json         those settings once more, for readers

The weights are a checkpoint file (`ising_attn.lab.checkpoints`), written whole and verified by a checksum. Nothing in
either file is ever executed.
"""

import contextlib
import inspect
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ising_attn import Sampler, samplers_of
from samplers.errors import InvalidOptionError, IsingAttnError

P = TypeVar("P", bound="Pretrained")

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT, VERSION = "ising-attn-model", 1


class Pretrained:
    """For models that have `config` and `Config`: kept in a folder, and made again from it."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights, configuration and samplers (names and options) into `folder`.

        A model that is there already is replaced; each file is written whole or not at all. Stored as well is what is
        learned with the weights, such as the schedule of an anneal. Not stored are what is set on layers afterwards
        (`set_routing`), and a sampler's options that are no plain data: a D-Wave machine, a dimod object, a Qiskit
        primitive. `from_pretrained(…, sampler=…)` then asks for the sampler.

        Raises:
            CheckpointError: the folder holds something else, such as a run or a model of another library.
        """
        save(self, folder)  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(
        cls: type[P], source: str | Path, *, sampler: str | Sampler | None = None, device: torch.device | str = "cpu"
    ) -> P:
        """`from_pretrained`, for a model of this class.

        Raises:
            CheckpointError: see `from_pretrained`, or the file is of a model of another class.
        """
        return load(source, cls, sampler=sampler, device=device)


def from_pretrained(
    source: str | Path, *, sampler: str | Sampler | None = None, device: torch.device | str = "cpu"
) -> Any:
    """The model that a folder, a run or a checkpoint holds: in evaluation mode, in the dtype it was saved with.

    Args:
        source: a folder of `save_pretrained`; a run folder of one seed, of which the weights that its numbers were
            made with are taken; or a checkpoint file of either.
        sampler: in the place of the stored one, for models that use one. An anneal that names no schedule of its own
            runs the angles that were learned with the weights; any other sampler does without them.
        device: where the model goes.

    Raises:
        InvalidOptionError: no such device here.
        CheckpointError: files that are missing, cut short, damaged, foreign, too new or do not belong together; a
            configuration with unknown keys or impossible values; a sampler that was not stored.
    """
    return load(source, nn.Module, sampler=sampler, device=device)


def save(model: nn.Module, folder: str | Path) -> None:
    """See `Pretrained.save_pretrained`."""
    # Not at the top: what trains models is needed by nothing else here.
    from ising_attn.lab.checkpoints import Checkpoint, save_checkpoint
    from ising_attn.lab.errors import CheckpointError
    from ising_attn.lab.files import write_json
    from ising_attn.lab.stored_samplers import stored_samplers

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give a folder")
    there = next((name for name in (CONFIG, WEIGHTS) if (folder / name).exists()), None)
    if there is not None and not _is_own(folder / there):
        raise CheckpointError(f"{folder} has the {there} of something else; give another folder")
    checkpoint = Checkpoint(
        model=model.state_dict(),
        model_config=model.config.to_dict(),  # type: ignore[union-attr, operator]
        samplers=stored_samplers(model),
    )
    save_checkpoint(folder / WEIGHTS, checkpoint)
    write_json(folder / CONFIG, {"format": FORMAT, "version": VERSION, **_settings(checkpoint)})


def load(
    source: str | Path, base: type, *, sampler: str | Sampler | None = None, device: torch.device | str = "cpu"
) -> Any:
    """`from_pretrained` for models that are instances of `base`."""
    from ising_attn.lab.checkpoints import check_fits, load_checkpoint
    from ising_attn.lab.errors import CheckpointError
    from ising_attn.lab.stored_samplers import set_stored_samplers
    from ising_attn.learned_schedule import take_angles

    where = _device(device)
    file = _weights_file(Path(source))
    checkpoint = load_checkpoint(file)
    if file.name == WEIGHTS and file.parent == Path(source):
        _check_config(file.parent / CONFIG, _settings(checkpoint))
    stored = sum(tensor.numel() for tensor in checkpoint.model.values())
    with torch.random.fork_rng(devices=[]), _no_more_weights_than(stored, file):
        model = _made(checkpoint.model_config, base, file, sampler)
    model.to(device=where, dtype=_float_of(checkpoint.model, model))
    if sampler is None and samplers_of(model):
        set_stored_samplers(model, checkpoint.samplers, file)
    try:
        checkpoint.model = take_angles(model, checkpoint.model)
    except IsingAttnError as error:
        raise CheckpointError(f"{file}: {error}") from None
    _take_dtypes(model, checkpoint.model)
    check_fits(checkpoint, model, model_config=None, source=file)
    model.load_state_dict(checkpoint.model)
    return model.eval()


def _device(device: torch.device | str) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidOptionError(f"device is {device!r}: {reason}; use cpu, cuda or cuda:N") from None
    if chosen.type == "meta":
        raise InvalidOptionError("device is 'meta', which holds no weights; use cpu, cuda or cuda:N")
    return chosen


@contextlib.contextmanager
def _no_more_weights_than(most: int, source: Path) -> Iterator[None]:
    """Refuse a model that outgrows its stored weights while it is made, before it takes the memory."""
    from ising_attn.lab.errors import CheckpointError

    thread, seen, total = threading.get_ident(), dict[int, nn.Parameter](), 0

    def count(_: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if parameter is None or id(parameter) in seen or threading.get_ident() != thread:
            return
        seen[id(parameter)] = parameter
        total += parameter.numel()
        if total > most:
            raise CheckpointError(
                f"{source} is from another model: it holds {most} numbers, and its configuration makes a model of more"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _is_own(file: Path) -> bool:
    """Whether a config.json, or weights without one, were written here."""
    from ising_attn.lab.checkpoints import load_checkpoint
    from ising_attn.lab.errors import CheckpointError

    try:
        if file.name == WEIGHTS:
            load_checkpoint(file)
            return True
        found = json.loads(file.read_bytes().decode())
        return isinstance(found, dict) and found.get("format") == FORMAT
    except (CheckpointError, ValueError, RecursionError):
        return False


def _settings(checkpoint: Any) -> dict[str, Any]:
    return {"config": checkpoint.model_config, "samplers": checkpoint.samplers}


def _weights_file(source: Path) -> Path:
    """The file with the weights that `source` speaks of."""
    from ising_attn.lab.errors import CheckpointError

    if source.is_file():
        return source
    if not source.exists():
        raise CheckpointError(
            f"{source} does not exist; give a folder of save_pretrained, a run folder or a checkpoint"
        )
    for name in (WEIGHTS, "checkpoints/rescaled.safetensors", "checkpoints/best.safetensors"):
        if (source / name).is_file():
            return source / name
    seeds = sorted(path.parent.name for path in source.glob("seed-*/checkpoints"))
    if seeds:
        raise CheckpointError(f"{source} holds a model of each seed; give one of its folders {', '.join(seeds)}")
    raise CheckpointError(f"{source} holds no model: neither {WEIGHTS} nor checkpoints/best.safetensors")


def _check_config(path: Path, expected: dict[str, Any]) -> None:
    """Refuse a config.json that is not the one of the weights beside it."""
    from ising_attn.lab.errors import CheckpointError
    from ising_attn.lab.files import dump_json

    itself = f"from_pretrained({str(path.parent / WEIGHTS)!r}) takes the weights with the settings in their own header"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; {itself}")
    try:
        found = json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON ({error}); {itself}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not of a model of ising-attn (format {FORMAT!r}); {itself}")
    version = found.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version > VERSION:
        raise CheckpointError(f"{path} has version {version!r}; this ising-attn reads up to {VERSION}; upgrade it")
    unknown = found.keys() - {"format", "version"} - expected.keys()
    if unknown:
        raise CheckpointError(f"{path} has unknown keys {', '.join(sorted(unknown))}; {itself}")
    for key, value in json.loads(dump_json(expected)).items():
        if found.get(key) != value:
            raise CheckpointError(
                f"{path} differs from the weights beside it in {_differs(found.get(key), value, key)}; {itself}"
            )


def _differs(there: Any, here: Any, at: str) -> str:
    """Where two JSON values first differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() | here.keys()):
            if key not in there or key not in here or there[key] != here[key]:
                return _differs(there.get(key), here.get(key), key)
    return f"{at}: {there!r} there, {here!r} with the weights"


def _made(config: dict[str, Any], base: type, source: Path, sampler: str | Sampler | None) -> Any:
    """A new model of a stored configuration, which may be anything."""
    from ising_attn.lab.errors import CheckpointError
    from models.registry import MODELS, make_model

    name = config.get("model") if isinstance(config, dict) else None
    own = None if inspect.isabstract(base) else getattr(getattr(base, "Config", None), "model", None)
    kind: Any = base if own is not None and name == own else MODELS.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(MODELS)
        raise CheckpointError(f"{source} is of the model {name!r}; known: {known}; other classes have from_pretrained")
    if not issubclass(kind, base):
        raise CheckpointError(f"{source} holds a {kind.__name__}, no {base.__name__}; use models.from_pretrained")
    try:
        return make_model(kind, config, sampler=sampler)
    except InvalidOptionError as error:
        raise CheckpointError(f"{source}: {error}") from None
    except (TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, MemoryError) as error:
        if isinstance(error, CheckpointError) or (isinstance(error, IsingAttnError) and sampler is not None):
            raise
        raise CheckpointError(f"{source} has a configuration that makes no {kind.__name__}: {error}") from None


def _float_of(state: dict[str, Tensor], model: nn.Module) -> torch.dtype | None:
    """The dtype of the model as a whole: that of its first weights."""
    for name, parameter in model.named_parameters():
        stored = state.get(name)
        if stored is not None and parameter.is_floating_point() and stored.is_floating_point():
            return stored.dtype
    return None


def _take_dtypes(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Single numbers may be of another precision than the rest, as temperatures and angles are."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        stored = state.get(name)
        if stored is not None and tensor.is_floating_point() and stored.is_floating_point():
            tensor.data = tensor.data.to(stored.dtype)
