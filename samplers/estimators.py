"""Magnetizations estimated from draws, with a declared gradient.

`covariance` is the score-function identity of a Boltzmann law,
    ∂⟨s_j⟩/∂h_k = β Cov(s_j, s_k),   ∂⟨s_j⟩/∂J_kl = β Cov(s_j, s_k s_l)   (per pair k<l)
estimated from the same draws with R − 1 in the denominator: unbiased for independent Boltzmann draws, a
surrogate for any other law. `straight-through` treats ⟨s_j⟩ as tanh(β F_j) with the local field
F_j = h_j + Σ_k J_jk ⟨s_k⟩ + ½ Σ_kl K_jkl ⟨s_k⟩⟨s_l⟩ and the ⟨s⟩ inside F held fixed: ∂⟨s_j⟩/∂h_k = β(1 − m_j²) δ_jk,
∂⟨s_j⟩/∂J_jk = β(1 − m_j²) m_k. It is biased; it is exact at J = K = 0. A covariance has no second derivative:
`create_graph=True` raises NotSupportedError.
"""

import torch
from torch import Tensor

from samplers.errors import NotSupportedError
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.second_derivatives import refuse_second_derivative


def magnetization_from_samples(problem: IsingProblem, samples: Samples, gradient: str) -> Tensor:
    """⟨s⟩ (*batch, n) of `samples`, differentiable in the fields, J and K by the named rule.

    Args:
        problem: the problem that was sampled.
        samples: its draws.
        gradient: "covariance", "straight-through" or "none".

    Raises:
        NotSupportedError: a covariance from fewer than two effective reads.
    """
    magnetization = samples.magnetization().to(problem.dtype)
    if gradient == "none" or not torch.is_grad_enabled():
        return magnetization
    if gradient == "straight-through":
        return straight_through(problem, magnetization)
    if gradient != "covariance":
        raise NotSupportedError(
            f"gradient {gradient!r} cannot be had from draws; use 'covariance' or 'straight-through'"
        )
    size = samples.effective_sample_size()
    if samples.spins.numel() and bool((size <= 1).any()):
        raise NotSupportedError(
            f"a covariance gradient needs at least 2 effective reads, got {float(size.min()):.3g}; raise num_reads"
        )
    weights = samples.weights / samples.weights.sum(-1, keepdim=True)
    weights = (weights * (size / (size - 1)).unsqueeze(-1)).to(problem.dtype)
    spins = samples.spins.to(problem.dtype)
    if problem.allowed is not None:
        spins = spins * problem.allowed.to(problem.dtype).unsqueeze(-2)
    # The draws' own score: its gradient is that of βΣ_r w_r a_r (h·s_r + ½ s_rᵀJs_r + …) for fixed a_r.
    return _CovarianceMagnetization.apply(magnetization, -problem.beta * problem.energy(spins), spins, weights)


class _CovarianceMagnetization(torch.autograd.Function):
    """Forward: the given magnetization. Backward: Σ_r w_r (a_r − ā) ∂(log p_r), with a_r = g·s_r."""

    @staticmethod
    def forward(ctx, magnetization: Tensor, log_weights: Tensor, spins: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(spins, weights)
        return magnetization.clone()

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        refuse_second_derivative("a magnetization estimated from draws")
        (grad,) = grad_outputs
        spins, weights = ctx.saved_tensors
        projected = (spins @ grad.unsqueeze(-1)).squeeze(-1)
        mean = (weights * projected).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
        return None, weights * (projected - mean), None, None


def straight_through(problem: IsingProblem, magnetization: Tensor) -> Tensor:
    """`magnetization` (a constant) with the straight-through gradient of the module's docstring."""
    m = magnetization.detach()
    visible = m if problem.allowed is None else m * problem.allowed.to(m.dtype)
    local = problem.fields
    if problem.has_couplings:
        local = local + (problem.couplings @ visible.unsqueeze(-1)).squeeze(-1)
    if problem.triples is not None:
        local = local + 0.5 * torch.einsum("...jkl,...k,...l->...j", problem.triples, visible, visible)
    slope = problem.beta * (1 - m**2)
    return m + slope * (local - local.detach())
