"""Rows of a relation as packed bits: 64 columns to a word, column 0 in the lowest bit of word 0."""

import numpy as np
import torch
from jaxtyping import Bool, UInt64
from torch import Tensor


def packed(relation: Bool[Tensor, "rows n"]) -> UInt64[np.ndarray, "rows words"]:
    """The rows of a relation, the unused bits of the last word 0."""
    rows = relation.detach().cpu().numpy()
    count, n = rows.shape
    words = -(-n // 64)
    found = np.zeros((count, 8 * words), dtype=np.uint8)
    found[:, : -(-n // 8)] = np.packbits(rows, axis=1, bitorder="little")
    return found.view("<u8").astype(np.uint64, copy=False)


def unpacked(rows: UInt64[np.ndarray, "rows words"], n: int) -> Bool[Tensor, "rows n"]:
    """The relation of n columns whose packed rows these are."""
    as_bytes = np.ascontiguousarray(rows.astype("<u8", copy=False)).view(np.uint8)
    return torch.from_numpy(np.unpackbits(as_bytes, axis=1, count=n, bitorder="little").astype(bool))


def boolean_product(left: Bool[Tensor, "m n"], right: Bool[Tensor, "n k"]) -> Bool[Tensor, "m k"]:
    """(left ∘ right)_ik = ∃ j: left_ij ∧ right_jk. Cost: one word operation per True in `left` and 64 columns."""
    from ising_attn.masks.bit_kernels import fill_products
    from samplers.kernels import in_threads

    a, b = packed(left), packed(right)
    out = np.zeros((len(a), b.shape[1]), dtype=np.uint64)
    in_threads(lambda start, stop: fill_products(a, b, start, stop, out), len(a), smallest=64)
    return unpacked(out, right.shape[1]).to(left.device)
