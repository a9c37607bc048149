"""The state-vector engine: output probabilities and magnetizations of layers, with the adjoint gradient.

Gradients reach the fields, the couplings (of the full matrix, as everywhere) and every layer angle. Memory does
not grow with depth: a few states per problem, chunked to a limit. On a CPU compiled kernels do the work, on a GPU
torch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from samplers.compiled import has_kernels
from samplers.dqa import evolution
from samplers.dqa.layers import Layers
from samplers.errors import ProblemTooLargeError
from samplers.states import spin_table

MAX_SPINS = 20
# States held at once, in the worst case: φ, λ, a product of each, two weight sums, a phase.
_STATES = 8


@dataclass(frozen=True)
class StateVectorEngine:
    """Simulates layers exactly.

    Args:
        precision: "single" (complex64, probabilities to about 5e-6) or "double" (complex128).
        memory_limit: GiB that the states of one chunk may take.
        compiled: whether kernels may be used on a CPU. They are compiled at the first call, and cached on disk.
    """

    precision: str = "single"
    memory_limit: float = 1.0
    compiled: bool = True

    exact: ClassVar[bool] = True

    def probabilities(
        self, fields: Float[Tensor, "g q n"], couplings: Float[Tensor, "g one n n"] | None, layers: Layers
    ) -> Float[Tensor, "g q states"]:
        """P(s) of every state, float64; differentiable. Cost: P · n · 2^n per problem."""
        return self._run(fields, couplings, layers, marginals=False)

    def magnetization(
        self, fields: Float[Tensor, "g q n"], couplings: Float[Tensor, "g one n n"] | None, layers: Layers
    ) -> Float[Tensor, "g q n"]:
        """⟨s⟩ of every spin, float64; differentiable. Keeps no probabilities."""
        return self._run(fields, couplings, layers, marginals=True)

    def chunk_size(self, num_spins: int) -> int:
        """Problems that fit the memory limit at once.

        Raises:
            ProblemTooLargeError: not even one does.
        """
        each = _STATES * (8 if self.precision == "single" else 16) * 2**num_spins
        size = int(self.memory_limit * 2**30 // each)
        if size < 1:
            raise ProblemTooLargeError(
                f"one problem of {num_spins} spins needs {each / 2**30:.3g} GiB of states; memory_limit allows "
                f"{self.memory_limit:g} GiB; raise it, or use fewer spins"
            )
        return size

    def _run(self, fields: Tensor, couplings: Tensor | None, layers: Layers, *, marginals: bool) -> Tensor:
        groups, queries, n = fields.shape
        chunk = self.chunk_size(n)
        across = max(1, min(groups, chunk // max(queries, 1)))
        within = min(queries, chunk)
        angles = torch.stack([layers.fields, layers.couplings, layers.mixer], 1).double()
        kernels = self.compiled and has_kernels(fields.device)
        anneal = _KernelAnneal if kernels else _TorchAnneal
        dtype = torch.float32 if self.precision == "single" else torch.float64
        rows = []
        for g in range(0, groups, across):
            own = None if couplings is None else couplings[g : g + across]
            parts = [
                anneal.apply(fields[g : g + across, q : q + within], own, angles, dtype, marginals)
                for q in range(0, queries, within)
            ]
            rows.append(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
        return rows[0] if len(rows) == 1 else torch.cat(rows)


class _TorchAnneal(torch.autograd.Function):
    """(fields, couplings, angles (P, 3)) → probabilities (g, q, 2^n) or magnetizations (g, q, n), float64."""

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, couplings: Tensor | None, angles: Tensor, dtype: torch.dtype, marginals: bool
    ) -> Tensor:
        groups, queries, n = fields.shape
        table = evolution.tables(fields, couplings)
        start = evolution.initial_state(n, (groups, queries), dtype.to_complex(), fields.device)
        state = evolution.evolve(table, angles.tolist(), start)
        ctx.save_for_backward(fields, couplings, angles, state)
        ctx.marginals = marginals
        return _read(state, marginals)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor):
        (grad,) = grad_outputs
        fields, couplings, angles, state = ctx.saved_tensors
        n = fields.shape[-1]
        weight = grad @ spin_table(n, dtype=grad.dtype, device=grad.device).mT if ctx.marginals else grad
        adjoint = state * weight.permute(2, 0, 1).to(state.real.dtype)
        table = evolution.tables(fields, couplings)
        with_angles = ctx.needs_input_grad[2]
        by_field, by_coupling, slopes = evolution.evolve_back(table, angles.tolist(), state, adjoint, with_angles)
        spins = spin_table(n, dtype=by_field.dtype, device=by_field.device)
        grad_fields = torch.einsum("sgq,sn->gqn", by_field, spins).to(fields.dtype)
        grad_couplings = None if couplings is None else _pair_gradient(by_coupling.sum(-1).mT, couplings)
        grad_angles = torch.tensor(slopes, dtype=angles.dtype, device=angles.device) if with_angles else None
        return grad_fields, grad_couplings, grad_angles, None, None


class _KernelAnneal(torch.autograd.Function):
    """As `_TorchAnneal`, by compiled kernels."""

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, couplings: Tensor | None, angles: Tensor, dtype: torch.dtype, marginals: bool
    ) -> Tensor:
        from samplers.dqa.tiles import PackedAnneal

        ctx.packed = PackedAnneal(fields, couplings, angles, dtype)
        ctx.save_for_backward(couplings)
        ctx.marginals, ctx.fields_dtype, ctx.angles_device = marginals, fields.dtype, angles.device
        values = ctx.packed.forward(marginals).double()
        return values if marginals else values / values.sum(-1, keepdim=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor):
        (grad,), (couplings,) = grad_outputs, ctx.saved_tensors
        with_angles = ctx.needs_input_grad[2]
        grad_fields, by_pair, by_angle = ctx.packed.backward(grad, ctx.marginals, with_angles)
        grad_couplings = None if couplings is None else _pair_gradient(by_pair, couplings)
        grad_angles = by_angle.to(ctx.angles_device) if with_angles else None
        return grad_fields.to(ctx.fields_dtype), grad_couplings, grad_angles, None, None


def _pair_gradient(by_pair: Tensor, couplings: Tensor) -> Tensor:
    """From derivatives in the pair energies (g, 2^n) to those in the full matrix: half of a pair's to each entry."""
    spins = spin_table(couplings.shape[-1], dtype=by_pair.dtype, device=by_pair.device)
    pairs = 0.5 * (spins.mT @ (by_pair.unsqueeze(-1) * spins))
    return (pairs - torch.diag_embed(pairs.diagonal(dim1=-2, dim2=-1))).unsqueeze(1).to(couplings.dtype)


def _read(state: Tensor, marginals: bool) -> Tensor:
    weights = state.real**2 + state.imag**2
    total = weights.sum(0, dtype=torch.float64)
    if not marginals:
        return weights.permute(1, 2, 0).double() / total.unsqueeze(-1)
    n = state.shape[0].bit_length() - 1
    spins = spin_table(n, dtype=weights.dtype, device=weights.device)
    return torch.einsum("sgq,sn->gqn", weights, spins).double() / total.unsqueeze(-1)
