"""A compiled sum for few spins on the CPU: `samplers.exact.halves` in one pass per block of queries.

Queries are vector lanes. A kernel takes every causal prefix of a block at its own size, so nothing is clamped there;
arbitrary masks clamp and compensate. Energies are float64; u, v and W have the dtype of the fields.
"""

import math

import numpy as np
import torch

from samplers.exact.fused_parts import add_slopes, adjoint_of_energies, contract, transpose
from samplers.exact.kernel_arrays import KernelArrays
from samplers.exact.stages import (
    centre_slopes,
    group_weights,
    load_absent,
    load_halves,
    reduce_sums,
    write_gradients,
    write_results,
)
from samplers.kernels import in_threads, kernel

# More lanes than this leave the first-level cache; fewer leave the vector units idle.
_LANES = 64
# What the forward pass makes is kept for the backward pass up to this size, and made again beyond.
_KEPT_BYTES = 2**26
# What a pass that does not write the gradients of J and K is given in their place.
_NONE = np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 1))


def fused_forward(given: KernelArrays, positions: int, keep: bool, mean, log_z, lost) -> np.ndarray:
    """Write m, log Z and lost of the first `positions`; returns what the backward pass takes up again."""
    h = given.h
    lanes = _lanes(h)
    jobs = _blocks(h, lanes)
    rows = _table_rows(h.shape[3] - h.shape[2] + 1, positions)
    kept = keep and jobs * rows * lanes * h.itemsize <= _KEPT_BYTES
    tables = np.empty((jobs if kept else 0, rows, lanes), h.dtype)

    def part(start: int, stop: int) -> None:
        sums_kernel(*given.arguments, positions, lanes, start, stop, False, False, tables, mean, log_z, lost,
                    h, log_z, h, *_NONE)  # fmt: skip

    in_threads(part, jobs)
    return tables


def fused_backward(
    given: KernelArrays, positions: int, tables, g_mean, g_log_z, wants_j: bool, h_out, j_out, k_out
) -> None:
    """Write ∂L/∂h of the first `positions` and, if `wants_j`, add theirs of J and K."""
    lanes = tables.shape[2]
    h, jobs, lost = given.h, _blocks(given.h, lanes), np.empty((1, 1, 1), np.bool_)
    shares: list[tuple] = []

    def part(start: int, stop: int) -> None:
        own = (np.zeros_like(j_out), np.zeros_like(k_out)) if (start, stop) != (0, jobs) else (j_out, k_out)
        sums_kernel(*given.arguments, positions, lanes, start, stop, True, wants_j, tables, h, g_log_z, lost,
                    g_mean, g_log_z, h_out, *own)  # fmt: skip
        shares.append(own)

    in_threads(part, jobs)
    for j_share, k_share in shares:
        if j_share is not j_out:
            j_out += j_share
            k_out += k_share


def _lanes(h: np.ndarray) -> int:
    """Lanes of a block, a multiple of a vector's."""
    groups, queries = h.shape[:2]
    threads = torch.get_num_threads() if groups == 1 else 1
    return min(_LANES, 16 * math.ceil(queries / threads / 16))


def _blocks(h: np.ndarray, lanes: int) -> int:
    """The number of blocks of lanes of all groups."""
    return h.shape[0] * math.ceil(h.shape[1] / lanes)


def _table_rows(smallest: int, positions: int) -> int:
    """How many rows of lanes `table_parts` takes, over all positions."""
    sizes = range(smallest, smallest + positions)
    return sum(2 * ((1 << size // 2) + (1 << size - size // 2)) + size + 1 for size in sizes)


@kernel
def table_parts(table, rows, cols, size):
    """Half vectors, their contractions with W, Σ_s s_k p(s) of every spin, and Z of a position's part of a table."""
    ends = rows + cols, 2 * rows + cols, 2 * (rows + cols), 2 * (rows + cols) + size
    return (table[:rows], table[rows : ends[0]], table[ends[0] : ends[1]], table[ends[1] : ends[2]],
            table[ends[2] : ends[3]], table[ends[3]])  # fmt: skip


@kernel
def sums_kernel(
    h, mask, masked, j, k, has_triples, beta, floor, positions, lanes, start, stop,
    backward, wants_j, tables, mean, log_z, lost, g_mean, g_log_z, h_out, j_out, k_out,
):  # fmt: skip
    """Blocks start … stop−1: results (mean, log_z, lost) or, if `backward`, gradients (h_out, j_out, k_out).

    Only of the first `positions`, and of J and K only where `wants_j`. `tables` (blocks, rows, lanes) are written
    forward and read backward; without blocks, the backward pass repeats the forward sums.
    """
    queries, smallest = h.shape[1], h.shape[3] - h.shape[2] + 1
    n = smallest + positions - 1
    blocks, top = (queries + lanes - 1) // lanes, 1 << (n - n // 2)
    weights, energies, inner = np.empty(2 << n, h.dtype), np.empty(2 << n), np.empty(1 << n)
    work, scratch = np.empty(max(1 << n, n * lanes)), np.empty(n * lanes)
    peaks, held, slopes = np.zeros(n + 1), np.zeros(lanes), np.zeros(2 << n)
    fields, absent, factors = np.empty((n, lanes)), np.zeros((n, lanes)), np.empty((2, n, lanes), h.dtype)
    halves, one_table = np.empty((5, top, lanes), h.dtype), np.empty((4 * top + n + 1, lanes), h.dtype)
    scaled, u1, v1, u1_by_col, v1_by_row = halves[0], halves[1], halves[2], halves[3], halves[4]
    g, lane_slopes, h_sums = np.empty((n, lanes), h.dtype), np.zeros(lanes, h.dtype), np.empty((n, lanes), h.dtype)
    inverse, offset = np.empty(lanes, h.dtype), np.empty(lanes, h.dtype)
    kept = len(tables) > 0
    right, row_sums = np.empty((lanes, top), h.dtype), np.empty(top, h.dtype)
    group = -1
    for job in range(start, stop):
        if job // blocks != group:
            if backward and wants_j and group >= 0:
                own = k_out[group if has_triples else 0]
                adjoint_of_energies(slopes, has_triples, n, beta, work, inner, j_out[group], own)
                slopes[:] = 0.0
            group = job // blocks
            triple = k[group if has_triples else 0]
            group_weights(j[group], triple, has_triples, beta, smallest, n, energies, work, inner, weights, peaks)
        own_mask, first = mask[group if masked else 0], (job % blocks) * lanes
        count, at = min(lanes, queries - first), 0
        for position in range(positions):
            size = smallest + position
            low, states = size // 2, 1 << size
            high, rows, cols = size - low, 1 << (size - low), 1 << low
            w = weights[states : 2 * states]
            table = tables[job, at:] if kept else one_table
            u, v, by_row, by_col, sums, total = table_parts(table, rows, cols, size)
            at += 2 * (rows + cols) + size + 1
            if masked:
                load_absent(own_mask, first, position, size, absent)
            if not (backward and kept):
                load_halves(h[group], masked, j[group], beta, first, position, size,
                            fields, absent, factors, scratch, work, u, v)  # fmt: skip
                contract(w, rows, cols, u, v, by_row, by_col)
                reduce_sums(u, v, by_row, by_col, low, high, u1, v1, sums, total)
            if not backward:
                write_results(sums, total, floor, fields, peaks[size], absent, masked, j[group], beta, held,
                              first, position, size, mean[group], log_z[group], lost[group])  # fmt: skip
                continue
            centre_slopes(g_mean[group], g_log_z[group], first, position, low, high, count, floor, sums, total,
                          g, lane_slopes, inverse, offset, u, scaled, u1, v, v1)  # fmt: skip
            contract(w, rows, cols, u1, v1, v1_by_row, u1_by_col)
            if wants_j:
                transpose(v, cols, right)
                add_slopes(w, rows, cols, u1, right, row_sums, slopes[states : 2 * states])
                transpose(v1, cols, right)
                add_slopes(w, rows, cols, scaled, right, row_sums, slopes[states : 2 * states])
            write_gradients(scaled, v, by_row, by_col, u1, v1, v1_by_row, u1_by_col, inverse, low, high, h_sums,
                            absent, masked, beta, lane_slopes, first, position, count,
                            h_out[group], j_out[group])  # fmt: skip
    if backward and wants_j and group >= 0:
        own = k_out[group if has_triples else 0]
        adjoint_of_energies(slopes, has_triples, n, beta, work, inner, j_out[group], own)
