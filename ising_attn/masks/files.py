"""Masks from files: NumPy arrays, CSV, and plain text."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ising_attn.array_files import ArrayFileError, read_array, read_arrays
from ising_attn.masks.checks import checked_mask
from ising_attn.masks.errors import MaskFileError

FORMATS = (
    ".npy, .npz (array `allowed`, or its only one), .csv (0 and 1), .txt (rows of 0 and 1, or # and ., with or without "
    "spaces)"
)
_ON, _OFF = ("1", "#", "True", "true", "x", "X"), ("0", ".", "False", "false", "-")


def load_mask(path: str | Path) -> Bool[Tensor, "n n"]:
    """The mask in a file, a row per line: 1, #, x or true allow, 0, ., - or false forbid. Nothing in it is run.

    Raises:
        MaskFileError: a missing or unreadable file, an unknown format, entries other than these, ragged rows.
        InvalidMaskError: a mask that is not square.
    """
    path = Path(path)
    if not path.is_file():
        raise MaskFileError(f"there is no file of a mask {path}; formats are {FORMATS}")
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_text, ".txt": _read_text}
    if path.suffix.lower() not in readers:
        raise MaskFileError(f"{path} ends in {path.suffix or 'nothing'}; formats are {FORMATS}")
    return checked_mask(readers[path.suffix.lower()](path), name=f"the mask in {path}")


def _read_npy(path: Path) -> Tensor:
    try:
        return _binary(path, read_array(path))
    except ArrayFileError as error:
        raise MaskFileError(f"{path} cannot be read as npy: {error}") from None


def _read_npz(path: Path) -> Tensor:
    try:
        arrays = read_arrays(path)
    except ArrayFileError as error:
        raise MaskFileError(f"{path} cannot be read as npz: {error}") from None
    if "allowed" not in arrays and len(arrays) != 1:
        raise MaskFileError(f"{path} holds the arrays {', '.join(arrays) or 'none'}; name one `allowed`")
    return _binary(path, arrays["allowed"] if "allowed" in arrays else next(iter(arrays.values())))


def _binary(path: Path, array: np.ndarray) -> Tensor:
    if array.dtype != np.bool_ and not (array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all()):
        raise MaskFileError(f"{path} holds {array.dtype} with other values than 0 and 1; a mask is 0 or 1, or bool")
    return torch.from_numpy(np.ascontiguousarray(array.astype(bool)))


def _read_text(path: Path) -> Tensor:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise MaskFileError(f"{path} is no text; formats are {FORMATS}") from None
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise MaskFileError(f"{path} is empty; it needs a line for each row of the mask")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise MaskFileError(f"{path} has {len(row)} entries in row {number} and {len(rows[0])} in the first")
    return torch.tensor(rows, dtype=torch.bool)


def _row(path: Path, number: int, line: str) -> list[bool]:
    cells = [cell.strip() for cell in line.replace(";", ",").replace("\t", ",").split(",")]
    if len(cells) == 1:
        cells = line.split()
    if len(cells) == 1 and cells[0] not in (*_ON, *_OFF):
        cells = list(cells[0])
    for cell in cells:
        if cell not in _ON and cell not in _OFF:
            shown = cell if len(cell) <= 40 else cell[:40] + "…"
            raise MaskFileError(f"{path}, line {number}: {shown!r} is neither of 1 # x true (allowed) and 0 . - false")
    return [cell in _ON for cell in cells]
