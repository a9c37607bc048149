"""Vector passes of the compiled transfer matrix: `samplers.band.scan` with problems as lanes.

Messages hold weights, not logarithms, as flat rows of L lanes: x[s · L + lane]. The bit of spin j in a state s sits
at j mod w. Spin t multiplies a message by
    up[t] table[s]  if s_t = +1,   down[t] table[~s]  if s_t = −1,
with table[s] = e^{E_t(s) − Σ_d |J_{t,t−d}|} ≤ 1, E_t(s) = Σ_d J_{t,t−d} s_{t−d}, and up, down = e^{±a_t − |a_t|}.
A table is shared by the lanes (S,), or each lane has its own (S, L).

A tangent pass carries derivatives xd of the message x along a → a + εg.
"""

from samplers.kernels import kernel
from samplers.vectors import VECTOR, add, load, multiply, multiply_add, splat, store, subtract


@kernel
def open_tables(factors, tables, work):
    """Fill `tables` (n, S) from factors (n, w, 2) = e^{±J_{t,t−d} − |J|} at [t, d−1]; `work` is float64.

    With factors of each lane (n, w, 2, L), `tables` (S, L) is scratch of `table_at`.
    """
    if factors.ndim == 3:
        n, w = factors.shape[:2]
        for t in range(n):
            work[0] = 1.0
            for bit in range(w):
                plus, minus = factors[t, (t - 1 - bit) % w]
                half = 1 << bit
                for s in range(half):
                    work[half + s] = work[s] * minus
                    work[s] *= plus
            for s in range(1 << w):
                tables[t, s] = work[s]


@kernel
def _lane_table(factors, t, table):
    w, _, lanes = factors.shape
    table[0] = 1
    for bit in range(w):
        row, half = 2 * ((t - 1 - bit) % w) * lanes, 1 << bit
        for v in range(0, lanes, VECTOR):
            plus, minus = load(factors, row + v), load(factors, row + lanes + v)
            for s in range(half):
                old = load(table, s * lanes + v)
                store(table, (half + s) * lanes + v, multiply(old, minus))
                store(table, s * lanes + v, multiply(old, plus))


@kernel
def table_at(factors, t, tables):
    """The table of spin t. `factors` of `open_tables`."""
    if factors.ndim == 3:
        return tables[t]
    _lane_table(factors[t], t, tables)
    return tables


@kernel
def _entry(table, s, v):
    """The table's number of state s for the lanes from v on. Which kind of table it is, is known when compiling."""
    if table.ndim == 1:  # noqa: SIM108
        return splat(table[s])
    else:  # noqa: RET505
        return load(table, s * table.shape[1] + v)


@kernel
def step(x, table, up, down, states, place):
    """x = the message after one more spin, in place; returns how many states it has."""
    top, lanes, half = len(table) - 1, len(up), 1 << place
    if states <= half:
        for v in range(0, lanes, VECTOR):
            e, f = load(up, v), load(down, v)
            for k in range(states):
                p = load(x, k * lanes + v)
                store(x, k * lanes + v, multiply(multiply(e, p), _entry(table, k, v)))
                store(x, (states + k) * lanes + v, multiply(multiply(f, p), _entry(table, top - k, v)))
        return 2 * states
    for v in range(0, lanes, VECTOR):
        e, f = load(up, v), load(down, v)
        for base in range(0, states, 2 * half):
            for k in range(base, base + half):
                m = k + half
                a, b = k * lanes + v, m * lanes + v
                p, q = load(x, a), load(x, b)
                y = multiply_add(_entry(table, m, v), q, multiply(_entry(table, k, v), p))
                z = multiply_add(_entry(table, top - m, v), q, multiply(_entry(table, top - k, v), p))
                store(x, a, multiply(e, y))
                store(x, b, multiply(f, z))
    return states


@kernel
def step_back(b, table, up, down, states, place):
    """b = the backward message before a spin, in place; `states` is how many that one has."""
    top, lanes, half = len(table) - 1, len(up), 1 << place
    if states <= half:
        for v in range(0, lanes, VECTOR):
            e, f = load(up, v), load(down, v)
            for k in range(states):
                p = multiply(multiply(e, load(b, k * lanes + v)), _entry(table, k, v))
                q = multiply(f, load(b, (states + k) * lanes + v))
                store(b, k * lanes + v, multiply_add(q, _entry(table, top - k, v), p))
        return
    for v in range(0, lanes, VECTOR):
        e, f = load(up, v), load(down, v)
        for base in range(0, states, 2 * half):
            for k in range(base, base + half):
                m = k + half
                i, j = k * lanes + v, m * lanes + v
                p, q = multiply(e, load(b, i)), multiply(f, load(b, j))
                store(b, i, multiply_add(_entry(table, top - k, v), q, multiply(_entry(table, k, v), p)))
                store(b, j, multiply_add(_entry(table, top - m, v), q, multiply(_entry(table, m, v), p)))


@kernel
def tangent_step(x, xd, out, outd, table, up, down, up_slope, down_slope, states, place):
    """`step` of a message and its tangent; slopes are up and down times their own logarithmic derivative."""
    top, lanes, half = len(table) - 1, len(up), 1 << place
    for v in range(0, lanes, VECTOR):
        e, f, g, h = load(up, v), load(down, v), load(up_slope, v), load(down_slope, v)
        if states <= half:
            for k in range(states):
                a, b = k * lanes + v, (states + k) * lanes + v
                p, pd = load(x, a), load(xd, a)
                y, yd = multiply(p, _entry(table, k, v)), multiply(pd, _entry(table, k, v))
                z, zd = multiply(p, _entry(table, top - k, v)), multiply(pd, _entry(table, top - k, v))
                store(out, a, multiply(e, y))
                store(outd, a, multiply_add(e, yd, multiply(g, y)))
                store(out, b, multiply(f, z))
                store(outd, b, multiply_add(f, zd, multiply(h, z)))
        else:
            for base in range(0, states, 2 * half):
                for k in range(base, base + half):
                    m = k + half
                    a, b = k * lanes + v, m * lanes + v
                    p, q, pd, qd = load(x, a), load(x, b), load(xd, a), load(xd, b)
                    t0, t1 = _entry(table, k, v), _entry(table, m, v)
                    y, yd = multiply_add(t1, q, multiply(t0, p)), multiply_add(t1, qd, multiply(t0, pd))
                    t0, t1 = _entry(table, top - k, v), _entry(table, top - m, v)
                    z, zd = multiply_add(t1, q, multiply(t0, p)), multiply_add(t1, qd, multiply(t0, pd))
                    store(out, a, multiply(e, y))
                    store(outd, a, multiply_add(e, yd, multiply(g, y)))
                    store(out, b, multiply(f, z))
                    store(outd, b, multiply_add(f, zd, multiply(h, z)))
    return min(2 * states, len(table))


@kernel
def _pair_slope(x, xd, plus, minus, plus_d, minus_d):
    """Tangent of the weight of a state before the spin, signed by the spin."""
    return multiply_add(xd, subtract(plus, minus), multiply(x, subtract(plus_d, minus_d)))


@kernel
def tangent_step_back(b, bd, x, xd, table, up, down, up_slope, down_slope, states, place, pairs, own):
    """`step_back` of a message and its tangent, in place, and the tangents of E[s_t; state before] in `pairs`.

    x and xd are the forward message before the spin. A row of `pairs` has VECTOR numbers, whose sum is that over all
    lanes, or if `own` one for each lane.
    """
    top, lanes, half = len(table) - 1, len(up), 1 << place
    width = lanes if own else VECTOR
    for v in range(0, lanes, VECTOR):
        e, f, g, h = load(up, v), load(down, v), load(up_slope, v), load(down_slope, v)
        column = v if own else 0
        fresh = own or v == 0
        step_size = half if states > half else states
        for base in range(0, states, 2 * step_size):
            for k in range(base, base + step_size):
                a, m = k * lanes + v, k + step_size
                c = m * lanes + v
                p, q, pd, qd = load(b, a), load(b, c), load(bd, a), load(bd, c)
                pd, qd = multiply_add(e, pd, multiply(g, p)), multiply_add(f, qd, multiply(h, q))
                p, q = multiply(e, p), multiply(f, q)
                t0, t1 = _entry(table, k, v), _entry(table, top - k, v)
                y, z, yd, zd = multiply(t0, p), multiply(t1, q), multiply(t0, pd), multiply(t1, qd)
                store(b, a, add(y, z))
                store(bd, a, add(yd, zd))
                slope = _pair_slope(load(x, a), load(xd, a), y, z, yd, zd)
                at = k * width + column
                store(pairs, at, slope if fresh else add(slope, load(pairs, at)))
                if states > half:
                    t0, t1 = _entry(table, m, v), _entry(table, top - m, v)
                    y, z, yd, zd = multiply(t0, p), multiply(t1, q), multiply(t0, pd), multiply(t1, qd)
                    store(b, c, add(y, z))
                    store(bd, c, add(yd, zd))
                    slope = _pair_slope(load(x, c), load(xd, c), y, z, yd, zd)
                    at = m * width + column
                    store(pairs, at, slope if fresh else add(slope, load(pairs, at)))


@kernel
def _highest_bit(states):
    """The place of the highest bit of a state's number, of 2 states or more."""
    place = 0
    while 2 << place < states:
        place += 1
    return place


@kernel
def fold(law, states, bits, signed, lanes):
    """signed[k] = Σ_s ±law[s] by the sign of bit k < bits; law[0] = Σ_s law[s]. The law is used up."""
    place = _highest_bit(states)
    while place >= 0:
        half = 1 << place
        for v in range(0, lanes, VECTOR):
            first, second = load(law, v), load(law, half * lanes + v)
            total = subtract(first, second)
            store(law, v, add(first, second))
            for k in range(1, half):
                first, second = load(law, k * lanes + v), load(law, (half + k) * lanes + v)
                total = add(total, subtract(first, second))
                store(law, k * lanes + v, add(first, second))
            if place < bits:
                store(signed, place * lanes + v, total)
        place -= 1


@kernel
def fold_product(x, b, law, states, bits, signed, lanes):
    """`fold` of the law x b, which is not kept."""
    place = _highest_bit(states)
    half = 1 << place
    for v in range(0, lanes, VECTOR):
        first = multiply(load(x, v), load(b, v))
        second = multiply(load(x, half * lanes + v), load(b, half * lanes + v))
        total = subtract(first, second)
        store(law, v, add(first, second))
        for k in range(1, half):
            i, j = k * lanes + v, (half + k) * lanes + v
            first, second = multiply(load(x, i), load(b, i)), multiply(load(x, j), load(b, j))
            total = add(total, subtract(first, second))
            store(law, i, add(first, second))
        if place < bits:
            store(signed, place * lanes + v, total)
    if place > 0:
        fold(law, half, bits, signed, lanes)


@kernel
def fold_tangent_product(x, xd, b, bd, law, states, bits, signed, lanes):
    """`fold` of the tangent of the law x b."""
    for i in range(0, states * lanes, VECTOR):
        store(law, i, multiply_add(load(xd, i), load(b, i), multiply(load(x, i), load(bd, i))))
    fold(law, states, bits, signed, lanes)


@kernel
def sum_states(x, states, total):
    """total[lane] = Σ_s x[s, lane]."""
    lanes = len(total)
    for v in range(0, lanes, VECTOR):
        value = load(x, v)
        for k in range(1, states):
            value = add(value, load(x, k * lanes + v))
        store(total, v, value)
