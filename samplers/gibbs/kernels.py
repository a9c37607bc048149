"""Heat bath in compiled lanes: 128 chains of any problems that share couplings advance together.

A tile is 128 lanes. Its spins, fields and running sums lie as rows of 128 numbers, so that every loop over lanes
is a vector loop of constant length. Four sites are updated per block: their local fields come from one pass over
all spins in blocks of 4 sites × 8 couplings, corrected inside the block as its spins move.
The random numbers are xoshiro128+ (Blackman, Vigna 2018), one generator per lane. Every operation on its words
is cast to uint32: numba widens sums and shifts of uint32 to 64 bits, which would silently be another generator.

What a lane computes depends on its own problem and generator alone, never on its place or its neighbours.
"""

import math

import numpy as np

from samplers.kernels import kernel

LANES = 128
# The field of a spin that does not exist: it is never +1, at any temperature of a ladder.
ABSENT = -1e30

_W = LANES
# A block of four sites is 16 rows: spins, sums of P(+1), fields, and the value a spin takes when it is not +1.
_BLOCK = 16 * LANES
_SUM, _FIELD, _LOW = 4 * LANES, 8 * LANES, 12 * LANES
# Work rows: four local fields, the scale of each lane, one scratch row.
_SCALE, _NOW = 4 * LANES, 5 * LANES
_WORK = 6 * LANES

_f = np.float32
_i = np.int32
_u = np.uint32


@kernel
def _local_fields(work, rows, couplings, linked, b, n):
    """work[0:4] = h + Σ_k J s_k of the sites b … b+3."""
    own = rows[(b >> 2) * _BLOCK : (b >> 2) * _BLOCK + _BLOCK]
    for v in range(4 * _W):
        work[v] = own[_FIELD + v]
    for k in range(0, n, 8):
        if not linked[b >> 2, k >> 3]:
            continue
        a0, a1, a2, a3 = couplings[b, k], couplings[b, k + 1], couplings[b, k + 2], couplings[b, k + 3]
        a4, a5, a6, a7 = couplings[b, k + 4], couplings[b, k + 5], couplings[b, k + 6], couplings[b, k + 7]
        b0, b1, b2, b3 = couplings[b + 1, k], couplings[b + 1, k + 1], couplings[b + 1, k + 2], couplings[b + 1, k + 3]
        b4, b5, b6, b7 = (
            couplings[b + 1, k + 4],
            couplings[b + 1, k + 5],
            couplings[b + 1, k + 6],
            couplings[b + 1, k + 7],
        )
        c0, c1, c2, c3 = couplings[b + 2, k], couplings[b + 2, k + 1], couplings[b + 2, k + 2], couplings[b + 2, k + 3]
        c4, c5, c6, c7 = (
            couplings[b + 2, k + 4],
            couplings[b + 2, k + 5],
            couplings[b + 2, k + 6],
            couplings[b + 2, k + 7],
        )
        d0, d1, d2, d3 = couplings[b + 3, k], couplings[b + 3, k + 1], couplings[b + 3, k + 2], couplings[b + 3, k + 3]
        d4, d5, d6, d7 = (
            couplings[b + 3, k + 4],
            couplings[b + 3, k + 5],
            couplings[b + 3, k + 6],
            couplings[b + 3, k + 7],
        )
        other = rows[(k >> 2) * _BLOCK : (k >> 2) * _BLOCK + 2 * _BLOCK]
        for v in range(_W):
            s0, s1, s2, s3 = other[v], other[_W + v], other[2 * _W + v], other[3 * _W + v]
            s4, s5 = other[_BLOCK + v], other[_BLOCK + _W + v]
            s6, s7 = other[_BLOCK + 2 * _W + v], other[_BLOCK + 3 * _W + v]
            work[v] += (a0 * s0 + a1 * s1 + a2 * s2 + a3 * s3) + (a4 * s4 + a5 * s5 + a6 * s6 + a7 * s7)
            work[_W + v] += (b0 * s0 + b1 * s1 + b2 * s2 + b3 * s3) + (b4 * s4 + b5 * s5 + b6 * s6 + b7 * s7)
            work[2 * _W + v] += (c0 * s0 + c1 * s1 + c2 * s2 + c3 * s3) + (c4 * s4 + c5 * s5 + c6 * s6 + c7 * s7)
            work[3 * _W + v] += (d0 * s0 + d1 * s1 + d2 * s2 + d3 * s3) + (d4 * s4 + d5 * s5 + d6 * s6 + d7 * s7)


@kernel
def _up(x):
    """1 / (1 + 2^x) to about 3e-7, by a polynomial of degree 5 and the exponent bits."""
    x = min(max(x, _f(-125.0)), _f(125.0))
    whole = _i(x + _f(128.5))
    part = x - (_f(whole) - _f(128.0))
    p = _f(1.3333558e-3)
    p = p * part + _f(9.6181291e-3)
    p = p * part + _f(5.5504109e-2)
    p = p * part + _f(2.4022651e-1)
    p = p * part + _f(6.9314718e-1)
    p = p * part + _f(1.0)
    return _f(1.0) / (_f(1.0) + p * _i((whole - _i(1)) << _i(23)).view(np.float32))


@kernel
def _uniform(word):
    """A number in (0, 1) from the upper 24 bits of a word."""
    return _f(_i(_u(word) >> _u(8))) * _f(2.0**-24) + _f(2.0**-25)


@kernel
def _advance(a, b, c, d):
    """The next state of xoshiro128+; the word that belongs to a state is a + d."""
    t = _u(b << _u(9))
    c = _u(c ^ a)
    d = _u(d ^ b)
    b = _u(b ^ c)
    a = _u(a ^ d)
    c = _u(c ^ t)
    d = _u(_u(d << _u(11)) | _u(d >> _u(21)))
    return a, b, c, d


@kernel
def _update(work, rows, words, couplings, b, i):
    """Draw spin b+i of every lane from its conditional law, and correct the fields of the sites after it."""
    j1 = couplings[b + 1, b + i] if i < 1 else _f(0.0)
    j2 = couplings[b + 2, b + i] if i < 2 else _f(0.0)
    j3 = couplings[b + 3, b + i] if i < 3 else _f(0.0)
    start = (b >> 2) * _BLOCK + i * _W
    own = rows[start : start + _LOW + _W]
    field = work[i * _W : i * _W + _W]
    # The copy keeps the loop below free of two views of one row, which would stop vectorisation.
    for v in range(_W):
        work[_NOW + v] = field[v]
    for v in range(_W):
        a, bb, c, d = words[v], words[_W + v], words[2 * _W + v], words[3 * _W + v]
        up = _up(work[_SCALE + v] * work[_NOW + v])
        new = _f(1.0) if _uniform(a + d) < up else own[_LOW + v]
        a, bb, c, d = _advance(a, bb, c, d)
        words[v], words[_W + v], words[2 * _W + v], words[3 * _W + v] = a, bb, c, d
        own[_SUM + v] += up
        moved = new - own[v]
        own[v] = new
        work[_W + v] += j1 * moved
        work[2 * _W + v] += j2 * moved
        work[3 * _W + v] += j3 * moved


@kernel
def _sweep(work, rows, words, couplings, linked, present, n):
    for b in range(0, n, 4):
        if present[b >> 2]:
            _local_fields(work, rows, couplings, linked, b, n)
            for i in range(4):
                _update(work, rows, words, couplings, b, i)


@kernel
def _energies(energy, work, rows, couplings, linked, present, n):
    """βE of every lane: −½ Σ_j s_j (h_j + F_j)."""
    for v in range(_W):
        energy[v] = _f(0.0)
    for b in range(0, n, 4):
        if present[b >> 2]:
            _local_fields(work, rows, couplings, linked, b, n)
            own = rows[(b >> 2) * _BLOCK : (b >> 2) * _BLOCK + _BLOCK]
            for i in range(4):
                for v in range(_W):
                    energy[v] -= _f(0.5) * own[i * _W + v] * (own[_FIELD + i * _W + v] + work[i * _W + v])


@kernel
def _exchange(energy, rows, words, ladder, parity, n, swaps):
    """Swap neighbouring temperatures (t, t+1), t ≡ parity, with probability min(1, e^{(β_t − β_t+1)(E_t − E_t+1)})."""
    steps = len(ladder)
    slots = _W // steps
    for t in range(parity, steps - 1, 2):
        for m in range(slots):
            low, high = t * slots + m, (t + 1) * slots + m
            a, bb, c, d = words[low], words[_W + low], words[2 * _W + low], words[3 * _W + low]
            drawn = _uniform(a + d)
            words[low], words[_W + low], words[2 * _W + low], words[3 * _W + low] = _advance(a, bb, c, d)
            if math.log(drawn) < (ladder[t] - ladder[t + 1]) * (energy[low] - energy[high]):
                swaps[t, 0] += 1
                for b in range(0, n, 4):
                    for i in range(4):
                        r = (b >> 2) * _BLOCK + i * _W
                        rows[r + low], rows[r + high] = rows[r + high], rows[r + low]
            swaps[t, 1] += 1


@kernel
def run_tiles(
    start,
    stop,
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
    steps, n = spins.shape[2], spins.shape[3]
    padded = (n + 7) // 8 * 8
    slots = _W // steps
    rows = np.zeros(padded // 4 * _BLOCK, np.float32)
    work = np.zeros(_WORK, np.float32)
    state = np.zeros(4 * _W, np.uint32)
    energy = np.zeros(_W, np.float32)
    shared = np.zeros((padded, padded), np.float32)
    linked = np.zeros((padded // 4, padded // 8), np.bool_)
    exists = np.zeros(padded // 4, np.bool_)
    loaded = -1
    for tile in range(start, stop):
        group, pattern, first, last = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3]
        if group != loaded:
            loaded = group
            _load_couplings(shared, linked, couplings[group])
        exists[:] = False
        exists[: present.shape[1]] = present[pattern]
        _load(rows, state, order, fields, spins, words, first, last)
        tried = 0
        for t in range(len(ramp) + rounds * stride):
            scale = ramp[t] if t < len(ramp) else _f(1.0)
            for step in range(steps):
                for m in range(slots):
                    work[_SCALE + step * slots + m] = _f(-2.8853900817779268) * scale * ladder[step]
            _sweep(work, rows, state, shared, linked, exists, padded)
            if steps > 1:
                _energies(energy, work, rows, shared, linked, exists, padded)
                _exchange(energy, rows, state, scale * ladder, tried % 2, padded, swaps[tile])
                tried += 1
            done = t + 1 - len(ramp)
            if done == 0:
                _clear_sums(rows, padded)
            elif done > 0 and done % stride == 0:
                turn = done // stride - 1
                if reads.shape[2] > 0:
                    _write_read(reads, rows, order, turn, first, last)
                if turn + 1 == rounds // 2 or turn + 1 == rounds:
                    _write_sums(sums, rows, order, 1 if turn + 1 == rounds else 0, first, last)
                    _clear_sums(rows, padded)
        _store(rows, state, order, spins, words, first, last)


@kernel
def _load_couplings(shared, linked, couplings):
    n = len(couplings)
    linked[:] = False
    for j in range(n):
        for k in range(n):
            shared[j, k] = couplings[j, k]
            if couplings[j, k] != 0:
                linked[j >> 2, k >> 3] = True


@kernel
def _load(rows, state, order, fields, spins, words, first, last):
    chains, steps, n = spins.shape[1], spins.shape[2], spins.shape[3]
    slots = _W // steps
    for b in range(len(rows) // _BLOCK):
        for i in range(4):
            j = 4 * b + i
            for m in range(slots):
                # Lanes past the end repeat the last one; nothing is stored from them.
                at = min(first + m, last - 1)
                p, chain = order[at // chains], at % chains
                for step in range(steps):
                    r = b * _BLOCK + i * _W + step * slots + m
                    field = fields[p, j] if j < n else _f(ABSENT)
                    rows[r] = _f(spins[p, chain, step, j]) if j < n else _f(0.0)
                    rows[r + _SUM] = _f(0.0)
                    rows[r + _FIELD] = field
                    rows[r + _LOW] = _f(0.0) if field == _f(ABSENT) else _f(-1.0)
    for m in range(slots):
        at = min(first + m, last - 1)
        p, chain = order[at // chains], at % chains
        for step in range(steps):
            for w in range(4):
                state[w * _W + step * slots + m] = words[p, chain, step, w]


@kernel
def _store(rows, state, order, spins, words, first, last):
    chains, steps, n = spins.shape[1], spins.shape[2], spins.shape[3]
    slots = _W // steps
    for at in range(first, last):
        p, chain, m = order[at // chains], at % chains, at - first
        for step in range(steps):
            for j in range(n):
                spins[p, chain, step, j] = np.int8(rows[(j >> 2) * _BLOCK + (j & 3) * _W + step * slots + m])
            for w in range(4):
                words[p, chain, step, w] = state[w * _W + step * slots + m]


@kernel
def _write_read(reads, rows, order, turn, first, last):
    chains, n = reads.shape[1], reads.shape[3]
    for at in range(first, last):
        p, chain = order[at // chains], at % chains
        for j in range(n):
            reads[p, chain, turn, j] = np.int8(rows[(j >> 2) * _BLOCK + (j & 3) * _W + at - first])


@kernel
def _write_sums(sums, rows, order, half, first, last):
    chains, n = sums.shape[1], sums.shape[3]
    for at in range(first, last):
        p, chain = order[at // chains], at % chains
        for j in range(n):
            sums[p, chain, half, j] = rows[(j >> 2) * _BLOCK + _SUM + (j & 3) * _W + at - first]


@kernel
def _clear_sums(rows, n):
    for b in range(n // 4):
        for v in range(4 * _W):
            rows[b * _BLOCK + _SUM + v] = _f(0.0)
