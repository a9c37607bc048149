"""What an attention mask lets a model see: depth, classes, Hasse diagram, density, leaks.

The mask is one of the library, with the inputs and labels it is for, or one of yours from a file (NumPy, CSV, text),
whose position j is taken to hold token j.

    python experiments/masks.py --mask=butterfly --length=8
    python experiments/masks.py --mask=block-two-stream --length=12 --block=3 --content=block
    python experiments/masks.py --file=mask.csv --labels=next --check
    python experiments/masks.py --mask=causal --length=64 --sparse=1,2,3,4,8
"""

import dataclasses
import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

from ising_attn import masks  # noqa: E402
from ising_attn.lab.config import RunSettings, parse_settings, settings_to_dict  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.mask_report import (  # noqa: E402
    class_table,
    leak_table,
    mask_numbers,
    mask_table,
    sparse_table,
)
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.tables import Table, write_tables  # noqa: E402
from samplers import InvalidOptionError, MissingDependencyError  # noqa: E402
from samplers.errors import did_you_mean  # noqa: E402

NAMES = ("causal", "prefix", "window", "document", "block-causal", "two-stream", "block-two-stream", "butterfly")
LABELS = ("next", "own", "none")
MOST_SHOWN = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskSettings(RunSettings):
    """Settings of the analysis."""

    mask: str = "butterfly"
    """causal, prefix, window, document, block-causal, two-stream, block-two-stream or butterfly."""
    length: int = 8
    """Tokens of the text (document: the sum of --documents)."""
    block: int = 2
    """Tokens of a block (block-causal, block-two-stream)."""
    content: str = "token"
    """How clean tokens see one another in block-two-stream: token (those before) or block (also their block)."""
    width: int = 3
    """Positions that a window sees, its own included."""
    prefix: int = 3
    """Tokens of the prefix, which see one another."""
    documents: tuple[int, ...] = (3, 5)
    """Lengths of the packed documents."""
    permutation: tuple[int, ...] = ()
    """Order in which two-stream predicts the places; left to right by default."""
    file: Path | None = None
    """Mask from a file instead: .npy, .npz, .csv or .txt, a row per position that sees."""
    labels: str = "next"
    """What a mask from a file is for: next (position j is asked for token j + 1), own (for token j) or none."""
    layers: int | None = None
    """Look for leaks after this many layers; None is any depth."""
    sparse: tuple[int, ...] = (1, 2, 3, 4)
    """Numbers of layers for which a sparser mask of the same order is sought."""
    check: bool = False
    """Fail where a prediction can see its own target."""

    def __post_init__(self) -> None:
        for name, known in (("mask", NAMES), ("labels", LABELS)):
            given = getattr(self, name)
            if given not in known:
                raise InvalidOptionError(
                    f"--{name}={given} is not known; it is one of {', '.join(known)}{did_you_mean(given, known)}"
                )
        for number in (*self.sparse, *(() if self.layers is None else (self.layers,))):
            if number < 1:
                raise InvalidOptionError(f"{number} layers were asked for; --layers and --sparse take 1 or more")

    def task(self) -> tuple[masks.Task, str]:
        """The mask with its inputs and labels, and what it is in one line."""
        if self.file is not None:
            allowed = masks.load_mask(self.file)
            n = len(allowed)
            labels = {"next": range(1, n + 1), "own": range(n), "none": [None] * n}[self.labels]
            return masks.Task(allowed, range(n), labels), f"mask from {self.file.name}, labels: {self.labels}"
        n = self.length
        return {
            "causal": lambda: (masks.causal(n), f"causal, {n} tokens"),
            "prefix": lambda: (masks.prefix(n, self.prefix), f"prefix of {self.prefix} in {n} tokens"),
            "window": lambda: (masks.window(n, self.width), f"window of {self.width} in {n} tokens"),
            "document": lambda: (
                masks.document(self.documents),
                f"documents of {', '.join(map(str, self.documents))} tokens",
            ),
            "block-causal": lambda: (masks.block_causal(n, self.block), f"block-causal, {n} tokens in {self.block}s"),
            "two-stream": lambda: (masks.two_stream(n, self.permutation or None), f"two streams, {n} tokens"),
            "block-two-stream": lambda: (
                masks.block_two_stream(n, self.block, content=self.content),
                f"block two-stream, {n} tokens in {self.block}s, {self.content}-causal content",
            ),
            "butterfly": lambda: (masks.butterfly(n), f"butterfly, {n} tokens"),
        }[self.mask]()


def main() -> None:
    settings = parse_settings(MaskSettings, prog="masks", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    task, what = settings.task()
    names = masks.position_names(task)
    with RunFolder.create(settings.out, config=settings_to_dict(settings), name="masks", resume=settings.resume) as run:
        numbers = mask_numbers(task, layers=settings.layers)
        tables: dict[str, Table] = {
            "order": mask_table(numbers, what, layers=settings.layers),
            "sparse": sparse_table(task, settings.sparse),
            "classes": class_table(task, names),
            "leaks": leak_table(task, layers=settings.layers),
        }
        write_tables(run.path, tables)
        write_mask(run.path, task, names)
        notes = draw_mask(run.plots / "mask.png", task, names, what)
        run.write_summary({"mask": what, **numbers})
        for name in ("order", "sparse"):
            console.print(tables[name].rich(), soft_wrap=False)
        if task.size <= MOST_SHOWN:
            console.print("Mask, rows see columns:\n")
            console.print(masks.mask_text(task.allowed))
            console.print("Hasse diagram, what sees on top (content → what it is asked for):\n")
            console.print(masks.hasse_text(task.order, names))
        for leak in task.leaks(settings.layers)[:MOST_SHOWN]:
            console.print(f"leak: {leak}")
        if numbers["leaks"] > MOST_SHOWN:
            console.print(f"… and {numbers['leaks'] - MOST_SHOWN} more leaks, all in leaks.csv")
        for note in notes:
            console.print(f"note: {note}")
        if settings.check:
            task.check(settings.layers)
        console.print("\nRun folder with tables (Markdown, CSV), mask and Hasse diagram (text, DOT, picture):")
        console.print(str(run.path), soft_wrap=True)


def write_mask(folder: Path, task: masks.Task, names: list[str]) -> None:
    """allowed.npy and mask.txt, which --file reads; hasse.txt and hasse.dot."""
    np.save(folder / "allowed.npy", task.allowed.numpy())
    for name, text in (
        ("mask.txt", masks.mask_text(task.allowed)),
        ("hasse.txt", masks.hasse_text(task.order, names)),
        ("hasse.dot", masks.hasse_dot(task.order, names)),
    ):
        (folder / name).write_text(text, encoding="utf-8")


def draw_mask(path: Path, task: masks.Task, names: list[str], title: str) -> list[str]:
    """The picture; a note instead where matplotlib is absent."""
    try:
        masks.save_mask_drawing(path, task.allowed, title=title, names=names)
    except MissingDependencyError as error:
        return [f"no plots: {error}"]
    return []


if __name__ == "__main__":
    sys.exit(run_main(main))
