"""Angles of an anneal as parameters of a model: the gradient is the derivative, and the sampler follows them."""

import copy
import warnings

import pytest
import torch

from ising_attn import BoltzmannAttention
from ising_attn.boltzmann import samplers_of
from ising_attn.lab.checkpoints import Checkpoint, load_weights, save_checkpoint
from ising_attn.lab.optimisation import TrainingSettings, parameter_groups
from ising_attn.lab.rates import with_rate
from ising_attn.learned_schedule import angles_in, learn_schedule, run_schedule, schedule_of, without_angles
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig
from samplers import InvalidOptionError, NotSupportedError, get_sampler
from samplers.dqa import AngleSchedule, CoarseScheduleWarning, DQASampler, load_schedule, named_schedule, save_schedule

ROWS = ("fields", "couplings", "mixer")


def attention(**options) -> BoltzmannAttention:
    torch.manual_seed(0)
    sampler = get_sampler("dqa", precision="double", **{"schedule": "learned-weak-2", **options})
    return BoltzmannAttention(4, 2, 3, sampler=sampler, coupling_std=0.5).double()


def output(layer: BoltzmannAttention) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x, direction = torch.randn(2, 2, 3, 4, generator=generator, dtype=torch.float64)
    return (layer(2 * x) * direction).sum()


def matcher(sampler, layers: int = 1) -> BracketMatcher:
    torch.manual_seed(0)
    config = BracketMatcherConfig(
        context=4, embed_dim=8, num_layers=layers, attention=AttentionConfig(coupling_std=0.5)
    )
    return BracketMatcher(config, sampler=sampler)


TOKENS = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])


@pytest.mark.parametrize(
    "options",
    [{}, {"schedule": "ramp", "num_layers": 3}, {"schedule": "ramp", "num_layers": 2, "calibrate": False}],
    ids=["learned", "calibrated ramp", "ramp"],
)
def test_the_first_angles_are_those_the_sampler_ran_and_their_gradient_is_the_derivative(options):
    layer = attention(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoarseScheduleWarning)
        before = output(layer)
    learned = learn_schedule(layer)
    assert output(layer).item() == pytest.approx(before.item(), abs=1e-12)
    output(layer).backward()
    for row in ROWS:
        angles = getattr(learned, row)
        slopes = []
        for index in range(len(angles)):
            sides = []
            for sign in (1, -1):
                with torch.no_grad():
                    angles[index] += sign * 1e-5
                    sides.append(output(layer).item())
                    angles[index] -= sign * 1e-5
            slopes.append((sides[0] - sides[1]) / 2e-5)
        torch.testing.assert_close(angles.grad, torch.tensor(slopes, dtype=torch.float64), atol=1e-8, rtol=1e-6)
        assert angles.grad.abs().max() > 1e-3


def test_all_layers_share_the_angles_which_are_parameters_and_state_of_the_model():
    model = matcher(DQASampler(num_layers=2, seed=5), layers=2)
    count = len(list(model.parameters()))
    learned = learn_schedule(model)
    assert schedule_of(model) is learned and len(samplers_of(model)) == 1
    assert samplers_of(model)[0].seed == 5
    assert len(list(model.parameters())) == count + 3
    model(TOKENS).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in learned.parameters())
    assert {name for name in model.state_dict() if name.startswith("learned_schedule")} == {
        f"learned_schedule.{row}" for row in ROWS
    }
    angles = angles_in(model.state_dict())
    assert angles is not None and torch.equal(angles.mixer, learned.mixer)
    weights = without_angles(model.state_dict())
    assert angles_in(weights) is None and len(weights) == len(model.state_dict()) - 3


def test_the_sampler_follows_the_angles_and_a_copy_has_its_own():
    model = matcher(DQASampler(num_layers=2))
    learned = learn_schedule(model)
    twin = copy.deepcopy(model)
    before = model(TOKENS)
    with torch.no_grad():
        learned.fields += 0.3
    assert not torch.allclose(model(TOKENS), before, atol=1e-4)
    assert torch.equal(twin(TOKENS), before)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(TOKENS), model(TOKENS))
    assert learned.distance(named_schedule("learned-strong", 2)) == pytest.approx(0.1, abs=1e-9)  # type: ignore[arg-type]


def test_a_fixed_copy_is_a_schedule_file_that_runs_the_same(tmp_path):
    model = matcher(DQASampler(num_layers=2))
    learned = learn_schedule(model)
    fixed = learned.fixed(about={"seed": 3})
    with torch.no_grad():
        problem = model.problems(TOKENS)[0]
        expected = samplers_of(model)[0].magnetization(problem)
        save_schedule(fixed, tmp_path / "mine.json")
        learned.mixer += 1.0
        again = get_sampler("dqa", schedule=str(tmp_path / "mine.json")).magnetization(problem)
    torch.testing.assert_close(again, expected)
    saved = load_schedule(tmp_path / "mine.json")
    assert isinstance(saved, AngleSchedule) and saved.about == {"seed": 3} and not saved.angles.mixer.requires_grad


def test_weights_with_a_schedule_fit_models_with_and_without_one(tmp_path):
    model = matcher(DQASampler(num_layers=2))
    learned = learn_schedule(model)
    with torch.no_grad():
        learned.mixer += 0.1
    file = tmp_path / "both.safetensors"
    save_checkpoint(file, Checkpoint(model=model.state_dict(), model_config=model.config.to_dict()))
    exact = matcher("exact")
    load_weights(file, exact, model_config=exact.config.to_dict())
    assert torch.equal(exact.tokens.weight, model.tokens.weight)
    other = matcher(DQASampler(num_layers=4))
    run_schedule(other, learned.fixed().angles)
    load_weights(file, other, model_config=other.config.to_dict())
    assert torch.equal(other(TOKENS), model(TOKENS))


def test_angles_take_a_rate_of_their_own_and_no_decay():
    model = matcher(DQASampler(num_layers=2))
    learned = learn_schedule(model)
    settings = TrainingSettings(learning_rate=0.1, angle_learning_rate=0.02, weight_decay=0.5)
    groups = parameter_groups(model, settings, [], learned.parameters())
    assert [id(p) for p in groups[-1]["params"]] == [id(p) for p in learned.parameters()]
    assert groups[-1]["base_rate"] == 0.02 and groups[-1]["weight_decay"] == 0
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert with_rate(settings, 0.2).angle_learning_rate == pytest.approx(0.04)
    with pytest.raises(InvalidOptionError, match="angle parameter"):
        parameter_groups(matcher("exact"), settings, [], learned.parameters())


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (get_sampler("exact"), "'exact' has no layer angles"),
        (DQASampler(engine="aer"), "'straight-through' .engine='aer'"),
        (DQASampler(shots=10), "shots=10"),
        (DQASampler(gradient="covariance"), "is 'covariance'"),
        (DQASampler(correction="importance"), "correction='importance'"),
    ],
)
def test_samplers_without_a_gradient_in_angles_are_refused(sampler, words):
    model = matcher(sampler)
    with pytest.raises(NotSupportedError, match=words):
        learn_schedule(model)
    assert schedule_of(model) is None and samplers_of(model) == [sampler]


def test_models_without_one_sampler_are_refused():
    with pytest.raises(InvalidOptionError, match="Linear has no sampler"):
        learn_schedule(torch.nn.Linear(2, 2))
    two = torch.nn.ModuleList([attention(), attention()])
    with pytest.raises(InvalidOptionError, match="2 samplers"):
        learn_schedule(two)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_angles_are_learned_on_a_gpu_as_on_the_cpu():
    twins = [matcher(DQASampler(num_layers=2)).to(device) for device in ("cpu", "cuda")]
    gradients = []
    for twin in twins:
        learned = learn_schedule(twin)
        twin(TOKENS.to(learned.mixer.device)).square().sum().backward()
        gradients.append([p.grad.cpu() for p in learned.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)
