"""The tutorials run from top to bottom, and what is committed of them is their output: whole, small, of no machine."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = [FOLDER / f"{name}.ipynb" for name in ("attention_by_hand", "own_sampler", "own_mask")]
# Two conformance reports, and two trainings.
LONGER = ("own_sampler", "own_mask")
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|opt|Users|var)/|[A-Z]:\\\\|site-packages|ipykernel_\d|0x[0-9a-f]{8}")
_NUMBER = re.compile(r"[-−+]?\b\d[\d.]*(?:e[-+]?\d+)?")


def _execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute_tutorials", ROOT / "docs" / "execute_tutorials.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def _shown(cells: list[Any]) -> list[tuple[str, str]]:
    """What each output is, and its text without numbers, which may differ in their last digits elsewhere."""
    found = []
    for output in (output for cell in cells for output in cell["outputs"]):
        text = output.get("text", "")
        plain = "".join(text) if isinstance(text, list) else text
        found.append((output["output_type"], " ".join(_NUMBER.sub("#", plain).split())))
    return found


def test_every_notebook_is_tested():
    assert sorted(FOLDER.glob("*.ipynb")) == sorted(TUTORIALS)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_what_is_committed_is_whole_and_small(path: Path):
    cells, text = _cells(path), path.read_text("utf-8")
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert sum("assert " in "".join(cell["source"]) for cell in cells) >= 2
    assert path.stat().st_size < 300_000
    # A picture's letters may spell anything.
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert MACHINE.search(without_pictures) is None
    assert "execution" not in {key for cell in cells for key in cell["metadata"]}


def test_a_path_of_a_machine_is_found():
    assert MACHINE.search("UserWarning at /home/someone/notebook.py:3") and MACHINE.search("<object at 0x7f3a5c21>")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONGER), id=path.stem) for path in TUTORIALS],
)
def test_runs_and_shows_what_is_committed(path: Path):
    for package in ("nbclient", "ipykernel", "matplotlib", "qiskit_aer"):
        pytest.importorskip(package, reason=f"the tutorials run with {package} (extras docs, plots, aer)")
    fresh = _execute().executed(path)
    assert _shown([cell for cell in fresh.cells if cell.cell_type == "code"]) == _shown(_cells(path))
