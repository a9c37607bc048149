"""Temperature schedules in the training loop, temperatures in checkpoints, calibration on validation data."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ising_attn import InvalidOptionError
from ising_attn.boolean import temperature_of
from ising_attn.lab.calibration import calibrate
from ising_attn.lab.checkpoints import load_weights
from ising_attn.lab.runs import RunFolder
from ising_attn.lab.temperature import Cooling, TemperatureSettings
from ising_attn.lab.training import Trainer, TrainingSettings
from ising_attn.logic import LogicLayer
from ising_attn.routers import ScalarRouter

X = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0))


class ToyTask:
    """The sum of the outputs; its validation loss is best at step 3 whatever the model does."""

    def __init__(self) -> None:
        self.evaluations: list[float] = []

    def batch(self, step: int) -> Tensor:
        return X

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, dict[str, float]]:
        return model(batch).square().mean(), {}

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        self.evaluations.append(temperature_of(model))
        return {"loss": abs(len(self.evaluations) - 3) + 1.0}


class ColderIsBetter(ToyTask):
    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        return {"loss": temperature_of(model)}


def router() -> ScalarRouter:
    torch.manual_seed(0)
    return ScalarRouter(4, 2, 3)


def test_the_schedules_of_the_article_and_of_the_code():
    article = TemperatureSettings(final_temperature=0.1, warm=0.25, hold=0.25, hold_temperature=0.5)
    at = [article.at(step, 101, 1.0) for step in (0, 24, 26, 49, 50, 75, 100)]
    assert at[:4] == [1.0, 1.0, 0.5, 0.5]
    assert at[4:] == pytest.approx([0.5, 0.5 * 0.2**0.5, 0.1])
    code = TemperatureSettings(final_temperature=0.1, warm=0.5)
    assert [code.at(step, 101, 2.0) for step in (0, 49, 75, 100)] == pytest.approx([2.0, 2.0, 2.0 * 0.05**0.5, 0.1])
    assert TemperatureSettings(final_temperature=0.5, warm=1.0).at(9, 10, 1.0) == 0.5
    assert TemperatureSettings(final_temperature=0.5).at(0, 1, 1.0) == 1.0


def test_evaluation_is_at_the_temperature_of_the_restored_checkpoint(tmp_path: Path):
    """4.71 became 8.72 in the original, where the weights were the best and the temperature the last."""
    model, task = router(), ToyTask()
    cooling = Cooling.of(model, TemperatureSettings(final_temperature=0.1))
    assert cooling is not None
    settings = TrainingSettings(steps=6, eval_every=1, monitor="loss", monitor_mode="min", learning_rate=1e-2)
    with RunFolder.create(tmp_path / "run", config={}) as run:
        result = Trainer(model, task, settings, run, callbacks=[cooling.over(6)]).fit()
    assert result.best_step == 3 and task.evaluations[-1] == pytest.approx(0.1)
    expected = task.evaluations[2]
    assert expected > 0.2 and temperature_of(model) == expected, "the model in memory"
    fresh = router()
    load_weights(tmp_path / "run" / "checkpoints" / "best.safetensors", fresh)
    assert temperature_of(fresh) == expected, "the model from disk"
    torch.testing.assert_close(fresh(X), model(X), rtol=0, atol=0)


def test_a_resumed_cooling_equals_an_uninterrupted_one(tmp_path: Path):
    settings = TrainingSettings(steps=6, eval_every=2, monitor="loss", monitor_mode="min", learning_rate=1e-2)
    temperatures = TemperatureSettings(final_temperature=0.1, warm=0.2)

    def fit(model: nn.Module, steps: int, run: RunFolder | None, *, resume: bool = False) -> dict[str, Tensor]:
        cooling = Cooling.of(model, temperatures)
        assert cooling is not None
        trainer = Trainer(model, ColderIsBetter(), settings, run, callbacks=[cooling.over(6)])
        if steps < 6:
            trainer.settings = TrainingSettings(**{**vars(settings), "steps": steps})
        trainer.fit(resume=resume)
        return model.state_dict()

    whole = fit(router(), 6, None)
    with RunFolder.create(tmp_path / "run", config={}) as run:
        fit(router(), 4, run)
        parts = fit(router(), 6, run, resume=True)
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"final_temperature": 0.0}, "--final-temperature is 0.0"),
        ({"final_temperature": float("nan")}, "--final-temperature is nan"),
        ({"hold": 0.1, "hold_temperature": -1.0}, "--hold-temperature is -1.0"),
        ({"warm": 1.5}, "--warm is 1.5"),
        ({"warm": 0.7, "hold": 0.7}, "more than all steps"),
        ({"hold_temperature": 0.5}, "needs the share"),
    ],
)
def test_schedules_that_are_none(settings: dict, message: str):
    with pytest.raises(InvalidOptionError, match=message):
        TemperatureSettings(**settings)


def test_a_schedule_needs_something_to_cool():
    with pytest.raises(InvalidOptionError, match="this model has none; use --attention=router"):
        Cooling.of(nn.Linear(2, 2), TemperatureSettings(final_temperature=0.1))
    assert Cooling.of(nn.Linear(2, 2), TemperatureSettings()) is None


def hard_loss(layer: ScalarRouter, best: float) -> Callable[[], float]:
    """A loss that is least for the threshold `best`, and that only a hard router sees."""

    def loss() -> float:
        assert layer.routing == "hard"
        return (float(layer.threshold) - best) ** 2

    return loss


def test_calibration_finds_the_threshold_and_leaves_it_in_the_model():
    layer = router()
    found = calibrate(layer, hard_loss(layer, 0.3), "threshold", (-0.5, 0.0, 0.25, 0.5))
    assert (found.value, found.on_edge) == (0.25, False) and float(layer.threshold) == 0.25
    assert found.own == pytest.approx(0.09) and found.loss == pytest.approx(0.0025)
    assert layer.routing == "soft", "how the model runs is put back"
    assert "0.25" in str(found) and "edge" not in str(found)


@pytest.mark.parametrize(("best", "edge"), [(-3.0, -0.5), (3.0, 0.5)])
def test_an_optimum_on_the_edge_is_reported(best: float, edge: float):
    layer = router()
    found = calibrate(layer, hard_loss(layer, best), "threshold", (-0.5, 0.1, 0.5))
    assert found.value == edge and found.on_edge
    assert "on the edge of the grid, widen it" in str(found)


def test_what_beats_nothing_changes_nothing():
    layer = router()
    found = calibrate(layer, hard_loss(layer, 0.0), "threshold", (-0.5, 0.1, 0.5))
    assert found.value is None and not found.on_edge and float(layer.threshold) == 0.0
    assert "the model's own is the best" in str(found)
    with pytest.raises(ZeroDivisionError):
        calibrate(layer, lambda: 1 / (float(layer.threshold) - 0.5), "threshold", (-0.5, 0.1, 0.5))
    assert float(layer.threshold) == 0.0


def test_temperatures_of_gates_and_routers_together():
    attention, gates = router(), LogicLayer(4, 6)
    model = nn.ModuleList([attention, gates])
    found = calibrate(model, lambda: abs(temperature_of(model) - 0.5), "temperature")
    assert found.value == 0.5
    assert [float(attention.temperature), float(gates.temperature)] == [0.5, 0.5]


def test_calibrations_that_are_none():
    for quantity, grid, model, message in (
        ("treshold", None, router(), "did you mean 'threshold'"),
        ("threshold", (0.0, 1.0), router(), "at least 3 ascending"),
        ("threshold", (0.0, 1.0, 0.5), router(), "at least 3 ascending"),
        ("threshold", None, LogicLayer(4, 6), "LogicLayer has no threshold"),
        ("temperature", (-1.0, 0.5, 1.0), router(), "temperature=-1.0"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            calibrate(model, lambda: 1.0, quantity, grid)
