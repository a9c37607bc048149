"""First-order temperatures against regressions of log p in exact simulations."""

import math

import pytest
import torch

from samplers.dqa import calibration, reference
from samplers.dqa.layers import Layers
from samplers.dqa.schedules import constant_drive, linear_ramp, single_kick
from samplers.dqa.statevector import StateVectorEngine
from samplers.errors import InvalidOptionError
from samplers.states import spin_table


def regressed_betas(layers: Layers, scale: float = 0.02, n: int = 5, seed: int = 0) -> tuple[float, float]:
    """log p = const − β₁E₁ − β₂E₂ by least squares over all states of a weak random problem."""
    generator = torch.Generator().manual_seed(seed)
    h = scale * torch.randn(n, generator=generator, dtype=torch.float64)
    a = scale * torch.randn(n, n, generator=generator, dtype=torch.float64).triu(1)
    j = a + a.mT
    log_p = StateVectorEngine("double").probabilities(h[None, None], j[None, None], layers)[0, 0].log()
    table = spin_table(n)
    design = torch.stack([torch.ones(2**n).double(), table @ h, 0.5 * ((table @ j) * table).sum(-1)], 1)
    solution = torch.linalg.lstsq(design, log_p[:, None]).solution
    return solution[1].item(), solution[2].item()


@pytest.mark.parametrize(
    ("drive", "problem", "beta_fields", "beta_couplings"),
    # The table of first-order values for A₀(1−s), B₀s.
    [(1, 1, 0.1608, 0.2896), (2, 1, 0.2896, 0.3914), (4, 1, 0.3914, 0.3106), (10, 1, 0.2984, 0.2292)],
)
def test_ramp_table(drive, problem, beta_fields, beta_couplings):
    ramp = linear_ramp(drive, problem)
    integrals = calibration.anneal_betas(ramp.s, ramp.drive, ramp.problem)
    assert integrals == pytest.approx((beta_fields, beta_couplings), abs=1e-4)
    layers = ramp.layers(400)
    assert [b.item() for b in calibration.layer_betas(layers)] == pytest.approx(integrals, rel=1e-3)
    assert regressed_betas(layers) == pytest.approx(integrals, rel=5e-3)


@pytest.mark.parametrize("seed", range(3))
def test_layer_formula_holds_for_any_angles(seed):
    generator = torch.Generator().manual_seed(seed)
    layers = Layers(*(torch.rand(4, generator=generator, dtype=torch.float64) for _ in range(3)))
    expected = [b.item() for b in calibration.layer_betas(layers)]
    assert regressed_betas(layers, scale=1e-3) == pytest.approx(expected, abs=6e-3)
    # Fields and couplings exchanged is another law: the test can tell them apart.
    assert abs(expected[0] - expected[1]) > 0.01


@pytest.mark.parametrize("schedule", [linear_ramp(), constant_drive(), single_kick()], ids=lambda s: s.name)
def test_default_shapes_are_at_beta_one(schedule):
    depth = None if schedule.name == "kick" else 200
    assert [b.item() for b in calibration.layer_betas(schedule.layers(depth))] == pytest.approx([1, 1], abs=3e-3)


def test_calibration_brings_both_temperatures_to_one():
    layers = linear_ramp(6.0, 1.5).layers(30)
    before = regressed_betas(layers, scale=1e-3)
    after = regressed_betas(calibration.calibrated(layers), scale=1e-3)
    assert abs(before[0] - before[1]) > 0.05
    assert after == pytest.approx((1, 1), abs=1e-3)


def test_a_schedule_without_signal_is_refused():
    quarter = torch.tensor([math.pi / 4], dtype=torch.float64)
    with pytest.raises(InvalidOptionError, match="couplings an effective beta"):
        calibration.calibrated(Layers(quarter, quarter, quarter))


def test_weak_layers_follow_the_continuous_anneal():
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(4, generator=generator, dtype=torch.float64)
    a = 0.4 * torch.randn(4, 4, generator=generator, dtype=torch.float64).triu(1)
    j = a + a.mT
    exact = reference.anneal_probabilities(h, j, lambda s: 4.0 * (1 - s), lambda s: 3.0 * s, steps=400)
    errors = []
    for order, depth in ((1, 16), (1, 32), (2, 16), (2, 32)):
        layers = linear_ramp(4.0, 3.0, order=order).layers(depth)
        law = StateVectorEngine("double").probabilities(h[None, None], j[None, None], layers)[0, 0]
        errors.append((law - exact).abs().max().item())
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.3)
    assert errors[2] / errors[3] == pytest.approx(4, rel=0.3)
