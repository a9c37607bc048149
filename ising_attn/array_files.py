"""NumPy's .npy and .npz files from others: no pickles, and nothing is allocated that the file does not hold."""

import io
import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

# An array as a whole; a mask of 32768 positions.
MOST_BYTES = 2**30
# What numpy and zipfile raise over files that are damaged or made up.
_REASONS = (
    ValueError, TypeError, KeyError, OSError, EOFError, OverflowError, SyntaxError, RecursionError, MemoryError,
    RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
    tokenize.TokenError,
)  # fmt: skip


class ArrayFileError(ValueError):
    """Why the arrays of a file cannot be had; the caller names the file."""


def read_array(path: Path) -> np.ndarray:
    """The array of an .npy file.

    Raises:
        ArrayFileError: no such array, one of Python objects, or one that is larger than the file or `MOST_BYTES`.
    """
    try:
        return _checked_array(io.BytesIO(path.read_bytes()), path.stat().st_size)
    except _REASONS as error:
        raise ArrayFileError(_reason(error)) from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name.

    Raises:
        ArrayFileError: no such file, or a member that `read_array` refuses.
    """
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name == member.filename:
                    raise ArrayFileError(f"it holds {name!r}, which is no array")
                with archive.open(member) as stream:
                    found[name] = _checked_array(stream, member.file_size)
    except _REASONS as error:
        raise ArrayFileError(_reason(error)) from None
    return found


def _checked_array(stream: Any, size: int) -> np.ndarray:
    """The array of an open binary file of so many bytes, which its header must not exceed."""
    header = io.BytesIO(stream.read(min(size, _HEADER)))
    version = np.lib.format.read_magic(header)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ArrayFileError(f"its format is {version[0]}.{version[1]}; 1.0 and 2.0 are known")
    shape, column_major, dtype = read(header)
    if dtype.hasobject:
        raise ArrayFileError("it holds Python objects, which are not loaded")
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed > min(MOST_BYTES, size):
        raise ArrayFileError(
            f"it claims an array of shape {shape}, {needed} bytes; it has {size}, and {MOST_BYTES} are allowed"
        )
    content = header.read() + stream.read(needed)
    array = np.frombuffer(content[:needed], dtype, math.prod(shape))
    return array.reshape(shape, order="F" if column_major else "C").copy()


# Longer than any header that numpy reads.
_HEADER = 2**14


def _reason(error: Exception) -> str:
    if isinstance(error, ArrayFileError):
        return str(error)
    if isinstance(error, RecursionError | MemoryError | SyntaxError | tokenize.TokenError):
        return "its header is no header of an array"
    return str(error)[:200] or type(error).__name__
