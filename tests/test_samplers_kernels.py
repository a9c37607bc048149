"""Compiled kernels on disk: never older than the sources of any kernel that they call."""

import importlib
import sys
from pathlib import Path

import pytest

from samplers import kernels

CALLEE = """
from samplers.kernels import kernel

@kernel
def factor():
    return {value}
"""
CALLER = """
from samplers.kernels import kernel

from {package}.callee import factor

@kernel
def product(x):
    return x * factor()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package that can be imported."""
    folder = tmp_path / "kernels_under_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "caller.py").write_text(CALLER.format(package=folder.name))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def fresh(package: Path):
    """The caller's module as a new process would have it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]
    kernels._sources.cache_clear()
    importlib.invalidate_caches()
    return importlib.import_module(f"{package.name}.caller")


def test_a_changed_kernel_is_seen_by_the_cached_ones_that_call_it(package: Path):
    for value in (3.0, 5.0):
        (package / "callee.py").write_text(CALLEE.format(value=value))
        assert fresh(package).product(2.0) == 2 * value


def test_what_is_on_disk_is_used_again_where_nothing_has_changed(package: Path):
    (package / "callee.py").write_text(CALLEE.format(value=3.0))
    assert fresh(package).product(2.0) == 6.0
    again = fresh(package)
    assert again.product(2.0) == 6.0 and sum(again.product.stats.cache_hits.values()) == 1
