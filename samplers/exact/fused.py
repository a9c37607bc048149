"""Compiled sums for few spins on the CPU: `samplers.exact.halves` in one pass per block of queries.

Queries are vector lanes. A kernel takes every causal prefix of a block at its own size, so nothing is clamped there;
arbitrary masks clamp and compensate. Energies of all prefixes come from one doubling recursion over the spins,
    E_{k+1}[s, s_k = ±1] = E_k[s] ± f_k[s],   f_k[s] = Σ_{j<k} s_j (J_kj + Σ_{l<j} K_kjl s_l),
3·2^n additions in all, and the gradients of J and K from its adjoint. Energies are float64; u, v and W have the
dtype of the fields. The backward kernel repeats the forward sums instead of keeping them.
"""

import math

import numpy as np
import torch
from torch import Tensor

from samplers.exact.fused_parts import add_slopes, adjoint_of_energies, contract, transpose
from samplers.exact.halves import refuse_second_derivative, smallest_sum
from samplers.exact.stages import (
    centre_slopes,
    group_weights,
    load_halves,
    reduce_sums,
    write_gradients,
    write_results,
)
from samplers.kernels import in_threads, kernel

# More lanes than this leave the first-level cache; fewer leave the vector units idle.
_LANES = 64


class FusedSum(torch.autograd.Function):
    """(m, log Z, lost) of queries (G, B, P, n): position p has the first n − P + 1 + p spins.

    P = n is a causal layer, P = 1 a batch in which every query has all spins.
    Fields, J (G, n, n) and K (G, n, n, n) are not yet times β. `allowed` (G, B, 1, n) goes with P = 1 and no K.
    Rows of `lost` are meaningless and carry no gradient; entries of m of absent spins are meaningless.
    """

    @staticmethod
    def forward(ctx, fields, couplings, triples, allowed, beta: float):
        given = KernelArrays(fields, couplings, triples, allowed, beta)
        lanes, jobs = _lanes(given.h)
        mean, log_z, lost = given.results()
        h, none = given.h, (np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 1)))

        def part(start: int, stop: int) -> None:
            sums_kernel(*given.arguments, lanes, start, stop, False, mean, log_z, lost, h, log_z, h, *none)

        in_threads(part, jobs)
        ctx.save_for_backward(fields, couplings, triples, allowed)
        ctx.beta = beta
        ctx.set_materialize_grads(False)
        lost_tensor = torch.from_numpy(lost)
        ctx.mark_non_differentiable(lost_tensor)
        return torch.from_numpy(mean), torch.from_numpy(log_z), lost_tensor

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivative()
        fields, couplings, triples, allowed = ctx.saved_tensors
        given = KernelArrays(fields, couplings, triples, allowed, ctx.beta)
        lanes, jobs = _lanes(given.h)
        g_mean, g_log_z = given.slopes(gradients)
        h, h_out, lost = given.h, np.zeros_like(given.h), np.empty((1, 1, 1), np.bool_)
        shares: list[tuple] = []

        def part(start: int, stop: int) -> None:
            own = np.zeros(given.j.shape), np.zeros(given.k.shape)
            sums_kernel(*given.arguments, lanes, start, stop, True, h, g_log_z, lost, g_mean, g_log_z, h_out, *own)
            shares.append(own)

        in_threads(part, jobs)
        j_out, k_out = (shares[0][i] if len(shares) == 1 else sum(own[i] for own in shares) for i in (0, 1))
        return (*given.gradients(h_out, j_out, k_out, couplings, triples), None, None)


class KernelArrays:
    """What the kernels are given; an absent tensor becomes an array of one element per axis."""

    def __init__(self, fields: Tensor, couplings: Tensor | None, triples: Tensor | None, allowed, beta: float):
        self.h = h = _array(fields)
        groups, self.num_spins, self.beta = len(h), h.shape[3], float(beta)
        self.masked, self.has_triples = allowed is not None, triples is not None
        self.j = np.zeros((groups, *h.shape[3:] * 2), h.dtype) if couplings is None else _array(couplings)
        self.k = np.zeros((1, 1, 1, 1), h.dtype) if triples is None else _array(triples)
        self.mask = np.zeros((1, 1, 1, 1), np.bool_) if allowed is None else _array(allowed)
        self.floor = smallest_sum(self.num_spins, fields.dtype)

    @property
    def arguments(self) -> tuple:
        return (self.h, self.mask, self.masked, self.j, self.k, self.has_triples, self.beta, self.floor)

    def results(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Room for m, log Z and lost."""
        shape = self.h.shape[:3]
        return np.zeros_like(self.h), np.empty(shape, self.h.dtype), np.empty(shape, np.bool_)

    def slopes(self, gradients) -> tuple[np.ndarray, np.ndarray]:
        """The incoming gradients of m and log Z."""
        g_mean, g_log_z = gradients[0], gradients[1]
        return (
            np.zeros_like(self.h) if g_mean is None else _array(g_mean),
            np.zeros(self.h.shape[:3], self.h.dtype) if g_log_z is None else _array(g_log_z),
        )

    def gradients(self, h_out, j_out, k_out, couplings, triples) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Outgoing gradients as tensors."""
        return (
            torch.from_numpy(h_out),
            None if couplings is None else torch.from_numpy(j_out).to(couplings.dtype),
            None if triples is None else torch.from_numpy(k_out).to(triples.dtype),
        )


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _lanes(h: np.ndarray) -> tuple[int, int]:
    """Lanes of a block, a multiple of a vector's, and the number of blocks of all groups."""
    groups, queries = h.shape[:2]
    threads = torch.get_num_threads() if groups == 1 else 1
    lanes = min(_LANES, 16 * math.ceil(queries / threads / 16))
    return lanes, groups * math.ceil(queries / lanes)


@kernel
def sums_kernel(
    h, mask, masked, j, k, has_triples, beta, floor, lanes, start, stop,
    backward, mean, log_z, lost, g_mean, g_log_z, h_out, j_out, k_out,
):  # fmt: skip
    """Blocks start … stop−1: results (mean, log_z, lost) or, if `backward`, gradients (h_out, j_out, k_out)."""
    groups, queries, prefixes, n = h.shape
    blocks, smallest, top = (queries + lanes - 1) // lanes, n - prefixes + 1, 1 << (n - n // 2)
    weights, energies, inner = np.empty(2 << n, h.dtype), np.empty(2 << n), np.empty(1 << n)
    work, scratch = np.empty(max(1 << n, n * lanes)), np.empty(n * lanes)
    peaks, held, slopes = np.zeros(n + 1), np.zeros(lanes), np.zeros(2 << n)
    fields, absent, factors = np.empty((n, lanes)), np.zeros((n, lanes)), np.empty((2, n, lanes), h.dtype)
    halves = np.empty((8, top, lanes), h.dtype)
    u, v, by_row, by_col = halves[0], halves[1], halves[2], halves[3]
    u1, v1, u1_by_col, v1_by_row = halves[4], halves[5], halves[6], halves[7]
    sums, g, lane_slopes = np.empty((n, lanes), h.dtype), np.empty((n, lanes), h.dtype), np.zeros(lanes, h.dtype)
    inverse, offset, total = np.empty(lanes, h.dtype), np.empty(lanes, h.dtype), np.empty(lanes, h.dtype)
    right, row_sums = np.empty((lanes, top), h.dtype), np.empty(top, h.dtype)
    group = -1
    for job in range(start, stop):
        if job // blocks != group:
            if backward and group >= 0:
                own = k_out[group if has_triples else 0]
                adjoint_of_energies(slopes, has_triples, beta, work, inner, j_out[group], own)
                slopes[:] = 0.0
            group = job // blocks
            triple = k[group if has_triples else 0]
            group_weights(j[group], triple, has_triples, beta, smallest, energies, work, inner, weights, peaks)
        own_mask, first = mask[group if masked else 0], (job % blocks) * lanes
        count = min(lanes, queries - first)
        for position in range(prefixes):
            size = smallest + position
            low, states = size // 2, 1 << size
            high, rows, cols = size - low, 1 << (size - low), 1 << low
            w = weights[states : 2 * states]
            load_halves(h[group], own_mask, masked, j[group], beta, first, position, size,
                        fields, absent, factors, scratch, work, u, v)  # fmt: skip
            contract(w, rows, cols, u, v, by_row, by_col)
            reduce_sums(u, v, by_row, by_col, low, high, u1, v1, sums, total)
            if not backward:
                write_results(sums, total, floor, fields, peaks[size], absent, masked, j[group], beta, held,
                              first, position, size, mean[group], log_z[group], lost[group])  # fmt: skip
                continue
            centre_slopes(g_mean[group], g_log_z[group], first, position, low, high, count, floor, sums, total,
                          g, lane_slopes, inverse, offset, u, u1, v, v1)  # fmt: skip
            contract(w, rows, cols, u1, v1, v1_by_row, u1_by_col)
            transpose(v, cols, right)
            add_slopes(w, rows, cols, u1, right, row_sums, slopes[states : 2 * states])
            transpose(v1, cols, right)
            add_slopes(w, rows, cols, u, right, row_sums, slopes[states : 2 * states])
            write_gradients(u, v, by_row, by_col, u1, v1, v1_by_row, u1_by_col, inverse, low, high, sums,
                            absent, masked, beta, lane_slopes, first, position, count,
                            h_out[group], j_out[group])  # fmt: skip
    if backward and group >= 0:
        own = k_out[group if has_triples else 0]
        adjoint_of_energies(slopes, has_triples, beta, work, inner, j_out[group], own)
