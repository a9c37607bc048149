"""Compiled sums for more spins on the CPU: the stages of `samplers.exact.stages` around matrix products.

The twin of `samplers.exact.fused` from about 14 spins on, where a matrix product is worth its call: per group and
prefix two of them forward and four backward, each over all queries of a block of lanes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from samplers.exact.fused_parts import adjoint_of_energies
from samplers.exact.kernel_arrays import KernelArrays
from samplers.exact.pair_weights import pair_gradients
from samplers.exact.stages import (
    add_products,
    centre_slopes,
    group_weights,
    load_absent,
    load_halves,
    reduce_sums,
    write_gradients,
    write_results,
)

# Half vectors of this many queries stay in the second-level cache at 16 spins.
_LANES = 1024
# What the forward pass makes is kept for the backward pass up to these sizes, and made again beyond.
_KEPT_WEIGHTS, _KEPT_BLOCKS = 2**26, 2**27
# From so many columns on, with so few lanes, W is contracted in blocks of so many rows.
_WIDE, _FEW_LANES, _ROWS = 1024, 256, 128


@dataclass
class _Block:
    """A block of lanes at one position: half vectors, their contractions with W, and the sums of all states."""

    u: np.ndarray
    v: np.ndarray
    by_row: np.ndarray
    by_col: np.ndarray
    absent: np.ndarray
    sums: np.ndarray
    total: np.ndarray


class GemmRoom:
    """The positions from `start` on of one call, and what the passes over them need."""

    def __init__(self, given: KernelArrays, start: int, *, keep: bool):
        self.given, self.start, n, dtype = given, start, given.num_spins, given.h.dtype
        groups, queries, self.prefixes, _ = given.h.shape
        self.lanes = lanes = math.ceil(queries / math.ceil(queries / _LANES))
        self.smallest = n - self.prefixes + 1 + start
        self.weights: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.kept: dict[tuple[int, int, int], _Block] = {}
        self.keeps_weights = keep and groups * (2 << n) * dtype.itemsize <= _KEPT_WEIGHTS
        states = 4 * sum(2 << (size - size // 2) for size in range(self.smallest, n + 1))
        self.keeps_blocks = keep and groups * queries * states * dtype.itemsize <= _KEPT_BLOCKS
        # Sums with triples go over tables of energies.
        room = n if given.has_triples else 0
        self.energies, self.inner = np.empty(2 << room), np.empty(1 << room)
        self.work, self.scratch = np.empty(max(1 << room, n * lanes)), np.empty(n * lanes)
        self.held, self.fields = np.zeros(lanes), np.empty((n, lanes))
        self.factors, self.g = np.empty((2, n, lanes), dtype), np.empty((n, lanes), dtype)
        self.inverse, self.offset, self.lane_slopes = (np.zeros(lanes, dtype) for _ in range(3))

    def forward(self, mean: np.ndarray, log_z: np.ndarray, lost: np.ndarray) -> None:
        """Write m, log Z and lost."""
        given = self.given
        for group, first, position in self._places():
            block, size = self._sum(group, first, position), self._size(position)
            write_results(block.sums, block.total, given.floor, self.fields, self._weigh(group)[1][size], block.absent,
                          given.masked, given.j[group], given.beta, self.held, first, position, size,
                          mean[group], log_z[group], lost[group])  # fmt: skip

    def backward(self, g_mean, g_log_z, wants_j: bool, h_out, j_out, k_out) -> None:
        """Write ∂L/∂h and, if `wants_j`, add ∂L/∂J and ∂L/∂K."""
        given, triples = self.given, wants_j and self.given.has_triples
        slopes = np.zeros((len(given.h), 2 << given.num_spins if triples else 0))
        for group, first, position in self._places():
            block, size = self._sum(group, first, position), self._size(position)
            products = self._differentiate(group, first, position, block, g_mean, g_log_z, wants_j, h_out, j_out)
            if products is None:
                continue
            weights = self._weigh(group)[0][1 << size : 2 << size]
            if triples:
                add_products(weights, products, slopes[group, 1 << size : 2 << size])
            else:
                pair_gradients(weights, products, size, given.beta, j_out[group])
        if triples:
            for group, own in enumerate(slopes):
                adjoint_of_energies(own, True, given.num_spins, given.beta, self.work, self.inner,
                                    j_out[group], k_out[group])  # fmt: skip

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """(group, first query, position) of every block of lanes."""
        for group in range(len(self.given.h)):
            for position in range(self.start, self.prefixes):
                for first in range(0, self.given.h.shape[1], self.lanes):
                    yield group, first, position

    def _size(self, position: int) -> int:
        return self.smallest + position - self.start

    def _weigh(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """W of every prefix of a group, and the logs of what they were divided by."""
        if group not in self.weights:
            given, n = self.given, self.given.num_spins
            if not self.keeps_weights:
                self.weights.clear()
            self.weights[group] = weights, peaks = np.empty(2 << n, given.h.dtype), np.zeros(n + 1)
            triples = given.k[group if given.has_triples else 0]
            group_weights(given.j[group], triples, given.has_triples, given.beta, self.smallest, n,
                          self.energies, self.work, self.inner, weights, peaks)  # fmt: skip
        return self.weights[group]

    def _matrix(self, group: int, size: int) -> torch.Tensor:
        low = size // 2
        return torch.from_numpy(self._weigh(group)[0][1 << size : 2 << size]).view(1 << (size - low), 1 << low)

    def _sum(self, group: int, first: int, position: int) -> _Block:
        """Z and Σ_s s_k p(s) of a block; those that were kept as they are."""
        place = group, first, position
        if place in self.kept:
            return self.kept[place]
        given, size, dtype, lanes = self.given, self._size(position), self.given.h.dtype, self.lanes
        low, n = size // 2, given.num_spins
        rows, cols = (1 << (size - low), lanes), (1 << low, lanes)
        u, v, absent = np.empty(rows, dtype), np.empty(cols, dtype), np.zeros((n, lanes))
        if given.masked:
            load_absent(given.mask[group], first, position, size, absent)
        load_halves(given.h[group], given.masked, given.j[group], given.beta, first, position, size,
                    self.fields, absent, self.factors, self.scratch, self.work, u, v)  # fmt: skip
        w = self._matrix(group, size)
        by_row, by_col = _contractions(w, u, v)
        block = _Block(u, v, by_row, by_col, absent, np.empty((n, lanes), dtype), np.empty(lanes, dtype))
        reduce_sums(u, v, by_row, by_col, low, size - low, np.empty(rows, dtype), np.empty(cols, dtype),
                    block.sums, block.total)  # fmt: skip
        if self.keeps_blocks:
            self.kept[place] = block
        return block

    def _differentiate(self, group, first, position, block: _Block, g_mean, g_log_z, wants_j, h_out, j_out):
        """∂L/∂h of a block, and its ∂L/∂W (flat) if that is wanted."""
        given, size = self.given, self._size(position)
        low, count = size // 2, min(self.lanes, given.h.shape[1] - first)
        high, u, v = size - low, block.u, block.v
        scaled, u1, v1 = np.empty_like(u), np.empty_like(u), np.empty_like(v)
        centre_slopes(g_mean[group], g_log_z[group], first, position, low, high, count, given.floor, block.sums,
                      block.total, self.g, self.lane_slopes, self.inverse, self.offset, u, scaled, u1, v,
                      v1)  # fmt: skip
        w = self._matrix(group, size)
        v1_by_row, u1_by_col = _contractions(w, u1, v1)
        products = None
        if wants_j:
            torch_products = torch.mm(torch.from_numpy(u1), torch.from_numpy(v).T)
            torch_products.addmm_(torch.from_numpy(scaled), torch.from_numpy(v1).T)
            products = torch_products.numpy().reshape(-1)
        write_gradients(scaled, v, block.by_row, block.by_col, u1, v1, v1_by_row, u1_by_col, self.inverse, low, high,
                        np.empty_like(block.sums), block.absent, given.masked, given.beta, self.lane_slopes, first,
                        position, count, h_out[group], j_out[group])  # fmt: skip
        return products


def _contractions(w: torch.Tensor, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W v and Wᵀ u by torch's matrix products, whose threads are the ones the caller chose."""
    tu, tv = torch.from_numpy(u), torch.from_numpy(v)
    if w.shape[1] < _WIDE or u.shape[1] > _FEW_LANES:
        return torch.mm(w, tv).numpy(), torch.mm(w.T, tu).numpy()
    # Columns of a W this wide fall on few cache lines: blocks of rows, which stay in the cache for both products.
    by_row, by_col = torch.empty_like(tu), tu.new_zeros(u.shape[1], w.shape[1])
    for first in range(0, len(w), _ROWS):
        rows = slice(first, first + _ROWS)
        torch.mm(w[rows], tv, out=by_row[rows])
        by_col.addmm_(tu[rows].T, w[rows])
    return by_row.numpy(), by_col.T.contiguous().numpy()
