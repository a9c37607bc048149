"""Choosing a learning rate by short trainings."""

import math

import pytest
import torch
from torch import nn

from ising_attn import BoltzmannAttention, get_sampler
from ising_attn.lab.errors import TrainingDivergedError
from ising_attn.lab.rates import choose_rate, with_rate
from ising_attn.lab.training import TrainingSettings

SETTINGS = TrainingSettings(
    steps=5000, learning_rate=1e-3, coupling_learning_rate=1e-2, warmup=100, eval_every=400, patience=3, target=0.1,
    monitor="loss", monitor_mode="min",
)  # fmt: skip


class Fits:
    """Stands for training: moves the weights, uses the sampler, and reports the loss set for the rate."""

    def __init__(self, model: nn.Module, losses: dict[float, float]):
        self.model, self.losses = model, losses
        self.seen: list[tuple[TrainingSettings, str]] = []
        self.starts: list[float] = []

    def __call__(self, settings: TrainingSettings, label: str) -> dict[str, float]:
        self.seen.append((settings, label))
        weight = next(self.model.parameters())
        self.starts.append(float(weight.detach().sum()))
        with torch.no_grad():
            weight.add_(1.0)
        self.model(torch.zeros(1, 4, 8))
        loss = self.losses[settings.learning_rate]
        if math.isinf(loss):
            raise TrainingDivergedError("the loss is inf")
        return {"loss": loss}


def model() -> BoltzmannAttention:
    torch.manual_seed(0)
    return BoltzmannAttention(8, 2, 4, sampler=get_sampler("annealing", num_reads=2))


def test_the_rate_of_the_best_validation_number_wins_from_the_same_start():
    layer = model()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}, layer.sampler.state_dict()
    fits = Fits(layer, {1e-4: 2.0, 1e-3: 1.5, 1e-2: 1.5, 1.0: math.inf})
    choice = choose_rate(layer, SETTINGS, [1e-4, 1e-3, 1e-2, 1.0, 1e-3], 200, fits)
    assert choice.settings == SETTINGS  # 1e-3, before its equal
    assert list(choice.values) == [1e-4, 1e-3, 1e-2, 1.0] and choice.values[1e-4] == 2.0
    assert math.isnan(choice.values[1.0])
    assert fits.starts == [fits.starts[0]] * 4
    assert [label for _, label in fits.seen] == ["rate-0.0001", "rate-0.001", "rate-0.01", "rate-1"]
    after = layer.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before[0].items())
    assert layer.sampler.state_dict() == before[1]


def test_each_trial_runs_its_whole_schedule_at_its_own_rates():
    layer = model()
    fits = Fits(layer, {2e-3: 1.0, 1e-4: 3.0})
    choice = choose_rate(layer, SETTINGS, [2e-3, 1e-4], 200, fits)
    trial = fits.seen[1][0]
    assert (trial.steps, trial.eval_every, trial.warmup, trial.patience, trial.target) == (200, 200, 20, None, None)
    assert (trial.learning_rate, trial.coupling_learning_rate) == (1e-4, pytest.approx(1e-3))
    assert (choice.settings.steps, choice.settings.learning_rate) == (5000, 2e-3)
    assert choice.settings.coupling_learning_rate == pytest.approx(2e-2)


def test_a_larger_number_is_better_where_the_settings_say_so():
    layer = model()
    settings = TrainingSettings(monitor="loss", monitor_mode="max")
    assert choose_rate(layer, settings, [0.1, 0.2], 5, Fits(layer, {0.1: 1.0, 0.2: 3.0})).settings.learning_rate == 0.2


def test_couplings_without_a_rate_of_their_own_stay_without():
    assert with_rate(TrainingSettings(), 0.5).coupling_learning_rate is None


def test_rates_that_all_diverge_are_refused():
    layer = model()
    with pytest.raises(TrainingDivergedError, match="each of 1, 2; give smaller"):
        choose_rate(layer, SETTINGS, [1.0, 2.0], 5, Fits(layer, {1.0: math.inf, 2.0: math.inf}))
