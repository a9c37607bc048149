"""Which code this is: what two machines compare before one trusts the other's numbers."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from pathlib import Path

from ising_attn.cli import experiments_folder

_PACKAGES = ("ising_attn", "samplers", "models")
_KINDS = (".py", ".json")


@functools.cache
def code_version() -> dict[str, str]:
    """Versions of ising-attn, torch and Python, and a hash over every source file of this project that is installed."""
    return {
        "ising-attn": _version("ising-attn"),
        "code": _hash()[:12],
        "torch": _version("torch"),
        "Python": platform.python_version(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _hash() -> str:
    found = hashlib.sha256()
    for name, file in _sources():
        found.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def _sources() -> Iterator[tuple[str, Path]]:
    """Every file with the name that it has in a checkout as well as in an installed package, in order."""
    scripts = experiments_folder()
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            yield from _files(name, Path(spec.origin).parent, apart_from=scripts)
    if scripts is not None:
        yield from _files("experiments", scripts)


def _files(name: str, folder: Path, *, apart_from: Path | None = None) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if file.suffix in _KINDS and (apart_from is None or apart_from not in file.parents):
            yield f"{name}/{file.relative_to(folder).as_posix()}", file
