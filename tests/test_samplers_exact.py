"""The exact backend against plain enumeration: values, gradients, range, masks, draws."""

import itertools
import math

import numpy as np
import pytest
import torch

from samplers import IsingProblem, NotSupportedError, ProblemTooLargeError, get_sampler
from samplers.enumeration import ground_states, log_probabilities, moments
from samplers.exact import ExactSampler, sums
from samplers.exact.pair_weights import pair_weights
from samplers.states import index_of_spins, spin_table

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def random_problem(
    shape, *, dtype=torch.float64, j_shape=(), scale=0.5, field=1.0, mask=None, triples=False, beta=1.0, seed=0
):
    """Fields of `shape`, J of j_shape + (n, n), a mask ("causal", "random" or None) and perhaps triples."""
    g = torch.Generator().manual_seed(seed)
    n = shape[-1]
    h = (torch.randn(shape, generator=g, dtype=torch.float64) * field).to(dtype).requires_grad_()
    a = torch.randn(*j_shape, n, n, generator=g, dtype=torch.float64) * scale
    upper = a.triu(1)
    j = (upper + upper.mT).to(dtype).requires_grad_()
    k = symmetric_triples(n, scale / 2, g).to(dtype).requires_grad_() if triples else None
    allowed = None
    if mask == "causal":
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
    elif mask == "random":
        allowed = torch.rand(shape, generator=g) < 0.6
    return IsingProblem(h, j, allowed=allowed, triples=k, beta=beta)


def symmetric_triples(n, scale, generator):
    k = torch.zeros(n, n, n, dtype=torch.float64)
    for a, b, c in itertools.combinations(range(n), 3):
        value = torch.randn((), generator=generator, dtype=torch.float64) * scale
        for p in itertools.permutations((a, b, c)):
            k[p] = value
    return k


def masked_truth(problem, value):
    return value if problem.allowed is None else torch.where(problem.allowed, value, -1.0)


def twin(problem):
    """The same problem in float64 with fresh leaves."""
    h = problem.fields.detach().double().requires_grad_()
    j = problem.couplings.detach().double().requires_grad_()
    k = None if problem.triples is None else problem.triples.detach().double().requires_grad_()
    return IsingProblem(h, j, allowed=problem.allowed, beta=problem.beta, triples=k)


def leaves(problem):
    return [t for t in (problem.fields, problem.couplings, problem.triples) if t is not None]


def off_diagonal(gradient, order):
    """Gradients of entries with equal indices mean nothing: those entries are always 0."""
    if order < 2:
        return gradient
    n = gradient.shape[-1]
    index = torch.arange(n)
    equal = index[:, None] == index
    if order == 3:
        equal = equal[:, :, None] | equal[:, None, :] | equal[None, :, :]
    return gradient.masked_fill(equal, 0.0)


def assert_matches_enumeration(problem, sampler=None, tolerance=None):
    sampler = sampler or get_sampler("exact")
    tolerance = tolerance or TOLERANCE[problem.dtype]
    other = twin(problem)
    weight = torch.randn(problem.fields.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    truth = masked_truth(other, moments(other)[0])
    got = sampler.magnetization(problem)
    assert got.dtype == problem.dtype
    torch.testing.assert_close(got.double(), truth, atol=tolerance, rtol=0)
    assert_same_gradients(problem, other, (got * weight.to(got.dtype)).sum(), (truth * weight).sum(), tolerance)
    log_z_truth = log_probabilities(other)[1]
    log_z = sampler.log_partition(problem)
    torch.testing.assert_close(log_z.double(), log_z_truth, atol=tolerance, rtol=tolerance)
    w = weight[..., 0]
    assert_same_gradients(problem, other, (log_z * w.to(log_z.dtype)).sum(), (log_z_truth * w).sum(), tolerance)


def assert_same_gradients(problem, other, value, truth, tolerance):
    ours = torch.autograd.grad(value, leaves(problem), allow_unused=True)
    theirs = torch.autograd.grad(truth, leaves(other), allow_unused=True)
    for order, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
        a = torch.zeros_like(b) if a is None else a.double()
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(off_diagonal(a, order), off_diagonal(b, order), atol=tolerance * scale, rtol=0)
        if order == 2:
            torch.testing.assert_close(a, a.mT, atol=tolerance * scale, rtol=0)


SHAPES = [
    ((1,), ()),
    ((5,), ()),
    ((3, 6), ()),
    ((3, 6), (3,)),
    ((2, 3, 4, 7), (3, 1)),
    ((2, 1, 5), (2, 1)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [None, "random"])
@pytest.mark.parametrize(("shape", "j_shape"), SHAPES)
def test_values_and_gradients(shape, j_shape, mask, dtype):
    assert_matches_enumeration(random_problem(shape, j_shape=j_shape, mask=mask, dtype=dtype, beta=0.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_causal(n, dtype):
    assert_matches_enumeration(random_problem((2, 2, n, n), j_shape=(2, 1), mask="causal", dtype=dtype, beta=1.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [None, "random"])
def test_products_of_halves(mask, dtype):
    assert_matches_enumeration(random_problem((2, 3, 14), j_shape=(2, 1), mask=mask, scale=0.2, dtype=dtype))


def test_wide_weights_are_contracted_in_blocks(monkeypatch):
    from samplers.exact import gemm

    monkeypatch.setattr(gemm, "_WIDE", 8)
    monkeypatch.setattr(gemm, "_ROWS", 48)
    assert_matches_enumeration(random_problem((2, 3, 14), j_shape=(2, 1), scale=0.2))


@pytest.mark.parametrize("n", [6, 14])
def test_sums_that_were_not_kept_are_made_again(monkeypatch, n):
    from samplers.exact import fused, gemm

    problem = random_problem((3, n), mask="random", scale=0.2)
    results = []
    for kept in (2**26, 0):
        monkeypatch.setattr(fused, "_KEPT_BYTES", kept)
        monkeypatch.setattr(gemm, "_KEPT_BLOCKS", kept)
        monkeypatch.setattr(gemm, "_KEPT_WEIGHTS", kept)
        m = get_sampler("exact").magnetization(problem)
        # Twice: the first backward pass must leave what it was given as it was.
        for _ in range(2):
            results.append(torch.autograd.grad((m**2).sum(), leaves(problem), retain_graph=True))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("n", [6, 14])
def test_fields_alone_have_the_same_gradient(n):
    problem = random_problem((2, n), scale=0.2)
    alone = IsingProblem(problem.fields, problem.couplings.detach())
    sampler = get_sampler("exact")
    (expected, _) = torch.autograd.grad((sampler.magnetization(problem) ** 2).sum(), leaves(problem))
    (got,) = torch.autograd.grad((sampler.magnetization(alone) ** 2).sum(), [problem.fields])
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.3, 8.0])
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_weights_by_products_are_exponentials_of_energies(n, scale, dtype):
    from samplers.exact.pair_weights import pair_gradients, pair_weights

    j = random_problem((n,), scale=scale, dtype=dtype).couplings.detach()
    table, weights = spin_table(n), torch.empty(2**n, dtype=dtype)
    peak = pair_weights(j.numpy(), 0.7, n, weights.numpy())
    energies = 0.35 * ((table @ j.double()) * table).sum(-1)
    assert float(weights.max()) <= 1 + 1e-6
    expected = (energies - peak).exp()
    torch.testing.assert_close(weights.double(), expected, rtol=TOLERANCE[dtype], atol=1e-37)
    slopes = torch.randn(2**n, generator=torch.Generator().manual_seed(1), dtype=dtype)
    gradient = torch.zeros(n, n, dtype=torch.float64)
    pair_gradients(weights.numpy(), slopes.numpy(), n, 0.7, gradient.numpy())
    truth = 0.35 * table.T @ (table * (weights * slopes).double().unsqueeze(-1))
    torch.testing.assert_close(gradient, truth.fill_diagonal_(0.0), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_causal_layers_past_one_kernel():
    assert_matches_enumeration(random_problem((2, 15, 15), mask="causal", scale=0.2))


@pytest.mark.parametrize("mask", [None, "random", "causal"])
@pytest.mark.parametrize("limits", [(0, 20), (0, 0)], ids=["products", "torch"])
def test_every_path(monkeypatch, limits, mask):
    monkeypatch.setattr(sums, "_FUSED_SPINS", limits[0])
    monkeypatch.setattr(sums, "_GEMM_SPINS", limits[1])
    for options in ({"triples": mask != "random"}, {"field": 1e4}, {"scale": 30.0, "dtype": torch.float32}):
        problem = random_problem((2, 5, 5), mask=mask, beta=0.9, **options)
        assert_matches_enumeration(problem, tolerance=1e-5 if problem.dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("mask", [None, "random", "causal"])
def test_triples(mask):
    shape = (2, 6, 6) if mask == "causal" else (4, 6)
    assert_matches_enumeration(random_problem(shape, mask=mask, triples=True))


def test_triples_without_couplings():
    problem = random_problem((3, 5), triples=True)
    alone = IsingProblem(problem.fields, triples=problem.triples)
    truth = moments(IsingProblem(problem.fields, triples=problem.triples))[0]
    torch.testing.assert_close(get_sampler("exact").magnetization(alone), truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [None, "causal", "random"])
@pytest.mark.parametrize(("field", "scale"), [(1e4, 0.5), (30.0, 12.0), (1.0, 30.0), (1e-6, 1e-6), (0.0, 30.0)])
def test_extreme_numbers(field, scale, mask, dtype):
    problem = random_problem((2, 6, 6), field=field, scale=scale, mask=mask, dtype=dtype)
    # Rounding of the inputs' sums, not of the method: energies of 1e4 have 1e-12 of it in float64.
    assert_matches_enumeration(problem, tolerance=max(TOLERANCE[dtype], 2e-16 * field * 6 * 50))


@pytest.mark.parametrize("mask", ["causal", "random", None])
def test_gradcheck(mask):
    problem = random_problem((2, 4, 4), mask=mask)
    basis = torch.stack([mask_of(t) for t in itertools.combinations(range(4), 3)]).double()
    strength = torch.tensor([0.3, -0.5, 0.2, 0.7], dtype=torch.float64)

    def value(h, j, k):
        pair = j.triu(1) + j.triu(1).mT
        one = IsingProblem(h, pair, triples=torch.einsum("t,tabc->abc", k, basis), allowed=problem.allowed)
        sampler = get_sampler("exact")
        return sampler.magnetization(one), sampler.log_partition(one)

    inputs = [problem.fields, problem.couplings, strength]
    assert torch.autograd.gradcheck(value, [t.detach().clone().requires_grad_() for t in inputs], fast_mode=True)


def mask_of(triple):
    """True at the six entries of one triple of four spins."""
    mask = torch.zeros(4, 4, 4, dtype=torch.bool)
    for p in itertools.permutations(triple):
        mask[p] = True
    return mask


def test_second_derivative_is_refused():
    problem = random_problem((3, 4))
    with pytest.raises(NotSupportedError, match="second derivatives"):
        torch.autograd.grad(get_sampler("exact").magnetization(problem).sum(), problem.fields, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_nothing_allowed(dtype):
    problem = random_problem((4, 5), dtype=dtype, mask="random", scale=20.0)
    problem.allowed[1] = False
    sampler = ExactSampler()
    m = sampler.magnetization(problem)
    assert torch.equal(m[1].detach(), torch.full((5,), -1.0, dtype=dtype))
    gradients = torch.autograd.grad(m.sum(), leaves(problem))
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    assert float(gradients[0][1].abs().max()) == 0.0
    assert abs(sampler.log_partition(problem)[1].item()) < 1e-4
    assert abs(sampler.entropy(problem)[1].item()) < 1e-9
    assert bool((sampler.sample(problem, 7).spins[1] == -1).all())
    assert bool((sampler.ground_state(problem)[1] == -1).all())


@pytest.mark.parametrize("mask", [None, "random"])
@pytest.mark.parametrize("scale", [0.5, 200.0])
def test_correlations_and_entropy(mask, scale):
    for triples in (False, True):
        problem = random_problem((3, 6), mask=mask, scale=scale, triples=triples, beta=0.8)
        other = twin(problem)
        log_p, _ = log_probabilities(other)
        entropy = -(log_p.exp() * log_p.clamp_min(-1e300)).sum(-1)
        sampler = ExactSampler()
        truth = moments(other)[1]
        got = sampler.correlations(problem)
        torch.testing.assert_close(got, truth, atol=1e-9, rtol=0)
        torch.testing.assert_close(sampler.entropy(problem), entropy, atol=1e-9, rtol=0)
        weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
        assert_same_gradients(problem, other, (got * weight).sum(), (truth * weight).sum(), 1e-8)


def test_independent_spins_of_any_number():
    h = torch.linspace(-2, 2, 60, dtype=torch.float64).requires_grad_()
    problem = IsingProblem(h, beta=1.5)
    sampler = ExactSampler()
    torch.testing.assert_close(sampler.magnetization(problem), torch.tanh(1.5 * h))
    torch.testing.assert_close(sampler.log_partition(problem), torch.log(2 * torch.cosh(1.5 * h)).sum())
    small = IsingProblem(h[:10], torch.zeros(10, 10, dtype=torch.float64), beta=1.5)
    part = IsingProblem(h[:10], beta=1.5)
    torch.testing.assert_close(sampler.entropy(part), sampler.entropy(small))
    torch.testing.assert_close(sampler.correlations(part), sampler.correlations(small))


def chi_square(sampler, problem, spins):
    log_p = log_probabilities(problem)[0].detach()
    expected = log_p.exp() * spins.shape[-2]
    counts = torch.stack([torch.bincount(index_of_spins(s), minlength=log_p.shape[-1]) for s in spins]).double()
    kept = expected > 5
    rest = ((counts * ~kept).sum(-1) - (expected * ~kept).sum(-1)) ** 2 / (expected * ~kept).sum(-1).clamp_min(1)
    statistic = ((counts - expected) ** 2 / expected.clamp_min(1e-9) * kept).sum(-1) + rest
    degrees = kept.sum(-1)
    return (statistic - degrees) / torch.sqrt(2.0 * degrees)


@pytest.mark.parametrize("scale", [0.5, 60.0])
def test_draws_follow_the_law(scale):
    problem = random_problem((4, 5), scale=scale, field=0.5 if scale < 1 else 0.02, beta=1.0)
    sampler = get_sampler("exact")
    spins = sampler.sample(problem, 16000, seed=3).spins
    assert float(chi_square(sampler, problem.detach(), spins).max()) < 5
    if scale < 1:
        wrong = IsingProblem(problem.fields.detach(), problem.couplings.detach(), beta=1.1)
        assert float(chi_square(sampler, wrong, spins).max()) > 8


def test_successive_draws_are_independent():
    problem = random_problem((2, 4), scale=0.3, field=0.2)
    spins = get_sampler("exact").sample(problem, 20000, seed=5).spins.double()
    centred = spins - spins.mean(-2, keepdim=True)
    lagged = (centred[:, 1:] * centred[:, :-1]).mean(-2) / (centred**2).mean(-2)
    assert float(lagged.abs().max()) * math.sqrt(20000) < 5


def test_draws_of_a_part_of_the_batch_are_the_same():
    problem = random_problem((4, 5), mask="random").detach()
    sampler = get_sampler("exact")
    whole = sampler.sample(problem, 50, seed=2).spins
    torch.testing.assert_close(sampler.sample(problem[2:], 50, seed=2).spins, whole[2:])
    tight = get_sampler("exact", memory_limit=0.01)
    torch.testing.assert_close(tight.sample(problem, 50, seed=2).spins, whole)
    assert bool((whole == -1)[~problem.allowed.unsqueeze(-2).expand_as(whole)].all())


@pytest.mark.parametrize("mask", [None, "random", "causal"])
def test_ground_states(mask):
    shape = (3, 6, 6)
    problem = random_problem(shape, mask=mask, scale=1.0).detach()
    best = get_sampler("exact").ground_state(problem)
    expected = ground_states(problem)
    if mask is not None:
        expected = expected.masked_fill(~problem.allowed, -1)
    assert torch.equal(best, expected)


def test_tied_ground_states_take_the_first_state():
    j = torch.tensor([[0.0, 0.1, 0.3], [0.1, 0.0, 0.2], [0.3, 0.2, 0.0]])
    best = get_sampler("exact").ground_state(IsingProblem(torch.zeros(2, 3), j))
    assert best.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("triples", [False, True])
def test_blocks_of_weights_change_nothing(triples):
    problem = random_problem((2, 3, 12), j_shape=(2, 1), scale=0.3, mask=None if triples else "random", triples=triples)
    from samplers.exact.halves import HalvesSum, Layout, compensated_fields
    from samplers.exact.sums import scaled

    inner = problem.grouped().problem
    fields, couplings, triple = scaled(inner)
    fields = compensated_fields(fields, couplings, inner.allowed)
    clamped = None if inner.allowed is None else ~inner.allowed
    results = []
    for rows in (64, 8):
        m, log_z, _ = HalvesSum.apply(fields, couplings, triple, clamped, Layout(12, 6, rows))
        gradients = torch.autograd.grad((m**2).sum() + (log_z**2).sum(), leaves(problem), retain_graph=True)
        results.append((m, log_z, *gradients))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("j_shape", [(), (3, 1, 1)])
def test_threads_change_nothing(j_shape):
    problem = random_problem((3, 50, 5, 5), j_shape=j_shape, mask="causal")
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            m = get_sampler("exact").magnetization(problem)
            results.append((m, *torch.autograd.grad((m**2).sum(), leaves(problem))))
    finally:
        torch.set_num_threads(1)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("n", [5, 14])
def test_fields_changed_before_the_backward_pass_are_noticed(n):
    problem = random_problem((2, n))
    m = get_sampler("exact").magnetization(IsingProblem(problem.fields * 1, problem.couplings))
    inner = problem.couplings
    with torch.no_grad():
        inner.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        m.sum().backward()


@pytest.mark.slow
def test_24_spins_in_blocks():
    n = 24
    problem = random_problem((64, n), scale=0.1, dtype=torch.float32)
    whole, blocks = (get_sampler("exact", memory_limit=limit).magnetization(problem) for limit in (2.0, 0.05))
    torch.testing.assert_close(whole, blocks, atol=2e-5, rtol=0)
    (gradient,) = torch.autograd.grad(blocks[:, 0].sum(), problem.fields)
    step = 1e-2
    moved = [problem.fields.detach().clone() for _ in range(2)]
    moved[0][:, 1] += step
    moved[1][:, 1] -= step
    up, down = (get_sampler("exact").magnetization(IsingProblem(h, problem.couplings.detach())) for h in moved)
    torch.testing.assert_close(gradient[:, 1], (up - down)[:, 0] / (2 * step), atol=1e-3, rtol=0)


def test_too_many_spins():
    with pytest.raises(ProblemTooLargeError, match=r"26 spins need 2\^26 states; exact allows 24"):
        get_sampler("exact").magnetization(IsingProblem(torch.zeros(26), torch.zeros(26, 26)))


def test_half_precision_and_empty_batches():
    problem = random_problem((3, 5), dtype=torch.float64)
    half = problem.to(torch.bfloat16).detach()
    m = get_sampler("exact").magnetization(half)
    assert m.dtype == torch.bfloat16
    torch.testing.assert_close(m.double(), moments(half.to(torch.float64))[0], atol=1e-2, rtol=0)
    empty = IsingProblem(torch.zeros(0, 5), torch.zeros(5, 5))
    assert get_sampler("exact").magnetization(empty).shape == (0, 5)


@pytest.mark.parametrize(("n", "scale"), [(7, 24.2), (12, 5.45)])
def test_frustrated_couplings_that_leave_single_precision_have_finite_gradients(n, scale):
    """The bound that W is divided by lies so far above its largest entry that ΣW has no inverse in float32."""
    h, j = torch.zeros(2, n, requires_grad=True), (scale * (torch.eye(n) - 1)).requires_grad_()
    weights = np.empty(1 << n, np.float32)
    pair_weights(j.detach().numpy(), 1.0, n, weights)
    assert not weights.any()
    problem = IsingProblem(h, j)
    other, slopes = twin(problem), torch.linspace(-1, 1, n)
    m = get_sampler("exact").magnetization(problem)
    assert torch.allclose(m.double(), moments(other)[0], atol=1e-5)
    (m * slopes).sum().backward()
    (moments(other)[0] * slopes).sum().backward()
    for ours, exact in zip(leaves(problem), leaves(other), strict=True):
        assert torch.allclose(ours.grad.double(), exact.grad, atol=1e-4)
