"""Files that are written whole or not at all."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MARK = ".partial-"
_PARTIAL = re.compile(r"\..+\.partial-[a-z0-9_]{8}(\.[^.]+)?")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, with its suffix, that takes its place when the block ends well.

    On an error the file at `path` stays as it was, and an OSError names it. The rename is atomic, and the bytes reach
    the disk before it.

        with replacing(run.plots / "learning.png") as temporary:
            figure.savefig(temporary)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}{_MARK}", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.filename is None:  # as where the disk is full
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Whether a file is, by its name, a temporary one of `replacing`."""
    return _PARTIAL.fullmatch(path.name) is not None


def remove_partial(folder: Path, *, recursive: bool = False) -> None:
    """Remove what killed processes left of `replacing`; no process may be writing there."""
    for path in folder.rglob(".*") if recursive else folder.glob(".*"):
        if is_partial(path) and path.is_file():
            path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; paths become strings, numbers that are not finite become null."""
    write_bytes(path, encode_json(value, indent=2) + b"\n")


def encode_json(value: Any, *, indent: int | None = None) -> bytes:
    """`dump_json` in UTF-8; bytes of a file name that are not UTF-8 are escaped, and read back as the same name."""
    return dump_json(value, indent=indent).encode(errors="backslashreplace")


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text (no NaN or Infinity, which most readers refuse)."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    return str(value)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and the rename is durable by itself
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
