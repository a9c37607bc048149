"""`DQASampler`: the contract, gradients as declared, shots, masks, warnings, refusals."""

import warnings

import pytest
import torch

from samplers import InvalidOptionError, IsingProblem, ProblemTooLargeError, conformance, enumeration, get_sampler
from samplers.dqa import AngleSchedule, CoarseScheduleWarning, DQASampler, Layers, reference
from samplers.dqa.schedules import free_angles, linear_ramp, save_schedule
from samplers.states import spin_table


def gaussian(*batch, n=4, fields=0.8, couplings=0.3, seed=0, dtype=torch.float64, **own):
    generator = torch.Generator().manual_seed(seed)
    h = fields * torch.randn(*batch, n, generator=generator, dtype=torch.float64)
    a = couplings * torch.randn(n, n, generator=generator, dtype=torch.float64).triu(1)
    return IsingProblem(h.to(dtype), (a + a.mT).to(dtype), **own)


@pytest.mark.parametrize("check", conformance.all_checks(), ids=lambda check: check.name)
def test_contract(check):
    conformance.run_check(check, lambda: get_sampler("dqa"))


@pytest.mark.slow
@pytest.mark.parametrize("check", conformance.all_checks(), ids=lambda check: check.name)
def test_contract_with_shots(check):
    conformance.run_check(check, lambda: get_sampler("dqa", shots=400))


def test_magnetization_is_that_of_the_reference_circuit_at_beta():
    problem = gaussian(3, beta=1.3)
    sampler = DQASampler(num_layers=6, calibrate=False, schedule=linear_ramp(2.0, 2.0))
    layers = linear_ramp(2.0, 2.0).layers(6)
    scaled = Layers(1.3 * layers.fields, 1.3 * layers.couplings, layers.mixer)
    slow = torch.stack([reference.probabilities(h, problem.couplings, scaled) for h in problem.fields])
    torch.testing.assert_close(sampler.magnetization(problem), slow @ spin_table(4), atol=1e-12, rtol=0)
    torch.testing.assert_close(sampler.probabilities(problem), slow, atol=1e-12, rtol=0)


def test_the_default_is_a_learned_schedule_where_one_has_the_depth():
    problem = gaussian(2)
    for options, name, depth in (
        ({}, "learned-strong-8", 8),
        ({"num_layers": 2}, "learned-strong-2", 2),
        ({"num_layers": 5}, "ramp", 5),
    ):
        sampler = get_sampler("dqa", **options)
        sampler.magnetization(problem)
        assert (sampler.last_info["schedule"], sampler.last_info["num_layers"]) == (name, depth)


def test_weak_problems_are_boltzmann_at_the_requested_beta():
    for beta in (0.25, 0.5, 1.0):
        problem = gaussian(8, fields=0.05, couplings=0.02, beta=beta)
        exact, _ = enumeration.moments(problem)
        error = (get_sampler("dqa", schedule="ramp").magnetization(problem) - exact).abs().max()
        assert error < 0.06 * exact.abs().max()


def test_calibration_separates_the_temperatures():
    problem = gaussian(8, fields=0.05, couplings=0.02)
    exact, _ = enumeration.moments(problem)
    ramp = linear_ramp(1.0, 1.0)
    plain = get_sampler("dqa", schedule=ramp, calibrate=False).magnetization(problem)
    corrected = get_sampler("dqa", schedule=ramp).magnetization(problem)
    assert (plain - exact).abs().max() > 0.5 * exact.abs().max()
    assert (corrected - exact).abs().max() < 0.06 * exact.abs().max()


def test_adjoint_gradient_through_masks():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    sampler = get_sampler("dqa", num_layers=2)
    assert sampler.capabilities.gradient == "adjoint"

    def run(h, a):
        j = (a + a.mT) / 2
        return sampler.magnetization(IsingProblem(h, j - torch.diag(j.diagonal()), allowed=mask))

    problem = gaussian(1, 4)
    inputs = problem.fields.clone().requires_grad_(), problem.couplings.clone().requires_grad_()
    assert torch.autograd.gradcheck(run, inputs)


def test_angles_of_a_schedule_can_be_trained():
    parts = [torch.rand(3, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    parts = [p.requires_grad_() for p in parts]
    sampler = get_sampler("dqa", schedule=AngleSchedule(Layers(*parts)))
    sampler.magnetization(gaussian(5)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().min() > 0 for p in parts)


def test_covariance_gradient_is_that_of_the_law_of_the_circuit():
    problem = gaussian(3, beta=0.7)
    h = problem.fields.clone().requires_grad_()
    sampler = DQASampler(gradient="covariance")
    value = sampler.magnetization(IsingProblem(h, problem.couplings, beta=0.7))
    value[:, 1].sum().backward()
    law, table = sampler.probabilities(problem), spin_table(4)
    mean = law @ table
    covariance = torch.einsum("bs,s,sk->bk", law, table[:, 1], table) - mean[:, 1:2] * mean
    torch.testing.assert_close(h.grad, 0.7 * covariance)
    torch.testing.assert_close(value.detach(), mean)


def test_straight_through_gradient():
    problem = gaussian(3)
    h = problem.fields.clone().requires_grad_()
    sampler = get_sampler("dqa", gradient="straight-through")
    value = sampler.magnetization(IsingProblem(h, problem.couplings))
    value.sum().backward()
    torch.testing.assert_close(h.grad, 1 - value.detach() ** 2)


def test_shots_scatter_by_one_over_root_shots():
    problem = gaussian(64)
    exact = get_sampler("dqa").magnetization(problem)
    for shots in (100, 1600):
        sampler = get_sampler("dqa", shots=shots)
        assert sampler.capabilities.gradient == "straight-through"
        z = (sampler.magnetization(problem, seed=3) - exact) / ((1 - exact**2) / shots).sqrt()
        # 256 correlated z-scores: their mean square is 1 within a few percent.
        assert 0.75 < z.square().mean() < 1.3


@pytest.mark.parametrize("gradient", ["auto", "adjoint", "covariance"])
def test_training_with_finite_shots_works(gradient):
    generator = torch.Generator().manual_seed(0)
    a = 0.3 * torch.randn(4, 4, generator=generator).triu(1)
    sampler = DQASampler(shots=200, num_layers=4, gradient=gradient)
    exact = DQASampler(num_layers=4)
    target = exact.magnetization(IsingProblem(torch.tensor([0.8, -0.5, 0.3, -1.0]), a + a.mT))
    h = torch.zeros(4, requires_grad=True)
    optimiser = torch.optim.Adam([h], lr=0.05)
    for step in range(150):
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / 150)
        optimiser.zero_grad()
        error = sampler.magnetization(IsingProblem(h, a + a.mT), seed=step) - target
        (error**2).sum().backward()
        optimiser.step()
    before = exact.magnetization(IsingProblem(torch.zeros(4), a + a.mT))
    after = exact.magnetization(IsingProblem(h.detach(), a + a.mT))
    # One measurement is off by 1/√200 = 0.07; training averages over many.
    assert (after - target).abs().max() < 0.04 < 0.2 < (before - target).abs().max()


def test_adjoint_with_shots_has_noisy_values_and_the_gradient_of_the_circuit():
    problem = gaussian(3)
    grads, values = [], []
    for shots in (None, 50):
        h = problem.fields.clone().requires_grad_()
        sampler = get_sampler("dqa", shots=shots, gradient="adjoint")
        values.append(sampler.magnetization(IsingProblem(h, problem.couplings), seed=1))
        values[-1].sum().backward()
        grads.append(h.grad)
    torch.testing.assert_close(*grads)
    assert (values[0] - values[1]).abs().max() > 0.01


def test_probabilities_of_masked_problems():
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    problem = gaussian(2, n=3, allowed=allowed)
    law = DQASampler().probabilities(problem)
    small = IsingProblem(problem.fields[:1, [0, 2]], problem.couplings[[0, 2]][:, [0, 2]])
    own = DQASampler().probabilities(small)[0]
    expected = torch.zeros(2, 8, dtype=torch.float64)
    for bit0 in (0, 1):
        for bit2 in (0, 1):
            expected[0, bit0 + 2 + 4 * bit2] = own[bit0 + 2 * bit2]
    expected[1, 7] = 1.0
    torch.testing.assert_close(law, expected)


def test_provenance_and_the_coarse_step_warning():
    sampler = get_sampler("dqa", schedule="ramp", num_layers=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.magnetization(gaussian(2, fields=0.1, couplings=0.05))
    assert sampler.last_info["num_layers"] == 4
    assert sampler.last_info["schedule"] == "ramp"
    assert sampler.last_info["beta_fields_first_order"] == pytest.approx(1.0)
    strong = gaussian(2, fields=4.0)
    with pytest.warns(CoarseScheduleWarning, match="raise num_layers"):
        sampler.magnetization(strong)
    assert sampler.last_info["step_error"] > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.magnetization(strong)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("depth", [5, 10, 20])
def test_step_error_bounds_the_error_of_one_spin(order, depth):
    ramp = linear_ramp(order=order)
    problem = IsingProblem(torch.tensor([[1.5]], dtype=torch.float64))
    sampler = get_sampler("dqa", schedule=ramp, num_layers=depth, calibrate=False)
    fine = get_sampler("dqa", schedule=ramp, num_layers=2000, calibrate=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoarseScheduleWarning)
        error = (sampler.magnetization(problem) - fine.magnetization(problem)).abs().item()
    # An error ε of the state vector moves a ⟨Z⟩ by at most 2ε.
    assert 1e-6 < error < 2 * sampler.last_info["step_error"]


def test_schedule_from_a_file(tmp_path):
    path = tmp_path / "mine.json"
    save_schedule(free_angles([0.5], [0.4], [0.6], name="mine"), path)
    by_path = get_sampler("dqa", schedule=str(path))
    direct = get_sampler("dqa", schedule=free_angles([0.5], [0.4], [0.6]))
    problem = gaussian(2)
    assert torch.equal(by_path.magnetization(problem), direct.magnetization(problem))
    assert by_path.last_info["schedule"] == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "fpga"}, "engine"),
        ({"engine": 3}, "engine is of type int"),
        ({"schedule": "rampp"}, "did you mean"),
        ({"schedule": 3}, "schedule is of type int"),
        ({"schedule": "kick", "num_layers": 4}, "cannot be run with 4"),
        ({"schedule": "learned-strong", "num_layers": 3}, "not 3"),
        ({"engine": "aer", "gradient": "adjoint"}, "straight-through"),
        ({"gradient": "covariance", "shots": 1}, "at least 2 shots"),
        ({"shots": 0}, "at least 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(InvalidOptionError, match=message):
        get_sampler("dqa", **options)


def test_too_many_spins():
    with pytest.raises(ProblemTooLargeError, match="at most 20"):
        get_sampler("dqa").magnetization(IsingProblem(torch.zeros(21)))
