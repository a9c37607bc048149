"""Experiments run inside the test process, so that a test costs no new interpreter."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ising_attn.lab.main import run_main

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


@contextlib.contextmanager
def loaded(name: str) -> Iterator[ModuleType]:
    """experiments/NAME.py as a fresh module of a name of its own; `sys.path` is left as it was."""
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", EXPERIMENTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module, path, before = importlib.util.module_from_spec(spec), list(sys.path), sys.modules.get(spec.name)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        sys.path[:] = path
        yield module
    finally:
        sys.path[:] = path
        if before is None:
            del sys.modules[spec.name]
        else:
            sys.modules[spec.name] = before


def exit_code(module: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: tuple) -> int:
    """Run the script's main with these arguments, as its last lines would."""
    monkeypatch.setattr(sys, "argv", [str(module.__file__), *map(str, arguments)])
    try:
        return run_main(module.main)
    except SystemExit as stop:
        return int(stop.code or 0)
