"""Compiled sums for more spins on the CPU: the stages of `samplers.exact.stages` around matrix products.

Same inputs and outputs as `samplers.exact.fused.FusedSum`, from about 14 spins on, where a matrix product is worth
its call: per group and prefix two of them forward and six more backward, each over all queries of a block of lanes.
"""

import numpy as np
import torch

from samplers.exact.fused import KernelArrays
from samplers.exact.fused_parts import adjoint_of_energies
from samplers.exact.halves import refuse_second_derivative
from samplers.exact.stages import (
    add_products,
    centre_slopes,
    group_weights,
    load_halves,
    reduce_sums,
    write_gradients,
    write_results,
)

# Half vectors of this many queries stay in the second-level cache at 16 spins.
_LANES = 1024
# W of all groups is kept for the backward pass up to this size, and rebuilt beyond.
_KEPT_BYTES = 2**26


class GemmSum(torch.autograd.Function):
    """(m, log Z, lost) of queries (G, B, P, n); see `FusedSum`."""

    @staticmethod
    def forward(ctx, fields, couplings, triples, allowed, beta: float):
        given = KernelArrays(fields, couplings, triples, allowed, beta)
        mean, log_z, lost = given.results()
        room = _Room(given)
        for group in range(len(given.h)):
            room.weigh(group)
            for first, position in room.blocks():
                room.sum(group, first, position)
                at = (mean[group], log_z[group], lost[group])
                write_results(room.sums, room.total, given.floor, room.fields, room.peak, room.absent, given.masked,
                              given.j[group], given.beta, room.held, first, position, room.size, *at)  # fmt: skip
        ctx.save_for_backward(fields, couplings, triples, allowed)
        ctx.room = room
        ctx.set_materialize_grads(False)
        lost_tensor = torch.from_numpy(lost)
        ctx.mark_non_differentiable(lost_tensor)
        return torch.from_numpy(mean), torch.from_numpy(log_z), lost_tensor

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivative()
        # Unpacking also checks that none was changed in place: the room shares their memory.
        _, couplings, triples, _ = ctx.saved_tensors
        room: _Room = ctx.room
        given = room.given
        g_mean, g_log_z = given.slopes(gradients)
        h_out, j_out, k_out = np.zeros_like(given.h), np.zeros(given.j.shape), np.zeros(given.k.shape)
        slopes = np.empty(2 << given.num_spins)
        for group in range(len(given.h)):
            room.weigh(group)
            slopes[:] = 0.0
            for first, position in room.blocks():
                room.sum(group, first, position)
                room.differentiate(group, first, position, g_mean, g_log_z, slopes, h_out, j_out)
            own = k_out[group if given.has_triples else 0]
            adjoint_of_energies(slopes, given.has_triples, given.beta, room.work, room.inner, j_out[group], own)
        return (*given.gradients(h_out, j_out, k_out, couplings, triples), None, None)


class _Room:
    """Work arrays of one call, (states or spins, lanes), and the steps over them."""

    def __init__(self, given: KernelArrays):
        self.given, n, dtype = given, given.num_spins, given.h.dtype
        queries, self.prefixes = given.h.shape[1:3]
        self.lanes = lanes = min(queries, _LANES)
        self.smallest = n - self.prefixes + 1
        self.energies, self.inner = np.empty(2 << n), np.empty(1 << n)
        self.kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.keeps = len(given.h) * (2 << n) * dtype.itemsize <= _KEPT_BYTES
        self.work, self.scratch = np.empty(max(1 << n, n * lanes)), np.empty(n * lanes)
        self.held = np.zeros(lanes)
        self.fields, self.absent = np.empty((n, lanes)), np.zeros((n, lanes))
        self.factors = np.empty((2, n, lanes), dtype)
        self.sums, self.g = np.empty((n, lanes), dtype), np.empty((n, lanes), dtype)
        self.total, self.inverse, self.offset, self.lane_slopes = (np.zeros(lanes, dtype) for _ in range(4))

    def weigh(self, group: int) -> None:
        """W of every prefix of a group, from the forward pass where it was kept."""
        if group in self.kept:
            self.weights, self.peaks = self.kept[group]
            return
        given, n = self.given, self.given.num_spins
        self.weights, self.peaks = np.empty(2 << n, given.h.dtype), np.zeros(n + 1)
        triples = given.k[group if given.has_triples else 0]
        group_weights(given.j[group], triples, given.has_triples, given.beta, self.smallest,
                      self.energies, self.work, self.inner, self.weights, self.peaks)  # fmt: skip
        if self.keeps:
            self.kept[group] = self.weights, self.peaks

    def blocks(self):
        """(first query, position) of every block of lanes, with arrays of the position's size made ready."""
        given, dtype = self.given, self.given.h.dtype
        for position in range(self.prefixes):
            self.size = self.smallest + position
            self.low, self.high = self.size // 2, self.size - self.size // 2
            self.peak = self.peaks[self.size]
            self.u, self.by_row, self.u1, self.v1_by_row = (
                np.empty((1 << self.high, self.lanes), dtype) for _ in range(4)
            )
            self.v, self.by_col, self.v1, self.u1_by_col = (
                np.empty((1 << self.low, self.lanes), dtype) for _ in range(4)
            )
            self.w = self.weights[1 << self.size : 2 << self.size].reshape(1 << self.high, 1 << self.low)
            for first in range(0, given.h.shape[1], self.lanes):
                yield first, position

    def sum(self, group: int, first: int, position: int) -> None:
        """Z and Σ_s s_k p(s) of a block."""
        given = self.given
        load_halves(given.h[group], given.mask[group if given.masked else 0], given.masked, given.j[group], given.beta,
                    first, position, self.size, self.fields, self.absent, self.factors, self.scratch, self.work,
                    self.u, self.v)  # fmt: skip
        _product(self.w, self.v, self.by_row)
        _product(self.w.T, self.u, self.by_col)
        reduce_sums(self.u, self.v, self.by_row, self.by_col, self.low, self.high, self.u1, self.v1,
                    self.sums, self.total)  # fmt: skip

    def differentiate(self, group, first, position, g_mean, g_log_z, slopes, h_out, j_out) -> None:
        """∂L/∂h of a block, and its part of ∂L/∂log W."""
        given, count = self.given, min(self.lanes, self.given.h.shape[1] - first)
        centre_slopes(g_mean[group], g_log_z[group], first, position, self.low, self.high, count, given.floor,
                      self.sums, self.total, self.g, self.lane_slopes, self.inverse, self.offset,
                      self.u, self.u1, self.v, self.v1)  # fmt: skip
        _product(self.w, self.v1, self.v1_by_row)
        _product(self.w.T, self.u1, self.u1_by_col)
        products = torch.mm(torch.from_numpy(self.u1), torch.from_numpy(self.v).T)
        products.addmm_(torch.from_numpy(self.u), torch.from_numpy(self.v1).T)
        own = slopes[1 << self.size : 2 << self.size]
        add_products(self.w.reshape(-1), products.numpy().reshape(-1), own)
        write_gradients(self.u, self.v, self.by_row, self.by_col, self.u1, self.v1, self.v1_by_row, self.u1_by_col,
                        self.inverse, self.low, self.high, self.sums, self.absent, given.masked, given.beta,
                        self.lane_slopes, first, position, count, h_out[group], j_out[group])  # fmt: skip


def _product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a b by torch's matrix product, whose threads are the ones the caller chose."""
    torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(out))
