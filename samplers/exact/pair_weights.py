"""W of pair couplings without an exponential per state, and the gradient of J from that of log W.

Row x of W (a state of the high spins) is, over the low spins' states y,
    W[x, y] = exp(E_high(x)) exp(E_low(y)) Π_k exp(c_k(x) y_k),   c_k(x) = β Σ_j J_jk x_j,
a product over spins, hence built by doubling: three multiplications per state. Factors are at most 1 and come from
float64 energies, so every entry has a relative error of a few roundings, however strong the couplings are.
"""

import numpy as np

from samplers.exact.fused_parts import exponentials
from samplers.kernels import kernel

# ΣW below which W is built once more, scaled up: so far its largest entry may lie below the bound it was scaled by.
_FAINT = 1e-6
# Smallest ΣW, by the bytes of a number, whose inverse is one: the normal numbers' end.
_LEAST_SINGLE, _LEAST_DOUBLE = 1.2e-38, 2.3e-308


@kernel
def pair_weights(j, beta, size, weights):
    """W of the first `size` spins into `weights` (2^size, row by row); returns the log of what it was divided by.

    A W that cannot be scaled up, since nearly all of it underflowed, is left 0: every query of it counts as lost.
    """
    low = size // 2
    high = size - low
    rows, cols = 1 << high, 1 << low
    energies, pulls, form = np.zeros(rows), np.zeros((rows, max(low, 1))), np.empty(rows)
    _pair_energies(j, beta, low, high, form, energies)
    for spin in range(high):
        half = 1 << spin
        for s in range(half):
            for k in range(low):
                pull = beta * j[low + spin, k]
                pulls[half + s, k] = pulls[s, k] - pull
                pulls[s, k] += pull
    own, steps = np.zeros(cols), np.empty(rows * max(low, 1))
    _pair_energies(j, beta, 0, low, form, own)
    work = np.empty(max(len(steps), rows))
    for x in range(rows):
        for k in range(low):
            energies[x] += abs(pulls[x, k])
            steps[x * low + k] = -2.0 * abs(pulls[x, k])
    factors = np.empty(len(steps), weights.dtype)
    exponentials(steps[: rows * low], factors[: rows * low], work)
    row_peak, col_peak = energies.max(), own.max()
    energies -= row_peak
    own -= col_peak
    row_factors, col_factors = np.empty(rows), np.empty(cols, weights.dtype)
    exponentials(energies, row_factors, work)
    exponentials(own, col_factors, work)
    total = _multiply_out(row_factors, col_factors, pulls, factors, low, weights)
    if total < (_LEAST_SINGLE if weights.itemsize == 4 else _LEAST_DOUBLE):
        weights[:] = 0
    elif total < _FAINT:
        row_factors /= total
        _multiply_out(row_factors, col_factors, pulls, factors, low, weights)
        return row_peak + col_peak + np.log(total)
    return row_peak + col_peak


@kernel
def _pair_energies(j, beta, first, count, form, out):
    """β Σ_{k<l} J_kl s_k s_l of the states of spins first … first+count−1; out[0] is 0."""
    for spin in range(count):
        form[0] = 0.0
        for other in range(spin):
            half, pair = 1 << other, beta * j[first + spin, first + other]
            for s in range(half):
                value = form[s]
                form[s] = value + pair
                form[half + s] = value - pair
        size = 1 << spin
        for s in range(size):
            value = out[s]
            out[s] = value + form[s]
            out[size + s] = value - form[s]


@kernel
def _multiply_out(row_factors, col_factors, pulls, factors, low, weights):
    """Fill W from its factors; returns its sum."""
    cols, total = len(col_factors), 0.0
    for x in range(len(row_factors)):
        row = weights[x * cols : (x + 1) * cols]
        row[0] = row_factors[x]
        for k in range(low):
            half, small = 1 << k, factors[x * low + k]
            up, down = row[:half], row[half : 2 * half]
            if pulls[x, k] >= 0:
                for s in range(half):
                    down[s] = up[s] * small
            else:
                for s in range(half):
                    down[s] = up[s]
                for s in range(half):
                    up[s] *= small
        part = weights.dtype.type(0)
        for y in range(cols):
            row[y] *= col_factors[y]
        for y in range(cols):
            part += row[y]
        total += part
    return total


@kernel
def pair_gradients(weights, products, size, beta, j_out):
    """Add to j_out the gradient of J of the first `size` spins, for ∂L/∂W = `products`, all flat.

    Each pair's derivative is split over its two entries.
    """
    low = size // 2
    high = size - low
    rows, cols = 1 << high, 1 << low
    row, col_sums, form = np.empty(cols, weights.dtype), np.zeros(cols, weights.dtype), np.empty(rows)
    row_sums, moments, halved = np.empty(rows), np.empty((rows, max(low, 1))), np.empty(cols, weights.dtype)
    for x in range(rows):
        # Slices, since indices that numba must check for wrapping below 0 make no vector loops.
        w, p = weights[x * cols : (x + 1) * cols], products[x * cols : (x + 1) * cols]
        for y in range(cols):
            row[y] = w[y] * p[y]
        for y in range(cols):
            col_sums[y] += row[y]
        for k in range(low - 1, -1, -1):
            moments[x, k] = _halve(row, 1 << k, halved)
            row, halved = halved, row
        row_sums[x] = row[0]
    scale = 0.5 * beta
    _pair_moments(row_sums, low, high, form, scale, j_out)
    _pair_moments(col_sums.astype(np.float64), 0, low, form, scale, j_out)
    for spin in range(high - 1, -1, -1):
        half = 1 << spin
        for k in range(low):
            moment = 0.0
            for s in range(half):
                moment += moments[s, k] - moments[half + s, k]
                moments[s, k] += moments[half + s, k]
            j_out[low + spin, k] += scale * moment
            j_out[k, low + spin] += scale * moment


@kernel
def _halve(table, half, out):
    """out[s] = table[s] + table[half + s]; returns the sum of the differences."""
    up, down, difference = table[:half], table[half : 2 * half], table.dtype.type(0)
    for s in range(half):
        difference += up[s] - down[s]
    for s in range(half):
        out[s] = up[s] + down[s]
    return difference


@kernel
def _pair_moments(table, first, count, form, scale, j_out):
    """j_out[k, l] += scale Σ_s s_k s_l table[s], both ways, for the spins from `first` on; table is overwritten."""
    for spin in range(count - 1, -1, -1):
        size = 1 << spin
        for s in range(size):
            form[s] = table[s] - table[size + s]
            table[s] += table[size + s]
        for other in range(spin - 1, -1, -1):
            half, moment = 1 << other, 0.0
            for s in range(half):
                moment += form[s] - form[half + s]
                form[s] += form[half + s]
            j_out[first + spin, first + other] += scale * moment
            j_out[first + other, first + spin] += scale * moment
