"""Checks of the law: moments, draws, signs, masks, symmetries, log Z and ground states."""

import math

import torch

from samplers.base import Sampler
from samplers.conformance.kit import (
    ALARM,
    DRAWS,
    MakeSampler,
    able,
    averaged_magnetization,
    check,
    has_law,
    is_noisy,
    law,
    measured,
    random_problem,
    require,
    slack,
    targets_boltzmann,
)
from samplers.conformance.statistics import chi_square_p, mean_energy_z, worst_moment_z, z_limit
from samplers.enumeration import ground_states, log_probabilities, moments
from samplers.problem import IsingProblem
from samplers.states import spin_table


def _draws_match(sampler: Sampler, problem: IsingProblem, claimed: IsingProblem, seed: int) -> tuple[bool, str]:
    """Draws of `problem` held against the law of `claimed`; the verdict, and the three numbers behind it."""
    samples = sampler.sample(problem, DRAWS, seed=seed)
    p = law(sampler, claimed)
    chi = chi_square_p(samples, p)
    moment, energy = worst_moment_z(samples, p), mean_energy_z(samples, claimed, p)
    tests = problem.num_problems * problem.num_spins * (problem.num_spins + 1) // 2
    good = chi > ALARM and moment < z_limit(ALARM, tests) and abs(energy) < z_limit(ALARM)
    return good, f"chi-square p = {chi:.2g}, worst moment z = {moment:.1f}, mean-energy z = {energy:+.1f}"


@check("draws", has_law)
def check_draws_follow_the_law(make: MakeSampler) -> None:
    """16 000 draws pass chi-square, moment and mean-energy tests, for shared and own couplings and β ≠ 1"""
    sampler = make()
    for seed, problem in enumerate(
        (
            random_problem(4, seed=3),
            random_problem(3, seed=4, own_couplings=True),
            random_problem(2, seed=5, beta=0.6),
        )
    ):
        good, numbers = _draws_match(sampler, problem, problem, seed)
        require(good, f"draws of {problem} do not follow the claimed law: {numbers}")


@check("power", has_law)
def check_a_wrong_temperature_is_rejected(make: MakeSampler) -> None:
    """The same tests reject this sampler's draws when β is 10 % off (so that they can fail)"""
    sampler, right = make(), random_problem(4, seed=3)
    wrong = IsingProblem(right.fields, right.couplings, beta=1.1 * right.beta)
    good, numbers = _draws_match(sampler, wrong, right, seed=0)
    require(not good, f"draws at 1.1 β passed the tests of β: {numbers}; the sampler ignores β")


@check("sign", has_law)
def check_sign_and_temperature_of_one_spin(make: MakeSampler) -> None:
    """n = 1, h = 1, β = 1 gives P(+1) = 0.8808 (Boltzmann), and a larger field makes +1 likelier (any law)"""
    sampler = make()
    for field in (1.0, -1.0, 0.25):
        problem = IsingProblem(torch.tensor([[field]], dtype=torch.float64))
        plus = float((sampler.sample(problem, DRAWS, seed=2).magnetization()[0, 0] + 1) / 2)
        expected = float(law(sampler, problem)[0, 0])
        if able(sampler).boltzmann:
            require(math.isclose(expected, 1 / (1 + math.exp(-2 * field))), "enumeration is broken")
        error = z_limit(ALARM) * math.sqrt(expected * (1 - expected) / DRAWS)
        require(abs(plus - expected) <= error, f"P(+1) at h = {field} is {plus:.4f}, not {expected:.4f} ± {error:.4f}")
        require((expected > 0.5) == (field > 0), f"h = {field} gives P(+1) = {expected:.4f}: the sign is wrong")


@check("moments", lambda s: able(s).boltzmann or hasattr(s, "probabilities"))
def check_magnetization_is_that_of_the_law(make: MakeSampler) -> None:
    """`magnetization` agrees with the law: to rounding where deterministic, within its noise where not"""
    sampler = make()
    for problem in (
        random_problem(6, seed=7),
        random_problem(3, seed=8, own_couplings=True),
        random_problem(2, 3, seed=9, beta=0.5),
        random_problem(seed=10),
        random_problem(4, num_spins=1, seed=11),
        random_problem(3, num_spins=2, seed=12),
    ):
        expected = law(sampler, problem) @ spin_table(problem.num_spins)
        m, limit = averaged_magnetization(sampler, problem)
        error = float((m - expected).abs().max())
        require(error <= limit, f"magnetization of {problem} is off by {error:.3g}, more than {limit:.3g}")


@check("free spins")
def check_free_spins_have_a_known_magnetization(make: MakeSampler) -> None:
    """Without couplings ⟨s⟩ is odd and increasing in the field; tanh(βh) for Boltzmann samplers"""
    sampler = make()
    field = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for problem in (
        IsingProblem(field.unsqueeze(0), beta=0.5),
        IsingProblem(field.unsqueeze(0), field.new_zeros(9, 9), beta=0.5),
    ):
        m, limit = measured(sampler, problem, 3)[0], slack(sampler)
        require(float((m + m.flip(0)).abs().max()) <= limit, f"⟨s⟩ is not odd in the field: {m.tolist()}")
        # No law but Boltzmann's need be monotonic far from β = 0, so others are asked for the sign alone.
        if targets_boltzmann(sampler):
            error = float((m - torch.tanh(0.5 * field)).abs().max())
            require(error <= limit, f"⟨s⟩ differs from tanh(βh) by {error:.3g}")
        else:
            require(bool((m * field.sign() >= -limit).all()), f"⟨s⟩ has the wrong sign: {m.tolist()}")


@check("masks")
def check_forbidden_spins_do_not_exist(make: MakeSampler) -> None:
    """A masked problem equals the smaller problem of its allowed spins; forbidden spins read −1"""
    sampler = make()
    n = 4
    generator = torch.Generator().manual_seed(0)
    masks = {
        "causal": torch.ones(n, n, dtype=torch.bool).tril(),
        "random": torch.rand(n, n, generator=generator) < 0.6,
        "one row empty": torch.ones(n, n, dtype=torch.bool) & (torch.arange(n) != 2)[:, None],
    }
    for name, allowed in masks.items():
        problem = random_problem(n, num_spins=n, seed=13, couplings=0.8, allowed=allowed)
        m = measured(sampler, problem, 4)
        require(bool(torch.isfinite(m).all()), f"mask {name!r}: the magnetization is not finite")
        require(bool((m.masked_select(~allowed) + 1 < 1e-9).all()), f"mask {name!r}: a forbidden spin does not read −1")
        for row in range(n):
            keep = allowed[row].nonzero().squeeze(-1)
            if not len(keep):
                continue
            small = IsingProblem(problem.fields[row, keep], problem.couplings[keep][:, keep])
            error = float((m[row, keep] - measured(sampler, small, 5)).abs().max())
            limit = slack(sampler)
            require(error <= limit, f"mask {name!r}, row {row}: off the reduced problem by {error:.3g} > {limit:.3g}")


@check("masked draws", has_law)
def check_draws_under_a_mask(make: MakeSampler) -> None:
    """Draws of a causally masked batch follow the law of the allowed spins, and forbidden spins read −1"""
    sampler, n = make(), 4
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    problem = random_problem(n, num_spins=n, seed=14, allowed=allowed)
    samples = sampler.sample(problem, DRAWS, seed=6)
    forbidden = samples.spins.masked_select(~allowed.unsqueeze(-2))
    require(bool((forbidden == -1).all()), "a forbidden spin was drawn as +1")
    for row in range(1, n):
        keep = torch.arange(row + 1)
        small = IsingProblem(problem.fields[row, keep], problem.couplings[keep][:, keep])
        part = type(samples)(
            samples.spins[row, :, : row + 1], samples.weights[row], samples.energies[row], samples.info
        )
        p = law(sampler, small)
        chi = chi_square_p(part, p)
        require(chi > ALARM, f"draws of the prefix of {row + 1} spins fail the chi-square test, p = {chi:.2g}")


def _compare(sampler: Sampler, a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    limit = slack(sampler)
    error = float((a - b).abs().max())
    require(error <= limit, f"{what}: magnetizations differ by {error:.3g}, more than {limit:.3g}")


@check("symmetry")
def check_relabelling_spins_relabels_results(make: MakeSampler) -> None:
    """Permuting the spins of a problem permutes its magnetization"""
    sampler, problem = make(), random_problem(4, num_spins=6, couplings=0.7, seed=15)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = IsingProblem(problem.fields[:, order], problem.couplings[order][:, order])
    _compare(sampler, measured(sampler, permuted, 8), measured(sampler, problem, 7)[:, order], "permutation")


@check("symmetry")
def check_flipping_spins_flips_results(make: MakeSampler) -> None:
    """A gauge change h → g h, J → g J g turns ⟨s⟩ into g⟨s⟩"""
    sampler, problem = make(), random_problem(4, num_spins=6, couplings=0.7, seed=16)
    gauge = torch.tensor([1.0, -1, -1, 1, -1, 1], dtype=torch.float64)
    flipped = IsingProblem(problem.fields * gauge, gauge[:, None] * problem.couplings * gauge)
    _compare(sampler, measured(sampler, flipped, 8), measured(sampler, problem, 7) * gauge, "gauge")


@check("symmetry")
def check_zero_fields_give_zero_magnetization(make: MakeSampler) -> None:
    """With h = 0 every ⟨s⟩ is 0 by spin-flip symmetry"""
    sampler, problem = make(), random_problem(4, num_spins=5, fields=0.0, seed=17)
    m = measured(sampler, problem, 9)
    _compare(sampler, m, torch.zeros_like(m), "zero fields")


@check("scaling")
def check_beta_scales_fields_and_couplings(make: MakeSampler) -> None:
    """(h, J) at β equals (βh, βJ) at 1"""
    sampler, problem = make(), random_problem(4, seed=18, beta=0.7)
    scaled = IsingProblem(0.7 * problem.fields, 0.7 * problem.couplings)
    _compare(sampler, measured(sampler, scaled, 8), measured(sampler, problem, 7), "β scaling")


@check("extremes", targets_boltzmann)
def check_strong_and_tiny_fields(make: MakeSampler) -> None:
    """|h| up to 1e4 saturates to ±1, fields of 1e-30 give 0, and nothing is NaN, in float32 and float64"""
    sampler = make()
    for dtype in (torch.float32, torch.float64):
        for size in (50.0, 1e4):
            field = torch.tensor([[size, -size, size, 0.0]], dtype=dtype)
            couplings = torch.zeros(4, 4, dtype=dtype)
            m = sampler.magnetization(IsingProblem(field, couplings), seed=1)
            error = float((m[0, :3] - torch.tensor([1.0, -1, 1], dtype=dtype)).abs().max())
            require(error <= 1e-4, f"h = ±{size:g} in {dtype}: ⟨s⟩ = {m.tolist()}")
        tiny = IsingProblem(torch.full((2, 3), 1e-30, dtype=dtype), torch.zeros(3, 3, dtype=dtype))
        worst = float(measured(sampler, tiny, 1).abs().max())
        require(worst <= slack(sampler), f"h = 1e-30 in {dtype} gives |⟨s⟩| = {worst:.3g}")


@check("log Z", lambda s: able(s).can_log_partition)
def check_log_partition(make: MakeSampler) -> None:
    """log Z agrees with enumeration over the allowed spins"""
    sampler = make()
    exact = able(sampler).exact
    n = 5
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    for problem in (
        random_problem(3, seed=19, beta=0.8),
        random_problem(n, num_spins=n, seed=20, allowed=mask),
        random_problem(4, num_spins=1, seed=21),
    ):
        error = float((sampler.log_partition(problem, seed=1) - log_probabilities(problem)[1]).abs().max())
        limit = 1e-9 if exact else 0.2
        require(error <= limit, f"log Z of {problem} is off by {error:.3g}")


@check("ground state", lambda s: able(s).can_ground_state)
def check_ground_state(make: MakeSampler) -> None:
    """`ground_state` reaches the lowest energy of 16 small random problems (all of them where exact)"""
    sampler = make()
    problem = random_problem(16, num_spins=6, seed=22, couplings=1.0)
    found, best = sampler.ground_state(problem, seed=3), ground_states(problem)
    gap = (problem.energy(found.unsqueeze(-2)) - problem.energy(best.unsqueeze(-2))).squeeze(-1)
    missed = int((gap > 1e-9).sum())
    require(missed <= (0 if able(sampler).exact else 1), f"{missed} of 16 ground states were missed")
    allowed = torch.tensor([True, False, True, True, True, False])
    masked = random_problem(4, num_spins=6, seed=23, allowed=allowed)
    found = sampler.ground_state(masked, seed=3)
    require(bool((found[:, ~allowed] == -1).all()), "a forbidden spin of a ground state does not read −1")
    require(found.dtype == torch.int8, f"ground states are {found.dtype}, not int8")


@check("pairs", lambda s: able(s).can_sample and has_law(s))
def check_correlations(make: MakeSampler) -> None:
    """⟨s_j s_k⟩ agrees with the law, 1 on the diagonal"""
    sampler, problem = make(), random_problem(3, seed=24)
    if not able(sampler).boltzmann:
        return
    expected = moments(problem)[1]
    error = float((sampler.correlations(problem, seed=2) - expected).abs().max())
    limit = 1e-9 if able(sampler).exact else 6 / sampler._default_reads() ** 0.5
    require(error <= limit, f"correlations are off by {error:.3g}, more than {limit:.3g}")


@check("noise", lambda s: able(s).can_sample and is_noisy(s))
def check_noise_shrinks_with_reads(make: MakeSampler) -> None:
    """More reads give smaller errors: 64 times the reads, less than a third of the rms error"""
    sampler, problem = make(), random_problem(32, seed=25)
    if not has_law(sampler):
        return
    expected = law(sampler, problem) @ spin_table(problem.num_spins)
    errors = [
        float((sampler.sample(problem, reads, seed=3).magnetization() - expected).pow(2).mean().sqrt())
        for reads in (32, 2048)
    ]
    require(errors[1] < errors[0] / 3, f"rms error {errors[0]:.3g} at 32 reads, {errors[1]:.3g} at 2048")
