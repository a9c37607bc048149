"""A rescale found from data: planted factors are found again, and real ones help on problems that were not seen."""

import pytest
import torch

from samplers import InvalidOptionError, IsingProblem, ProblemTooLargeError, get_sampler
from samplers.dqa import AngleSchedule, DQASampler, Layers, calibration, named_schedule
from samplers.dqa.learning import MEDIUM, Family, exact_magnetization
from samplers.dqa.rescaling import fit_rescaling
from samplers.dqa.schedules import linear_ramp


def scaled(layers: Layers, a: float, b: float) -> Layers:
    return Layers(a * layers.fields, b * layers.couplings, layers.mixer)


def error(layers: Layers, problem: IsingProblem) -> float:
    found = DQASampler(schedule=AngleSchedule(layers)).magnetization(problem)
    return float((found - exact_magnetization(problem)).abs().mean())


def test_planted_factors_are_found_again():
    good = named_schedule("learned-weak", 8).layers()
    problems = [Family(0.3, 0.1).problems(n, 16, seed=n) for n in (3, 4)]
    reference = fit_rescaling(good, problems)
    found = fit_rescaling(scaled(good, 1.6, 0.5), problems)
    assert found.fields * 1.6 == pytest.approx(reference.fields, rel=1e-3)
    assert found.couplings * 0.5 == pytest.approx(reference.couplings, rel=1e-3)
    # The schedule was fitted to such problems: hardly anything is left to rescale.
    assert reference.fields == pytest.approx(1, abs=0.02) and reference.couplings == pytest.approx(1, abs=0.1)
    assert found.after == pytest.approx(reference.after, rel=1e-2) and found.after < 0.1 * found.before
    torch.testing.assert_close(found.layers.mixer, good.mixer)
    torch.testing.assert_close(found.layers.couplings, found.couplings * 0.5 * good.couplings)


def test_a_rescale_of_a_calibrated_ramp_helps_on_other_problems_of_the_family():
    ramp = calibration.calibrated(linear_ramp().layers(6))
    found = fit_rescaling(ramp, [MEDIUM.problems(5, 32, seed=1)])
    assert found.before == pytest.approx(error(ramp, MEDIUM.problems(5, 32, seed=1)), abs=1e-5)
    assert found.after < 0.9 * found.before
    fresh = MEDIUM.problems(5, 64, seed=2)
    assert error(found.layers, fresh) < 0.95 * error(ramp, fresh)
    # The least of the mean square: no neighbour is lower.
    data = MEDIUM.problems(5, 32, seed=1).to(torch.float64)

    def loss(layers: Layers) -> float:
        m = DQASampler(schedule=AngleSchedule(layers)).magnetization(data)
        return float((m - get_sampler("exact").magnetization(data)).square().mean())

    least = loss(found.layers)
    for a, b in ((1.02, 1), (0.98, 1), (1, 1.02), (1, 0.98)):
        assert loss(scaled(found.layers, a, b)) > least


def test_masks_and_beta_are_those_of_the_problem():
    layers = scaled(named_schedule("learned-weak", 4).layers(), 1.3, 1.3)
    whole = Family(0.3, 0.1).problems(4, 8, seed=5)
    h, j = whole.fields, whole.couplings
    allowed = torch.ones(4, 4).tril().bool()[[1, 3]].repeat(4, 1).unsqueeze(1)
    masked = fit_rescaling(layers, [IsingProblem(h, j, allowed=allowed)])
    # The same spins as problems of their own sizes.
    parts = [IsingProblem(h[0::2, :, :2], j[0::2, :, :2, :2]), IsingProblem(h[1::2], j[1::2])]
    apart = fit_rescaling(layers, parts)
    assert (masked.fields, masked.couplings) == pytest.approx((apart.fields, apart.couplings), rel=1e-6)
    assert masked.before == pytest.approx(apart.before, rel=1e-6)
    colder = fit_rescaling(layers, [IsingProblem(h / 2, j / 2, beta=2.0)])
    plain = fit_rescaling(layers, [whole])
    assert (colder.fields, colder.couplings) == pytest.approx((plain.fields, plain.couplings), rel=1e-5)


def test_a_factor_without_effect_stays_one_and_nothing_is_refused():
    layers = named_schedule("learned-weak", 2).layers()
    with torch.no_grad():
        found = fit_rescaling(layers, [IsingProblem(torch.tensor([[0.5, -0.2]]))])
    assert found.couplings == 1.0 != found.fields
    with pytest.raises(InvalidOptionError, match="at least one spin"):
        fit_rescaling(layers, [])
    with pytest.raises(ProblemTooLargeError, match="21 spins"):
        fit_rescaling(layers, [IsingProblem(torch.zeros(1, 21))])
