"""Compiled loops over packed rows of relations; `bits.py` says how bits are packed.

Every constant is a uint64: a signed one would turn numba's arithmetic to floats.
"""

import numpy as np

from samplers.kernels import kernel

_ZERO, _ONE = np.uint64(0), np.uint64(1)
# The position of a lone bit: multiplied by a de Bruijn number, its top six bits are different for every bit.
_DE_BRUIJN, _TOP_SIX = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
_POSITION = np.zeros(64, dtype=np.int64)
for _k in range(64):
    _POSITION[((0x03F79D71B4CB0A89 << _k) % 2**64) >> 58] = _k

_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_TWO, _FOUR, _TOP_BYTE = np.uint64(2), np.uint64(4), np.uint64(56)


@kernel(fastmath=False)
def _position(lone):
    return _POSITION[(lone * _DE_BRUIJN) >> _TOP_SIX]


@kernel(fastmath=False)
def _count(word):
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _FOURS) + ((word >> _TWO) & _FOURS)
    word = (word + (word >> _FOUR)) & _BYTES
    return np.int64((word * _SUM) >> _TOP_BYTE)


@kernel(fastmath=False)
def _join(target, source):
    for word in range(target.size):
        target[word] |= source[word]


@kernel(fastmath=False)
def fill_distances(rows, spans, start, stop, out):
    """out[s, v] = fewest steps from s to v along `rows`, −1 where there is no way, for sources start ≤ s < stop.

    Breadth first from each source, where a step joins whole rows: every vertex that is reached costs one row.
    spans[v] are the first word of rows[v] that is not 0 and the one after the last: all work stays within them.
    """
    words = rows.shape[1]
    seen, frontier, following = np.empty(words, np.uint64), np.empty(words, np.uint64), np.zeros(words, np.uint64)
    for source in range(start, stop):
        out[source, :] = -1
        out[source, source] = 0
        seen[:] = _ZERO
        seen[source // 64] = _ONE << np.uint64(source % 64)
        first, last = source // 64, source // 64 + 1
        frontier[first] = seen[first]
        level = 0
        while first < last:
            level += 1
            low, high = words, 0
            for word in range(first, last):
                left = frontier[word]
                while left != _ZERO:
                    lone = left & (~left + _ONE)
                    left ^= lone
                    vertex = 64 * word + _position(lone)
                    low, high = min(low, spans[vertex, 0]), max(high, spans[vertex, 1])
                    for other in range(spans[vertex, 0], spans[vertex, 1]):
                        following[other] |= rows[vertex, other]
            first, last = words, 0
            for word in range(low, high):
                new = following[word] & ~seen[word]
                following[word] = _ZERO
                frontier[word] = new
                seen[word] |= new
                if new != _ZERO:
                    first, last = min(first, word), word + 1
                while new != _ZERO:
                    lone = new & (~new + _ONE)
                    new ^= lone
                    out[source, 64 * word + _position(lone)] = level


@kernel(fastmath=False)
def fill_products(left, right, start, stop, out):
    """out[i] = the union of right[j] over the j in left[i], for start ≤ i < stop."""
    for row in range(start, stop):
        for word in range(left.shape[1]):
            rest = left[row, word]
            while rest != _ZERO:
                lone = rest & (~rest + _ONE)
                rest ^= lone
                _join(out[row], right[64 * word + _position(lone)])


@kernel(fastmath=False)
def _gain(hub, uncovered, down, up):
    total = 0
    for word in range(up.shape[1]):
        rest = up[hub, word]
        while rest != _ZERO:
            lone = rest & (~rest + _ONE)
            rest ^= lone
            row = 64 * word + _position(lone)
            for other in range(down.shape[1]):
                total += _count(uncovered[row, other] & down[hub, other])
    return total


@kernel(fastmath=False)
def _cover(hub, uncovered, down, up, out):
    for word in range(up.shape[1]):
        rest = up[hub, word]
        while rest != _ZERO:
            lone = rest & (~rest + _ONE)
            rest ^= lone
            row = 64 * word + _position(lone)
            served = False
            for other in range(down.shape[1]):
                pairs = uncovered[row, other] & down[hub, other]
                served |= pairs != _ZERO
                out[hub, other] |= pairs
                uncovered[row, other] &= ~down[hub, other]
            if served:
                out[row, hub // 64] |= _ONE << np.uint64(hub % 64)


@kernel(fastmath=False)
def cover_by_hubs(uncovered, down, up, out):
    """Route every pair (i, j) of `uncovered` i → hub → j; the edges go to `out`, `uncovered` is emptied.

    A hub is the vertex that serves most pairs still uncovered. A gain only falls as pairs are covered, so an old one
    is an upper bound and few are counted anew.
    """
    size = down.shape[0]
    bound = np.empty(size, np.int64)
    for vertex in range(size):
        bound[vertex] = _gain(vertex, uncovered, down, up)
    while True:
        best = np.argmax(bound)
        if bound[best] == 0:
            return
        bound[best] = _gain(best, uncovered, down, up)
        if bound[best] > 0 and bound[best] == bound.max():
            _cover(best, uncovered, down, up, out)
            bound[best] = 0


@kernel(fastmath=False)
def _sees_all(source, rows, goal, layers, seen, frontier, following):
    """Whether `source` reaches all of goal[source] in that many steps along `rows`."""
    words = rows.shape[1]
    frontier[:] = _ZERO
    frontier[source // 64] = _ONE << np.uint64(source % 64)
    seen[:] = frontier
    for _ in range(layers):
        following[:] = _ZERO
        for word in range(words):
            left = frontier[word]
            while left != _ZERO:
                lone = left & (~left + _ONE)
                left ^= lone
                _join(following, rows[64 * word + _position(lone)])
        lacking = _ZERO
        for word in range(words):
            frontier[word] = following[word] & ~seen[word]
            seen[word] |= frontier[word]
            lacking |= goal[source, word] & ~seen[word]
        if lacking == _ZERO:
            return True
    return False


@kernel(fastmath=False)
def prune_edges(rows, edges, up, goal, layers):
    """Drop each edge in turn from `rows` unless some source would then no longer see its goal in `layers` steps."""
    words = rows.shape[1]
    seen, frontier, following = np.empty(words, np.uint64), np.empty(words, np.uint64), np.empty(words, np.uint64)
    for number in range(edges.shape[0]):
        tail, head = edges[number, 0], edges[number, 1]
        bit = _ONE << np.uint64(head % 64)
        rows[tail, head // 64] ^= bit
        # Only what sees the tail can have used the edge; the tail itself stands first, as it is most often short.
        kept = not _sees_all(tail, rows, goal, layers, seen, frontier, following)
        for word in range(words):
            rest = up[tail, word]
            while rest != _ZERO and not kept:
                lone = rest & (~rest + _ONE)
                rest ^= lone
                source = 64 * word + _position(lone)
                kept = not _sees_all(source, rows, goal, layers, seen, frontier, following)
        if kept:
            rows[tail, head // 64] |= bit
