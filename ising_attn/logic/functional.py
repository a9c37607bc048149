"""A layer of relaxed gates as one differentiable step: c + c_a·a + c_b·b + c_ab·ab of gathered inputs.

The sum over 16 gates that a relaxed gate is defined by is linear in the four numbers of its truth table, so it is this
form with 3 multiply-adds per sample. Only x and the coefficients are kept for the backward pass, which gathers again:
the memory of a layer is that of its input. `gates_by_definition` is the slow twin.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ising_attn.logic.gates import truth_tables
from samplers.second_derivatives import refuse_second_derivative


class GatherAndCombine(torch.autograd.Function):
    """out[s, g] = c_g + c_a,g·x[s, a_g] + c_b,g·x[s, b_g] + c_ab,g·x[s, a_g]·x[s, b_g], coefficients (4, gates).

    On the CPU by a compiled loop, elsewhere by torch.
    """

    @staticmethod
    def forward(ctx, x, index, coefficients):
        ctx.save_for_backward(x, index, coefficients)
        return (_compiled_forward if _compiles(x, coefficients) else _torch_forward)(x, index, coefficients)

    @staticmethod
    def backward(ctx, slope):
        refuse_second_derivative("logic gates", "gates_by_definition is differentiable twice")
        x, index, coefficients = ctx.saved_tensors
        backward = _compiled_backward if _compiles(x, coefficients, slope) else _torch_backward
        x_slope, coefficient_slopes = backward(x, index, coefficients, slope)
        return x_slope, None, coefficient_slopes


def _compiles(*tensors: Tensor) -> bool:
    dtype = tensors[0].dtype
    known = dtype in (torch.float32, torch.float64)
    return known and all(t.device.type == "cpu" and t.dtype == dtype for t in tensors)


def _torch_forward(x: Tensor, index: Tensor, coefficients: Tensor) -> Tensor:
    return combine(x.index_select(-1, index[0]), x.index_select(-1, index[1]), coefficients)


def _torch_backward(x: Tensor, index: Tensor, coefficients: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.index_select(-1, index[0]), x.index_select(-1, index[1])
    _, c_a, c_b, c_ab = coefficients
    x_slope = torch.zeros_like(x)
    x_slope.index_add_(-1, index[0], slope * torch.addcmul(c_a, c_ab, b))
    x_slope.index_add_(-1, index[1], slope * torch.addcmul(c_b, c_ab, a))
    return x_slope, _coefficient_slopes(slope, a, b)


def _compiled_forward(x: Tensor, index: Tensor, coefficients: Tensor) -> Tensor:
    from ising_attn.logic.fused_kernels import fused_forward
    from samplers.kernels import in_threads

    out = x.new_empty(x.shape[0], index.shape[1])
    arrays, target = _arrays(x, index, coefficients), out.numpy()
    in_threads(lambda low, high: fused_forward(*arrays, low, high, target), len(x), smallest=_share(index))
    return out


def _compiled_backward(x: Tensor, index: Tensor, coefficients: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    from ising_attn.logic.fused_kernels import fused_backward
    from samplers.kernels import in_threads

    x_slope = torch.zeros_like(x, memory_format=torch.contiguous_format)
    arrays, target = (*_arrays(x, index, coefficients), slope.contiguous().numpy()), x_slope.numpy()
    parts: dict[int, np.ndarray] = {}

    def part(low: int, high: int) -> None:
        # In double: there are as many terms as samples.
        parts[low] = np.zeros((4, index.shape[1]))
        fused_backward(*arrays, low, high, target, parts[low])

    in_threads(part, len(x), smallest=_share(index))
    # In the order of the samples, whichever part was done first.
    total = np.sum([parts[low] for low in sorted(parts)], axis=0)
    return x_slope, torch.from_numpy(total).to(coefficients.dtype)


def _arrays(x: Tensor, index: Tensor, coefficients: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    contiguous = (tensor.detach().contiguous().numpy() for tensor in (x, index, coefficients))
    samples, pairs, forms = contiguous
    return samples, pairs.view(np.uint64), forms


def _share(index: Tensor) -> int:
    """Samples that are worth a thread."""
    return max(1, 2**16 // index.shape[1])


class Combine(torch.autograd.Function):
    """The same of inputs a and b (samples, gates) that are already gathered."""

    @staticmethod
    def forward(ctx, a, b, coefficients):
        ctx.save_for_backward(a, b, coefficients)
        return combine(a, b, coefficients)

    @staticmethod
    def backward(ctx, slope):
        refuse_second_derivative("logic gates", "gates_by_definition is differentiable twice")
        a, b, (c, c_a, c_b, c_ab) = ctx.saved_tensors
        a_slope = slope * torch.addcmul(c_a, c_ab, b) if ctx.needs_input_grad[0] else None
        b_slope = slope * torch.addcmul(c_b, c_ab, a) if ctx.needs_input_grad[1] else None
        return a_slope, b_slope, _coefficient_slopes(slope, a, b) if ctx.needs_input_grad[2] else None


class PickStraightThrough(torch.autograd.Function):
    """out[s, g] = x[s, picked_g], differentiated as Σ_k p[g, k]·x[s, candidates[g, k]]."""

    @staticmethod
    def forward(ctx, x, picked, candidates, probabilities):
        ctx.save_for_backward(x, candidates, probabilities)
        return x.index_select(-1, picked)

    @staticmethod
    def backward(ctx, slope):
        refuse_second_derivative("logic gates", "gates_by_definition is differentiable twice")
        x, candidates, probabilities = ctx.saved_tensors
        needs_x, needs_p = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        x_slope = torch.zeros_like(x) if needs_x else None
        p_slope = torch.empty_like(probabilities) if needs_p else None
        for k in range(candidates.shape[-1]):
            if x_slope is not None:
                x_slope.index_add_(-1, candidates[:, k], slope * probabilities[:, k])
            if p_slope is not None:
                p_slope[:, k] = (slope * x.index_select(-1, candidates[:, k])).sum(0)
        return x_slope, None, None, p_slope


def combine(
    a: Float[Tensor, "samples gates"], b: Float[Tensor, "samples gates"], coefficients: Float[Tensor, "4 gates"]
) -> Float[Tensor, "samples gates"]:
    """c + c_a·a + c_b·b + c_ab·ab."""
    c, c_a, c_b, c_ab = coefficients
    return torch.addcmul(torch.addcmul(c, c_a, a), b, torch.addcmul(c_b, c_ab, a))


def _coefficient_slopes(slope: Tensor, a: Tensor, b: Tensor) -> Tensor:
    slope_b = slope * b
    return torch.stack([slope.sum(0), (slope * a).sum(0), slope_b.sum(0), (slope_b * a).sum(0)])


def gates_by_definition(
    a: Float[Tensor, "samples gates"], b: Float[Tensor, "samples gates"], weights: Float[Tensor, "gates 16"]
) -> Float[Tensor, "samples gates"]:
    """Σ_g weights_g · g(a, b) over all 16 relaxed gates, each the probability of a 1 for independent bits a and b."""
    out = torch.zeros_like(a)
    for gate, table in enumerate(truth_tables(dtype=a.dtype, device=a.device)):
        w00, w01, w10, w11 = table
        relaxed = (1 - a) * (1 - b) * w00 + (1 - a) * b * w01 + a * (1 - b) * w10 + a * b * w11
        out = out + weights[:, gate] * relaxed
    return out


def apply_gates(
    x: Float[Tensor, "samples features"], index: Int[Tensor, "2 gates"], coefficients: Float[Tensor, "4 gates"]
) -> Float[Tensor, "samples gates"]:
    """Relaxed gates of the inputs at `index`."""
    return GatherAndCombine.apply(x, index, coefficients)
