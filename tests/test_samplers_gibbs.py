"""The heat bath against enumeration, its torch twin against its kernel, and what its options promise."""

import itertools

import pytest
import torch

from samplers import InvalidOptionError, InvalidProblemError, IsingProblem, NotSupportedError, get_sampler
from samplers.enumeration import ground_states, log_probabilities, moments
from samplers.states import index_of_spins


def random_problem(
    n=7, batch=(2, 3), *, spread=0.4, seed=0, masked=False, triples=False, dtype=torch.float64, beta=0.8
):
    make = torch.Generator().manual_seed(seed)
    h = torch.randn(*batch, n, generator=make, dtype=dtype)
    a = torch.randn(batch[0], 1, n, n, generator=make, dtype=dtype) * spread
    j = torch.triu(a, 1) + torch.triu(a, 1).mT
    allowed = torch.rand(*batch, n, generator=make) > 0.3 if masked else None
    k = None
    if triples:
        raw = torch.randn(n, n, n, generator=make, dtype=dtype) * 0.3
        k = torch.zeros(n, n, n, dtype=dtype)
        for triple in itertools.combinations(range(n), 3):
            for order in itertools.permutations(triple):
                k[order] = raw[triple]
    return IsingProblem(h, j, allowed=allowed, beta=beta, triples=k)


def z_scores(problem, sampler, seed=1):
    m = sampler.magnetization(problem, seed=seed)
    exact, _ = moments(problem)
    z = (m - exact) / sampler.last_info["standard_error"].clamp_min(1e-6)
    return z if problem.allowed is None else z[problem.expanded_allowed()]


@pytest.mark.parametrize("options", [{}, {"num_temperatures": 4}, {"engine": "torch", "num_sweeps": 64}])
@pytest.mark.parametrize("masked", [False, True])
def test_magnetizations_agree_with_enumeration_within_their_error_bars(options, masked):
    problem = random_problem(batch=(12, 8), masked=masked)
    z = z_scores(problem, get_sampler("gibbs", **options))
    assert z.abs().max() < 5
    assert 0.6 < z.std() < 1.5  # the error bars are neither too small nor too large


def test_a_wrong_temperature_is_rejected():
    right, wrong = random_problem(beta=0.8), random_problem(beta=0.88)
    sampler = get_sampler("gibbs")
    exact, _ = moments(right)
    z = (sampler.magnetization(wrong) - exact) / sampler.last_info["standard_error"]
    assert z.abs().max() > 5


@pytest.mark.parametrize("temperatures", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_kernel_and_torch_twin_draw_the_same_spins(temperatures, masked):
    problem = random_problem(n=11, masked=masked)
    options = {"num_temperatures": temperatures, "burn_in": 6}
    fast = get_sampler("gibbs", engine="numba", **options).sample(problem, 40, seed=3).spins
    slow = get_sampler("gibbs", engine="torch", **options).sample(problem, 40, seed=3).spins
    assert (fast != slow).any(-1).double().mean() < 0.01  # rounding decides about once in 1e6 draws
    other = get_sampler("gibbs", engine="torch", **options).sample(problem, 40, seed=4).spins
    assert (fast != other).any(-1).double().mean() > 0.5


def test_powers_of_two_are_asked_for():
    with pytest.raises(InvalidOptionError, match="power of two"):
        get_sampler("gibbs", num_temperatures=3)


def law_chi_square(problem, spins):
    """χ² of draws (reads, n) against the enumerated law, per degree of freedom's standard deviation."""
    p = log_probabilities(problem)[0].exp()
    counts = torch.bincount(index_of_spins(spins), minlength=len(p)).double()
    expected = p * len(spins)
    rare = expected < 8
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    freedom = len(expected) - 1
    return float((((observed - expected) ** 2 / expected.clamp_min(1e-9)).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("options", [{}, {"num_temperatures": 2}, {"thinning": 25, "num_chains": 256}])
def test_draws_follow_the_law_and_a_wrong_beta_does_not(options):
    problem = random_problem(n=6, batch=(1, 1))[0, 0]
    spins = get_sampler("gibbs", **options).sample(problem, 16000, seed=5).spins
    assert abs(law_chi_square(problem, spins)) < 4.5
    assert law_chi_square(IsingProblem(problem.fields, problem.couplings, beta=0.88), spins) > 6


def test_three_body_terms_enter_the_law():
    problem = random_problem(n=5, batch=(1, 1), triples=True)
    sampler = get_sampler("gibbs", burn_in=16)
    spins = sampler.sample(problem, 4000, seed=2).spins
    assert abs(law_chi_square(problem[0, 0], spins[0, 0])) < 4.5
    without = IsingProblem(problem.fields, problem.couplings, beta=problem.beta)
    assert law_chi_square(without[0, 0], spins[0, 0]) > 6
    with pytest.raises(NotSupportedError, match="torch"):
        get_sampler("gibbs", engine="numba").sample(problem, 10)


@pytest.mark.parametrize("seed", [0, 1, 2, 399])
def test_small_seeds_give_independent_reads(seed):
    free = IsingProblem(torch.zeros(40, 6))
    spins = get_sampler("gibbs", burn_in=1).sample(free, 1000, seed=seed).spins
    distinct = [len(torch.unique(row, dim=0)) for row in spins]
    assert min(distinct) == 64
    assert (spins.double().mean(1).abs() < 5 / 1000**0.5).all()
    assert abs(float(spins[:, :, 0].double().mean())) < 5 / 40000**0.5
    flat = spins.double().flatten(1)
    assert (torch.corrcoef(flat) - torch.eye(40)).abs().max() < 5.5 / 6000**0.5


def test_first_reads_of_successive_seeds_are_unrelated():
    free = IsingProblem(torch.zeros(1))
    sampler = get_sampler("gibbs", burn_in=1)
    first = torch.stack([sampler.sample(free, 1, seed=s).spins.flatten() for s in range(100)]).double().flatten()
    assert abs(float(first.mean())) < 5 / 10
    assert abs(float((first[1:] * first[:-1]).mean())) < 5 / 10


@pytest.mark.parametrize("options", [{}, {"num_temperatures": 4}, {"thinning": 2, "num_chains": 8}])
def test_splitting_a_batch_changes_nothing(options):
    problem = random_problem(n=13, batch=(2, 9), masked=True)
    sampler = get_sampler("gibbs", burn_in=8, **options)
    whole = sampler.sample(problem, 24, seed=7).spins
    rows = [sampler.sample(problem[:, i : i + 1], 24, seed=7).spins for i in range(9)]
    assert torch.equal(whole, torch.cat(rows, 1))
    assert torch.equal(whole[1, 4], sampler.sample(problem[1, 4], 24, seed=7).spins)
    fewer = sampler.sample(problem, 16, seed=7).spins
    assert torch.equal(whole[..., :16, :], fewer)


def test_the_number_of_threads_changes_nothing():
    problem = random_problem(n=9, batch=(3, 40))
    sampler, threads = get_sampler("gibbs", num_sweeps=16), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(sampler.magnetization(problem, seed=3))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_causal_layer_agrees_with_enumeration():
    n = 10
    inner = random_problem(n=n, batch=(2, n))
    problem = IsingProblem(inner.fields, inner.couplings, allowed=torch.ones(n, n, dtype=torch.bool).tril(), beta=0.8)
    assert problem.is_causal
    assert z_scores(problem, get_sampler("gibbs")).abs().max() < 5
    assert (get_sampler("gibbs").magnetization(problem)[:, 0, 1:] == -1).all()


def test_ends_of_the_range():
    sampler = get_sampler("gibbs", num_sweeps=8, burn_in=4)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert sampler.magnetization(IsingProblem(torch.tensor([1.0], dtype=dtype))).dtype == dtype
    one = sampler.magnetization(IsingProblem(torch.tensor([1.0])))
    torch.testing.assert_close(one, torch.tensor([1.0]).tanh(), rtol=0, atol=1e-5)
    strong = sampler.magnetization(IsingProblem(torch.tensor([1e4, -1e4, 1e14, -1e14, 0.0])))
    torch.testing.assert_close(strong, torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0]), rtol=0, atol=1e-5)
    nobody = IsingProblem(torch.randn(2, 3), allowed=torch.zeros(2, 3, dtype=torch.bool))
    assert (sampler.magnetization(nobody) == -1).all()
    assert (sampler.sample(nobody, 4).spins == -1).all()


def test_a_long_banded_chain_skips_its_empty_blocks():
    n = 300
    j = torch.diag(torch.full((n - 1,), 0.4), 1)
    problem = IsingProblem(torch.zeros(1, n), j + j.mT)
    samples = get_sampler("gibbs").sample(problem, 2000)
    neighbours = (samples.spins[0, :, 1:] * samples.spins[0, :, :-1]).double().mean()
    # An open chain at h = 0 has ⟨s_k s_k+1⟩ = tanh J, independently for every bond.
    assert abs(float(neighbours) - float(torch.tensor(0.4).tanh())) < 5 / (2000 * (n - 1)) ** 0.5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("triples", [False, True])
def test_covariance_gradients_are_unbiased(masked, triples):
    repeats, n = (24 if triples else 100), 4
    one = random_problem(n=n, batch=(2, 3), masked=masked, triples=triples)
    leaves = [one.fields, one.couplings] + ([one.triples] if triples else [])
    leaves = [t.clone().requires_grad_() for t in leaves]
    pull = torch.randn(2, 3, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if masked:
        pull = pull * one.allowed
    parts = {"allowed": one.allowed, "beta": one.beta}

    def problem():
        return IsingProblem(leaves[0], leaves[1], triples=leaves[2] if triples else None, **parts)

    exact = torch.autograd.grad((moments(problem())[0] * pull).sum(), leaves)
    sampler = get_sampler("gibbs", num_chains=4, num_reads=16, num_sweeps=16, burn_in=24)
    draws = [torch.autograd.grad((sampler.magnetization(problem()) * pull).sum(), leaves) for _ in range(repeats)]
    for each, truth in zip(zip(*draws, strict=True), exact, strict=True):
        values = torch.stack(each)
        if truth.ndim == 3 and truth.shape[0] == n:
            truth = torch.where(one.triples != 0, truth, 0.0)  # K has no entries with equal indices
        if truth.ndim > 3:  # full tensors: ours is symmetric, autograd of an enumeration is too
            torch.testing.assert_close(values, values.transpose(-1, -2))
        error = values.std(0) / repeats**0.5
        z = (values.mean(0) - truth)[error > 1e-12] / error[error > 1e-12]
        assert z.abs().max() < 5
        assert (truth[error <= 1e-12].abs() < 1e-9).all()
        assert ((2 * values.mean(0) - truth) / error.clamp_min(1e-12)).abs().max() > 5  # the test has power


def test_gradients_do_not_depend_on_how_they_are_cut_into_chunks(monkeypatch):
    from samplers.gibbs import gradient

    one = random_problem(n=6, batch=(5, 7), masked=True)

    def gradients():
        leaves = [one.fields.clone().requires_grad_(), one.couplings.clone().requires_grad_()]
        problem = IsingProblem(leaves[0], leaves[1], allowed=one.allowed)
        sampler = get_sampler("gibbs", num_chains=4, num_reads=8, num_sweeps=8)
        return torch.autograd.grad((sampler.magnetization(problem) ** 2).sum(), leaves)

    whole = gradients()
    for numbers in (1, 3 * 8 * 6, 20 * 8 * 6):  # one problem, three of a group, two groups at a time
        monkeypatch.setattr(gradient, "_CHUNK", numbers)
        torch.testing.assert_close(gradients(), whole)


def test_without_couplings_gradients_are_those_of_tanh():
    h = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    sampler = get_sampler("gibbs", num_reads=8, num_chains=4, num_sweeps=4)
    (gradient,) = torch.autograd.grad(sampler.magnetization(IsingProblem(h)).sum(), h)
    torch.testing.assert_close(gradient, 1 - h.detach().tanh() ** 2)


def test_second_derivatives_are_refused():
    h = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    m = get_sampler("gibbs", num_sweeps=4).magnetization(IsingProblem(h))
    with pytest.raises(NotSupportedError, match="create_graph"):
        torch.autograd.grad(m.sum(), h, create_graph=True)


def test_other_gradients_are_declared():
    h = torch.randn(3, dtype=torch.float64, requires_grad=True)
    surrogate = get_sampler("gibbs", gradient="straight-through", num_sweeps=4)
    (gradient,) = torch.autograd.grad(surrogate.magnetization(IsingProblem(h)).sum(), h)
    torch.testing.assert_close(gradient, 1 - h.detach().tanh() ** 2, rtol=0, atol=1e-5)
    assert surrogate.capabilities.gradient == "straight-through"
    assert not get_sampler("gibbs", gradient="none").magnetization(IsingProblem(h)).requires_grad
    with pytest.raises(NotSupportedError, match="num_chains"):
        get_sampler("gibbs", num_chains=1).magnetization(IsingProblem(h))


def test_tolerance_runs_until_it_is_met_or_says_that_it_was_not():
    problem = random_problem(batch=(2, 2))
    loose, tight = get_sampler("gibbs", tolerance=0.02), get_sampler("gibbs", tolerance=0.002)
    loose.magnetization(problem)
    m = tight.magnetization(problem)
    assert loose.last_info["tolerance_reached"]
    assert tight.last_info["tolerance_reached"]
    assert tight.last_info["sweeps"] > 4 * loose.last_info["sweeps"]
    assert (m - moments(problem)[0]).pow(2).mean().sqrt() < 0.004
    hopeless = get_sampler("gibbs", tolerance=1e-4, max_sweeps=256)
    with pytest.warns(UserWarning, match="max_sweeps"):
        hopeless.magnetization(problem)
    hopeless.magnetization(problem)  # said once
    assert not hopeless.last_info["tolerance_reached"]
    assert hopeless.last_info["sweeps"] == 256


def test_tolerance_spends_sweeps_where_they_are_needed():
    problem = random_problem(batch=(4, 8), spread=0.5)
    sampler = get_sampler("gibbs", tolerance=0.004, num_sweeps=32)
    whole = sampler.magnetization(problem, seed=2)
    assert 64 < sampler.last_info["mean_sweeps"] < 0.7 * sampler.last_info["sweeps"]
    parts = [sampler.magnetization(problem[i : i + 1], seed=2) for i in range(4)]
    assert torch.equal(whole, torch.cat(parts))
    twin = get_sampler("gibbs", tolerance=0.02, num_sweeps=16, num_chains=16, engine="torch")
    fast = get_sampler("gibbs", tolerance=0.02, num_sweeps=16, num_chains=16, engine="numba")
    torch.testing.assert_close(
        twin.magnetization(problem[:2], seed=3), fast.magnetization(problem[:2], seed=3), rtol=0, atol=0.02
    )
    assert twin.last_info["mean_sweeps"] == pytest.approx(fast.last_info["mean_sweeps"], rel=0.02)


def test_tempering_crosses_a_barrier_that_one_temperature_does_not():
    n = 12
    j = torch.full((n, n), 0.5, dtype=torch.float64).fill_diagonal_(0)
    problem = IsingProblem(torch.full((n,), 0.02, dtype=torch.float64), j)
    exact, _ = moments(problem)
    options = {"num_sweeps": 512, "burn_in": 4, "anneal": False}
    tempered = get_sampler("gibbs", num_temperatures=8, hottest=0.05, **options)
    error = (tempered.magnetization(problem) - exact).abs().max()
    assert error < 5 * tempered.last_info["max_standard_error"]
    assert tempered.last_info["max_standard_error"] < 0.04
    assert min(tempered.last_info["exchange_acceptance"]) > 0.05
    plain = get_sampler("gibbs", **options)
    plain.magnetization(problem)
    assert plain.last_info["max_rhat"] > 2 > 1.2 > tempered.last_info["max_rhat"]


def test_persistent_chains_go_on_and_resume_exactly():
    problem = random_problem(n=8)
    first = get_sampler("gibbs", persistent=True, num_sweeps=16, seed=3)
    once, twice = first.magnetization(problem), first.magnetization(problem)
    assert not torch.equal(once, twice)
    state = first.state_dict()
    third = first.magnetization(problem)
    resumed = get_sampler("gibbs", persistent=True, num_sweeps=16, seed=3)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.magnetization(problem), third)
    # A call with its own seed leaves the chains where they are.
    first.load_state_dict(state)
    seeded = first.magnetization(problem, seed=9)
    assert torch.equal(seeded, get_sampler("gibbs", num_sweeps=16).magnetization(problem, seed=9))
    assert torch.equal(first.magnetization(problem), third)
    first.load_state_dict(state)
    with first.seeded(5):
        first.magnetization(problem)
    assert torch.equal(first.magnetization(problem), third)
    with pytest.raises(InvalidProblemError, match="persistent"):
        get_sampler("gibbs").load_state_dict(state)


def test_ground_states_are_found():
    problem = random_problem(n=12, batch=(4, 6), spread=1.0, masked=True)
    found = get_sampler("gibbs").ground_state(problem)
    best = problem.energy(ground_states(problem).unsqueeze(-2))
    torch.testing.assert_close(problem.energy(found.unsqueeze(-2)), best)
    scaled = IsingProblem(1e-3 * problem.fields, 1e-3 * problem.couplings, allowed=problem.allowed, beta=40.0)
    assert torch.equal(get_sampler("gibbs").ground_state(scaled), found)


def test_no_global_generator_is_read_or_moved():
    problem = random_problem()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = get_sampler("gibbs").magnetization(problem)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(get_sampler("gibbs").magnetization(problem), one)
