"""Compiled loops over packed bits: 64 samples a word, a row of words per feature.

Every constant is a uint64: a signed one would turn numba's arithmetic to floats.
"""

import numpy as np

from ising_attn.logic.packed import AND, ONE_INPUT, XOR
from samplers.kernels import kernel

_ZERO, _ONE, _EIGHT, _TOP_BYTE, _BYTE = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(56), np.uint64(255)
# Bytes 0 or 1 of a word, times this, leave their bits in the top byte, the lowest byte in its lowest bit.
_GATHER = np.uint64(0x0102040810204080)
# The inverse: 8 bits in every byte of a word, then one bit in each, then 0 or 1.
_SPREAD, _DIAGONAL = np.uint64(0x0101010101010101), np.uint64(0x8040201008040201)
_LOW_SEVEN, _SEVEN = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(7)
# Squares of 64 × 64 bits that are transposed together: a cache line of words, and a vector register.
LANES = 8
# Rows of the workspace are this many words longer than they need be: else they would share few cache sets.
_APART = 8


@kernel(fastmath=False)
def _swap_halves(squares, half, mask):
    shift = np.uint64(half)
    for base in range(0, 64, 2 * half):
        for k in range(base, base + half):
            for lane in range(LANES):
                low, high = squares[k, lane], squares[k + half, lane]
                swap = ((low >> shift) ^ high) & mask
                squares[k, lane] = low ^ (swap << shift)
                squares[k + half, lane] = high ^ swap


@kernel(fastmath=False)
def _transpose(squares):
    """In each lane, bit j of word i becomes bit i of word j."""
    _swap_halves(squares, 32, np.uint64(0x00000000FFFFFFFF))
    _swap_halves(squares, 16, np.uint64(0x0000FFFF0000FFFF))
    _swap_halves(squares, 8, np.uint64(0x00FF00FF00FF00FF))
    _swap_halves(squares, 4, np.uint64(0x0F0F0F0F0F0F0F0F))
    _swap_halves(squares, 2, np.uint64(0x3333333333333333))
    _swap_halves(squares, 1, np.uint64(0x5555555555555555))


@kernel(fastmath=False)
def _bits_of_bytes(row, out):
    """Row bytes of 0 or 1, eight to a word, as bits."""
    whole = row.size // 8
    for j in range(whole):
        bits = _ZERO
        for k in range(8):
            bits |= ((row[8 * j + k] * _GATHER) >> _TOP_BYTE) << (_EIGHT * np.uint64(k))
        out[j] = bits
    if row.size > 8 * whole:
        bits = _ZERO
        for k in range(row.size - 8 * whole):
            bits |= ((row[8 * whole + k] * _GATHER) >> _TOP_BYTE) << (_EIGHT * np.uint64(k))
        out[whole] = bits


@kernel(fastmath=False)
def _bytes_of_bits(bits, out):
    """The inverse of `_bits_of_bytes`."""
    for k in range(out.size):
        lone = (((bits[k // 8] >> (_EIGHT * np.uint64(k % 8))) & _BYTE) * _SPREAD) & _DIAGONAL
        out[k] = ((((lone & _LOW_SEVEN) + _LOW_SEVEN) | lone) >> _SEVEN) & _SPREAD


@kernel(fastmath=False)
def fill_packed(rows, features, start, stop, out):
    """Bit s of out[f, w] is the feature f of sample 64·w + s, for the words of groups start ≤ g < stop of LANES words.

    rows (samples, ⌈features / 8⌉) hold 8 bytes of 0 or 1 to a word; samples beyond the last are 0.
    """
    columns = -(-features // 64)
    workspace = np.zeros((64 * LANES, columns + _APART), np.uint64)
    squares = np.empty((64, LANES), np.uint64)
    for group in range(start, stop):
        first, lanes = 64 * LANES * group, min(LANES, out.shape[1] - LANES * group)
        count = min(64 * lanes, rows.shape[0] - first)
        for s in range(count):
            _bits_of_bytes(rows[first + s], workspace[s])
        workspace[count:] = _ZERO
        for column in range(columns):
            for lane in range(LANES):
                for s in range(64):
                    squares[s, lane] = workspace[64 * lane + s, column]
            _transpose(squares)
            for k in range(min(64, features - 64 * column)):
                for lane in range(lanes):
                    out[64 * column + k, LANES * group + lane] = squares[k, lane]


@kernel(fastmath=False)
def fill_unpacked(words, start, stop, out):
    """The inverse of `fill_packed`: out (samples, ⌈features / 8⌉), 8 bytes of 0 or 1 to a word."""
    features = words.shape[0]
    columns = -(-features // 64)
    workspace = np.empty((64 * LANES, columns + _APART), np.uint64)
    squares = np.zeros((64, LANES), np.uint64)
    for group in range(start, stop):
        first, lanes = 64 * LANES * group, min(LANES, words.shape[1] - LANES * group)
        count = min(64 * lanes, out.shape[0] - first)
        for column in range(columns):
            width = min(64, features - 64 * column)
            squares[width:] = _ZERO
            for k in range(width):
                for lane in range(lanes):
                    squares[k, lane] = words[64 * column + k, LANES * group + lane]
            _transpose(squares)
            for lane in range(lanes):
                for s in range(64):
                    workspace[64 * lane + s, column] = squares[s, lane]
        for s in range(count):
            _bytes_of_bits(workspace[s], out[first + s])


@kernel(fastmath=False)
def _run_layer(bounds, gates, masks, source, source_at, out, out_at, width):
    """One layer on `width` words of every row: three loops, of gates that are alike but for inverted inputs."""
    for g in range(bounds[AND], bounds[XOR]):
        a, b, t = gates[0, g], gates[1, g], gates[2, g]
        flip_a, flip_b, flip = masks[0, g], masks[1, g], masks[2, g]
        for w in range(width):
            t_word = (source[a, source_at + w] ^ flip_a) & (source[b, source_at + w] ^ flip_b)
            out[t, out_at + w] = t_word ^ flip
    for g in range(bounds[XOR], bounds[ONE_INPUT]):
        a, b, t, flip = gates[0, g], gates[1, g], gates[2, g], masks[2, g]
        for w in range(width):
            out[t, out_at + w] = source[a, source_at + w] ^ source[b, source_at + w] ^ flip
    for g in range(bounds[ONE_INPUT], bounds[ONE_INPUT + 1]):
        a, t, keep, flip = gates[0, g], gates[2, g], masks[0, g], masks[2, g]
        for w in range(width):
            out[t, out_at + w] = (source[a, source_at + w] & keep) ^ flip


@kernel(fastmath=False)
def run_layers(words, bounds, gates, masks, widest, block, start, stop, out):
    """All layers for words start ≤ w < stop, `block` of them at a time, so that layers stay in the cache.

    bounds (layers, 4) are where the gates of each kind (AND, XOR, ONE_INPUT) of a layer begin; gates (3, count) are
    their inputs a and b and the row they write, uint64 so that no index counts from the end; masks (3, count) are
    words of ones where the inputs (for ONE_INPUT: where a is used) and the output are inverted.
    """
    layers = bounds.shape[0]
    here, there = np.empty((widest, block), np.uint64), np.empty((widest, block), np.uint64)
    for low in range(start, stop, block):
        width = min(block, stop - low)
        if layers == 1:
            _run_layer(bounds[0], gates, masks, words, low, out, low, width)
            continue
        _run_layer(bounds[0], gates, masks, words, low, here, 0, width)
        for layer in range(1, layers - 1):
            _run_layer(bounds[layer], gates, masks, here, 0, there, 0, width)
            here, there = there, here
        _run_layer(bounds[layers - 1], gates, masks, here, 0, out, low, width)


@kernel(fastmath=False)
def count_groups(words, classes, start, stop, out):
    """out[sample, c] = how many rows of the c-th group are 1, for the words of groups start ≤ g < stop of LANES words.

    Counters are vertical: bit s of planes[p] is bit p of the count of sample s, and a row is added by a ripple of
    carries through the planes that are in use.
    """
    size = words.shape[0] // classes
    planes = np.empty((64, LANES), np.uint64)
    carry, total = np.empty(LANES, np.uint64), np.empty(64, np.int64)
    for group in range(start, stop):
        first, lanes = LANES * group, min(LANES, words.shape[1] - LANES * group)
        for c in range(classes):
            used = 0
            for row in range(size):
                if row + 1 == 1 << used:
                    planes[used] = _ZERO
                    used += 1
                for lane in range(lanes):
                    carry[lane] = words[c * size + row, first + lane]
                for plane in range(used):
                    for lane in range(LANES):
                        kept = planes[plane, lane]
                        planes[plane, lane] = kept ^ carry[lane]
                        carry[lane] &= kept
            for lane in range(lanes):
                total[:] = 0
                for plane in range(used):
                    for s in range(64):
                        total[s] |= np.int64((planes[plane, lane] >> np.uint64(s)) & _ONE) << plane
                low = 64 * (first + lane)
                for s in range(min(64, out.shape[0] - low)):
                    out[low + s, c] = total[s]
