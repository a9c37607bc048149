"""Kernels of `samplers.exact.fused`: energies by doubling, and sums with queries as vector lanes.

Lane arrays have shape (states or spins, lanes). Bit k of a state is spin k and a bit of 0 is +1, so doubling by a
spin writes the +1 half in place and the −1 half behind it.
"""

import numpy as np

from samplers.kernels import kernel

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10
# Adding it puts a number's nearest integer into the low bits of the sum.
_ROUNDER = 6755399441055744.0


@kernel(fastmath=False)
def exponentials(x, out, work):
    """out[i] = exp(x[i]) for float64 x ≤ 0, to 2 ulp, 0 below −708. x is overwritten; work is scratch."""
    size = len(x)
    bits = work.view(np.int64)
    for i in range(size):
        x[i] = max(x[i], -709.0)
        work[i] = x[i] * _LOG2_E + _ROUNDER
    for i in range(size):
        k = work[i] - _ROUNDER
        r = (x[i] - k * _LN2_HIGH) - k * _LN2_LOW
        p = 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        p = p * r + 1.0
        x[i] = p if k > -1022.0 else 0.0
    for i in range(size):
        bits[i] = (bits[i] + 1023) << 52
    for i in range(size):
        out[i] = x[i] * work[i]


@kernel
def linear_form(coefficients, start, count, out):
    """out[s] = start + Σ_l coefficients[l] s_l for all states of `count` spins."""
    out[0] = start
    for spin in range(count):
        half, c = 1 << spin, coefficients[spin]
        for s in range(half):
            value = out[s]
            out[s] = value + c
            out[half + s] = value - c


@kernel
def energies_of_prefixes(j, k, count, beta, energies, form, inner):
    """β × shared energy of all states of the first m spins at energies[2^m : 2^(m+1)], for every m ≤ count."""
    row = np.empty(count)
    energies[0:2] = 0.0
    for spin in range(count):
        size = 1 << spin
        form[0] = 0.0
        for other in range(spin):
            half = 1 << other
            for third in range(other):
                row[third] = beta * k[spin, other, third]
            linear_form(row, beta * j[spin, other], other, inner)
            for s in range(half):
                value, d = form[s], inner[s]
                form[s] = value + d
                form[half + s] = value - d
        shorter, longer = energies[size : 2 * size], energies[2 * size : 4 * size]
        for s in range(size):
            longer[s] = shorter[s] + form[s]
            longer[size + s] = shorter[s] - form[s]


@kernel
def adjoint_of_energies(slopes, has_triples, count, beta, form, inner, j_out, k_out):
    """Add to j_out and k_out the gradient of Σ slopes·energies; slopes are laid out as energies, and overwritten.

    Each pair's derivative is split over its two entries, each triple's over its six.
    """
    for spin in range(count - 1, -1, -1):
        size = 1 << spin
        # Slices, since indices that numba must check for wrapping below 0 make no vector loops.
        shorter, up, down = slopes[size : 2 * size], slopes[2 * size : 3 * size], slopes[3 * size : 4 * size]
        for s in range(size):
            form[s] = up[s] - down[s]
        for s in range(size):
            shorter[s] += up[s] + down[s]
        for other in range(spin - 1, -1, -1):
            half, pair = 1 << other, 0.0
            up, down = form[:half], form[half : 2 * half]
            for s in range(half):
                inner[s] = up[s] - down[s]
            for s in range(half):
                up[s] += down[s]
            for s in range(half):
                pair += inner[s]
            j_out[spin, other] += 0.5 * beta * pair
            j_out[other, spin] += 0.5 * beta * pair
            if has_triples:
                for third in range(other - 1, -1, -1):
                    quarter = 1 << third
                    value = 0.0
                    for s in range(quarter):
                        value += inner[s] - inner[quarter + s]
                        inner[s] += inner[quarter + s]
                    value *= beta / 6
                    k_out[spin, other, third] += value
                    k_out[spin, third, other] += value
                    k_out[other, spin, third] += value
                    k_out[other, third, spin] += value
                    k_out[third, spin, other] += value
                    k_out[third, other, spin] += value


@kernel
def load_lanes(rows, first, position, size, lanes, out):
    """out[k, l] = rows[first + l, position, k] for k < size, 0 in lanes past the last row."""
    count = min(lanes, rows.shape[0] - first)
    for k in range(size):
        for lane in range(lanes):
            out[k, lane] = 0
    for lane in range(count):
        for k in range(size):
            out[k, lane] = rows[first + lane, position, k]


@kernel
def compensate(fields, absent, j):
    """Take the pull of absent spins (1.0 in `absent`, clamped to +1) off the fields, and clear their own."""
    n, lanes = fields.shape
    for a in range(n):
        for b in range(n):
            pair = j[a, b]
            for lane in range(lanes):
                fields[a, lane] -= pair * absent[b, lane]
    for a in range(n):
        for lane in range(lanes):
            fields[a, lane] *= 1.0 - absent[a, lane]


@kernel
def half_products(fields, absent, masked, size, factors, scratch, work):
    """The factors of every spin: factors[0] for +1 and factors[1] for −1, the larger of them 1."""
    lanes = fields.shape[1]
    count = size * lanes
    flat, out = fields.reshape(-1), factors[1].reshape(-1)
    for i in range(count):
        scratch[i] = -2.0 * abs(flat[i])
    exponentials(scratch[:count], out[:count], work)
    for spin in range(size):
        for lane in range(lanes):
            small = factors[1, spin, lane]
            one = factors.dtype.type(1)
            up = fields[spin, lane] >= 0
            factors[0, spin, lane] = one if up else small
            factors[1, spin, lane] = small if up else one
        if masked:
            for lane in range(lanes):
                if absent[spin, lane] != 0:
                    factors[0, spin, lane] = 1
                    factors[1, spin, lane] = 0


@kernel
def double_products(factors, first, count, out):
    """out[s, l] = Π of the factors of spins first … first+count−1 in state s."""
    lanes = out.shape[1]
    for lane in range(lanes):
        out[0, lane] = 1
    for spin in range(count):
        half = 1 << spin
        for s in range(half):
            for lane in range(lanes):
                value = out[s, lane]
                out[half + s, lane] = value * factors[1, first + spin, lane]
                out[s, lane] = value * factors[0, first + spin, lane]


@kernel
def double_sums(coefficients, first, count, out):
    """out[s, l] += Σ_k ± coefficients[k, l] over the spins; out[0] holds the start."""
    lanes = out.shape[1]
    for spin in range(count):
        half = 1 << spin
        for s in range(half):
            for lane in range(lanes):
                value, c = out[s, lane], coefficients[first + spin, lane]
                out[half + s, lane] = value - c
                out[s, lane] = value + c


@kernel
def spin_sums(table, first, count, out):
    """out[first + k, l] = Σ_s s_k table[s, l]; table is overwritten and table[0] becomes Σ_s table[s, l]."""
    lanes = table.shape[1]
    for spin in range(count - 1, -1, -1):
        half = 1 << spin
        for lane in range(lanes):
            out[first + spin, lane] = 0
        for s in range(half):
            for lane in range(lanes):
                up, down = table[s, lane], table[half + s, lane]
                out[first + spin, lane] += up - down
                table[s, lane] = up + down


@kernel
def contract(weights, rows, cols, u, v, by_row, by_col):
    """by_row[x] = Σ_y W[x, y] v[y] and by_col[y] = Σ_x W[x, y] u[x], for every lane; W is flat, row by row."""
    lanes = u.shape[1]
    by_row[:rows] = 0
    by_col[:cols] = 0
    if cols < 4:
        for x in range(rows):
            for y in range(cols):
                w = weights[x * cols + y]
                for lane in range(lanes):
                    by_row[x, lane] += w * v[y, lane]
                    by_col[y, lane] += w * u[x, lane]
        return
    # Tiles of 2 × 4: sixteen multiply-adds for twelve loads and six stores.
    for y in range(0, cols, 4):
        for x in range(0, rows, 2):
            i, j = x * cols + y, (x + 1) * cols + y
            a0, a1, a2, a3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            b0, b1, b2, b3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
            for lane in range(lanes):
                u0, u1 = u[x, lane], u[x + 1, lane]
                v0, v1, v2, v3 = v[y, lane], v[y + 1, lane], v[y + 2, lane], v[y + 3, lane]
                by_row[x, lane] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
                by_row[x + 1, lane] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
                by_col[y, lane] += a0 * u0 + b0 * u1
                by_col[y + 1, lane] += a1 * u0 + b1 * u1
                by_col[y + 2, lane] += a2 * u0 + b2 * u1
                by_col[y + 3, lane] += a3 * u0 + b3 * u1


@kernel
def transpose(table, count, out):
    """out[l, s] = table[s, l] for the first `count` states."""
    for lane in range(table.shape[1]):
        for s in range(count):
            out[lane, s] = table[s, lane]


@kernel
def add_slopes(weights, rows, cols, left, right, row_sums, slopes):
    """slopes[x, y] += W[x, y] Σ_lanes left[x, lane] right[lane, y]; `right` has its states last."""
    lanes = left.shape[1]
    for x in range(rows):
        sums = row_sums[:cols]
        for y in range(cols):
            sums[y] = 0
        for lane in range(0, lanes, 8):
            a0, a1, a2, a3 = left[x, lane], left[x, lane + 1], left[x, lane + 2], left[x, lane + 3]
            a4, a5, a6, a7 = left[x, lane + 4], left[x, lane + 5], left[x, lane + 6], left[x, lane + 7]
            for y in range(cols):
                sums[y] += (
                    a0 * right[lane, y]
                    + a1 * right[lane + 1, y]
                    + a2 * right[lane + 2, y]
                    + a3 * right[lane + 3, y]
                    + a4 * right[lane + 4, y]
                    + a5 * right[lane + 5, y]
                    + a6 * right[lane + 6, y]
                    + a7 * right[lane + 7, y]
                )
        w, out = weights[x * cols : (x + 1) * cols], slopes[x * cols : (x + 1) * cols]
        for y in range(cols):
            out[y] += w[y] * sums[y]
