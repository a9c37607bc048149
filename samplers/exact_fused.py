"""Compiled sums for few spins on the CPU: `samplers.exact_halves` in one pass per block of queries.

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

from samplers.exact_fused_parts import (
    add_slopes,
    adjoint_of_energies,
    compensate,
    contract,
    double_products,
    double_sums,
    energies_of_prefixes,
    exponentials,
    half_products,
    load_lanes,
    spin_sums,
    transpose,
)
from samplers.exact_halves import refuse_second_derivative, smallest_sum
from samplers.kernels import in_threads, kernel

# More lanes than this leave the first-level cache; fewer leave the vector units idle.
_LANES = 64


class FusedSum(torch.autograd.Function):
    """(m, log Z, lost) of queries (G, B, P, n): P = n prefixes (query i has spins 0…i) or P = 1 (all spins).

    Fields, J (G, n, n) and K (G, n, n, n) are not yet times β. `allowed` (G, B, 1, n) goes with P = 1 and no K.
    Rows of `lost` are meaningless and carry no gradient; entries of m of absent spins are meaningless.
    """

    @staticmethod
    def forward(ctx, fields, couplings, triples, allowed, beta: float):
        given = _Arrays(fields, couplings, triples, allowed, beta)
        h, none = given.h, given.unused
        mean, log_z, lost = np.zeros_like(h), np.empty(h.shape[:3], h.dtype), np.empty(h.shape[:3], np.bool_)

        def part(start: int, stop: int) -> None:
            sums_kernel(*given.arguments, start, stop, False, mean, log_z, lost, *none)

        in_threads(part, given.jobs)
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
        given = _Arrays(fields, couplings, triples, allowed, ctx.beta)
        h = given.h
        g_mean = np.zeros_like(h) if gradients[0] is None else _array(gradients[0])
        g_log_z = np.zeros(h.shape[:3], h.dtype) if gradients[1] is None else _array(gradients[1])
        h_out, lost = np.zeros_like(h), np.empty((1, 1, 1), np.bool_)
        shares: list[tuple] = []

        def part(start: int, stop: int) -> None:
            own = np.zeros(given.j.shape), np.zeros(given.k.shape)
            sums_kernel(*given.arguments, start, stop, True, h, g_log_z, lost, g_mean, g_log_z, h_out, *own)
            shares.append(own)

        in_threads(part, given.jobs)
        j_out, k_out = (torch.from_numpy(sum(own[i] for own in shares)).to(fields.dtype) for i in (0, 1))
        return (
            torch.from_numpy(h_out),
            None if couplings is None else j_out,
            None if triples is None else k_out,
            None,
            None,
        )


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


class _Arrays:
    """What both kernels are given; an absent tensor becomes an array of one element per axis."""

    def __init__(self, fields: Tensor, couplings, triples, allowed, beta: float):
        self.h = h = _array(fields)
        groups, queries, _, n = h.shape
        masked, has_triples = allowed is not None, triples is not None
        self.j = np.zeros((groups, n, n), h.dtype) if couplings is None else _array(couplings)
        self.k = _array(triples) if has_triples else np.zeros((1, 1, 1, 1), h.dtype)
        mask = _array(allowed) if masked else np.zeros((1, 1, 1, 1), np.bool_)
        threads = torch.get_num_threads() if groups == 1 else 1
        lanes = min(_LANES, 16 * math.ceil(queries / threads / 16))
        self.jobs = groups * math.ceil(queries / lanes)
        floor = smallest_sum(n, fields.dtype)
        # What a forward call passes for the arrays of a backward call.
        self.unused = (h, np.zeros((1, 1, 1), h.dtype), h, np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 1)))
        self.arguments = (h, mask, masked, self.j, self.k, has_triples, float(beta), floor, lanes)


@kernel
def _group_weights(j, k, has_triples, beta, only_whole, energies, work, inner, weights, peaks):
    """W of every prefix size m at weights[2^m : 2^(m+1)], and the log of what it was divided by."""
    n = j.shape[0]
    energies_of_prefixes(j, k, has_triples, beta, energies, work, inner)
    for m in range(n if only_whole else 1, n + 1):
        size = 1 << m
        table = energies[size : 2 * size]
        peak = table[0]
        for s in range(size):
            peak = max(peak, table[s])
        for s in range(size):
            table[s] -= peak
        peaks[m] = peak
        exponentials(table, weights[size : 2 * size], work)


@kernel
def _halves(h, mask, masked, j, beta, first, position, size, fields, absent, factors, scratch, work, u, v):
    """u and v of a block of lanes; `fields` then holds the effective β-scaled fields."""
    lanes = fields.shape[1]
    load_lanes(h, first, position, size, lanes, fields)
    if masked:
        count = min(lanes, mask.shape[0] - first)
        for spin in range(size):
            for lane in range(lanes):
                absent[spin, lane] = 0.0
        for lane in range(count):
            for spin in range(size):
                absent[spin, lane] = 0.0 if mask[first + lane, position, spin] else 1.0
        compensate(fields, absent, j)
    for spin in range(size):
        for lane in range(lanes):
            fields[spin, lane] *= beta
    half_products(fields, absent, masked, size, factors, scratch, work)
    low = size // 2
    double_products(factors, low, size - low, u)
    double_products(factors, 0, low, v)


@kernel
def _write_results(sums, total, floor, fields, peak, held, group, first, position, size, mean, log_z, lost):
    """⟨s⟩, log Z and whether the query is lost, for a block of lanes."""
    for lane in range(min(fields.shape[1], mean.shape[1] - first)):
        bad = not (total[lane] >= floor)
        shift = peak - held[lane]
        for spin in range(size):
            shift += abs(fields[spin, lane])
            mean[group, first + lane, position, spin] = 0.0 if bad else sums[spin, lane] / total[lane]
        lost[group, first + lane, position] = bad
        log_z[group, first + lane, position] = 0.0 if bad else np.log(total[lane]) + shift


@kernel
def _energy_of_absent(absent, j, beta, held):
    """β ½ cᵀJc of the clamped spins of every lane: what W holds too much."""
    n, lanes = absent.shape
    held[:] = 0.0
    for a in range(n):
        for b in range(a):
            pair = beta * j[a, b]
            for lane in range(lanes):
                held[lane] += pair * absent[a, lane] * absent[b, lane]


@kernel
def _add_compensation(sums, g_log_z, inverse, absent, count, beta, j_out):
    """The gradient of J through `compensate` and `_energy_of_absent`, split evenly over both entries of a pair."""
    n = absent.shape[0]
    for a in range(n):
        for b in range(n):
            pull = 0.0
            for lane in range(count):
                pull += sums[a, lane] * (1 - absent[a, lane]) * absent[b, lane]
                if a != b and inverse[lane] > 0:
                    pull += 0.5 * g_log_z[lane] * absent[a, lane] * absent[b, lane]
            j_out[a, b] -= 0.5 * beta * pull
            j_out[b, a] -= 0.5 * beta * pull


@kernel
def _multiply(a, b, count, out):
    """out = a ∘ b for the first `count` states."""
    for s in range(count):
        for lane in range(a.shape[1]):
            out[s, lane] = a[s, lane] * b[s, lane]


@kernel
def _centred_slopes(g, g_log_z, sums, total, floor, count, size, inverse, offset):
    """1/Z of every lane (0 where lost), and ∂L/∂log Z − ⟨a⟩ with a(s) = Σ_k g_k s_k."""
    for lane in range(len(total)):
        inverse[lane] = 1 / total[lane] if lane < count and total[lane] >= floor else 0
        offset[lane] = g_log_z[lane] if lane < count else 0
    for spin in range(size):
        for lane in range(len(total)):
            offset[lane] -= g[spin, lane] * sums[spin, lane] * inverse[lane]


@kernel
def sums_kernel(
    h, mask, masked, j, k, has_triples, beta, floor, lanes, start, stop,
    backward, mean, log_z, lost, g_mean, g_log_z, h_out, j_out, k_out,
):  # fmt: skip
    """Blocks start … stop−1: results (mean, log_z, lost) or, if `backward`, gradients (h_out, j_out, k_out)."""
    groups, queries, prefixes, n = h.shape
    blocks, whole, top = (queries + lanes - 1) // lanes, prefixes == 1, 1 << (n - n // 2)
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
            _group_weights(j[group], triple, has_triples, beta, whole, energies, work, inner, weights, peaks)
        own_mask, first = mask[group if masked else 0], (job % blocks) * lanes
        count = min(lanes, queries - first)
        for position in range(prefixes):
            size = n if whole else position + 1
            low, states = size // 2, 1 << size
            high, rows, cols = size - low, 1 << (size - low), 1 << low
            w = weights[states : 2 * states]
            _halves(h[group], own_mask, masked, j[group], beta, first, position, size,
                    fields, absent, factors, scratch, work, u, v)  # fmt: skip
            contract(w, rows, cols, u, v, by_row, by_col)
            _multiply(u, by_row, rows, u1)
            _multiply(v, by_col, cols, v1)
            spin_sums(u1, low, high, sums)
            spin_sums(v1, 0, low, sums)
            total[:] = u1[0]
            if not backward:
                if masked:
                    _energy_of_absent(absent, j[group], beta, held)
                _write_results(sums, total, floor, fields, peaks[size], held, group, first, position, size,
                               mean, log_z, lost)  # fmt: skip
                continue
            load_lanes(g_mean[group], first, position, size, lanes, g)
            for lane in range(count):
                lane_slopes[lane] = g_log_z[group, first + lane, position]
            _centred_slopes(g, lane_slopes, sums, total, floor, count, size, inverse, offset)
            u1[0] = offset
            v1[0] = 0
            double_sums(g, low, high, u1)
            double_sums(g, 0, low, v1)
            for x in range(rows):
                for lane in range(lanes):
                    u[x, lane] *= inverse[lane]
            _multiply(u1, u, rows, u1)
            _multiply(v1, v, cols, v1)
            contract(w, rows, cols, u1, v1, v1_by_row, u1_by_col)
            transpose(v, cols, right)
            add_slopes(w, rows, cols, u1, right, row_sums, slopes[states : 2 * states])
            transpose(v1, cols, right)
            add_slopes(w, rows, cols, u, right, row_sums, slopes[states : 2 * states])
            for x in range(rows):
                for lane in range(lanes):
                    u1[x, lane] = u1[x, lane] * by_row[x, lane] + u[x, lane] * v1_by_row[x, lane]
            for y in range(cols):
                for lane in range(lanes):
                    v1[y, lane] = v[y, lane] * u1_by_col[y, lane] + v1[y, lane] * by_col[y, lane] * inverse[lane]
            spin_sums(u1, low, high, sums)
            spin_sums(v1, 0, low, sums)
            for lane in range(count):
                for spin in range(size):
                    kept = 0.0 if masked and absent[spin, lane] != 0 else beta * sums[spin, lane]
                    h_out[group, first + lane, position, spin] = kept
            if masked:
                _add_compensation(sums, lane_slopes, inverse, absent, count, beta, j_out[group])
    if backward and group >= 0:
        own = k_out[group if has_triples else 0]
        adjoint_of_energies(slopes, has_triples, beta, work, inner, j_out[group], own)
