"""Compiled sums on the CPU, as one differentiable step: a kernel for short prefixes, matrix products for long ones."""

import numpy as np
import torch

from samplers.exact.fused import fused_backward, fused_forward
from samplers.exact.gemm import GemmRoom
from samplers.exact.halves import refuse_second_derivative
from samplers.exact.kernel_arrays import KernelArrays


class CompiledSum(torch.autograd.Function):
    """(m, log Z, lost) of a grouped problem's fields (G, Q, n), J (G, 1, n, n) and K (G, 1, n, n, n), not yet times β.

    With `causal`, Q counts B·n queries and the query at position p has the spins 0 … p. Otherwise `allowed` (G, Q, n)
    may take spins away, where there is no K. Prefixes of up to `fused_spins` spins are summed by a kernel. `lost`
    (G, Q) is None where no query is; its rows are meaningless and carry no gradient, as are absent spins' m.
    """

    @staticmethod
    def forward(ctx, fields, couplings, triples, allowed, beta: float, causal: bool, fused_spins: int):
        given = KernelArrays(fields, couplings, triples, allowed, beta, causal)
        mean, log_z, lost = given.results()
        prefixes, n = given.h.shape[2:]
        positions = min(prefixes, max(0, fused_spins - (n - prefixes)))
        keep = any(ctx.needs_input_grad)
        if positions:
            ctx.tables = fused_forward(given, positions, keep, mean, log_z, lost)
        ctx.room = None
        if positions < prefixes:
            ctx.room = GemmRoom(given, positions, keep=keep)
            ctx.room.forward(mean, log_z, lost)
        ctx.save_for_backward(fields, couplings, triples, allowed)
        ctx.given, ctx.positions = given, positions
        ctx.set_materialize_grads(False)
        shape = fields.shape
        lost_tensor = torch.from_numpy(lost).view(shape[:2]) if lost.any() else None
        if lost_tensor is not None:
            ctx.mark_non_differentiable(lost_tensor)
        return torch.from_numpy(mean).view(shape), torch.from_numpy(log_z).view(shape[:2]), lost_tensor

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivative()
        # Unpacking also checks that none was changed in place: the arrays share their memory.
        fields, couplings, triples, _ = ctx.saved_tensors
        given: KernelArrays = ctx.given
        wants_j = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        g_mean, g_log_z = given.slopes(*gradients[:2])
        h_out, j_out, k_out = np.zeros(given.h.shape, given.h.dtype), np.zeros(given.j.shape), np.zeros(given.k.shape)
        if ctx.positions:
            fused_backward(given, ctx.positions, ctx.tables, g_mean, g_log_z, wants_j, h_out, j_out, k_out)
        if ctx.room is not None:
            ctx.room.backward(g_mean, g_log_z, wants_j, h_out, j_out, k_out)
        return (
            torch.from_numpy(h_out).view(fields.shape),
            torch.from_numpy(j_out).to(couplings.dtype).view(couplings.shape) if ctx.needs_input_grad[1] else None,
            torch.from_numpy(k_out).to(triples.dtype).view(triples.shape) if ctx.needs_input_grad[2] else None,
            None, None, None, None,
        )  # fmt: skip
