"""Simulated annealing: the requested law, the kernel against its readable twin, seeds, masks and ground states."""

import math

import numpy as np
import pytest
import torch

from samplers import IsingProblem, get_sampler
from samplers.annealing import AnnealingSampler
from samplers.annealing_kernel import AnnealTask, anneal_through_dimod, run_anneals
from samplers.dimod_bridge.laws import anneal_schedule, cooling_schedule
from samplers.enumeration import ground_states, moments
from samplers.errors import InvalidOptionError, NotSupportedError


def random_problem(*shape: int, seed: int = 0, sigma: float = 0.4, beta: float = 1.0, **kwargs) -> IsingProblem:
    generator = torch.Generator().manual_seed(seed)
    n = shape[-1]
    a = torch.randn(n, n, generator=generator, dtype=torch.float64) * sigma
    couplings = (a + a.mT).fill_diagonal_(0) / math.sqrt(2)
    fields = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return IsingProblem(fields, couplings, beta=beta, **kwargs)


def grad_of(leaf: torch.Tensor) -> torch.Tensor:
    assert leaf.grad is not None
    return leaf.grad


def chi_square(problem: IsingProblem, law: IsingProblem, *, reads: int = 3000, **options) -> float:
    """Wald statistic of the sampled first moments of `problem` against those of `law`, as a z-score."""
    samples = AnnealingSampler(**options).sample(problem, reads)
    mean, second = moments(law)
    covariance = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    gap = samples.magnetization() - mean
    statistic = reads * float((gap * torch.linalg.solve(covariance, gap.unsqueeze(-1)).squeeze(-1)).sum())
    return (statistic - gap.numel()) / math.sqrt(2 * gap.numel())


def test_sign_of_one_spin():
    samples = get_sampler("annealing", workers=1).sample(IsingProblem(torch.ones(1)), 20_000)
    up = float((samples.spins == 1).double().mean())
    assert abs(up - 0.8808) < 5 * math.sqrt(0.8808 * 0.1192 / 20_000)


def test_sign_of_couplings():
    couplings = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, -0.5], [0.0, -0.5, 0.0]])
    samples = AnnealingSampler().sample(IsingProblem(torch.zeros(3), couplings), 20_000)
    pairs = samples.correlations()
    assert abs(float(pairs[0, 1]) - math.tanh(1.0)) < 0.03
    assert abs(float(pairs[1, 2]) - math.tanh(-0.5)) < 0.03


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("randomize_order", [False, True])
def test_moments_follow_the_law(beta: float, randomize_order: bool):
    problem = random_problem(10, 5, beta=beta)
    options = {"num_sweeps": 160 if randomize_order else 48, "randomize_order": randomize_order}
    assert chi_square(problem, problem, **options) < 5


def test_a_wrong_temperature_or_sign_is_noticed():
    problem = random_problem(20, 6)
    hotter = random_problem(20, 6, beta=0.9)
    flipped = IsingProblem(-problem.fields, problem.couplings)
    assert chi_square(problem, hotter) > 10
    assert chi_square(problem, flipped) > 100


def test_scaling_fields_and_couplings_is_scaling_beta():
    problem = random_problem(3, 5, beta=1.0)
    doubled = IsingProblem(2 * problem.fields, 2 * problem.couplings, beta=0.5)
    sampler = AnnealingSampler()
    assert torch.equal(sampler.sample(problem, seed=3).spins, sampler.sample(doubled, seed=3).spins)


@pytest.mark.parametrize("randomize_order", [False, True])
def test_kernel_gives_the_reads_of_the_dimod_sampler(randomize_order: bool):
    generator = torch.Generator().manual_seed(4)
    n, reads = 7, 12
    states = (2 * torch.randint(0, 2, (reads, n), generator=generator) - 1).to(torch.int8).numpy()
    rows, columns = torch.triu_indices(n, n, 1).tolist()
    values = torch.randn(len(rows), generator=generator).tolist()
    linear = torch.randn(n, generator=generator).tolist()
    schedule = anneal_schedule(10, 0.5)
    tasks = [
        AnnealTask(linear, (rows, columns, values), schedule, 1234567, states.copy(), randomize_order) for _ in range(2)
    ]
    run_anneals(tasks[:1], workers=1)
    anneal_through_dimod(tasks[1])
    assert (tasks[0].states == tasks[1].states).all()
    assert (tasks[0].states != states).any()


def test_twin_steps_in_where_the_kernel_is_absent(monkeypatch: pytest.MonkeyPatch):
    problem = random_problem(2, 4)
    expected = AnnealingSampler().sample(problem, 20, seed=1).spins
    monkeypatch.setattr("samplers.annealing_kernel._kernel", lambda: None)
    assert torch.equal(AnnealingSampler().sample(problem, 20, seed=1).spins, expected)


def test_threads_and_batch_splits_change_nothing():
    problem = random_problem(40, 5)
    whole = AnnealingSampler(workers=1).sample(problem, 30, seed=9).spins
    assert torch.equal(AnnealingSampler(workers=3).sample(problem, 30, seed=9).spins, whole)
    parts = [AnnealingSampler(workers=2).sample(problem[i : i + 16], 30, seed=9).spins for i in range(0, 40, 16)]
    assert torch.equal(torch.cat(parts), whole)


def test_more_reads_begin_with_the_fewer():
    problem = random_problem(3, 5)
    few, many = (AnnealingSampler().sample(problem, reads, seed=9).spins for reads in (10, 25))
    assert torch.equal(many[:, :10], few)


@pytest.mark.parametrize("num_sweeps", [1, 3, 8])
def test_small_seeds_are_as_good_as_any(num_sweeps: int):
    """One spin, one read per seed: dwave-samplers' own small seeds all give one answer here."""
    sampler = AnnealingSampler(num_sweeps=num_sweeps, workers=1)
    problem = IsingProblem(torch.tensor([[0.0], [1.0]]))
    spins = torch.stack([sampler.sample(problem, 1, seed=seed).spins.flatten() for seed in range(200)])
    free, biased = spins.double().mean(0).tolist()
    assert abs(free) < 5 / math.sqrt(200)
    assert abs(biased - math.tanh(1)) < 5 * math.sqrt((1 - math.tanh(1) ** 2) / 200)


def test_equal_problems_of_a_batch_get_different_reads():
    spins = AnnealingSampler().sample(IsingProblem(torch.zeros(3, 6)), 64, seed=7).spins
    assert not torch.equal(spins[0], spins[1])
    assert len(spins[0].unique(dim=0)) > 30


def test_free_spins_in_fixed_order_are_fair():
    spins = AnnealingSampler(num_sweeps=51).sample(IsingProblem(torch.zeros(2)), 2000, seed=2).spins
    assert float(spins.double().mean(0).abs().max()) < 5 / math.sqrt(2000)


def test_fixed_seed_repeats_and_global_generators_stay():
    problem = random_problem(3, 5)
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    first, second = (AnnealingSampler().magnetization(problem, seed=5) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert (numpy_before == np.random.get_state(legacy=False)["state"]["key"]).all()  # noqa: NPY002


def test_successive_calls_differ_and_resume():
    sampler, problem = AnnealingSampler(seed=3), random_problem(3, 5)
    first, state = sampler.magnetization(problem), sampler.state_dict()
    second = sampler.magnetization(problem)
    assert not torch.equal(first, second)
    resumed = AnnealingSampler(seed=3)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.magnetization(problem), second)


def test_causal_mask_against_enumeration():
    n = 6
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    problem = random_problem(8, n, n, allowed=mask)
    reads = 4000
    samples = AnnealingSampler().sample(problem, reads, seed=1)
    exact, _ = moments(problem)
    allowed = mask.expand(8, n, n)
    assert bool((samples.spins[..., 0, :][~allowed] == -1).all())
    z = ((samples.magnetization() - exact) / torch.sqrt((1 - exact**2) / reads).clamp_min(1e-12))[allowed]
    assert float(z.abs().max()) < 5
    assert float((z**2).mean()) < 1.5
    assert torch.allclose(samples.energies, problem.energy(samples.spins))


def test_rows_without_spins_and_empty_batches():
    allowed = torch.tensor([[True, True], [False, False]])
    m = AnnealingSampler().magnetization(IsingProblem(torch.zeros(2, 2), allowed=allowed))
    assert m[1].tolist() == [-1, -1]
    nothing = IsingProblem(torch.zeros(2, 2), allowed=torch.zeros(2, dtype=torch.bool))
    assert AnnealingSampler().magnetization(nothing).tolist() == [[-1, -1], [-1, -1]]
    assert bool((AnnealingSampler().ground_state(nothing) == -1).all())
    assert AnnealingSampler().magnetization(IsingProblem(torch.zeros(0, 3))).shape == (0, 3)


def test_couplings_per_group_are_kept_apart():
    couplings = torch.zeros(2, 1, 2, 2)
    couplings[0, 0] = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    couplings[1, 0] = -couplings[0, 0]
    samples = AnnealingSampler().sample(IsingProblem(torch.zeros(2, 3, 2), couplings), 500)
    pair = samples.correlations()[..., 0, 1]
    assert bool((pair[0] > 0.85).all()) and bool((pair[1] < -0.85).all())


@pytest.mark.parametrize("strength", [1e-6, 1e4])
def test_extreme_fields_stay_finite(strength: float):
    problem = IsingProblem(torch.tensor([strength, -strength]), torch.tensor([[0.0, 1e-3], [1e-3, 0.0]]))
    m = AnnealingSampler(num_reads=2000).magnetization(problem)
    expected = torch.tanh(torch.tensor([strength, -strength]))
    assert torch.allclose(m, expected, atol=0.002)


def test_magnetizations_have_less_noise_than_the_spins():
    problem = random_problem(20, 6)
    free = IsingProblem(problem.fields)
    assert torch.allclose(AnnealingSampler(num_reads=2).magnetization(free), torch.tanh(problem.fields))
    exact, sampler = moments(problem)[0], AnnealingSampler(num_reads=64)
    error = torch.stack([sampler.magnetization(problem, seed=seed) - exact for seed in range(20)])
    plain = torch.stack([sampler.sample(problem, seed=seed).magnetization() - exact for seed in range(20)])
    assert float((error**2).mean()) < 0.5 * float((plain**2).mean())
    # Averages over the seeds are right: nothing was bought with a bias.
    z = error.mean(0) / (error.std(0) / math.sqrt(20))
    assert float((z**2).mean()) < 1.8


def test_gradients_under_masks_are_those_of_the_allowed_spins():
    n, seeds = 4, 12
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    problem = random_problem(30, n, n)

    def gradients(law) -> torch.Tensor:
        fields, couplings = problem.fields.clone().requires_grad_(), problem.couplings.clone().requires_grad_()
        m = law(IsingProblem(fields, couplings, allowed=mask))
        (m * torch.arange(1.0, n + 1)).sum().backward()
        assert bool((grad_of(fields)[:, ~mask] == 0).all())
        pairs = torch.triu_indices(n, n, 1)
        return torch.cat([grad_of(fields).sum(0)[mask], grad_of(couplings)[pairs[0], pairs[1]]])

    exact = gradients(lambda p: moments(p)[0])
    sampler = AnnealingSampler(num_reads=64)
    found = torch.stack([gradients(lambda p, s=s: sampler.magnetization(p, seed=s)) for s in range(seeds)])
    error = found.std(0) / math.sqrt(seeds)
    z = (found.mean(0) - exact) / error
    assert float(error.max()) < 0.1 * float(exact.abs().max())
    # Student's t with 11 degrees of freedom has wide tails; the larger entries lie 20 to 450 errors from zero.
    assert float(z[error > 1e-12].abs().max()) < 7


def test_covariance_gradient_is_unbiased():
    problem = random_problem(64, 3)
    fields = problem.fields[:1].expand(400, 3).clone().requires_grad_()
    couplings = problem.couplings.clone().requires_grad_()
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    exact_fields = problem.fields[0].clone().requires_grad_()
    exact_couplings = problem.couplings.clone().requires_grad_()
    (moments(IsingProblem(exact_fields, exact_couplings))[0] @ weight).sum().backward()
    m = AnnealingSampler(num_reads=64).magnetization(IsingProblem(fields, couplings))
    (m @ weight).sum().backward()
    error = grad_of(fields).std(0) / math.sqrt(400)
    assert bool((((grad_of(fields).mean(0) - grad_of(exact_fields)) / error).abs() < 5).all())
    assert torch.allclose(grad_of(couplings) / 400, grad_of(exact_couplings), atol=0.05)
    assert float(grad_of(exact_couplings).abs().max()) > 0.1


def test_second_derivatives_are_refused():
    h = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    m = AnnealingSampler(num_reads=8).magnetization(IsingProblem(h))
    with pytest.raises(NotSupportedError, match="create_graph"):
        torch.autograd.grad(m.sum(), h, create_graph=True)


def test_straight_through_gradient_is_the_free_one():
    fields = torch.zeros(3, requires_grad=True)
    m = AnnealingSampler(gradient="straight-through").magnetization(IsingProblem(fields))
    m.sum().backward()
    assert torch.allclose(grad_of(fields), 1 - m.detach() ** 2)


def test_one_read_has_no_covariance_gradient():
    fields = torch.zeros(3, requires_grad=True)
    with pytest.raises(NotSupportedError, match="at least 2"):
        AnnealingSampler(num_reads=1).magnetization(IsingProblem(fields))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_kept(dtype: torch.dtype):
    problem = IsingProblem(torch.zeros(2, 3, dtype=dtype))
    assert AnnealingSampler().magnetization(problem).dtype == dtype
    assert AnnealingSampler().sample(problem, 4).weights.dtype == dtype


def test_ground_states_of_frustrated_problems():
    problem = random_problem(40, 8, sigma=1.5)
    assert torch.equal(AnnealingSampler().ground_state(problem), ground_states(problem))
    assert AnnealingSampler().ground_state(IsingProblem(torch.zeros(2, 3))).shape == (2, 3)


def test_schedules():
    assert anneal_schedule(4, 0.5) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert anneal_schedule(1, 0.0) == [1.0]
    assert anneal_schedule(3, 1.0) == [1.0, 1.0, 1.0]
    info = AnnealingSampler(num_sweeps=4).sample(IsingProblem(torch.ones(1), beta=2.0), 3).info
    assert info["beta_schedule"] == pytest.approx([2 / 3, 4 / 3, 2, 2]) and info["beta_target"] == 2.0
    cooling = cooling_schedule(np.array([1.0, 0.0]), np.array([[0.0, 0.5], [0.0, 0.0]]), 50)
    assert len(cooling) == 50 and cooling[-1] > cooling[0] > 0


@pytest.mark.parametrize(
    "options", [{"num_reads": 0}, {"num_sweeps": 0}, {"held": 1.5}, {"gradient": "exact"}, {"num_read": 10}]
)
def test_bad_options_are_refused(options: dict):
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        get_sampler("annealing", **options)


@pytest.mark.parametrize("alias", ["sa", "neal"])
def test_aliases(alias: str):
    assert isinstance(get_sampler(alias), AnnealingSampler)


def test_three_body_terms_are_refused():
    with pytest.raises(NotSupportedError, match="three-body"):
        AnnealingSampler().magnetization(IsingProblem(torch.zeros(3), triples=torch.zeros(3, 3, 3)))
