"""Run the tutorials from the top and keep their outputs: `make tutorials`, or this file with the notebooks to run.

What is written depends on the notebook's code alone: no times, no paths, no version of the kernel.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
# Of one cell, as a guard against one that hangs.
SECONDS = 600
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path) -> Any:
    """The notebook with fresh outputs, from a new kernel in the root of the repository.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
        ValueError: a cell wrote to stderr, such as a warning.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                raise ValueError(f"{path.name} wrote to stderr: {output.text}")
    return cleaned(notebook)


def cleaned(notebook: Any) -> Any:
    """Without what differs from run to run and from machine to machine."""
    notebook.metadata = _METADATA
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", ()):
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = {}
    return notebook


def main(names: list[str]) -> None:
    import nbformat

    for path in [Path(name) for name in names] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
