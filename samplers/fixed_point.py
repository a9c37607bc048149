"""Damped fixed points x = F(x, θ) for batches of problems, differentiated implicitly.

At the fixed point dx/dθ = (1 − ∂F/∂x)⁻¹ ∂F/∂θ, so the backward pass solves λ = g + (∂F/∂x)ᵀ λ by the same damped
iteration, which converges where the forward one does (it has the same spectrum). Memory: one application of F.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

Update = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FixedPoint:
    """The state (differentiable in what F depends on), and per problem (G, Q) whether and how fast it settled."""

    state: Tensor
    converged: Bool[Tensor, "groups queries"]
    iterations: int


def solve(
    update: Update, start: Shaped[Tensor, "groups queries *rest"], *, damping: float, tolerance: float, budget: int
) -> FixedPoint:
    """Iterate x ← damping·x + (1 − damping)·F(x) until no entry of a problem moves by more than `tolerance`.

    Args:
        update: F; must not mix problems.
        start: x₀, leading axes (G, Q).
        damping: share of the old state that is kept, in [0, 1).
        tolerance: largest |F(x) − x| of a problem that counts as settled; not below a few ulps of the dtype.
        budget: most iterations of the forward and of the backward iteration.
    """
    limit = max(tolerance, 8 * torch.finfo(start.dtype).eps)
    with torch.no_grad():
        x, converged, used = _iterate(update, start, damping, limit, budget)
    if not torch.is_grad_enabled():
        return FixedPoint(x, converged, used)
    # The value of this extra step is x again; its graph carries ∂F/∂θ, and the hook inserts (1 − ∂F/∂x)⁻¹.
    settled = x.detach().requires_grad_()
    stepped = update(settled)
    if not stepped.requires_grad:
        return FixedPoint(x, converged, used)
    outer = update(x.detach())
    if outer.requires_grad:

        def implicit(grad: Tensor) -> Tensor:
            def adjoint(v: Tensor) -> Tensor:
                (product,) = torch.autograd.grad(stepped, settled, v, retain_graph=True, allow_unused=True)
                return grad if product is None else grad + product

            with torch.no_grad():
                return _iterate(adjoint, grad, damping, limit * float(grad.abs().max().clamp_min(1e-30)), budget)[0]

        outer.register_hook(implicit)
    return FixedPoint(outer, converged, used)


def _iterate(update: Update, x: Tensor, damping: float, limit: float, budget: int) -> tuple[Tensor, Tensor, int]:
    used, settled = 0, False
    while used < budget and not settled:
        step = update(x) - x
        x = x + (1 - damping) * step
        moved = step.abs().flatten(2).amax(-1)
        used, settled = used + 1, bool((moved <= limit).all())
    return x, moved <= limit, used
