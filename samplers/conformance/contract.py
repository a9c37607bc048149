"""Checks of the calling contract: shapes, dtypes, batches, seeds, state and refusals."""

import numpy as np
import torch

from samplers.conformance.kit import MakeSampler, able, check, is_noisy, measured, random_problem, require, slack
from samplers.errors import IsingAttnError, NotSupportedError, ProblemTooLargeError
from samplers.problem import IsingProblem


@check("shapes")
def check_batch_shapes(make: MakeSampler) -> None:
    """No batch axis, several axes, heads that own their J, and an empty batch all keep their shape"""
    sampler = make()
    for batch in ((), (3,), (2, 1, 3), (0,), (2, 0)):
        problem = random_problem(*batch, num_spins=4)
        m = sampler.magnetization(problem, seed=0)
        require(tuple(m.shape) == (*batch, 4), f"batch {batch}: the magnetization has shape {tuple(m.shape)}")
        if able(sampler).can_sample:
            samples = sampler.sample(problem, 8, seed=0)
            require(samples.spins.shape[:-2] == batch, f"batch {batch}: spins have shape {tuple(samples.spins.shape)}")
            require(samples.spins.dtype == torch.int8, f"spins are {samples.spins.dtype}, not int8")
            require(bool((samples.spins.abs() == 1).all()), "a spin is neither +1 nor −1")
    heads, time = 2, 4
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(3, heads, time, time, generator=generator, dtype=torch.float64)
    a = 0.8 * torch.randn(heads, 1, time, time, generator=generator, dtype=torch.float64).tril(-1)
    mask = torch.ones(time, time, dtype=torch.bool).tril()
    whole = IsingProblem(h, a + a.mT, allowed=mask)
    m, limit = measured(sampler, whole, 1, draws=2000), slack(sampler, draws=2000)
    for head in range(heads):
        one = measured(sampler, IsingProblem(h[:, head], a[head] + a[head].mT, allowed=mask), 2, draws=2000)
        error = float((m[:, head] - one).abs().max())
        require(error <= limit, f"head {head} of (B, H, T, T) differs from the same head alone by {error:.3g}")


@check("dtypes")
def check_dtype_is_kept(make: MakeSampler) -> None:
    """float64, float32, bfloat16 and float16 fields give results of their own dtype and the same values"""
    sampler = make()
    reference = sampler.magnetization(random_problem(3), seed=1)
    for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.01)):
        m = sampler.magnetization(random_problem(3, dtype=dtype), seed=1)
        require(m.dtype == dtype, f"fields of {dtype} give a magnetization of {m.dtype}")
        slack = limit + (12 / sampler._default_reads() ** 0.5 if is_noisy(sampler) else 0)
        error = float((m.double() - reference).abs().max())
        require(error <= slack, f"{dtype} differs from float64 by {error:.3g}")
    require(torch.get_default_dtype() == torch.float32, "the default dtype was changed")


@check("seeds")
def check_seeds_repeat_and_differ(make: MakeSampler) -> None:
    """The same seed repeats draws bit for bit; other seeds, problems and reads are independent"""
    sampler = make()
    if not able(sampler).can_sample:
        return
    problem = IsingProblem(torch.zeros(2, 6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64))
    first, again, other = (sampler.sample(problem, 1000, seed=s).spins for s in (7, 7, 8))
    require(torch.equal(first, again), "two calls with one seed differ")
    require(not torch.equal(first, other), "two seeds give the same draws")
    require(not torch.equal(first[0], first[1]), "two equal problems of one batch give the same draws")
    distinct = len(torch.unique(first[0], dim=0))
    require(distinct >= 55, f"1000 reads of 6 free spins show {distinct} of 64 states: the reads are not independent")


@check("seeds")
def check_small_seeds_are_good_seeds(make: MakeSampler) -> None:
    """Seeds 0…399 with one read of a free spin average to 0, and neighbours are uncorrelated"""
    sampler = make()
    if not able(sampler).can_sample:
        return
    problem = IsingProblem(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    draws = torch.stack([sampler.sample(problem, 1, seed=s).spins[0, 0] for s in range(400)]).double()
    # 5 σ of the mean of 400 fair coins is 0.25.
    require(
        float(draws.mean(0).abs().max()) < 0.25, f"the first reads of seeds 0…399 average to {draws.mean(0).tolist()}"
    )
    neighbours = float((draws[1:] * draws[:-1]).mean(0).abs().max())
    require(neighbours < 0.25, f"reads of neighbouring seeds correlate by {neighbours:.2f}")


@check("seeds")
def check_no_global_generator_moves(make: MakeSampler) -> None:
    """No call reads or moves torch's or numpy's global generators"""
    problem = random_problem(2)
    results = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)  # noqa: NPY002
        before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
        sampler = make()
        results.append(sampler.magnetization(problem, seed=3))
        require(torch.equal(before, torch.get_rng_state()), "torch's global generator was moved")
        after = np.random.get_state()[1]  # type: ignore[index] # noqa: NPY002
        require(bool((before_numpy == after).all()), "numpy's global generator was moved")
    require(torch.equal(results[0], results[1]), "the result depends on a global generator")


@check("splitting")
def check_splitting_a_batch_changes_nothing(make: MakeSampler) -> None:
    """Rows of a batch give the same draws alone as together (problem[i] keeps its stream)"""
    sampler, problem = make(), random_problem(5, seed=31)
    together = sampler.magnetization(problem, seed=2)
    for part in (slice(0, 2), slice(2, 5), 3):
        alone = sampler.magnetization(problem[part], seed=2)
        error = float((alone - together[part]).abs().max())
        require(error < 1e-6, f"rows {part} alone differ from the same rows in the batch by {error:.3g}")
    if able(sampler).can_sample:
        together_spins = sampler.sample(problem, 16, seed=2).spins
        alone_spins = sampler.sample(problem[2:5], 16, seed=2).spins
        require(torch.equal(together_spins[2:5], alone_spins), "draws change when the batch is split")


@check("state")
def check_calls_advance_and_resume(make: MakeSampler) -> None:
    """Calls without a seed are fresh each time, and state_dict resumes them exactly"""
    sampler, problem = make(), random_problem(3, seed=32)
    sampler.magnetization(problem)
    state = sampler.state_dict()
    second = sampler.magnetization(problem)
    third = sampler.magnetization(problem)
    resumed = make()
    resumed.load_state_dict(state)
    require(torch.equal(resumed.magnetization(problem), second), "a resumed sampler does not continue where it was")
    if is_noisy(make()):
        require(not torch.equal(second, third), "two successive calls reuse the same randomness")
    with sampler.seeded(5):
        inside = sampler.magnetization(problem)
    with make().seeded(5) as _, sampler.seeded(5):
        require(torch.equal(sampler.magnetization(problem), inside), "`seeded` does not repeat")
    require(sampler.state_dict()["calls"] == state["calls"] + 2, "`seeded` moved the sampler's own call count")


@check("provenance")
def check_provenance_is_recorded(make: MakeSampler) -> None:
    """Results carry the sampler, its options, the seed and the target β; energies are the problem's own"""
    sampler = make()
    if not able(sampler).can_sample:
        sampler.magnetization(random_problem(2, beta=0.7), seed=4)
        info = sampler.last_info
    else:
        problem = random_problem(2, beta=0.7)
        samples = sampler.sample(problem, 8, seed=4)
        info = samples.info
        error = float((samples.energies - problem.energy(samples.spins)).abs().max())
        require(error < 1e-9, f"energies differ from E(s) by {error:.3g}")
    for key, value in (("beta_target", 0.7), ("seed", 4)):
        require(info.get(key) == value, f"info[{key!r}] is {info.get(key)!r}, not {value!r}")
    require(isinstance(info.get("options"), dict) and "sampler" in info, "info lacks the sampler and its options")


@check("refusals")
def check_refusals_are_clear(make: MakeSampler) -> None:
    """Too many spins, unwanted three-body terms and impossible calls raise errors that say what to do"""
    sampler, limits = make(), able(make())
    if limits.max_spins is not None:
        n = limits.max_spins + 1
        _refused(lambda: sampler.magnetization(IsingProblem(torch.zeros(n), torch.zeros(n, n))), ProblemTooLargeError)
    if not limits.higher_order:
        triple = IsingProblem(torch.zeros(3), triples=torch.zeros(3, 3, 3))
        _refused(lambda: sampler.magnetization(triple), NotSupportedError)
    if not limits.can_sample:
        _refused(lambda: sampler.sample(random_problem(1)), NotSupportedError)
    if not limits.can_log_partition:
        _refused(lambda: sampler.log_partition(random_problem(1)), NotSupportedError)
    if not limits.can_ground_state:
        _refused(lambda: sampler.ground_state(random_problem(1)), NotSupportedError)


def _refused(call, kind: type[IsingAttnError]) -> None:
    try:
        call()
    except kind as error:
        require(len(str(error)) > 20, f"the refusal {error} does not say what to do")
    else:
        require(False, f"a call that cannot work did not raise {kind.__name__}")
