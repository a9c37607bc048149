"""The stages of a compiled sum over a block of lanes, shared by `samplers.exact.fused` and `samplers.exact.gemm`.

The contractions with W stand between the stages: in a kernel for few spins, in a matrix product for more.
"""

import numpy as np

from samplers.exact.fused_parts import (
    compensate,
    double_products,
    double_sums,
    energies_of_prefixes,
    exponentials,
    half_products,
    load_lanes,
    spin_sums,
)
from samplers.exact.pair_weights import pair_weights
from samplers.kernels import kernel

_PIECE = 1024


@kernel
def group_weights(j, k, has_triples, beta, smallest, largest, energies, work, inner, weights, peaks):
    """W of every prefix size m from `smallest` to `largest` at weights[2^m : 2^(m+1)]; peaks[m] is what was taken off.

    Only triples need `energies`, `work` and `inner`.
    """
    if not has_triples:
        for m in range(smallest, largest + 1):
            peaks[m] = pair_weights(j, beta, m, weights[1 << m : 2 << m])
        return
    energies_of_prefixes(j, k, largest, beta, energies, work, inner)
    for m in range(smallest, largest + 1):
        size = 1 << m
        table = energies[size : 2 * size]
        peak = table[0]
        for s in range(size):
            peak = max(peak, table[s])
        for s in range(size):
            table[s] -= peak
        peaks[m] = peak
        # In pieces that stay in the first-level cache over the passes of `exponentials`.
        for piece in range(0, size, _PIECE):
            stop = min(piece + _PIECE, size)
            exponentials(table[piece:stop], weights[size + piece : size + stop], work)


@kernel
def load_absent(mask, first, position, size, absent):
    """absent[k, l] = 1.0 where spin k of query first + l is not allowed, else 0."""
    lanes = absent.shape[1]
    for spin in range(size):
        for lane in range(lanes):
            absent[spin, lane] = 0.0
    for lane in range(min(lanes, mask.shape[0] - first)):
        for spin in range(size):
            absent[spin, lane] = 0.0 if mask[first + lane, position, spin] else 1.0


@kernel
def load_halves(h, masked, j, beta, first, position, size, fields, absent, factors, scratch, work, u, v):
    """u and v of a block of lanes; `fields` then holds the effective β-scaled fields."""
    lanes = fields.shape[1]
    load_lanes(h, first, position, size, lanes, fields)
    if masked:
        compensate(fields, absent, j)
    for spin in range(size):
        for lane in range(lanes):
            fields[spin, lane] *= beta
    half_products(fields, absent, masked, size, factors, scratch, work)
    low = size // 2
    double_products(factors, low, size - low, u)
    double_products(factors, 0, low, v)


@kernel
def write_results(sums, total, floor, fields, peak, absent, masked, j, beta, held,
                  first, position, size, mean, log_z, lost):  # fmt: skip
    """⟨s⟩, log Z and whether the query is lost, for a block of lanes."""
    if masked:
        _energy_of_absent(absent, j, beta, held)
    for lane in range(min(fields.shape[1], mean.shape[0] - first)):
        bad = not (total[lane] >= floor)
        shift = peak - held[lane]
        for spin in range(size):
            shift += abs(fields[spin, lane])
            mean[first + lane, position, spin] = 0.0 if bad else sums[spin, lane] / total[lane]
        lost[first + lane, position] = bad
        log_z[first + lane, position] = 0.0 if bad else np.log(total[lane]) + shift


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
def reduce_sums(u, v, by_row, by_col, low, high, p_row, p_col, sums, total):
    """Σ_s s_k p(s) of every spin and Z, from the contractions; p_row and p_col are scratch."""
    _multiply(u, by_row, 1 << high, p_row)
    _multiply(v, by_col, 1 << low, p_col)
    spin_sums(p_row, low, high, sums)
    spin_sums(p_col, 0, low, sums)
    total[:] = p_row[0]


@kernel
def centre_slopes(g_mean, g_log_z, first, position, low, high, count, floor, sums, total,
                  g, lane_slopes, inverse, offset, u, scaled, u1, v, v1):  # fmt: skip
    """scaled = u / Z (perhaps in place of u), u1 = u (a_row − ⟨a⟩ + ∂L/∂log Z) / Z and v1 = v a_col.

    Here a(s) = Σ_k g_k s_k for the incoming g.
    """
    lanes = u.shape[1]
    load_lanes(g_mean, first, position, low + high, lanes, g)
    for lane in range(count):
        lane_slopes[lane] = g_log_z[first + lane, position]
    _centred_slopes(g, lane_slopes, sums, total, floor, count, low + high, inverse, offset)
    u1[0] = offset
    v1[0] = 0
    double_sums(g, low, high, u1)
    double_sums(g, 0, low, v1)
    for x in range(1 << high):
        for lane in range(lanes):
            scaled[x, lane] = u[x, lane] * inverse[lane]
    _multiply(u1, scaled, 1 << high, u1)
    _multiply(v1, v, 1 << low, v1)


@kernel
def write_gradients(u, v, by_row, by_col, u1, v1, v1_by_row, u1_by_col, inverse, low, high, sums,
                    absent, masked, beta, lane_slopes, first, position, count, h_out, j_out):  # fmt: skip
    """∂L/∂h of a block of lanes, and what clamping adds to ∂L/∂J; u is u / Z, and u1 and v1 are overwritten."""
    lanes = u.shape[1]
    for x in range(1 << high):
        for lane in range(lanes):
            u1[x, lane] = u1[x, lane] * by_row[x, lane] + u[x, lane] * v1_by_row[x, lane]
    for y in range(1 << low):
        for lane in range(lanes):
            v1[y, lane] = v[y, lane] * u1_by_col[y, lane] + v1[y, lane] * by_col[y, lane] * inverse[lane]
    spin_sums(u1, low, high, sums)
    spin_sums(v1, 0, low, sums)
    for lane in range(count):
        for spin in range(low + high):
            kept = 0.0 if masked and absent[spin, lane] != 0 else beta * sums[spin, lane]
            h_out[first + lane, position, spin] = kept
    if masked:
        _add_compensation(sums, lane_slopes, inverse, absent, count, beta, j_out)


@kernel
def add_products(weights, products, slopes):
    """slopes += weights ∘ products, all flat."""
    for s in range(len(weights)):
        slopes[s] += weights[s] * products[s]
