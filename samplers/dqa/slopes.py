"""Compiled derivatives in the angles of a layer, for the states φ and λ of the adjoint pass.

The layout of states is that of `samplers.dqa.phases`; the slow twin is `samplers.dqa.evolution`.
"""

import numpy as np

from samplers.dqa.mixing import LANES, WIDTH
from samplers.kernels import kernel

# Numbers of a run across chunks: 256 chunks of both states then stay in cache.
_RUN = 2 * WIDTH


@kernel
def field_energies(h, spins, lanes, out):
    """Σ_j h[j][lane] z_j to out[z][lane], by doubling."""
    for i in range(lanes):
        out[i] = 0
    for j in range(spins):
        own = h[j * lanes : (j + 1) * lanes]
        for z in range(1 << j):
            up = out[z * lanes : (z + 1) * lanes]
            down = out[((1 << j) + z) * lanes : ((1 << j) + z + 1) * lanes]
            for i in range(lanes):
                down[i] = up[i] - own[i]
                up[i] += own[i]


@kernel
def mixer_slope(x, y, apart, place, num_spins):
    """2 Re⟨λ, Σ_q G_q φ⟩ with G = [[0, −1], [1, 0]] on qubit q: the derivative in the angle of all rotations.

    Rotations commute with G, so that φ and λ may both be taken before or both after them.
    """
    rows, columns, jump, shift, count = place[0], place[1], place[2], place[3], place[4]
    chunk, lowest, total = columns * WIDTH, 0, 0.0
    if count > 1:
        # The three lowest qubits of a chunk lie within its rows.
        lowest = 3
        for part in range(0, 2 * apart, apart):
            for top in range(rows // columns):
                for bit in range(lowest):
                    total += _slope(x, y, part + top * jump, chunk, LANES << bit, LANES << bit)
    inner = 0
    while (1 << inner) < columns:
        inner += 1
    last = max(lowest, min(num_spins, inner - shift + lowest))
    for part in range(0, 2 * apart, apart):
        for top in range(rows // columns):
            for qubit in range(lowest, last):
                run = WIDTH << (qubit - lowest + shift)
                total += _slope(x, y, part + top * jump, chunk, run, run)
        for column in range(0, chunk, _RUN):
            for qubit in range(last, num_spins):
                far = 1 << (qubit - lowest + shift - inner)
                for top in range(rows // columns):
                    if top & far == 0:
                        at = part + top * jump + column
                        total += _slope(x, y, at, min(_RUN, chunk), min(_RUN, chunk), far * jump)
    return 2 * total


@kernel
def _slope(x, y, start, size, run, far):
    """Σ λ₁φ₀ − λ₀φ₁ over pairs of numbers `far` apart: runs of them that begin every 2 · run from start on."""
    u = np.uint64
    total = 0.0
    for base in range(start, start + size, 2 * run):
        a, b = u(base), u(base + far)
        own = x.dtype.type(0)
        for i in range(run):
            own += y[b + u(i)] * x[a + u(i)] - y[a + u(i)] * x[b + u(i)]
        total += own
    return total
