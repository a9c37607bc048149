"""The band backend against enumeration, the exact backend and itself: values, gradients, range, masks, draws."""

import math

import pytest
import torch

from samplers import InvalidProblemError, IsingProblem, NotSupportedError, ProblemTooLargeError, get_sampler
from samplers.band import BandSampler, fused, scan
from samplers.band.chain import band_of, chain_of
from samplers.conformance.statistics import chi_square_p
from samplers.enumeration import ground_states, log_probabilities, moments


def banded(n, width, generator, *, scale=0.5, lead=()):
    """Gaussian couplings (*lead, n, n) within the band."""
    a = scale * torch.randn(*lead, n, n, generator=generator, dtype=torch.float64)
    upper = a.triu(1) - a.triu(width + 1)
    return upper + upper.mT


def band_problem(
    *batch, n, width, seed=0, lead=(), scale=0.5, field=1.0, mask=None, beta=0.9, dtype=torch.float64, gradient=False
):
    generator = torch.Generator().manual_seed(seed)
    h = field * torch.randn(*batch, n, generator=generator, dtype=torch.float64)
    j = banded(n, width, generator, scale=scale, lead=lead)
    allowed = None
    if mask == "causal":
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
    elif mask == "window":
        allowed = torch.ones(n, n, dtype=torch.bool).tril().triu(-n // 2)
    elif mask == "random":
        allowed = torch.rand(*batch, n, generator=generator) < 0.6
    h, j = h.to(dtype).requires_grad_(gradient), j.to(dtype).requires_grad_(gradient)
    return IsingProblem(h, j, allowed=allowed, beta=beta)


def masked(problem, values):
    return values if problem.allowed is None else torch.where(problem.allowed, values, -1.0)


CASES = [
    {"batch": (3,), "n": 7, "width": 2},
    {"batch": (3,), "n": 8, "width": 3},
    {"batch": (2,), "n": 9, "width": 8},
    {"batch": (2, 2), "n": 6, "width": 1, "lead": (2, 1)},
    {"batch": (2, 3), "n": 7, "width": 3, "lead": (2, 3)},
    {"batch": (2, 8), "n": 8, "width": 3, "lead": (2, 1), "mask": "causal"},
    {"batch": (9,), "n": 9, "width": 2, "mask": "window"},
    {"batch": (5, 8), "n": 8, "width": 3, "mask": "random"},
    {"batch": (5, 8), "n": 8, "width": 3, "mask": "random", "lead": (5, 1)},
    {"batch": (5, 3), "n": 8, "width": 4, "mask": "random", "lead": (5, 3)},
    {"batch": (2,), "n": 12, "width": 5},
]


def problem_of(case, **more):
    return band_problem(*case["batch"], **{k: v for k, v in case.items() if k != "batch"}, **more)


def name_of(case):
    return "-".join(str(v).replace(" ", "") for v in case.values())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_values_and_gradients_equal_enumeration(case):
    problem = problem_of(case, gradient=True)
    sampler = get_sampler("band", width=case["width"])
    log_z = log_probabilities(problem)[1]
    mean = masked(problem, moments(problem)[0])
    weight = torch.randn(mean.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found, found_log_z = sampler.magnetization(problem), sampler.log_partition(problem)
    torch.testing.assert_close(found, mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(found_log_z, log_z, atol=1e-11, rtol=0)
    leaves = [problem.fields, problem.couplings]
    for mine, true in (((found * weight).sum(), (mean * weight).sum()), (found_log_z.sum(), log_z.sum())):
        got = torch.autograd.grad(mine, leaves, retain_graph=True)
        expected = list(torch.autograd.grad(true, leaves, retain_graph=True))
        # Enumeration differentiates beyond the band and on the diagonal as well.
        inside = problem.couplings.new_ones(expected[1].shape[-2:]).triu(-case["width"]).tril(case["width"])
        expected[1] = (expected[1] * inside.fill_diagonal_(0)).detach()
        torch.testing.assert_close(got[0], expected[0], atol=1e-11, rtol=0)
        torch.testing.assert_close(got[1], expected[1], atol=1e-11, rtol=0)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_pairs_equal_enumeration(case):
    problem, w = problem_of(case), case["width"]
    sampler = get_sampler("band", width=w)
    assert isinstance(sampler, BandSampler)
    expected = moments(problem)[1]
    torch.testing.assert_close(sampler.correlations(problem), expected, atol=1e-11, rtol=0)
    pairs = sampler.pair_correlations(problem)
    for d in range(1, w + 1):
        torch.testing.assert_close(pairs[..., d:, d - 1], expected.diagonal(-d, -2, -1), atol=1e-12, rtol=0)
        assert (pairs[..., :d, d - 1] == 0).all()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_ground_states_equal_enumeration(case):
    problem = problem_of(case)
    assert torch.equal(get_sampler("band").ground_state(problem), ground_states(problem))


def test_ties_of_ground_states_are_decided_as_by_enumeration():
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(-1, 2, (200, 7), generator=generator).double()
    a = torch.randint(-1, 2, (7, 7), generator=generator).double()
    upper = a.triu(1) - a.triu(3)
    problem = IsingProblem(h, upper + upper.mT)
    assert torch.equal(get_sampler("band").ground_state(problem), ground_states(problem))


@pytest.mark.parametrize("n, width", [(4, 3), (6, 2), (6, 4)])
def test_draws_follow_the_law(n, width):
    problem = band_problem(2, n=n, width=width, scale=0.8)
    samples = get_sampler("band").sample(problem, 20_000, seed=3)
    law = log_probabilities(problem)[0].exp()
    assert chi_square_p(samples, law) > 1e-6
    wrong = log_probabilities(problem._rebuilt(beta=1.1 * problem.beta))[0].exp()
    assert chi_square_p(samples, wrong) < 1e-6


def test_draws_do_not_depend_on_the_split_of_the_batch():
    problem = band_problem(5, n=30, width=3)
    sampler = get_sampler("band")
    whole = sampler.sample(problem, 7, seed=1).spins
    assert torch.equal(sampler.sample(problem[3:], 7, seed=1).spins, whole[3:])
    assert torch.equal(get_sampler("band", memory_limit=0.01).sample(problem, 7, seed=1).spins, whole)


def test_long_chains_agree_with_closed_forms():
    # An open chain without fields: ⟨s_i s_j⟩ = tanh(J)^|i−j|, Z = 2 (2 cosh J)^(n−1).
    n, pair = 1024, torch.tensor(0.7, dtype=torch.float64)
    j = torch.diag_embed(pair.expand(n - 1), 1) + torch.diag_embed(pair.expand(n - 1), -1)
    sampler, h = get_sampler("band"), torch.zeros(1, n, dtype=torch.float64)
    expected = math.log(2) + (n - 1) * (2 * pair.cosh()).log()
    torch.testing.assert_close(sampler.log_partition(IsingProblem(h, j))[0], expected, atol=1e-9, rtol=0)
    h[0, 0] = 1e3
    m = sampler.magnetization(IsingProblem(h, j))[0]
    torch.testing.assert_close(m, pair.tanh() ** torch.arange(n), atol=1e-12, rtol=0)


def test_width_is_checked():
    problem = band_problem(2, n=9, width=5)
    with pytest.raises(InvalidProblemError, match=r"reach 5 spins far.*width=3"):
        get_sampler("band", width=3).magnetization(problem)
    with pytest.raises(ProblemTooLargeError, match=r"reach 14 spins far.*'gibbs'"):
        get_sampler("band").magnetization(band_problem(2, n=20, width=14))


def test_couplings_of_zero_are_trained_within_a_given_width():
    j = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
    h = torch.linspace(0.5, 1, 6, dtype=torch.float64)
    get_sampler("band", width=2).magnetization(IsingProblem(h, j)).sum().backward()
    assert j.grad is not None
    with pytest.raises(InvalidProblemError, match="all couplings are 0.*width=4"):
        get_sampler("band").magnetization(IsingProblem(h, j))
    assert all((j.grad.diagonal(d) != 0).all() for d in (-2, -1, 1, 2))
    assert (j.grad.diagonal(3) == 0).all()


def test_twin_of_the_kernels_is_twice_differentiable():
    problem = band_problem(2, n=5, width=2)

    def mean(h):
        return scan.sums(chain_of(problem._rebuilt(fields=h).grouped().problem, 2))[0]

    h = problem.fields.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(mean, (h,))


LONG_CASES = [
    {"batch": (70,), "n": 41, "width": 3},
    {"batch": (3, 40), "n": 23, "width": 5, "lead": (3, 1), "mask": "random"},
    {"batch": (40,), "n": 40, "width": 4, "mask": "causal"},
    {"batch": (40,), "n": 40, "width": 4, "mask": "window"},
    {"batch": (21, 2), "n": 19, "width": 4, "lead": (21, 1)},
    {"batch": (21, 2), "n": 19, "width": 4, "lead": (21, 2), "mask": "random"},
]


def with_gradients(values, leaves):
    weight = torch.randn(values.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return [values, *torch.autograd.grad((values * weight.to(values.dtype)).sum(), leaves)]


def by_twin(problem, width, which):
    grouped = problem.to(dtype=torch.float64).grouped()
    values = grouped.restore(scan.sums(chain_of(grouped.problem, width))[which])
    return masked(problem, values) if which == 0 else values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", LONG_CASES, ids=name_of)
def test_compiled_sums_equal_the_twin(case, dtype):
    problem, w = problem_of(case, gradient=True, dtype=dtype), case["width"]
    sampler, leaves = get_sampler("band", width=w), [problem.fields, problem.couplings]
    for which, found in enumerate((sampler.magnetization(problem), sampler.log_partition(problem))):
        assert found.dtype == dtype
        close = 1e-11 if dtype == torch.float64 else 2e-6
        for mine, true in zip(
            with_gradients(found, leaves), with_gradients(by_twin(problem, w, which), leaves), strict=True
        ):
            # Gradients of J are sums over all queries.
            scale = max(1.0, float(true.detach().abs().max()))
            torch.testing.assert_close(mine.double(), true.double(), atol=close * scale, rtol=0)


def test_equals_the_exact_backend():
    problem = band_problem(6, n=16, width=7, gradient=True)
    leaves = [problem.fields, problem.couplings]
    inside = torch.ones(16, 16, dtype=torch.float64).triu(-7).tril(7)
    for method in ("magnetization", "log_partition"):
        mine, true = (with_gradients(getattr(get_sampler(name), method)(problem), leaves) for name in ("band", "exact"))
        true[2] = true[2] * inside
        for a, b in zip(mine, true, strict=True):
            torch.testing.assert_close(a, b, atol=1e-11, rtol=0)


def test_long_chains_stay_accurate_in_float32():
    problem = band_problem(3, n=1024, width=4, gradient=True, dtype=torch.float32)
    double = problem.detach().to(dtype=torch.float64)
    double.fields.requires_grad_(), double.couplings.requires_grad_()
    sampler = get_sampler("band")
    # A loss that grows with the length: tangents must not.
    results = []
    for p in (problem, double):
        m = sampler.magnetization(p)
        results.append([m, *torch.autograd.grad(m.sum(), [p.fields, p.couplings])])
    for single, true in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), true, atol=5e-6, rtol=0)
    torch.testing.assert_close(results[0][0].double(), results[1][0], atol=2e-6, rtol=0)


@pytest.mark.parametrize("field", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("scale", [0.1, 4.0, 30.0, 300.0])
def test_any_strength_is_summed_right_in_float32(scale, field):
    """Weak couplings are summed in float32, 4.0 in float64, and 300 in log space."""
    problem = band_problem(20, n=12, width=4, scale=scale, field=field, dtype=torch.float32, gradient=True)
    leaves = [problem.fields, problem.couplings]
    mine = with_gradients(get_sampler("band", width=4).magnetization(problem), leaves)
    true = with_gradients(by_twin(problem, 4, 0), leaves)
    for a, b in zip(mine, true, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b.float(), atol=3e-6, rtol=1e-5)


def test_room_tells_the_dtypes_apart():
    rooms = []
    for scale in (0.1, 4.0, 300.0):
        inner = band_problem(1, n=12, width=4, scale=scale).grouped().problem
        rooms.append([fused.room(band_of(inner, 4), t) >= fused.LEAST_ROOM for t in (torch.float32, torch.float64)])
    assert rooms == [[True, True], [False, True], [False, False]]


def test_frustrated_couplings_at_the_edge_of_float32():
    # The first messages are all but certain of what the last field overturns.
    n, w = 12, 3
    j = torch.zeros(n, n)
    for d in range(1, w + 1):
        j += torch.diag_embed(torch.full((n - d,), 2.3), d) + torch.diag_embed(torch.full((n - d,), 2.3), -d)
    h = torch.full((1, n), -1.0)
    h[:, -1] = 40.0
    problem = IsingProblem(h, j)
    inner = problem.grouped().problem
    assert fused.room(band_of(inner, w), torch.float32) >= fused.LEAST_ROOM
    found = get_sampler("band").magnetization(problem)
    torch.testing.assert_close(found, moments(problem.to(dtype=torch.float64))[0].float(), atol=2e-6, rtol=0)


def test_threads_and_splits_change_nothing():
    problem = band_problem(150, n=20, width=3)
    sampler = get_sampler("band", width=3)
    one = sampler.magnetization(problem)
    torch.testing.assert_close(sampler.magnetization(problem[100:]), one[100:], atol=1e-14, rtol=0)
    try:
        torch.set_num_threads(2)
        torch.testing.assert_close(sampler.magnetization(problem), one, atol=1e-14, rtol=0)
    finally:
        torch.set_num_threads(1)


def test_denormal_numbers_are_left_as_they_were():
    tiny = torch.tensor([1e-40])
    get_sampler("band").magnetization(band_problem(2, n=5, width=2, dtype=torch.float32))
    assert float((tiny * 1.0)[0]) > 0


def test_second_derivatives_are_refused():
    problem = band_problem(2, n=5, width=2, gradient=True)
    m = get_sampler("band").magnetization(problem)
    with pytest.raises(NotSupportedError, match="create_graph"):
        torch.autograd.grad(m.sum(), problem.fields, create_graph=True)


def test_a_call_in_inference_mode_leaves_training_alone():
    problem = band_problem(2, n=11, width=4, gradient=True)
    sampler = get_sampler("band")
    with torch.inference_mode():
        m = sampler.magnetization(problem)
    again = sampler.magnetization(problem)
    again.sum().backward()
    assert torch.equal(m, again) and problem.couplings.grad is not None


def test_one_spin_needs_no_width():
    """A sequence of one token has couplings of shape (1, 1): 0, and trained like any others."""
    couplings = torch.zeros(1, 1, requires_grad=True)
    m = get_sampler("band").magnetization(IsingProblem(torch.ones(3, 1), couplings))
    assert torch.allclose(m, torch.tanh(torch.ones(3, 1)))
    m.sum().backward()
    assert couplings.grad is not None and not couplings.grad.any()
