"""Heat bath in compiled lanes: up to 128 chains of any problems that share couplings advance together.

A tile is `width` lanes. Its spins, fields and running sums lie as rows of `width` numbers, so that lanes fill vectors.
Four sites are updated per block: their local fields come from one pass over all spins, kept in registers, and are
corrected inside the block as its spins move. Random numbers are xoshiro128+ (Blackman, Vigna 2018), one generator
per lane. 2^x is a polynomial of degree 5 and the exponent's bits.

What a lane computes depends on its own problem and generator alone, never on its place or its neighbours.
"""

import math

import numpy as np

from samplers.kernels import kernel
from samplers.vectors import (
    VECTOR,
    add,
    add_words,
    aligned,
    bits_as_floats,
    divide,
    either,
    larger,
    load,
    multiply,
    multiply_add,
    shift_left,
    shift_right,
    smaller,
    splat,
    store,
    subtract,
    to_floats,
    truncated,
    where_less,
    xor,
)

# Lanes of a tile come in steps of two vectors.
PAIR = 2 * VECTOR
# The field of a spin that does not exist: it is never +1, at any temperature of a ladder.
ABSENT = -1e30

_f = np.float32
_u = np.uint32


@kernel
def _local_fields(local, spins, fields, couplings, linked, b, n, width):
    """local[i] = h + Σ_k J s_k of the sites b+i, i < 4, which lie in the rows of `width` lanes."""
    block, base = b >> 2, b * width
    for v in range(0, width, PAIR):
        w = v + VECTOR
        x0, y0 = load(fields, base + v), load(fields, base + w)
        x1, y1 = load(fields, base + width + v), load(fields, base + width + w)
        x2, y2 = load(fields, base + 2 * width + v), load(fields, base + 2 * width + w)
        x3, y3 = load(fields, base + 3 * width + v), load(fields, base + 3 * width + w)
        for k in range(0, n, 4):
            if linked[block, k >> 2]:
                for i in range(k, k + 4):
                    s, t = load(spins, i * width + v), load(spins, i * width + w)
                    j = splat(couplings[block, i, 0])
                    x0, y0 = multiply_add(j, s, x0), multiply_add(j, t, y0)
                    j = splat(couplings[block, i, 1])
                    x1, y1 = multiply_add(j, s, x1), multiply_add(j, t, y1)
                    j = splat(couplings[block, i, 2])
                    x2, y2 = multiply_add(j, s, x2), multiply_add(j, t, y2)
                    j = splat(couplings[block, i, 3])
                    x3, y3 = multiply_add(j, s, x3), multiply_add(j, t, y3)
        store(local, v, x0)
        store(local, w, y0)
        store(local, width + v, x1)
        store(local, width + w, y1)
        store(local, 2 * width + v, x2)
        store(local, 2 * width + w, y2)
        store(local, 3 * width + v, x3)
        store(local, 3 * width + w, y3)


@kernel
def _up(x):
    """1 / (1 + 2^x) to about 1e-7."""
    x = smaller(larger(x, splat(_f(-125.0))), splat(_f(125.0)))
    whole = truncated(add(x, splat(_f(128.5))))
    part = add(subtract(x, to_floats(whole)), splat(_f(128.0)))
    p = multiply_add(splat(_f(1.3333558e-3)), part, splat(_f(9.6181291e-3)))
    p = multiply_add(p, part, splat(_f(5.5504109e-2)))
    p = multiply_add(p, part, splat(_f(2.4022651e-1)))
    p = multiply_add(p, part, splat(_f(6.9314718e-1)))
    p = multiply_add(p, part, splat(_f(1.0)))
    power = bits_as_floats(shift_left(add_words(whole, splat(_u(0xFFFFFFFF))), splat(_u(23))))
    return divide(splat(_f(1.0)), multiply_add(p, power, splat(_f(1.0))))


@kernel
def _uniform(words, v, width):
    """Numbers in (0, 1) from the upper 24 bits of xoshiro128+; its states (4 rows) advance by one step."""
    a, b = load(words, v), load(words, width + v)
    c, d = load(words, 2 * width + v), load(words, 3 * width + v)
    top = to_floats(shift_right(add_words(a, d), splat(_u(8))))
    t = shift_left(b, splat(_u(9)))
    c = xor(c, a)
    d = xor(d, b)
    b = xor(b, c)
    a = xor(a, d)
    store(words, v, a)
    store(words, width + v, b)
    store(words, 2 * width + v, xor(c, t))
    store(words, 3 * width + v, either(shift_left(d, splat(_u(11))), shift_right(d, splat(_u(21)))))
    return multiply_add(top, splat(_f(2.0**-24)), splat(_f(2.0**-25)))


@kernel
def _update(local, scale, spins, sums, low, words, couplings, b, i, width):
    """Draw spin b+i of every lane from its conditional law, and correct the fields of the sites after it."""
    row, block = (b + i) * width, b >> 2
    for v in range(0, width, VECTOR):
        up = _up(multiply(load(scale, v), load(local, i * width + v)))
        store(sums, row + v, add(load(sums, row + v), up))
        new = where_less(_uniform(words, v, width), up, splat(_f(1.0)), load(low, row + v))
        moved = subtract(new, load(spins, row + v))
        store(spins, row + v, new)
        for later in range(i + 1, 4):
            at = later * width + v
            store(local, at, multiply_add(splat(couplings[block, b + i, later]), moved, load(local, at)))


@kernel
def _sweep(local, scale, spins, sums, fields, low, words, couplings, linked, present, n, width):
    for b in range(0, n, 4):
        if present[b >> 2]:
            _local_fields(local, spins, fields, couplings, linked, b, n, width)
            # Four calls, not a loop: with i known, the corrections after it are unrolled.
            _update(local, scale, spins, sums, low, words, couplings, b, 0, width)
            _update(local, scale, spins, sums, low, words, couplings, b, 1, width)
            _update(local, scale, spins, sums, low, words, couplings, b, 2, width)
            _update(local, scale, spins, sums, low, words, couplings, b, 3, width)


@kernel
def _energies(energy, local, spins, fields, couplings, linked, present, n, width):
    """βE of every lane: −½ Σ_j s_j (h_j + F_j)."""
    energy[:] = _f(0.0)
    for b in range(0, n, 4):
        if present[b >> 2]:
            _local_fields(local, spins, fields, couplings, linked, b, n, width)
            for i in range(4):
                row = (b + i) * width
                for v in range(0, width, VECTOR):
                    total = add(load(fields, row + v), load(local, i * width + v))
                    half = multiply(splat(_f(-0.5)), load(spins, row + v))
                    store(energy, v, multiply_add(half, total, load(energy, v)))


@kernel
def _exchange(energy, drawn, spins, words, ladder, parity, n, width, swaps):
    """Swap neighbouring temperatures (t, t+1), t ≡ parity, with probability min(1, e^{(β_t − β_t+1)(E_t − E_t+1)})."""
    steps = len(ladder)
    slots = width // steps
    for v in range(0, width, VECTOR):
        store(drawn, v, _uniform(words, v, width))
    for t in range(parity, steps - 1, 2):
        for m in range(slots):
            cold, hot = t * slots + m, (t + 1) * slots + m
            swaps[t, 1] += 1
            if math.log(drawn[cold]) < (ladder[t] - ladder[t + 1]) * (energy[cold] - energy[hot]):
                swaps[t, 0] += 1
                for j in range(n):
                    r = j * width
                    spins[r + cold], spins[r + hot] = spins[r + hot], spins[r + cold]


@kernel
def run_tiles(
    start,
    stop,
    width,
    tiles,
    order,
    fields,
    couplings,
    present,
    ladder,
    ramp,
    rounds,
    stride,
    spins,
    words,
    sums,
    reads,
    swaps,
):
    """Advance the chains of the tiles start … stop−1 in place.

    Args:
        width: lanes of a tile, a multiple of `PAIR` and of the number of temperatures.
        tiles: (tiles, 4): group, pattern of present blocks, first and last+1 lane of the list of lanes.
        order: problems, in the order in which lanes list them (each with all its chains).
        fields: (problems, n) βh; ABSENT where a spin does not exist.
        couplings: (groups, n, n) βJ.
        present: (patterns, n/4) which blocks of four sites have spins.
        ladder: (steps,) β of each temperature ÷ β; a power of two of steps, the first is 1.
        ramp: (burn_in,) β of each burn-in sweep ÷ β.
        rounds, stride: after the ramp, `rounds` times `stride` sweeps; a read after each.
        spins: (problems, chains, steps, n) int8, 0 where unset or absent. words: (…, steps, 4).
        sums: (problems, chains, 2, n) ΣP(+1) over the first and the second half of the rounds.
        reads: (problems, chains, rounds, n) int8 of the coldest temperature, or of no rounds at all.
        swaps: (tiles, steps, 2) exchanges accepted and tried.
    """
    steps = len(ladder)
    n = (spins.shape[3] + 3) // 4 * 4
    slots = width // steps
    rows, total = aligned(n * width, np.float32), aligned(n * width, np.float32)
    outer, low = aligned(n * width, np.float32), aligned(n * width, np.float32)
    local, state = aligned(4 * width, np.float32), aligned(4 * width, np.uint32)
    scale, energy = aligned(width, np.float32), aligned(width, np.float32)
    drawn, exponent = aligned(width, np.float32), aligned(width, np.float32)
    for lane in range(width):
        exponent[lane] = _f(-2.8853900817779268) * ladder[lane // slots]  # −2 / log 2
    shared = np.zeros((n // 4, n, 4), np.float32)
    linked = np.zeros((n // 4, n // 4), np.bool_)
    loaded = -1
    for tile in range(start, stop):
        group, exists = tiles[tile, 0], present[tiles[tile, 1]]
        first, last = tiles[tile, 2], tiles[tile, 3]
        if group != loaded:
            loaded = group
            _load_couplings(shared, linked, couplings[group])
        _load(rows, outer, low, state, order, fields, spins, words, first, last, width)
        total[:] = _f(0.0)
        for t in range(len(ramp) + rounds * stride):
            heat = ramp[t] if t < len(ramp) else _f(1.0)
            for v in range(0, width, VECTOR):
                store(scale, v, multiply(splat(heat), load(exponent, v)))
            _sweep(local, scale, rows, total, outer, low, state, shared, linked, exists, n, width)
            if steps > 1:
                _energies(energy, local, rows, outer, shared, linked, exists, n, width)
                _exchange(energy, drawn, rows, state, heat * ladder, t % 2, n, width, swaps[tile])
            done = t + 1 - len(ramp)
            if done == 0:
                total[:] = _f(0.0)
            elif done > 0 and done % stride == 0:
                turn = done // stride
                if reads.shape[2] > 0:
                    _write(reads, rows, order, turn - 1, first, last, width)
                if turn == rounds // 2 or turn == rounds:
                    _write(sums, total, order, 1 if turn == rounds else 0, first, last, width)
                    total[:] = _f(0.0)
        _store(rows, state, order, spins, words, first, last, width)


@kernel
def _load_couplings(shared, linked, couplings):
    """Couplings as (block of four sites j, k, j within the block), and which blocks are linked at all."""
    n = len(couplings)
    linked[:] = False
    for j in range(n):
        for k in range(n):
            shared[j >> 2, k, j & 3] = couplings[j, k]
            if couplings[j, k] != 0:
                linked[j >> 2, k >> 2] = True


@kernel
def _load(rows, outer, low, state, order, fields, spins, words, first, last, width):
    chains, steps, n = spins.shape[1], spins.shape[2], spins.shape[3]
    slots = width // steps
    for lane in range(width):
        # Lanes past the end repeat the last one; nothing is stored from them.
        at = min(first + lane % slots, last - 1)
        p, chain, step = order[at // chains], at % chains, lane // slots
        for j in range(len(rows) // width):
            field = fields[p, j] if j < n else _f(ABSENT)
            rows[j * width + lane] = _f(spins[p, chain, step, j]) if j < n else _f(0.0)
            outer[j * width + lane] = field
            low[j * width + lane] = _f(0.0) if field == _f(ABSENT) else _f(-1.0)
        for w in range(4):
            state[w * width + lane] = words[p, chain, step, w]


@kernel
def _store(rows, state, order, spins, words, first, last, width):
    chains, steps, n = spins.shape[1], spins.shape[2], spins.shape[3]
    slots = width // steps
    for lane in range(width):
        at = first + lane % slots
        if at < last:
            p, chain, step = order[at // chains], at % chains, lane // slots
            for j in range(n):
                spins[p, chain, step, j] = np.int8(rows[j * width + lane])
            for w in range(4):
                words[p, chain, step, w] = state[w * width + lane]


@kernel
def _write(target, rows, order, index, first, last, width):
    """target[problem, chain, index] = the row values of the coldest lanes."""
    chains, n = target.shape[1], target.shape[3]
    for at in range(first, last):
        p, chain = order[at // chains], at % chains
        for j in range(n):
            target[p, chain, index, j] = rows[j * width + at - first]
