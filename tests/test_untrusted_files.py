"""Files from others are data: whatever is in them, every loader answers with an error of ours that names the file."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from ising_attn.lab import checkpoints
from ising_attn.lab.config import RunSettings, parse_settings
from ising_attn.lab.problem_sources import load_problems
from ising_attn.lab.row_file import RowFile
from ising_attn.lab.run_page import RunOnPage
from ising_attn.lab.runs import read_json, read_metrics
from ising_attn.logic import load_circuit
from ising_attn.masks import load_mask
from models.pretrained import from_pretrained
from samplers.dqa import load_schedule
from samplers.dqa.schedules import anneal_from_csv
from samplers.errors import IsingAttnError

# More than any of these files can honestly need, less than what they claim.
_MOST_BYTES = 200_000_000


class Bomb:
    """A pickle that leaves a file behind where it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def of_page(path: Path) -> object:
    """The page of a run whose summary is this file."""
    folder = path.parent / "run"
    folder.mkdir()
    path.rename(folder / "summary.json")
    return RunOnPage.read(folder)


def of_metrics(path: Path) -> object:
    folder = path.parent / "run"
    folder.mkdir()
    path.rename(folder / "metrics.jsonl")
    return read_metrics(folder)


def of_model(path: Path) -> object:
    """A model's folder with these weights."""
    folder = path.parent / "run"
    folder.mkdir()
    path.rename(folder / "model.safetensors")
    return from_pretrained(folder)


def settings(path: Path) -> object:
    return parse_settings(RunSettings, [f"--config={path}"], prog="probe")


# (loader, file name): what stands in the message is the name, wherever the loader moves the file to.
LOADERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "checkpoint": (checkpoints.load_checkpoint, "x.safetensors", "x.safetensors"),
    "model": (of_model, "x", "model.safetensors"),
    "circuit": (load_circuit, "x.json", "x.json"),
    "schedule": (load_schedule, "x.json", "x.json"),
    "table of an anneal": (lambda path: anneal_from_csv(path, nanoseconds=5.0), "x.csv", "x.csv"),
    "mask-npy": (load_mask, "x.npy", "x.npy"),
    "mask-npz": (load_mask, "x.npz", "x.npz"),
    "mask-csv": (load_mask, "x.csv", "x.csv"),
    "mask-txt": (load_mask, "x.txt", "x.txt"),
    "problems-npz": (load_problems, "x.npz", "x.npz"),
    "problems-coo": (load_problems, "x.coo", "x.coo"),
    "problems-json": (load_problems, "x.json", "x.json"),
    "rows": (RowFile.read, "x.toml", "x.toml"),
    "settings-toml": (settings, "x.toml", "x.toml"),
    "settings-json": (settings, "x.json", "x.json"),
    "run-file": (read_json, "x.json", "x.json"),
    "metrics": (of_metrics, "x", "metrics.jsonl"),
    "page": (of_page, "x", "run"),
}


def npy(header: str, body: bytes = b"") -> bytes:
    """An array file with this header, whatever it claims."""
    padded = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + body


def zipped(member: bytes, name: str = "allowed.npy", **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for own, content in {name: member, **more}.items():
            archive.writestr(own, content)
    return buffer.getvalue()


def safetensors_file(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
LONG = "{'descr': '|b1', 'fortran_order': False, 'shape': (200000, 200000), }"
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
FORMATS = ("ising-attn-circuit", "ising-attn schedule 1")


def payloads(mark: Path) -> dict[str, bytes]:
    """By name; every loader is given every one."""
    bomb = pickle.dumps(Bomb(mark))
    torch_file = io.BytesIO()
    torch.save({"weights": Bomb(mark)}, torch_file)
    objects = np.empty(1, object)
    objects[0] = Bomb(mark)
    array_file = io.BytesIO()
    np.save(array_file, objects, allow_pickle=True)
    deep, digits = 100_000, 10_000
    return {
        "empty": b"",
        "pickle": bomb,
        "torch pickle": torch_file.getvalue(),
        "array of objects": array_file.getvalue(),
        "zipped array of objects": zipped(array_file.getvalue(), "h.npy"),
        "array with a pickle behind it": npy(OBJECTS, bomb),
        "array of terabytes": npy(HUGE, b"\0" * 64),
        "zipped array of terabytes": zipped(npy(HUGE, b"\0" * 64), "h.npy"),
        "zipped array of gigabytes": zipped(npy(LONG, b"\0" * 64), "allowed.npy"),
        "array with a nested header": npy("(" * 5000),
        "zip with a foreign member": zipped(b"#!/bin/sh\n", "h.npy"),
        "zip without members": b"PK\x05\x06" + b"\0" * 18,
        "truncated zip": zipped(npy(LONG))[:-30],
        "not UTF-8": b"\xff\xfe\xfa\x00" * 9,
        "nulls": b"\0" * 4096,
        "nested lists": b"[" * deep,
        "nested lists, closed": b"[" * deep + b"]" * deep,
        "nested objects": b'{"a":' * deep,
        "nested tables": b"a = " + b"{a = " * deep,
        "dotted key": b"a" + b".a" * 3000 + b" = 1",
        "a number of many digits": b"1" * digits,
        "an object with a number of many digits": b'{"format": "x", "version": ' + b"1" * digits + b"}",
        "a key with a number of many digits": b"steps = " + b"1" * digits,
        "NaN": b"NaN",
        "a list": b"[1, 2]",
        "null": b"null",
        "text": b'"x"',
        "a table of nothing": b'{"x": {"y": [null]}}',
        **{f"{f} of nothing": json.dumps({"format": f, "version": 1, "kind": []}).encode() for f in FORMATS},
        "a circuit with numbers that no float holds": circuit_of_numbers(10**400),
        "a schedule with numbers that no float holds": schedule_of_numbers(10**400),
        **{f"checkpoint with {what}": checkpoint_of(content) for what, content in CONTENTS.items()},
        "safetensors of exabytes": safetensors_file(b"{}", 2**62),
        "safetensors of terabytes": safetensors_file(
            b'{"x":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,4000000000000]}}'
        ),
        "safetensors with a nested header": safetensors_file(b'{"a":' * deep),
        "safetensors with a negative size": safetensors_file(
            b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}'
        ),
    }  # fmt: skip


def circuit_of_numbers(number: int) -> bytes:
    layer = {"truth_tables": ["0110"], "a": [number], "b": [1]}
    head = {"kind": "group-sum", "classes": 1, "tau": number, "centred": False}
    content = {"format": FORMATS[0], "version": 1, "in_features": 2, "layers": [layer], "head": head}
    return json.dumps(content).encode()


def schedule_of_numbers(number: int) -> bytes:
    columns = {"fields": [number], "couplings": [1], "mixer": [1]}
    return json.dumps({"format": FORMATS[1], "kind": "angles", **columns}).encode()


CONTENTS = {
    "nested content": "[" * 100_000 + "]" * 100_000,
    "a step of many digits": '{"__items__": []}, "step": ' + "1" * 10_000,
    "other kinds": json.dumps({"model": [1, 2], "step": "x"}),
    "a model of no tensors": json.dumps({"model": {"x": 1}}),
    "samplers of no kind": json.dumps({"model": {}, "samplers": [1]}),
    "a tensor that it has not": json.dumps({"model": {"x": {"__tensor__": "y"}}}),
}


def checkpoint_of(content: str) -> bytes:
    """With a checksum that is right: its writer knows how to make one."""
    tensors = {"x": torch.ones(2)}
    metadata = {"format": checkpoints.FORMAT, "version": "1", "content": content}
    metadata["sha256"] = checkpoints._digest(metadata, tensors)
    return safetensors.torch.save(tensors, metadata)


NAMES = list(payloads(Path("nowhere")))


@pytest.mark.parametrize("loader", LOADERS)
def test_no_file_does_more_than_be_refused(loader: str, tmp_path: Path):
    load, name, said = LOADERS[loader]
    mark = tmp_path / "executed"
    for payload, content in payloads(mark).items():
        folder = tmp_path / str(NAMES.index(payload))
        folder.mkdir()
        (folder / name).write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(IsingAttnError) as caught:
                load(folder / name)
        except BaseException as error:
            # Some are fine where they are met: an empty file of settings sets nothing.
            if not _is_fine(loader, payload):
                raise AssertionError(f"{loader}, {payload}: {error!r}") from error
            continue
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert said in str(caught.value), f"{loader}, {payload}: {caught.value}"
        assert len(str(caught.value)) < 1000 + len(str(folder)), (
            f"{loader}, {payload}: a message of {len(str(caught.value))}"
        )
        assert peak < _MOST_BYTES, f"{loader}, {payload} took {peak} bytes"
    assert not mark.exists()


def _is_fine(loader: str, payload: str) -> bool:
    """Whether a loader takes this: an empty file of settings sets nothing, and a run's files are any JSON."""
    of_json = payload.endswith((" of nothing", "that no float holds"))
    return {
        "settings-toml": payload == "empty",
        "metrics": payload == "empty",
        "run-file": of_json or payload in ("NaN", "a list", "null", "text"),
        "page": of_json,
    }.get(loader, False)


@pytest.mark.parametrize(
    "loader", [name for name in LOADERS if LOADERS[name][0] not in (of_page, of_metrics, of_model)]
)
def test_a_folder_in_place_of_a_file_is_refused(loader: str, tmp_path: Path):
    load, name, said = LOADERS[loader]
    (tmp_path / name).mkdir()
    with pytest.raises((IsingAttnError, IsADirectoryError)) as caught:
        load(tmp_path / name)
    assert said in str(caught.value)
