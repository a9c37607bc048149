"""The sampler 'dqa' through its outer engines: Aer, noisy Aer and Qiskit primitives."""

import copy

import pytest
import torch

from samplers import IsingProblem, get_sampler
from samplers.dqa import DQASampler
from samplers.errors import InvalidOptionError

pytest.importorskip("qiskit_aer")

from qiskit.primitives import StatevectorSampler  # noqa: E402

from samplers.dqa import schedule_names  # noqa: E402
from samplers.dqa.aer import AerEngine  # noqa: E402

MASK = torch.ones(4, 4, dtype=torch.bool).tril()


def causal_problem(scale: float = 0.4, requires_grad: bool = False) -> IsingProblem:
    generator = torch.Generator().manual_seed(2)
    fields = scale * torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)
    J = scale * torch.randn(2, 1, 4, 4, generator=generator, dtype=torch.float64).triu(1)
    J = J + J.mT
    return IsingProblem(fields.requires_grad_(requires_grad), J.requires_grad_(requires_grad), allowed=MASK, beta=0.8)


def dqa(**options):
    return get_sampler("dqa", num_layers=4, **options)


def test_engines_agree_on_a_masked_batch():
    problem = causal_problem()
    ours, aer = dqa(), dqa(engine="aer")
    assert (ours.probabilities(problem) - aer.probabilities(problem)).abs().max() < 1e-9
    assert (ours.magnetization(problem) - aer.magnetization(problem)).abs().max() < 1e-9
    assert (ours.correlations(problem) - aer.correlations(problem)).abs().max() < 1e-9
    assert aer._engine().transpilations == 4  # one for each prefix length
    assert aer.last_info["engine_info"]["engine"] == "aer"


@pytest.mark.parametrize("name", schedule_names())
def test_engines_agree_on_every_schedule(name):
    problem = causal_problem(scale=0.3)[0, 2:]
    laws = [DQASampler(schedule=name, engine=engine).probabilities(problem) for engine in ("statevector", "aer")]
    assert (laws[0] - laws[1]).abs().max() < 1e-9


def test_parameter_shift_is_the_adjoint_gradient():
    found = []
    for options in ({"gradient": "adjoint"}, {"engine": "aer", "gradient": "parameter-shift"}):
        problem = causal_problem(requires_grad=True)
        sampler = dqa(**options)
        assert sampler.capabilities.gradient == options["gradient"]
        mean = sampler.magnetization(problem)
        weights = torch.linspace(-1, 1, mean.numel(), dtype=mean.dtype).reshape(mean.shape)
        found.append(torch.autograd.grad((weights * mean).sum(), (problem.fields, problem.couplings)))
    for adjoint, shifted in zip(*found, strict=True):
        assert adjoint.abs().max() > 0.1
        assert (adjoint - shifted).abs().max() < 1e-9


def test_parameter_shift_from_shots_has_its_own_noise_and_the_right_mean():
    problem = causal_problem(requires_grad=True)[0, 3:]
    exact = torch.autograd.grad(dqa(gradient="adjoint").magnetization(problem).sum(), problem.fields)[0]
    sampler = dqa(engine="aer", gradient="parameter-shift", shots=200)
    draws = torch.stack(
        [torch.autograd.grad(sampler.magnetization(problem).sum(), problem.fields)[0] for _ in range(20)]
    )
    error = draws.std(0) / 20**0.5
    assert bool((error > 1e-4).all())
    assert ((draws.mean(0) - exact) / error).abs().max() < 5


def test_parts_of_a_batch_draw_the_same_shots():
    problem = causal_problem()
    sampler = dqa(engine="aer", shots=50)
    whole = sampler.sample(problem, seed=3).spins
    assert torch.equal(whole[1:, 2:], sampler.sample(problem[1:, 2:], seed=3).spins)


@pytest.mark.parametrize("noise", [None, {"depolarizing": 0.02, "readout": 0.03}])
def test_shots_of_aer_have_the_marginals_of_its_probabilities(noise):
    problem = causal_problem()
    exact = dqa(engine="aer", noise=noise).magnetization(problem)
    sampler = dqa(engine="aer", noise=noise, shots=2000)
    error = ((1 - exact**2) / 2000).sqrt().clamp_min(1e-9)
    assert ((sampler.magnetization(problem) - exact) / error)[MASK.expand(2, 4, 4)].abs().max() < 4.5


def test_noise_pulls_marginals_towards_zero():
    problem = causal_problem()
    clean, noisy = (dqa(engine="aer", noise=noise).magnetization(problem) for noise in (None, "depolarizing=0.05"))
    used = MASK.expand(2, 4, 4)
    assert noisy[used].abs().mean() < 0.9 * clean[used].abs().mean()
    assert bool((noisy[~used] == -1).all())


def test_a_primitive_as_engine():
    problem = causal_problem()
    with pytest.raises(InvalidOptionError, match="give shots="):
        dqa(engine=StatevectorSampler(seed=1))
    sampler = dqa(engine=StatevectorSampler(seed=1), shots=2000)
    exact = dqa().magnetization(problem)
    error = ((1 - exact**2) / 2000).sqrt().clamp_min(1e-9)
    assert ((sampler.magnetization(problem) - exact) / error)[MASK.expand(2, 4, 4)].abs().max() < 4.5
    assert "StatevectorSampler" in sampler.last_info["engine_info"]["primitive"]


def test_an_engine_object_with_its_own_settings():
    engine = AerEngine(method="matrix_product_state", max_experiments=3)
    problem = causal_problem()
    assert (dqa(engine=engine).magnetization(problem) - dqa().magnetization(problem)).abs().max() < 1e-8


def test_a_sampler_can_be_copied_after_use():
    problem = causal_problem()
    sampler = dqa(engine="aer", noise="readout=0.1")
    before = sampler.magnetization(problem)
    assert torch.equal(copy.deepcopy(sampler).magnetization(problem), before)


def test_parameter_shift_needs_gates():
    with pytest.raises(InvalidOptionError, match="gradient='adjoint'"):
        dqa(gradient="parameter-shift")
