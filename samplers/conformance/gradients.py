"""Checks of the declared gradient of `magnetization`."""

import torch
from torch import Tensor

from samplers.base import Sampler
from samplers.conformance.kit import ALARM, MakeSampler, able, check, random_problem, require
from samplers.conformance.statistics import z_limit
from samplers.enumeration import moments
from samplers.problem import IsingProblem

_ANALYTIC = ("exact", "implicit", "adjoint", "parameter-shift")


def _leaves(problem: IsingProblem) -> tuple[Tensor, Tensor]:
    h = problem.fields.clone().requires_grad_()
    return h, problem.couplings.clone().requires_grad_()


def _gradient(sampler: Sampler, problem: IsingProblem, direction: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    h, j = _leaves(problem)
    m = sampler.magnetization(IsingProblem(h, j, allowed=problem.allowed, beta=problem.beta), seed=seed)
    gh, gj = torch.autograd.grad((m * direction).sum(), [h, j], allow_unused=True)
    return (torch.zeros_like(h) if gh is None else gh), (torch.zeros_like(j) if gj is None else gj)


def _cases() -> list[IsingProblem]:
    n = 4
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    return [
        random_problem(3, num_spins=n, seed=41, beta=0.8),
        random_problem(2, num_spins=n, seed=42, own_couplings=True),
        random_problem(2, n, num_spins=n, seed=43, allowed=causal),
    ]


def _direction(problem: IsingProblem) -> Tensor:
    shape = (*problem.batch_shape, problem.num_spins)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=problem.dtype)


@check("gradient", lambda s: able(s).gradient in _ANALYTIC)
def check_gradient_against_finite_differences(make: MakeSampler) -> None:
    """exact, implicit, adjoint: ∂⟨s⟩ in h and in the symmetric J equals central differences"""
    sampler, step = make(), 1e-4
    for problem in _cases():
        direction = _direction(problem)
        gh, gj = _gradient(sampler, problem, direction, seed=1)
        generator = torch.Generator().manual_seed(1)
        dh = torch.randn(problem.fields.shape, generator=generator, dtype=torch.float64)
        a = torch.randn(problem.couplings.shape, generator=generator, dtype=torch.float64).tril(-1)
        dj = a + a.mT
        for name, predicted, moved in (
            ("h", (gh * dh).sum(), lambda t, dh=dh, p=problem: (p.fields + t * dh, p.couplings)),
            ("J", (gj * dj).sum(), lambda t, dj=dj, p=problem: (p.fields, p.couplings + t * dj)),
        ):
            values = [
                (sampler.magnetization(IsingProblem(*moved(t), allowed=problem.allowed, beta=problem.beta), seed=1)
                 * direction).sum()
                for t in (step, -step)
            ]  # fmt: skip
            measured = float((values[0] - values[1]) / (2 * step))
            error = abs(float(predicted) - measured)
            require(error <= 1e-5 * (1 + abs(measured)), f"∂/∂{name} of {problem}: {float(predicted)} vs {measured}")
        asymmetry = float((gj - gj.mT).abs().max())
        require(asymmetry < 1e-9, f"the gradient in J is not symmetric (difference {asymmetry:.3g})")
        require(float(gj.diagonal(dim1=-2, dim2=-1).abs().max()) < 1e-9, "J has a gradient on its diagonal")


@check("gradient", lambda s: able(s).gradient == "covariance" and able(s).boltzmann)
def check_covariance_gradient_is_unbiased(make: MakeSampler) -> None:
    """covariance: the mean over 48 seeds agrees with the exact gradient by a z-test, entry by entry"""
    sampler, repeats = make(), 48
    for problem in _cases():
        direction = _direction(problem)
        h, j = _leaves(problem)
        m, _ = moments(IsingProblem(h, j, allowed=problem.allowed, beta=problem.beta))
        exact = torch.autograd.grad((m * direction).sum(), [h, j])
        runs = [_gradient(sampler, problem, direction, seed=s) for s in range(repeats)]
        for name, index in (("h", 0), ("J", 1)):
            stack = torch.stack([run[index] for run in runs])
            error = stack.std(0) / repeats**0.5
            z = ((stack.mean(0) - exact[index]).abs() / error.clamp_min(1e-9)).max()
            # Student's t of 48 runs has heavier tails than the normal.
            limit = 1.5 * z_limit(ALARM, stack[0].numel())
            require(float(z) < limit, f"the covariance gradient in {name} of {problem} is biased: z = {float(z):.1f}")


@check("gradient", lambda s: able(s).gradient == "straight-through")
def check_straight_through_gradient(make: MakeSampler) -> None:
    """straight-through: ∂⟨s_j⟩/∂h_j is β(1 − m_j²) of the same call's m"""
    sampler, problem = make(), random_problem(3, num_spins=4, seed=44, beta=0.8)
    direction = _direction(problem)
    m = sampler.magnetization(problem, seed=1)
    gh, _ = _gradient(sampler, problem, direction, seed=1)
    error = float((gh - 0.8 * (1 - m**2) * direction).abs().max())
    require(error < 1e-6, f"the straight-through gradient differs from β(1 − m²) by {error:.3g}")


@check("gradient", lambda s: able(s).gradient != "none")
def check_gradient_is_finite_under_masks(make: MakeSampler) -> None:
    """Rows without any allowed spin and saturated fields give finite gradients; forbidden fields get zero"""
    sampler = make()
    allowed = torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])
    problem = random_problem(3, num_spins=4, seed=45, allowed=allowed)
    gh, gj = _gradient(sampler, problem, torch.ones(3, 4, dtype=torch.float64), seed=1)
    require(bool(torch.isfinite(gh).all() and torch.isfinite(gj).all()), "a masked problem has a NaN gradient")
    require(bool((gh[~allowed] == 0).all()), "the field of a forbidden spin has a gradient")
