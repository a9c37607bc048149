"""experiments → models → ising_attn → samplers, and no experiment imports another: the scripts are no package, so
import-linter, which keeps the three packages apart, cannot see them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["samplers", "ising_attn", "models", "experiments"]
EXPERIMENTS = [path.stem for path in sorted((ROOT / "experiments").glob("*.py"))]
IMPORTERS = ("import_module", "__import__", "run_module", "run_path", "find_spec")


def imported(source: str) -> Iterator[str]:
    """Dotted names of every module a source imports, in functions and by `import_module("…")` as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module.removesuffix('.')}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in IMPORTERS and isinstance(node.args[0].value, str):
                yield node.args[0].value.removesuffix(".py").replace("/", ".")


def layer_of(name: str) -> str:
    """The part of the project a module belongs to. Relative imports count as ones of siblings."""
    parts = name.lstrip(".").split(".")
    if parts[:2] == ["ising_attn", "experiments"] or parts[0] in EXPERIMENTS or name.startswith("."):
        return "experiments"
    return parts[0]


def violations(layer: str, source: str) -> list[str]:
    """Imports of a source in `layer` that point upwards, sideways between experiments, or to tests and benchmarks."""
    above = LAYERS[LAYERS.index(layer) + (layer != "experiments") :]
    return [name for name in imported(source) if layer_of(name) in (*above, "tests", "benchmarks")]


SOURCES = [(layer, path) for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_downwards_only(layer: str):
    paths = [path for own, path in SOURCES if own == layer]
    found = {str(path.relative_to(ROOT)): violations(layer, path.read_text(encoding="utf-8")) for path in paths}
    assert paths and not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("experiments", "from experiments.brackets import main"),
        ("experiments", "from experiments import brackets"),
        ("experiments", "import brackets"),
        ("experiments", "def late():\n    from ising_attn.experiments.marginals import run"),
        ("experiments", "from . import brackets"),
        ("experiments", "import runpy\nrunpy.run_path('experiments/brackets.py')"),
        ("experiments", "import benchmarks.exact"),
        ("models", "from experiments.brackets import main"),
        ("ising_attn", "import importlib\nimportlib.import_module('models.block')"),
        ("ising_attn", "from models import block"),
        ("samplers", "def late():\n    import ising_attn.lab"),
        ("samplers", "from tests import conftest"),
    ],
)
def test_a_planted_import_is_seen(layer: str, source: str):
    assert violations(layer, source)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_of_lower_layers_and_libraries_are_allowed(layer: str):
    lower = LAYERS[: LAYERS.index(layer)]
    source = "\n".join(["import torch", "from pathlib import Path", *(f"from {name} import x" for name in lower)])
    assert violations(layer, source) == []
    assert layer == "experiments" or violations(layer, f"from {layer}.part import x") == []
