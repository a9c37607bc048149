"""Boolean networks as JSON files of truth tables: data that any language reads, and never code."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ising_attn.lab.files import write_bytes
from ising_attn.logic.errors import CircuitFileError, InvalidLogicError, WiringError
from ising_attn.logic.gates import tables_of
from ising_attn.logic.heads import GroupSum, LinearHead
from ising_attn.logic.layer import BooleanLayer
from ising_attn.logic.network import BooleanNetwork, Head

FORMAT, VERSION = "ising-attn-circuit", 1
# Of the numbers of a head; files of the first writers, which name none, hold float32.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
}
_LARGEST = 2**31 - 1


def save_circuit(network: BooleanNetwork, path: str | Path) -> None:
    """Write a Boolean network as JSON: for each layer the truth table of every gate, (a, b) = 00, 01, 10, 11 from left
    to right, and the inputs a and b that it reads; then the head."""
    layers = []
    for layer in network.boolean_layers():
        tables = ["".join(map(str, row)) for row in tables_of(layer.numbers).tolist()]
        a, b = layer.wiring.pairs().tolist()
        layers.append({"truth_tables": tables, "a": a, "b": b})
    content = {
        "format": FORMAT,
        "version": VERSION,
        "in_features": network.in_features,
        "layers": layers,
        "head": _head_values(network.head),
    }
    write_bytes(Path(path), json.dumps(content).encode())


def load_circuit(path: str | Path) -> BooleanNetwork:
    """The Boolean network in a file. Nothing in it is run.

    Raises:
        CircuitFileError: a missing or unreadable file, another format or a newer version, entries that are no circuit.
    """
    path = Path(path)
    if not path.is_file():
        raise CircuitFileError(f"there is no circuit {path}")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise CircuitFileError(f"{path} is no JSON: {error}") from None
    except RecursionError:
        raise CircuitFileError(f"{path} is nested too deeply for a circuit; use a file of save_circuit") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CircuitFileError(f"{path} holds no circuit (its format is not {FORMAT!r}); use a file of save_circuit")
    version = content.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CircuitFileError(
            f"{path} has circuit version {version!r}; this program reads up to {VERSION}; upgrade ising-attn"
        )
    try:
        return _network(content)
    except (KeyError, TypeError, InvalidLogicError, WiringError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CircuitFileError(f"{path} is damaged: {reason}") from None


def _head_values(head: Head | None) -> dict[str, Any] | None:
    if isinstance(head, GroupSum):
        values: dict[str, Any] = {"kind": "group-sum", "classes": head.classes, "tau": float(head.tau)}
        return {**values, "centred": head.centred, "dtype": _name_of(head.tau)}
    if isinstance(head, LinearHead):
        bias = None if head.bias is None else head.bias.tolist()
        return {"kind": "linear", "weight": head.weight.tolist(), "bias": bias, "dtype": _name_of(head.weight)}
    return None


def _name_of(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _network(content: dict[str, Any]) -> BooleanNetwork:
    width, layers = _integer(content, "in_features"), []
    for given in _list(content, "layers"):
        if not isinstance(given, dict):
            raise TypeError("a layer is no object")
        layers.append(_layer(given, width))
        width = layers[-1].out_features
    return BooleanNetwork(layers, _head(content["head"], width))


def _layer(given: dict[str, Any], width: int) -> BooleanLayer:
    tables, index = _list(given, "truth_tables"), [_list(given, name) for name in "ab"]
    for table in tables:
        if not (isinstance(table, str) and len(table) == 4 and set(table) <= {"0", "1"}):
            raise TypeError(f"truth table {table!r} is not four of 0 and 1")
    if any(len(row) != len(tables) or not all(map(_is_integer, row)) for row in index):
        raise TypeError(f"a and b of a layer must be {len(tables)} integers each, of at most {_LARGEST}")
    numbers = torch.tensor([int(table, 2) for table in tables], dtype=torch.uint8)
    return BooleanLayer(width, torch.tensor(index), numbers)


def _head(given: Any, width: int) -> Head | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise TypeError("the head is no object")
    name = given.get("dtype", "float32")
    if not isinstance(name, str) or name not in _DTYPES:
        raise TypeError(f"the head is of the unknown dtype {name!r}")
    if given["kind"] == "group-sum":
        if not isinstance(given["centred"], bool):
            raise TypeError("centred of the head is neither true nor false")
        tau = float(_numbers(given["tau"], "tau", ()))
        group_sum = GroupSum(width, _integer(given, "classes"), tau=tau, centred=given["centred"]).to(_DTYPES[name])
        group_sum.tau.fill_(tau)
        return group_sum
    if given["kind"] != "linear":
        raise TypeError(f"the head is of the unknown kind {given['kind']!r}")
    rows = _list(given, "weight")
    weight = _numbers(rows, "weight", (len(rows), width))
    head = LinearHead(width, len(weight), bias=given["bias"] is not None, dtype=_DTYPES[name])
    with torch.no_grad():
        head.weight.copy_(weight)
        if given["bias"] is not None:
            head.bias.copy_(_numbers(given["bias"], "bias", (len(weight),)))
    return head


def _numbers(given: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    try:
        values = torch.tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise TypeError(f"{name} of the head is not of numbers alone") from None
    if tuple(values.shape) != shape or not bool(values.isfinite().all()):
        raise TypeError(f"{name} of the head is not {' × '.join(map(str, shape)) or 'one'} finite numbers")
    return values


def _list(given: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(given[name], list):
        raise TypeError(f"{name} is no list")
    return given[name]


def _integer(given: dict[str, Any], name: str) -> int:
    if not _is_integer(given[name]):
        raise TypeError(f"{name} is no integer of at most {_LARGEST}")
    return given[name]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
