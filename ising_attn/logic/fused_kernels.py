"""Compiled forward and backward pass of a layer of relaxed gates: sample by sample, whose inputs stay in the cache.

`ising_attn.logic.functional` has the formula. Indices are uint64, so that none counts from the end.
"""

from samplers.kernels import kernel


@kernel
def fused_forward(x, index, forms, start, stop, out):
    """out[s, g] for samples start ≤ s < stop; forms (4, gates) are c, c_a, c_b, c_ab."""
    gates = index.shape[1]
    for s in range(start, stop):
        for g in range(gates):
            a, b = x[s, index[0, g]], x[s, index[1, g]]
            out[s, g] = forms[0, g] + forms[1, g] * a + (forms[2, g] + forms[3, g] * a) * b


@kernel
def fused_backward(x, index, forms, slope, start, stop, x_slope, forms_slope):
    """Add the gradients of x to x_slope and those of the coefficients to forms_slope (4, gates)."""
    gates = index.shape[1]
    for s in range(start, stop):
        for g in range(gates):
            i, j, d = index[0, g], index[1, g], slope[s, g]
            a, b = x[s, i], x[s, j]
            x_slope[s, i] += d * (forms[1, g] + forms[3, g] * b)
            x_slope[s, j] += d * (forms[2, g] + forms[3, g] * a)
            forms_slope[0, g] += d
            forms_slope[1, g] += d * a
            forms_slope[2, g] += d * b
            forms_slope[3, g] += d * a * b
