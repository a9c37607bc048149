"""Mean field, TAP and Bethe: fixed points, where they are exact, implicit gradients against unrolled ones."""

import math

import pytest
import torch

from samplers import IsingProblem, NotSupportedError, get_sampler
from samplers.enumeration import moments
from samplers.fixed_point import solve
from samplers.variational import ConvergenceWarning, _symmetric, _Variational

NAMES = ("mean-field", "tap", "bethe")


def problem(*batch: int, n: int, sigma: float, seed: int = 0, dtype: torch.dtype = torch.float64, **options):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(*batch, n, generator=generator, dtype=torch.float64)
    a = sigma / n**0.5 * torch.randn(n, n, generator=generator, dtype=torch.float64).tril(-1)
    return IsingProblem(h.to(dtype), (a + a.mT).to(dtype), **options)


# Root mean square errors of ⟨s⟩ measured for dense Gaussian couplings, doubled.
@pytest.mark.parametrize(
    ("name", "weak", "middling"), [("mean-field", 0.034, 0.1), ("tap", 0.003, 0.014), ("bethe", 0.0024, 0.012)]
)
def test_errors_against_enumeration(name: str, weak: float, middling: float):
    for sigma, limit in ((0.3, weak), (0.5, middling)):
        p = problem(64, n=12, sigma=sigma)
        error = (get_sampler(name).magnetization(p) - moments(p)[0]).pow(2).mean().sqrt()
        assert 0 < float(error) < limit


def test_each_refinement_is_closer():
    p = problem(64, n=12, sigma=0.5)
    errors = [float((get_sampler(name).magnetization(p) - moments(p)[0]).pow(2).mean()) for name in NAMES]
    assert errors[0] > 10 * errors[1] > 10 * errors[2] * 0.5


def chain(n: int, strength: float) -> torch.Tensor:
    couplings = torch.zeros(n, n, dtype=torch.float64)
    index = torch.arange(n - 1)
    couplings[index, index + 1] = couplings[index + 1, index] = strength * (-1.0) ** index.double()
    return couplings


def test_bethe_is_exact_on_trees():
    h = torch.linspace(-1, 1, 7, dtype=torch.float64)[None]
    p = IsingProblem(h, chain(7, 1.3), beta=0.9)
    bethe = get_sampler("bethe", tolerance=1e-13)
    assert torch.allclose(bethe.magnetization(p), moments(p)[0], atol=1e-11)
    # On a tree linear response is exact too.
    assert torch.allclose(bethe.correlations(p), moments(p)[1], atol=1e-9)


def test_linear_response_sees_what_the_magnetization_cannot():
    p = problem(16, n=6, sigma=0.3)
    exact = moments(p)[1]
    for name in NAMES:
        m = get_sampler(name).magnetization(p)
        product = m.unsqueeze(-1) * m.unsqueeze(-2)
        product.diagonal(dim1=-2, dim2=-1).fill_(1)
        response = get_sampler(name).correlations(p)
        assert float((response - exact).pow(2).mean()) < 0.2 * float((product - exact).pow(2).mean())


@pytest.mark.parametrize("name", NAMES)
def test_implicit_gradient_equals_the_unrolled_one(name: str):
    n = 5
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    base = problem(2, n, n=n, sigma=0.6, allowed=allowed, beta=0.8)
    h, j = base.fields.clone().requires_grad_(), base.couplings.clone().requires_grad_()
    p = IsingProblem(h, j, allowed=allowed, beta=0.8)
    sampler = get_sampler(name, tolerance=1e-13)
    assert isinstance(sampler, _Variational)
    direction = torch.randn(2, n, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    implicit = torch.autograd.grad((sampler.magnetization(p) * direction).sum(), [h, j], retain_graph=True)

    grouped = p.grouped()
    inner = _symmetric(grouped.problem)
    assert inner.allowed is not None
    mask = inner.allowed.double()
    state = torch.zeros(sampler._shape(*inner.fields.shape), dtype=torch.float64)
    for _ in range(200):
        state = 0.5 * state + 0.5 * sampler._update(inner, mask, state)
    m = torch.where(allowed, grouped.restore(sampler._readout(inner, mask, state)), -1.0)
    for a, b in zip(implicit, torch.autograd.grad((m * direction).sum(), [h, j]), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_failure_to_converge_is_reported_per_problem(name: str):
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(8, 8, generator=generator, dtype=torch.float64).tril(-1)
    couplings = torch.stack([torch.zeros(8, 8, dtype=torch.float64), 3 * (a + a.mT)])
    p = IsingProblem(torch.ones(2, 8, dtype=torch.float64), couplings)
    sampler = get_sampler(name, max_iterations=8, damping=0.0)
    assert bool(torch.isfinite(sampler.magnetization(p)).all())
    assert sampler.last_info["converged"].tolist() == [True, False]
    assert sampler.last_info["iterations"] == 8


def test_warm_start_saves_iterations():
    p = problem(4, n=8, sigma=0.5)
    sampler = get_sampler("tap", warm_start=True)
    cold = sampler.magnetization(p)
    first = sampler.last_info["iterations"]
    warm = sampler.magnetization(p)
    assert sampler.last_info["iterations"] < first / 5
    assert torch.allclose(cold, warm, atol=1e-7)


def test_three_body_mean_field_is_a_fixed_point():
    generator = torch.Generator().manual_seed(4)
    k = torch.zeros(4, 4, 4, dtype=torch.float64)
    for a, b, c in ((0, 1, 2), (1, 2, 3), (0, 2, 3)):
        value = float(torch.randn((), generator=generator)) * 0.3
        for x, y, z in ((a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)):
            k[x, y, z] = value
    h = torch.tensor([0.4, -0.3, 0.8, 0.1], dtype=torch.float64)
    m = get_sampler("mean-field").magnetization(IsingProblem(h, triples=k))
    assert torch.allclose(m, torch.tanh(h + 0.5 * torch.einsum("jkl,k,l->j", k, m, m)), atol=1e-8)
    with pytest.raises(NotSupportedError, match="three-body"):
        get_sampler("tap").magnetization(IsingProblem(h, triples=k))


def test_long_sequences_in_float32():
    p = problem(3, 300, n=300, sigma=0.3, dtype=torch.float32)
    m = get_sampler("tap").magnetization(p)
    reference = get_sampler("tap").magnetization(p.to(dtype=torch.float64))
    assert m.dtype == torch.float32
    assert float((m - reference).abs().max()) < 1e-5


def test_fixed_point_gradient_of_a_scalar_equation():
    # x = cos(θ x) at θ = 1 is the Dottie number; dx/dθ = −x sin x / (1 + sin x).
    theta = torch.ones(1, 1, 1, dtype=torch.float64, requires_grad=True)
    point = solve(lambda x: torch.cos(theta * x), torch.zeros(1, 1, 1, dtype=torch.float64), damping=0.3,
                  tolerance=1e-14, budget=500)  # fmt: skip
    x = float(point.state.detach())
    assert x == pytest.approx(0.7390851332151607)
    (slope,) = torch.autograd.grad(point.state.sum(), theta)
    s = float(torch.sin(torch.tensor(x, dtype=torch.float64)))
    assert float(slope) == pytest.approx(-x * s / (1 + s))


def ring(n: int, strength: float) -> torch.Tensor:
    eye = torch.eye(n, dtype=torch.float64)
    return strength * (eye.roll(1, 0) + eye.roll(-1, 0))


@pytest.mark.parametrize(("name", "strength"), [("mean-field", 0.5), ("tap", 0.5), ("bethe", 1.5)])
def test_an_answer_does_not_depend_on_the_batch(name: str, strength: float):
    # Complete graph and h ≈ 0: the start all but is a fixed point (unstable but for TAP's), the other problem's is far.
    strong = strength * (1 - torch.eye(4, dtype=torch.float64))
    h = torch.stack([torch.full((4,), 1e-11, dtype=torch.float64), torch.linspace(-1, 1, 4, dtype=torch.float64)])
    sampler = get_sampler(name)
    together = sampler.magnetization(IsingProblem(h, strong))
    assert sampler.last_info["converged"].all()
    for k in range(2):
        alone = sampler.magnetization(IsingProblem(h[k : k + 1], strong))
        assert torch.allclose(together[k : k + 1], alone, rtol=1e-9, atol=0)
    assert float(together[0].abs().max()) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_the_same_with_and_without_a_graph(name: str):
    p = problem(3, n=6, sigma=0.5)
    sampler = get_sampler(name, tolerance=1e-3)
    with_graph = sampler.magnetization(IsingProblem(p.fields.clone().requires_grad_(), p.couplings))
    with torch.no_grad():
        without = sampler.magnetization(p)
    assert with_graph.requires_grad
    assert torch.equal(with_graph.detach(), without)


# ∂F/∂h at m = 0 with the others' state held is 1; Bethe's messages have gone one step by then.
@pytest.mark.parametrize(("name", "direct"), [("mean-field", 1.0), ("bethe", 1 + 3 * math.tanh(3))])
def test_an_unstable_fixed_point_gets_the_direct_gradient_and_a_warning(name: str, direct: float):
    h = torch.stack([torch.zeros(4, dtype=torch.float64), torch.linspace(-1, 1, 4, dtype=torch.float64)])
    j = torch.stack([3 - 3 * torch.eye(4, dtype=torch.float64), ring(4, 0.2)])
    sampler, alone = get_sampler(name), get_sampler(name)

    def gradient(sampler, h, j):
        h = h.clone().requires_grad_()
        return torch.autograd.grad(sampler.magnetization(IsingProblem(h, j)).sum(), h)[0]

    with pytest.warns(ConvergenceWarning, match="1 of 2 problems"):
        found = gradient(sampler, h, j)
    assert sampler.last_info["gradient_converged"].tolist() == [False, True]
    assert torch.allclose(found[0], torch.full((4,), direct, dtype=torch.float64))
    assert torch.allclose(found[1], gradient(alone, h[1], j[1]), rtol=1e-12)
    assert alone.last_info["gradient_converged"]
    # Once per sampler: warnings are errors here.
    assert torch.equal(gradient(sampler, h, j), found)


def test_the_record_of_a_gradient_goes_to_its_own_call():
    p = problem(2, n=4, sigma=0.3)
    sampler = get_sampler("mean-field")
    h = p.fields.clone().requires_grad_()
    m = sampler.magnetization(IsingProblem(h, p.couplings))
    own = sampler.last_info
    sampler.magnetization(p)
    m.sum().backward()
    assert own["gradient_converged"].all()
    assert "gradient_converged" not in sampler.last_info


def test_states_and_adjoints_settle_up_to_their_own_rounding():
    # x = θ + A x with eigenvalues of A up to 0.99: x and dx/dθ are of the order of 100, and so is their rounding.
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    a = basis @ torch.diag(torch.linspace(0.99, -0.99, 6, dtype=torch.float64)) @ basis.T
    theta = torch.ones(1, 1, 6, dtype=torch.float64, requires_grad=True)
    told: list[torch.Tensor] = []
    point = solve(lambda x: theta + x @ a, torch.zeros(1, 1, 6, dtype=torch.float64), damping=0.0, tolerance=0.0,
                  budget=6000, on_gradient=told.append)  # fmt: skip
    (slope,) = torch.autograd.grad(point.state.sum(), theta)
    assert point.converged.all()
    assert told[0].all()
    expected = torch.linalg.solve(torch.eye(6, dtype=torch.float64) - a, torch.ones(6, dtype=torch.float64))
    assert torch.allclose(slope[0, 0], expected, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_are_refused(name: str):
    p = problem(2, n=4, sigma=0.3)
    h = p.fields.clone().requires_grad_()
    m = get_sampler(name).magnetization(IsingProblem(h, p.couplings))
    with pytest.raises(NotSupportedError, match="create_graph"):
        torch.autograd.grad(m.sum(), h, create_graph=True)
