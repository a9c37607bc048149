"""The compiled state-vector evolution of a tile of problems that share couplings, forward and by the adjoint.

The same mathematics as `samplers.dqa.evolution`, its slow twin. Mixer angles must be reduced to |x| ≤ π/4 (see
`samplers.dqa.tiles`): the cosines are pulled out of the rotations and enter with the field phases.
Arrays of one tile: fields and magnetizations [spin][lane], probabilities [state][lane], state [re, im][rows].
"""

import numpy as np

from samplers.dqa.mixing import CHUNK, LANES, PADDED, PADDED_CHUNK, ROWS, WIDTH, mix_chunk, mix_chunks, mix_tile
from samplers.dqa.phases import field_phases, pair_phases, turn_backward, turn_backward_with_slopes, turn_forward
from samplers.dqa.slopes import field_energies, mixer_slope
from samplers.kernels import kernel

# Lower qubits of a chunk.
CHUNK_SPINS = 8


@kernel
def layout(num_spins, lanes, tiled):
    """(rows, columns, jump, shift, count, split) of a tile; see `samplers.dqa.phases`."""
    rows = (lanes << num_spins) // WIDTH
    if not tiled:
        # The high table repeats its lanes eight times; three more spins in the low one balance their sizes.
        return rows, CHUNK // WIDTH, PADDED_CHUNK, 0, WIDTH // LANES, (num_spins + 3) // 2
    shift = 0
    while (1 << (num_spins + shift)) < rows:
        shift += 1
    return rows, rows // ROWS, PADDED, shift, 1, num_spins // 2


@kernel
def start(x, apart, place, value):
    """The rotated uniform superposition: (−i)^popcount times `value`."""
    rows, columns, jump, shift, count, _ = place
    each = WIDTH // count
    for r in range(rows):
        at = (r // columns) * jump + (r % columns) * WIDTH
        re, im = x[at : at + WIDTH], x[apart + at : apart + at + WIDTH]
        for k in range(count):
            z, ones = (r >> shift) * count + k, 0
            while z:
                ones += z & 1
                z >>= 1
            sign = value if (ones & 3 == 0) | (ones & 3 == 3) else -value
            for i in range(k * each, (k + 1) * each):
                re[i] = sign if ones & 1 == 0 else value - value
                im[i] = sign if ones & 1 else value - value


@kernel
def fold(w, num_spins, lanes, out):
    """Σ_z w[z][lane] z_j to out[j][lane]; destroys w and leaves Σ_z w[z][lane] in its first `lanes` entries."""
    for j in range(num_spins - 1, -1, -1):
        total = out[j * lanes : (j + 1) * lanes]
        for i in range(lanes):
            total[i] = 0
        for z in range(1 << j):
            up = w[z * lanes : (z + 1) * lanes]
            down = w[((1 << j) + z) * lanes : ((1 << j) + z + 1) * lanes]
            for i in range(lanes):
                total[i] += up[i] - down[i]
                up[i] += down[i]


@kernel
def unfold(grad, num_spins, lanes, w):
    """w[z][lane] = Σ_j grad[j][lane] z_j, by doubling."""
    for i in range(lanes):
        w[i] = 0
    for j in range(num_spins):
        own = grad[j * lanes : (j + 1) * lanes]
        for z in range(1 << j):
            up = w[z * lanes : (z + 1) * lanes]
            down = w[((1 << j) + z) * lanes : ((1 << j) + z + 1) * lanes]
            for i in range(lanes):
                down[i] = up[i] - own[i]
                up[i] += own[i]


@kernel
def measure(x, apart, place, w):
    """|φ|² to w[row][column]."""
    rows, columns, jump = place[0], place[1], place[2]
    for r in range(rows):
        at = (r // columns) * jump + (r % columns) * WIDTH
        re, im = x[at : at + WIDTH], x[apart + at : apart + at + WIDTH]
        out = w[r * WIDTH : (r + 1) * WIDTH]
        for i in range(WIDTH):
            out[i] = re[i] * re[i] + im[i] * im[i]


@kernel
def adjoint_start(x, apart, place, w, y):
    """λ = w φ."""
    rows, columns, jump = place[0], place[1], place[2]
    for r in range(rows):
        at = (r // columns) * jump + (r % columns) * WIDTH
        re, im = x[at : at + WIDTH], x[apart + at : apart + at + WIDTH]
        adj_re, adj_im = y[at : at + WIDTH], y[apart + at : apart + at + WIDTH]
        own = w[r * WIDTH : (r + 1) * WIDTH]
        for i in range(WIDTH):
            adj_re[i], adj_im[i] = own[i] * re[i], own[i] * im[i]


@kernel
def pair_energies(couplings, out):
    """½ zᵀJz of every state, to out (2^n): spin k doubles the table, adding ± its field Σ_{j<k} J_jk z_j."""
    field = np.empty(max(1, out.shape[0] // 2))
    out[0] = 0.0
    for k in range(couplings.shape[0]):
        field[0] = 0.0
        for j in range(k):
            step = couplings[j, k]
            for z in range(1 << j):
                field[z + (1 << j)] = field[z] - step
                field[z] += step
        for z in range(1 << k):
            out[z + (1 << k)] = out[z] - field[z]
            out[z] += field[z]


@kernel
def normalise(moments, total):
    lanes = total.shape[0]
    for j in range(moments.shape[0] // lanes):
        own = moments[j * lanes : (j + 1) * lanes]
        for i in range(lanes):
            own[i] /= total[i]


@kernel
def repeated(h, num_spins, split, lanes, count):
    """The fields of the high spins, their lanes `count` times over."""
    out = np.empty((num_spins - split) * lanes * count)
    for i in range(out.shape[0]):
        out[i] = h[(split + i // (lanes * count)) * lanes + i % lanes]
    return out


@kernel
def layer_tables(h, h_high, energies, angles, layer, place, lanes, low_turns, high_turns, low, high, pairs):
    """Fill the phase tables of one layer; the high table carries the cosines of the mixer."""
    count, split = place[4], place[5]
    kind = low.dtype.type
    pair_phases(h[: split * lanes], angles[layer, 0], low_turns)
    pair_phases(h_high, angles[layer, 0], high_turns)
    field_phases(low_turns, split, lanes, kind(1), low)
    width = lanes * count
    field_phases(high_turns, h_high.shape[0] // width, width, kind(angles[layer, 3]), high)
    pair_phases(energies, angles[layer, 1], pairs)


@kernel
def forward_tiles(first, last, h, energies, group, angles, num_spins, tiled, marginals, states, out):
    """Evolve tiles first ≤ t < last. h (tiles, n · lanes); angles (P, 4): field, coupling, tan x, cosⁿ x."""
    size, lanes = 1 << num_spins, h.shape[1] // num_spins
    place = layout(num_spins, lanes, tiled)
    rows, columns, jump, shift, count, split = place
    apart = states.shape[1] // 2
    kind, own = states.dtype.type, states.dtype
    low, high = np.empty((2 * lanes) << split, own), np.empty((2 * lanes * count) << (num_spins - split), own)
    low_turns = np.empty(2 * split * lanes, own)
    high_turns = np.empty(2 * (num_spins - split) * lanes * count, own)
    pairs, weights = np.empty(2 * size, own), np.empty(size * lanes, own)
    buf, row = np.empty(ROWS * WIDTH, own), np.empty(4 * WIDTH, own)
    for tile in range(first, last):
        x = states[tile]
        start(x, apart, place, kind(size**-0.5))
        h_high = repeated(h[tile], num_spins, split, lanes, count)
        for layer in range(angles.shape[0]):
            layer_tables(
                h[tile], h_high, energies[group[tile]], angles, layer, place, lanes, low_turns, high_turns, low, high,
                pairs,
            )  # fmt: skip
            t = kind(angles[layer, 2])
            if tiled:
                turn_forward(x, apart, 0, rows, columns, jump, shift, count, low, high, split, lanes, pairs, row)
                mix_tile(x[:apart], columns, num_spins, t)
                mix_tile(x[apart:], columns, num_spins, t)
                continue
            for chunk in range(rows // columns):
                r = chunk * columns
                turn_forward(x, apart, r, r + columns, columns, jump, shift, count, low, high, split, lanes, pairs, row)
                mix_chunk(x[chunk * jump : chunk * jump + CHUNK], t)
                mix_chunk(x[apart + chunk * jump : apart + chunk * jump + CHUNK], t)
            mix_chunks(x[:apart], buf, num_spins - CHUNK_SPINS, t)
            mix_chunks(x[apart:], buf, num_spins - CHUNK_SPINS, t)
        if marginals:
            measure(x, apart, place, weights)
            fold(weights, num_spins, lanes, out[tile])
            normalise(out[tile], weights[:lanes])
        else:
            measure(x, apart, place, out[tile])


@kernel
def turn_rows_back(
    x, y, apart, first, last, columns, jump, shift, count, low, high, split, lanes, pairs, row, f, c, by_field, by_pair,
    low_energies, high_energies, pair_energies, slopes,
):  # fmt: skip
    """`turn_backward`, with the derivatives in the angles unless `slopes` is empty."""
    if slopes.shape[0] > 0:
        turn_backward_with_slopes(
            x, y, apart, first, last, columns, jump, shift, count, low, high, split, lanes, pairs, row, f, c, by_field,
            by_pair, low_energies, high_energies, pair_energies, slopes,
        )  # fmt: skip
    else:
        turn_backward(
            x, y, apart, first, last, columns, jump, shift, count, low, high, split, lanes, pairs, row, f, c, by_field,
            by_pair, low_energies, high_energies, pair_energies, slopes,
        )  # fmt: skip


@kernel
def backward_tiles(
    first, last, h, energies, group, angles, num_spins, tiled, marginals, states, grad, grad_h, grad_pairs, slopes
):
    """Adjoint of `forward_tiles`: grad (as its `out`) to grad_h (as h) and grad_pairs (tiles, 2^n).

    grad_pairs[z] is the derivative in the pair energy of state z. `slopes` (tiles, P, 3), unless its first axis is
    empty, gets the derivatives in field, coupling and mixer angles. `states` is left as it was.
    """
    size, lanes = 1 << num_spins, h.shape[1] // num_spins
    place = layout(num_spins, lanes, tiled)
    rows, columns, jump, shift, count, split = place
    apart = states.shape[1] // 2
    kind, own = states.dtype.type, states.dtype
    low, high = np.empty((2 * lanes) << split, own), np.empty((2 * lanes * count) << (num_spins - split), own)
    low_turns = np.empty(2 * split * lanes, own)
    high_turns = np.empty(2 * (num_spins - split) * lanes * count, own)
    pairs, weights = np.empty(2 * size, own), np.empty(size * lanes, own)
    buf, row = np.empty(ROWS * WIDTH, own), np.empty(4 * WIDTH, own)
    x, y = np.empty(2 * apart, own), np.zeros(2 * apart, own)
    wanted = slopes.shape[0] > 0
    low_energies = np.empty(lanes << split if wanted else 0, own)
    high_energies = np.empty((lanes * count) << (num_spins - split) if wanted else 0, own)
    sums = np.empty(2 if wanted else 0)
    for tile in range(first, last):
        x[:] = states[tile]
        if marginals:
            unfold(grad[tile], num_spins, lanes, weights)
            adjoint_start(x, apart, place, weights, y)
        else:
            adjoint_start(x, apart, place, grad[tile], y)
        weights[:] = 0
        by_pair = grad_pairs[tile]
        by_pair[:] = 0
        h_high = repeated(h[tile], num_spins, split, lanes, count)
        if wanted:
            field_energies(h[tile], split, lanes, low_energies)
            field_energies(h_high, num_spins - split, lanes * count, high_energies)
        own_energies = energies[group[tile]]
        for layer in range(angles.shape[0] - 1, -1, -1):
            layer_tables(
                h[tile], h_high, energies[group[tile]], angles, layer, place, lanes, low_turns, high_turns, low, high,
                pairs,
            )  # fmt: skip
            t = kind(-angles[layer, 2])
            # Both states still lack the cosines where they are weighed; the phases bring them afterwards.
            square = 2 * angles[layer, 3] * angles[layer, 3]
            f, c = kind(square * angles[layer, 0]), kind(square * angles[layer, 1])
            sums[:] = 0
            if wanted:
                slopes[tile, layer, 2] = mixer_slope(x, y, apart, place, num_spins)
            if tiled:
                for part in (x[:apart], x[apart:], y[:apart], y[apart:]):
                    mix_tile(part, columns, num_spins, t)
                turn_rows_back(
                    x, y, apart, 0, rows, columns, jump, shift, count, low, high, split, lanes, pairs, row, f, c,
                    weights, by_pair, low_energies, high_energies, own_energies, sums,
                )  # fmt: skip
                if wanted:
                    slopes[tile, layer, :2] = square * sums
                continue
            for part in (x[:apart], x[apart:], y[:apart], y[apart:]):
                mix_chunks(part, buf, num_spins - CHUNK_SPINS, t)
            for chunk in range(rows // columns):
                a, r = chunk * jump, chunk * columns
                for part in (x[:apart], x[apart:], y[:apart], y[apart:]):
                    mix_chunk(part[a : a + CHUNK], t)
                turn_rows_back(
                    x, y, apart, r, r + columns, columns, jump, shift, count, low, high, split, lanes, pairs, row, f,
                    c, weights, by_pair, low_energies, high_energies, own_energies, sums,
                )  # fmt: skip
            if wanted:
                slopes[tile, layer, :2] = square * sums
        fold(weights, num_spins, lanes, grad_h[tile])
