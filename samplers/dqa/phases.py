"""Compiled phases of an anneal: tables of exp(i angle), and the passes that turn a state by them.

A state is a list of rows of 64 numbers; row r lies at (r // columns) · jump + (r % columns) · 64. In a tile a row
belongs to one state z = r >> shift, and to the 64 problems of block r & (2^shift − 1). In a chunk (shift 0) it
belongs to `count` = 8 states of 8 problems. Imaginary parts lie `apart` behind real parts.
"""

import math

from samplers.dqa.mixing import LANES, WIDTH
from samplers.kernels import kernel

_TWO_OVER_PI, _HALF_PI = 2 / math.pi, math.pi / 2


@kernel(inline=True)
def unit(angle):
    """(cos, sin) of a float64 to about 1e-14; plain arithmetic, so that it vectorises. For |angle| below 1e9."""
    quarter = math.floor(angle * _TWO_OVER_PI + 0.5)
    r = angle - quarter * _HALF_PI
    q = r * r
    sine = -1 / 39916800 + q * (1 / 6227020800)
    sine = -1 / 5040 + q * (1 / 362880 + q * sine)
    sine = r + r * q * (-1 / 6 + q * (1 / 120 + q * sine))
    cosine = 1 / 479001600 + q * (-1 / 87178291200)
    cosine = 1 / 40320 + q * (-1 / 3628800 + q * cosine)
    cosine = 1 + q * (-1 / 2 + q * (1 / 24 + q * (-1 / 720 + q * cosine)))
    turn = quarter - 4 * math.floor(quarter * 0.25)
    odd = (turn == 1) | (turn == 3)
    c, s = (sine if odd else cosine), (cosine if odd else sine)
    c = -c if (turn == 1) | (turn == 2) else c
    s = -s if turn >= 2 else s
    return c, s


@kernel
def pair_phases(energies, angle, out):
    """out[i] = cos, out[size + i] = sin of angle · energies[i]."""
    size = energies.shape[0]
    cosines, sines = out[:size], out[size:]
    for z in range(size):
        cosines[z], sines[z] = unit(angle * energies[z])


@kernel
def field_phases(turns, spins, lanes, scale, out):
    """scale · exp(i Σ_j a_j z_j) over all states, out[re, im][z][lane], from turns[cos, sin][spin][lane] of a_j."""
    size = lanes << spins
    for i in range(lanes):
        out[i] = scale
        out[size + i] = scale - scale
    for j in range(spins):
        cosine, sine = turns[j * lanes : (j + 1) * lanes], turns[(spins + j) * lanes : (spins + j + 1) * lanes]
        for z in range(1 << j):
            at, to = z * lanes, (z + (1 << j)) * lanes
            up_re, up_im = out[at : at + lanes], out[size + at : size + at + lanes]
            down_re, down_im = out[to : to + lanes], out[size + to : size + to + lanes]
            for i in range(lanes):
                re, im, c, s = up_re[i], up_im[i], cosine[i], sine[i]
                up_re[i], up_im[i] = re * c - im * s, re * s + im * c
                down_re[i], down_im[i] = re * c + im * s, im * c - re * s


# Each loop below writes few arrays: past eight possible overlaps to check, the compiler would not vectorise.


@kernel(inline=True)
def table_rows(r, shift, count, split, lanes):
    """Where the numbers of row r begin in the tables of low and of high fields."""
    z, block = (r >> shift) * count, (r & ((1 << shift) - 1)) * WIDTH
    return (z & ((1 << split) - 1)) * lanes + block, (z >> split) * lanes * count + block


@kernel(inline=True)
def row_phases(r, shift, count, low, high, split, lanes, pairs, row):
    """row[cos, sin][64] = low · high · pairs for the problems and states of row r."""
    states, z = pairs.shape[0] // 2, (r >> shift) * count
    low_apart, high_apart = low.shape[0] // 2, high.shape[0] // 2
    a, b = table_rows(r, shift, count, split, lanes)
    low_re, low_im = low[a : a + WIDTH], low[low_apart + a : low_apart + a + WIDTH]
    high_re, high_im = high[b : b + WIDTH], high[high_apart + b : high_apart + b + WIDTH]
    for i in range(WIDTH):
        row[i] = low_re[i] * high_re[i] - low_im[i] * high_im[i]
        row[WIDTH + i] = low_re[i] * high_im[i] + low_im[i] * high_re[i]
    if count == 1:
        c, s = pairs[z], pairs[states + z]
        for i in range(WIDTH):
            u, v = row[i], row[WIDTH + i]
            row[i], row[WIDTH + i] = u * c - v * s, u * s + v * c
    else:
        for k in range(LANES):
            c, s = pairs[z + k], pairs[states + z + k]
            for i in range(LANES):
                row[2 * WIDTH + k * LANES + i] = c
                row[3 * WIDTH + k * LANES + i] = s
        for i in range(WIDTH):
            u, v, c, s = row[i], row[WIDTH + i], row[2 * WIDTH + i], row[3 * WIDTH + i]
            row[i], row[WIDTH + i] = u * c - v * s, u * s + v * c


@kernel(inline=True)
def turn_row(re, im, row, sign):
    """(re, im) ← (re, im) · row, or its conjugate for sign −1."""
    for i in range(WIDTH):
        p, q, u, v = re[i], im[i], row[i], sign * row[WIDTH + i]
        re[i], im[i] = p * u - q * v, p * v + q * u


@kernel
def turn_forward(x, apart, first, last, columns, jump, shift, count, low, high, split, lanes, pairs, row):
    """φ ← φ · low · high · pairs, for rows first ≤ r < last."""
    one = x.dtype.type(1)
    for r in range(first, last):
        at = (r // columns) * jump + (r % columns) * WIDTH
        row_phases(r, shift, count, low, high, split, lanes, pairs, row)
        turn_row(x[at : at + WIDTH], x[apart + at : apart + at + WIDTH], row, one)


def turns_backward(with_slopes):
    """A kernel that weighs and turns both states back; `with_slopes` also adds up derivatives in the angles."""

    @kernel
    def turn(
        x, y, apart, first, last, columns, jump, shift, count, low, high, split, lanes, pairs, row, f, c, by_field,
        by_pair, low_energies, high_energies, pair_energies, slopes,
    ):  # fmt: skip
        each = WIDTH // count
        minus = -x.dtype.type(1)
        for r in range(first, last):
            at = (r // columns) * jump + (r % columns) * WIDTH
            re, im = x[at : at + WIDTH], x[apart + at : apart + at + WIDTH]
            adj_re, adj_im = y[at : at + WIDTH], y[apart + at : apart + at + WIDTH]
            weight, total = row[2 * WIDTH : 3 * WIDTH], by_field[r * WIDTH : (r + 1) * WIDTH]
            for i in range(WIDTH):
                weight[i] = adj_im[i] * re[i] - adj_re[i] * im[i]
            for i in range(WIDTH):
                total[i] += f * weight[i]
            for k in range(count):
                own, state_sum = weight[k * each : (k + 1) * each], c - c
                for i in range(each):
                    state_sum += own[i]
                by_pair[(r >> shift) * count + k] += c * state_sum
                if with_slopes:
                    slopes[1] += state_sum * pair_energies[(r >> shift) * count + k]
            if with_slopes:
                a, b = table_rows(r, shift, count, split, lanes)
                own_low, own_high = low_energies[a : a + WIDTH], high_energies[b : b + WIDTH]
                field_sum = c - c
                for i in range(WIDTH):
                    field_sum += weight[i] * (own_low[i] + own_high[i])
                slopes[0] += field_sum
            row_phases(r, shift, count, low, high, split, lanes, pairs, row)
            turn_row(re, im, row, minus)
            turn_row(adj_re, adj_im, row, minus)

    return turn


# Weigh w = −2 Im(λ̄φ), add f·w to `by_field` and c·Σw to `by_pair`; then φ, λ ← φ·phase̅, λ·phase̅.
turn_backward = turns_backward(False)
# The same, and add Σ w E_fields and Σ w E_pairs to `slopes`.
turn_backward_with_slopes = turns_backward(True)
