"""Compiled sums and gradients of blocks of chains, in lanes; see `samplers.band.passes` for a single spin's part.

Messages are rescaled through up and down of the next spin, forwards and backwards alike, so that Σ_s x b = 1 at every
spin; how far a message can have shrunk since is known from J alone.

Gradients come from tangents. For L = Σ_t g_t ⟨s_t⟩ + g_Z log Z, ∂L/∂a_t and ∂L/∂J_{t,t−d} are the derivatives of
⟨s_t⟩ and ⟨s_t s_{t−d}⟩ along a → a + εg, plus g_Z times themselves. Spin t adds g_t (s_t − ⟨s_t⟩) to a tangent, which
keeps it small at any length. A tangent pass over the spins leaves a mark every w of them; the way back repeats the
messages between two marks.

Arguments: ups, downs (R, B, n, L) factors of the spins, overwritten; spans (R, B, 2) the first and last spin that a
block goes over; factors (R, n, w, 2) for a row R of blocks that share J, or (R, n, w, 2, L) with B = 1; bounds (R, n)
Σ_d |J_{t,t−d}|; room: how far (in log) a message may shrink before it is rescaled.
"""

import math

import numpy as np

from samplers.band.passes import (
    fold,
    fold_product,
    fold_tangent_product,
    open_tables,
    step,
    step_back,
    sum_states,
    table_at,
    tangent_step,
    tangent_step_back,
)
from samplers.kernels import kernel
from samplers.vectors import VECTOR, aligned

_LOG_2 = math.log(2.0)


@kernel
def _room_for_tables(factors, lanes, kind):
    size = 1 << factors.shape[2]
    if factors.ndim == 4:
        return aligned(factors.shape[1] * size, kind).reshape((factors.shape[1], size))
    return aligned(size * lanes, kind).reshape((size, lanes))


@kernel
def _start(x, lanes, lo):
    """The message before spin lo: nothing, or (absent spins) all −1. Returns how many states it has."""
    states = 1 if lo == 0 else len(x) // lanes
    x[:] = 0
    x[(states - 1) * lanes : states * lanes] = 1
    return states


@kernel
def _rescale(total, up, down, log_z):
    """Let the factors of the coming spin bring the message back to a sum of 1."""
    for i in range(len(log_z)):
        log_z[i] += math.log(total[i])
    for i in range(len(total)):
        inverse = 1 / total[i]
        up[i] *= inverse
        down[i] *= inverse


@kernel
def sums_kernel(ups, downs, spans, factors, bounds, room, start, stop, mean, log_z):
    """⟨s⟩ (R, B, n, L), −1 outside the spans, and log Z less logs of factors, of blocks start … stop−1.

    log Z is (R, B, L), or (R, B, 0) where it is not wanted.
    """
    blocks, n, lanes = ups.shape[1:]
    w = factors.shape[2]
    size, kind = 1 << w, ups.dtype
    tables, work = _room_for_tables(factors, lanes, kind), np.empty(size)
    x, b, law = aligned(size * lanes, kind), aligned(size * lanes, kind), aligned(size * lanes, kind)
    marks = aligned((n + w - 1) // w * size * lanes, kind).reshape(((n + w - 1) // w, size * lanes))
    signed, total = aligned(w * lanes, kind), aligned(lanes, kind)
    row = -1
    for job in range(start, stop):
        if job // blocks != row:
            row = job // blocks
            open_tables(factors[row], tables, work)
        at = job % blocks
        up, down, lo, hi = ups[row, at], downs[row, at], spans[row, at, 0], spans[row, at, 1]
        means, logs = mean[row, at], log_z[row, at]
        means[:], logs[:] = -1, 0.0
        if hi < lo:
            continue
        states, shrunk = _start(x, lanes, lo), 0.0
        for t in range(lo, hi + 1):
            if shrunk > room:
                sum_states(x, states, total)
                _rescale(total, up[t], down[t], logs)
                shrunk = 0.0
            states = step(x, table_at(factors[row], t, tables), up[t], down[t], states, t % w)
            shrunk += 2 * bounds[row, t] + _LOG_2
            if t % w == w - 1 or t == hi:
                marks[t // w, : states * lanes] = x[: states * lanes]
        sum_states(x, states, total)
        for i in range(len(logs)):
            logs[i] += math.log(total[i])
        for i in range(lanes):
            total[i] = 1 / total[i]
        for k in range(states):
            b[k * lanes : (k + 1) * lanes] = total
        for t in range(hi, lo - 1, -1):
            if t % w == w - 1 or t == hi:
                fold_product(marks[t // w], b, law, states, t % w + 1, signed, lanes)
                for k in range(max(0, lo - t + t % w), t % w + 1):
                    for i in range(lanes):
                        means[t - t % w + k, i] = signed[k * lanes + i] / law[i]
            if lo == 0 and t < w:
                states = 1 << t
            if t > lo:
                step_back(b, table_at(factors[row], t, tables), up[t], down[t], states, t % w)


@kernel
def _tangent_marks(x, xd, marks, up, down, up_slope, down_slope, lo, hi, factors, tables, bounds, room, total):
    """The forward pass with tangents; returns the number of states at the end.

    `up_slope`, `down_slope` hold the slopes alone and become slopes times factors, rescaled.
    """
    w, lanes = factors.shape[1], len(total)
    states, shrunk = _start(x, lanes, lo), 0.0
    for t in range(lo, hi + 1):
        if shrunk > room:
            sum_states(x, states, total)
            _rescale(total, up[t], down[t], total[:0])
            shrunk = 0.0
        for i in range(lanes):
            up_slope[t, i] *= up[t, i]
            down_slope[t, i] *= down[t, i]
        table = table_at(factors, t, tables)
        states = tangent_step(x, xd, x, xd, table, up[t], down[t], up_slope[t], down_slope[t], states, t % w)
        shrunk += 2 * bounds[t] + _LOG_2
        if t % w == w - 1 or t == hi:
            marks[0, t // w, : states * lanes] = x[: states * lanes]
            marks[1, t // w, : states * lanes] = xd[: states * lanes]
    return states


@kernel
def _add_pairs(signed, t, w, lanes, out):
    """Pairs of spin t from the sums by bit: summed over lanes into out (n, w), or for each lane in out (n, w, L)."""
    for d in range(1, min(t, w) + 1):
        first = (t - d) % w * lanes
        if out.ndim == 2:
            whole = 0.0
            for i in range(lanes):
                whole += signed[first + i]
            out[t, d - 1] += whole
        else:
            out[t, d - 1, :] = signed[first : first + lanes]


@kernel
def gradient_kernel(
    ups, downs, spans, factors, bounds, room, start, stop, up_slopes, down_slopes, log_slopes, field_out, pair_out
):
    """∂L/∂a (R, B, n, L) and, added to pair_out (R, n, w) or (R, n, w, L), ∂L/∂J of blocks start … stop−1.

    up_slopes, down_slopes: g_t (±1 − ⟨s_t⟩) (R, B, n, L), overwritten; log_slopes: g_Z (R, B, L).
    """
    blocks, n, lanes = ups.shape[1:]
    w = factors.shape[2]
    size, kind = 1 << w, ups.dtype
    full, own = size * lanes, factors.ndim == 5
    tables, work = _room_for_tables(factors, lanes, kind), np.empty(size)
    columns = lanes if own else VECTOR
    x, xd, b, bd, law = (aligned(full, kind), aligned(full, kind), aligned(full, kind), aligned(full, kind),
                         aligned(full, kind))  # fmt: skip
    marks = aligned(2 * ((n + w - 1) // w) * full, kind).reshape((2, (n + w - 1) // w, full))
    # The messages between two marks.
    part = aligned(2 * w * full, kind).reshape((2, w, full))
    signed, total = aligned(w * lanes, kind), aligned(lanes, kind)
    row = -1
    for job in range(start, stop):
        if job // blocks != row:
            row = job // blocks
            open_tables(factors[row], tables, work)
        at = job % blocks
        up, down, lo, hi = ups[row, at], downs[row, at], spans[row, at, 0], spans[row, at, 1]
        up_slope, down_slope, slope = up_slopes[row, at], down_slopes[row, at], log_slopes[row, at]
        field_out[row, at] = 0
        if hi < lo:
            continue
        for k in range(size):
            xd[k * lanes : (k + 1) * lanes] = slope
        if lo > 0:
            xd[: full - lanes] = 0
        states = _tangent_marks(x, xd, marks, up, down, up_slope, down_slope, lo, hi, factors[row], tables,
                                bounds[row], room, total)  # fmt: skip
        sum_states(x, states, total)
        for k in range(states):
            for i in range(lanes):
                b[k * lanes + i] = 1 / total[i]
        bd[:] = 0
        last = hi
        while last >= lo:
            first = max(lo, last - last % w)
            mark = last // w
            fold_tangent_product(marks[0, mark], marks[1, mark], b, bd, law, states, last % w + 1, signed, lanes)
            for t in range(first, last + 1):
                field_out[row, at, t] = signed[t % w * lanes : (t % w + 1) * lanes]
            _messages_before(first, last, lo, marks, part, slope, up, down, up_slope, down_slope, factors[row],
                             tables, lanes)  # fmt: skip
            for t in range(last, first - 1, -1):
                states = 1 << min(t, w) if lo == 0 else size
                table = table_at(factors[row], t, tables)
                tangent_step_back(b, bd, part[0, t - first], part[1, t - first], table, up[t], down[t], up_slope[t],
                                  down_slope[t], states, t % w, law, own)  # fmt: skip
                if states > 1:
                    fold(law, states, w, signed, columns)
                    _add_pairs(signed, t, w, columns, pair_out[row])
            last = first - 1


@kernel
def _messages_before(first, last, lo, marks, part, slope, up, down, up_slope, down_slope, factors, tables, lanes):
    """part[:, t − first] = the message before spin t and its tangent, for t = first … last."""
    w = factors.shape[1]
    if first == lo:
        states = _start(part[0, 0], lanes, lo)
        part[1, 0, :] = 0
        part[1, 0, (states - 1) * lanes : states * lanes] = slope
    else:
        states = 1 << min(first, w) if lo == 0 else 1 << w
        for k in range(2):
            part[k, 0, : states * lanes] = marks[k, (first - 1) // w, : states * lanes]
    for t in range(first, last):
        i = t - first
        states = tangent_step(part[0, i], part[1, i], part[0, i + 1], part[1, i + 1], table_at(factors, t, tables),
                              up[t], down[t], up_slope[t], down_slope[t], states, t % w)  # fmt: skip
