"""Damped fixed points x = F(x, θ) for batches of problems, differentiated implicitly.

At the fixed point dx/dθ = (1 − ∂F/∂x)⁻¹ ∂F/∂θ, so the backward pass solves λ = g + (∂F/∂x)ᵀ λ by the same damped
iteration, which converges where the forward one does near x (it has the same spectrum). It need not: an unstable fixed
point, such as m = 0 at h = 0 above the critical coupling, is found from a start on it, and there λ grows without bound.
Such a problem gets λ = g, the direct term ∂F/∂θ alone, which is finite but not the derivative, and is reported.
Memory: one application of F.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from samplers.second_derivatives import refuse_second_derivative

Update = Callable[[Tensor], Tensor]
Report = Callable[[Tensor], None]


@dataclass(frozen=True)
class FixedPoint:
    """The state (differentiable in what F depends on), per problem (G, Q) whether it settled, and the most steps."""

    state: Tensor
    converged: Bool[Tensor, "groups queries"]
    iterations: int


def solve(
    update: Update,
    start: Shaped[Tensor, "groups queries *rest"],
    *,
    damping: float,
    tolerance: float,
    budget: int,
    on_gradient: Report | None = None,
) -> FixedPoint:
    """Iterate x ← damping·x + (1 − damping)·F(x) until no entry of a problem moves by more than `tolerance`.

    A problem stops where it settles, so that its answer does not depend on what else is in the batch.

    Args:
        update: F; must not mix problems.
        start: x₀, leading axes (G, Q).
        damping: share of the old state that is kept, in [0, 1).
        tolerance: largest |F(x) − x| of a problem that counts as settled; not below a few ulps of the dtype.
        budget: most iterations of the forward and of the backward iteration.
        on_gradient: told in each backward pass which problems' (G, Q) adjoint iteration settled; the others' gradient
            is the direct term.

    Raises:
        NotSupportedError: in a backward pass under `create_graph=True`.
    """
    limit = max(tolerance, 8 * torch.finfo(start.dtype).eps)
    with torch.no_grad():
        x, converged, used = _iterate(update, start, damping, torch.full_like(_largest(start), limit), budget)
    if not torch.is_grad_enabled():
        return FixedPoint(x, converged, used)
    outer = update(x)
    if not outer.requires_grad:
        return FixedPoint(x, converged, used)
    # The graph of this extra step carries ∂F/∂θ, and the hook inserts (1 − ∂F/∂x)⁻¹.
    settled = x.detach().requires_grad_()
    stepped = update(settled)

    def implicit(grad: Tensor) -> Tensor:
        refuse_second_derivative("a fixed point")

        def adjoint(v: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(stepped, settled, v, retain_graph=True, allow_unused=True)
            return grad if product is None else grad + product

        solution, solved, _ = _iterate(adjoint, grad, damping, limit * _largest(grad), budget)
        if on_gradient is not None:
            on_gradient(solved)
        return torch.where(_beside(solved, grad), solution, grad)

    outer.register_hook(implicit)
    # The value is x with and without a graph; the bracket is 0.
    return FixedPoint(x + (outer - outer.detach()), converged, used)


def _iterate(update: Update, x: Tensor, damping: float, limit: Tensor, budget: int) -> tuple[Tensor, Tensor, int]:
    """The state, which problems settled, and the steps of the slowest. Problems without finite steps are given up."""
    rounding = 8 * torch.finfo(x.dtype).eps
    settled = torch.zeros_like(limit, dtype=torch.bool)
    active, used = ~settled, 0
    while used < budget and bool(active.any()):
        step = update(x) - x
        moved = _largest(step)
        x = torch.where(_beside(active, x), x + (1 - damping) * step, x)
        # Large entries, as of an adjoint near a critical point, never rest more closely than their own rounding.
        active &= moved.isfinite()
        settled |= active & (moved <= torch.maximum(limit, rounding * _largest(x)))
        active &= ~settled
        used += 1
    return x, settled, used


def _largest(x: Tensor) -> Tensor:
    """The largest modulus of each problem, (G, Q)."""
    return x.abs().flatten(2).amax(-1)


def _beside(per_problem: Tensor, x: Tensor) -> Tensor:
    return per_problem.reshape(*per_problem.shape, *(1,) * (x.ndim - 2))
