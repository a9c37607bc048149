"""Compiled real rotations of qubits, four index bits at a time, in place.

`turn_rows(stride)` makes the kernel that turns 16 rows at a stride known to the compiler: only then does it
vectorise. A state of up to 8 qubits lives, for 64 problems or more, in a padded tile with two such strides. A larger
one, for 8 problems, is a list of padded chunks of 8 qubits; the strides between chunks vary, so the upper qubits pass
through a small buffer.
A rotation [[1, −t], [t, 1]] lacks its factor cos x; whoever calls multiplies by it elsewhere.
"""

import numpy as np

from samplers.kernels import kernel

ROWS = 16
# Numbers in a row of the buffer, and problems in a row of a tile.
WIDTH = 64
# 16 rows at a stride of 2^k numbers would share one set of a cache; 16 numbers of padding spread them.
PADDED = ROWS * WIDTH + 16
# Problems of a large state, its lowest index bits, and a chunk of it: 2^8 states of them.
LANES = 8
CHUNK = 256 * LANES
PADDED_CHUNK = CHUNK + 16


@kernel(inline=True)
def turned(a, b, t):
    """The two outputs of one rotation."""
    return a - t * b, b + t * a


def turn_rows(stride):
    """A kernel f(x, count, t0, t1, t2, t3): rotate the four bits of the row number, for `count` columns."""
    s1, s2, s3, s4, s5, s6, s7 = (stride * k for k in range(1, 8))
    s8, s9, s10, s11, s12, s13, s14, s15 = (stride * k for k in range(8, 16))

    @kernel
    def turn(x, count, t0, t1, t2, t3):
        for i in range(count):
            a0, a1 = turned(x[i], x[s1 + i], t0)
            a2, a3 = turned(x[s2 + i], x[s3 + i], t0)
            a4, a5 = turned(x[s4 + i], x[s5 + i], t0)
            a6, a7 = turned(x[s6 + i], x[s7 + i], t0)
            a8, a9 = turned(x[s8 + i], x[s9 + i], t0)
            b0, b1 = turned(x[s10 + i], x[s11 + i], t0)
            b2, b3 = turned(x[s12 + i], x[s13 + i], t0)
            b4, b5 = turned(x[s14 + i], x[s15 + i], t0)
            a0, a2 = turned(a0, a2, t1)
            a1, a3 = turned(a1, a3, t1)
            a4, a6 = turned(a4, a6, t1)
            a5, a7 = turned(a5, a7, t1)
            a8, b0 = turned(a8, b0, t1)
            a9, b1 = turned(a9, b1, t1)
            b2, b4 = turned(b2, b4, t1)
            b3, b5 = turned(b3, b5, t1)
            a0, a4 = turned(a0, a4, t2)
            a1, a5 = turned(a1, a5, t2)
            a2, a6 = turned(a2, a6, t2)
            a3, a7 = turned(a3, a7, t2)
            a8, b2 = turned(a8, b2, t2)
            a9, b3 = turned(a9, b3, t2)
            b0, b4 = turned(b0, b4, t2)
            b1, b5 = turned(b1, b5, t2)
            x[i], x[s8 + i] = turned(a0, a8, t3)
            x[s1 + i], x[s9 + i] = turned(a1, a9, t3)
            x[s2 + i], x[s10 + i] = turned(a2, b0, t3)
            x[s3 + i], x[s11 + i] = turned(a3, b1, t3)
            x[s4 + i], x[s12 + i] = turned(a4, b2, t3)
            x[s5 + i], x[s13 + i] = turned(a5, b3, t3)
            x[s6 + i], x[s14 + i] = turned(a6, b4, t3)
            x[s7 + i], x[s15 + i] = turned(a7, b5, t3)

    return turn


turn_near, turn_far = turn_rows(WIDTH), turn_rows(PADDED)
turn_lanes, turn_middle = turn_rows(LANES), turn_rows(ROWS * LANES)


@kernel
def mix_tile(tile, columns, num_spins, t):
    """Rotate every qubit of a padded tile of 16 × (columns · 64) numbers; the qubits are its top index bits."""
    zero = t - t
    turn_far(
        tile,
        columns * WIDTH,
        t if num_spins > 3 else zero,
        t if num_spins > 2 else zero,
        t if num_spins > 1 else zero,
        t,
    )
    if num_spins > 4:
        for top in range(ROWS):
            turn_near(
                tile[top * PADDED : top * PADDED + ROWS * WIDTH],
                WIDTH,
                t if num_spins > 7 else zero,
                t if num_spins > 6 else zero,
                t if num_spins > 5 else zero,
                t,
            )


@kernel
def mix_chunk(chunk, t):
    """Rotate the eight lower qubits of a large state: those within one chunk of 2048 numbers."""
    for base in range(0, CHUNK, ROWS * LANES):
        turn_lanes(chunk[base : base + ROWS * LANES], LANES, t, t, t, t)
    turn_middle(chunk, ROWS * LANES, t, t, t, t)


@kernel
def mix_chunks(x, buf, bits, t):
    """Rotate the upper qubits of a large state: the `bits` of the chunk number. 64 columns stay in cache."""
    for column in range(0, CHUNK, WIDTH):
        part = x[column:]
        done = 0
        while done < bits:
            if bits - done >= 4:
                _turn_four(part, buf, 1 << bits, done, t)
                done += 4
            else:
                _turn_one(part, 1 << bits, done, t)
                done += 1


@kernel
def _turn_one(x, chunks, bit, t):
    u = np.uint64
    far = u(PADDED_CHUNK << bit)
    for top in range(0, chunks, 2 << bit):
        for low in range(1 << bit):
            a = u((top + low) * PADDED_CHUNK)
            b = a + far
            for i in range(WIDTH):
                x[a + u(i)], x[b + u(i)] = turned(x[a + u(i)], x[b + u(i)], t)


@kernel
def _turn_four(x, buf, chunks, bit, t):
    """Filling the buffer turns the highest of the four bits, emptying it the second."""
    u = np.uint64
    # Unsigned: the compiler need not ask whether an index is negative.
    far = u(PADDED_CHUNK << bit)
    for top in range(0, chunks, ROWS << bit):
        for low in range(1 << bit):
            base = u((top + low) * PADDED_CHUNK)
            for k in range(8):
                a = base + u(k) * far
                b = a + u(8) * far
                for i in range(WIDTH):
                    buf[k * WIDTH + i], buf[(8 + k) * WIDTH + i] = turned(x[a + u(i)], x[b + u(i)], t)
            for k in range(0, ROWS, 4):
                for i in range(WIDTH):
                    j = k * WIDTH + i
                    a0, a1 = turned(buf[j], buf[j + WIDTH], t)
                    a2, a3 = turned(buf[j + 2 * WIDTH], buf[j + 3 * WIDTH], t)
                    buf[j], buf[j + 2 * WIDTH] = turned(a0, a2, t)
                    buf[j + WIDTH], buf[j + 3 * WIDTH] = turned(a1, a3, t)
            for half in range(0, ROWS, 8):
                for k in range(half, half + 4):
                    a = base + u(k) * far
                    b = a + u(4) * far
                    for i in range(WIDTH):
                        x[a + u(i)], x[b + u(i)] = turned(buf[k * WIDTH + i], buf[(4 + k) * WIDTH + i], t)
