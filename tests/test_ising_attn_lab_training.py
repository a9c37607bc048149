"""The training loop: exact resumption, early stopping, interruption, divergence, parameter groups."""

import dataclasses
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.errors import CheckpointError, TrainingDivergedError, TrainingInterrupted
from ising_attn.lab.runs import RunFolder
from ising_attn.lab.training import Trainer, TrainingSettings, evaluate
from samplers import Capabilities, InvalidOptionError, IsingProblem, Sampler, Samples
from samplers.streams import uniforms_like

SETTINGS = TrainingSettings(
    steps=20,
    batch_size=8,
    learning_rate=0.01,
    coupling_learning_rate=0.05,
    eval_every=4,
    monitor="loss",
    monitor_mode="min",
)


class Coins(Sampler):
    """Independent spins drawn from their fields: stochastic, so call numbers matter."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=True, gradient="straight-through")

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        up = torch.sigmoid(2 * problem.fields).unsqueeze(-2)
        drawn = uniforms_like(problem.fields, key, problem.streams, num_reads * problem.num_spins)
        spins = torch.where(drawn.reshape(*problem.batch_shape, num_reads, problem.num_spins) < up, 1, -1)
        weights = torch.full(spins.shape[:-1], 1 / num_reads, dtype=problem.dtype)
        return Samples(spins.to(torch.int8), weights, torch.zeros_like(weights))


class Model(nn.Module):
    """Dropout, a stochastic sampler and couplings: everything whose state a resumption must carry."""

    def __init__(self, seed: int = 0, width: int = 6):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.inner, self.outer, self.dropout = nn.Linear(4, width), nn.Linear(width, 1), nn.Dropout(0.3)
        self.couplings = nn.Parameter(torch.zeros(width, width))
        self.sampler = Coins()

    def forward(self, x: Tensor) -> Tensor:
        fields = self.dropout(self.inner(x))
        symmetric = (self.couplings + self.couplings.T) / 2
        symmetric = symmetric - torch.diag(symmetric.diagonal())
        marginals = self.sampler.magnetization(IsingProblem(fields, symmetric))
        return self.outer(marginals + fields @ symmetric).squeeze(-1)


class Regression:
    """Batches are a function of the step; `before_loss` lets a test strike at a chosen step."""

    def __init__(self, before_loss=lambda step: None, scale: float = 1.0):
        self.before_loss, self.scale, self.step = before_loss, scale, 0

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        self.step = step
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        return x, x.sum(-1).sin()

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, dict[str, float]]:
        self.before_loss(self.step)
        x, y = batch
        loss = ((model(x) - y) ** 2).mean() * self.scale
        return loss, {"error": loss.item() ** 0.5}

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        x, y = self.batch({"validation": 10**6, "test": 10**7}[split])
        return {"loss": ((model(x) - y) ** 2).mean().item()}


def trainer(
    run: RunFolder | None, settings: TrainingSettings = SETTINGS, task=None, seed: int = 0, **more: Any
) -> Trainer:
    model = Model(seed)
    arguments: dict[str, Any] = {"coupling_parameters": [model.couplings], "samplers": [model.sampler]}
    arguments |= {"model_config": {"width": 6}} | more
    return Trainer(model, task or Regression(), settings, run, **arguments)


def model_of(ours: Trainer) -> Model:
    assert isinstance(ours.model, Model)
    return ours.model


def folder(path: Path, *, resume: bool = False) -> RunFolder:
    return RunFolder.create(path, config={"width": 6}, resume=resume)


def metrics_without_times(run: RunFolder) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()]


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Killed(Exception):
    pass


def kill_at(step: int):
    def strike(now: int) -> None:
        if now == step:
            raise Killed

    return strike


@pytest.fixture
def whole(tmp_path):
    """Twenty steps without a stop: result, final checkpoint, metrics."""
    with folder(tmp_path / "whole") as run:
        result = trainer(run).fit()
        return result, load_checkpoint(run.checkpoints / "last.safetensors"), metrics_without_times(run)


def assert_same_end(run: RunFolder, result, whole) -> None:
    expected, last, metrics = whole
    ours = load_checkpoint(run.checkpoints / "last.safetensors")
    assert ours.step == last.step == 20
    assert same_bits(ours.model, last.model)
    assert ours.samplers == last.samplers
    assert ours.optimizer is not None and last.optimizer is not None
    for number, state in last.optimizer["state"].items():
        assert same_bits(ours.optimizer["state"][number], state)
    assert metrics_without_times(run) == metrics
    assert dataclasses.replace(result, seconds=0) == dataclasses.replace(expected, seconds=0)


@pytest.mark.parametrize("stop", [8, 10])
def test_ten_steps_a_resumption_and_ten_more_equal_twenty(tmp_path, whole, stop):
    # 10 is between two evaluations, 8 at one.
    with folder(tmp_path / "run") as run:
        interrupt = lambda step: signal.raise_signal(signal.SIGINT) if step == stop - 1 else None  # noqa: E731
        with pytest.raises(TrainingInterrupted, match=f"stopped after step {stop}; .*--resume --out="):
            trainer(run, task=Regression(interrupt)).fit()
        assert load_checkpoint(run.checkpoints / "last.safetensors").step == stop
    with folder(tmp_path / "run", resume=True) as run:
        # A model with other initial weights: all of them must come from the checkpoint.
        result = trainer(run, seed=1).fit(resume=True)
        assert_same_end(run, result, whole)


def test_more_steps_continue_a_finished_run(tmp_path, whole):
    with folder(tmp_path / "run") as run:
        assert trainer(run, dataclasses.replace(SETTINGS, steps=8)).fit().steps == 8
    with folder(tmp_path / "run", resume=True) as run:
        assert_same_end(run, trainer(run, seed=1).fit(resume=True), whole)


@pytest.mark.parametrize("step", [2, 10, 13])
def test_a_killed_run_resumes_from_its_last_checkpoint_as_if_nothing_had_happened(tmp_path, whole, step):
    with folder(tmp_path / "run") as run, pytest.raises(Killed):
        trainer(run, task=Regression(kill_at(step))).fit()
    with folder(tmp_path / "run", resume=True) as run:
        assert_same_end(run, trainer(run, seed=0).fit(resume=True), whole)


def test_the_sampler_and_dropout_states_matter_for_this(tmp_path, whole):
    """The planted fault: a resumption that forgets the sampler's call number is seen."""
    with folder(tmp_path / "run") as run, pytest.raises(Killed):
        trainer(run, task=Regression(kill_at(10))).fit()
    with folder(tmp_path / "run", resume=True) as run:
        forgetful = trainer(run)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forgetful.samplers[0], "load_state_dict", lambda state: None)
            forgetful.fit(resume=True)
        assert not same_bits(load_checkpoint(run.checkpoints / "last.safetensors").model, whole[1].model)
    model, x = Model().train(), torch.ones(64, 4)
    assert not torch.equal(model.dropout(x), model.dropout(x))


def test_steps_see_fresh_dropout_and_other_seeds_other_dropout():
    seen = []

    class Peek(Regression):
        def loss(self, model, batch):
            seen.append(torch.rand(3).tolist())
            return super().loss(model, batch)

    trainer(None, dataclasses.replace(SETTINGS, steps=3), Peek()).fit()
    trainer(None, dataclasses.replace(SETTINGS, steps=3, seed=1), Peek()).fit()
    assert len({tuple(row) for row in seen}) == 6


def test_evaluations_leave_the_training_untouched():
    often, never = (trainer(None, dataclasses.replace(SETTINGS, eval_every=k)) for k in (1, 20))
    often.fit()
    never.fit()
    # Compared on the optimiser, since the best weights are loaded back into the models.
    for a, b in zip(often.optimizer.state.values(), never.optimizer.state.values(), strict=True):
        assert torch.equal(a["exp_avg"], b["exp_avg"])


def test_no_global_generator_is_moved():
    before = torch.random.get_rng_state()
    trainer(None).fit()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_evaluation_repeats_and_leaves_mode_and_sampler_alone():
    model = Model().train()
    numbers = [evaluate(model, Regression(), "validation", samplers=[model.sampler], seed=s) for s in (0, 0, 1)]
    assert numbers[0] == numbers[1] != numbers[2]
    assert model.training
    assert model.sampler.state_dict() == {"calls": 0}


def test_best_weights_are_loaded_back_and_are_those_of_the_best_evaluation(tmp_path):
    with folder(tmp_path / "run") as run:
        ours = trainer(run, dataclasses.replace(SETTINGS, learning_rate=0.3, coupling_learning_rate=0.3))
        result = ours.fit()
        best = load_checkpoint(run.checkpoints / "best.safetensors")
        rows = {row["step"]: row["validation_loss"] for row in run.metrics()}
    assert rows[result.best_step] == min(rows.values()) == result.best_metrics["loss"]
    assert same_bits(dict(ours.model.state_dict()), best.model)
    assert ours.evaluate("validation") == result.best_metrics
    assert best.optimizer is None


class Scripted(Regression):
    """Validation numbers from a list."""

    def __init__(self, values):
        super().__init__()
        self.values = iter(values)

    def evaluate(self, model, split):
        return {"loss": next(self.values)}


def test_the_display_hears_of_an_early_stop_alone():
    class Display:
        def __init__(self) -> None:
            self.early: list[int] = []

        def start(self, step, total): ...
        def advance(self, step, values): ...
        def evaluated(self, step, values): ...
        def stopped_early(self, step):
            self.early.append(step)

    for steps, expected in ((5, []), (100, [8])):
        display = Display()
        settings = dataclasses.replace(SETTINGS, steps=steps, eval_every=1, patience=3)
        trainer(None, settings, Scripted([5.0, 4.0, 5.0, 4.0, 3.0, 3.0, 3.0, 3.0, 9.0])).fit(display)
        assert display.early == expected


def test_patience_counts_evaluations_without_improvement():
    settings = dataclasses.replace(SETTINGS, steps=100, eval_every=1, patience=3)
    nan = float("nan")
    result = trainer(None, settings, Scripted([5.0, 4.0, 4.0, nan, 3.0, 3.0, 9.0, 3.5])).fit()
    assert (result.steps, result.best_step, result.best_metrics, result.stopped_early) == (8, 5, {"loss": 3.0}, True)


def test_the_larger_number_is_better_with_that_direction():
    settings = dataclasses.replace(SETTINGS, steps=4, eval_every=1, monitor_mode="max")
    result = trainer(None, settings, Scripted([0.1, 0.9, 0.5, 0.9])).fit()
    assert (result.best_step, result.stopped_early) == (2, False)


def test_a_target_ends_training():
    settings = dataclasses.replace(SETTINGS, steps=100, eval_every=1, target=1.0)
    assert trainer(None, settings, Scripted([3.0, 2.0, 1.0])).fit().steps == 3


def test_a_time_limit_ends_training_after_an_evaluation():
    result = trainer(None, dataclasses.replace(SETTINGS, steps=10**6, eval_every=10**6, max_seconds=0.05)).fit()
    assert 0 < result.steps < 10**6
    assert result.best_step == result.steps


def test_an_unknown_monitor_is_refused():
    with pytest.raises(InvalidOptionError, match="--monitor is 'accuracy'; this task reports loss"):
        trainer(None, dataclasses.replace(SETTINGS, monitor="accuracy")).fit()


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_checkpoint(tmp_path):
    task = Regression()
    task.before_loss = lambda step: setattr(task, "scale", float("nan") if step == 9 else 1.0)
    with folder(tmp_path / "run") as run:
        with pytest.raises(TrainingDivergedError, match="the loss is nan at step 10; the last checkpoint is .*last"):
            trainer(run, task=task).fit()
        last = load_checkpoint(run.checkpoints / "last.safetensors")
    assert last.step == 8
    assert all(t.isfinite().all() for t in last.model.values())


def test_a_gradient_that_is_not_finite_never_reaches_the_weights():
    ours = trainer(None)
    model_of(ours).outer.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(TrainingDivergedError, match="the gradient's norm is (inf|nan) at step 1; no checkpoint"):
        ours.fit()
    assert same_bits(dict(ours.model.state_dict()), dict(Model().state_dict()))


def test_a_second_interrupt_stops_at_once(interrupts):
    def twice(step: int) -> None:
        if step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        trainer(None, task=Regression(twice)).fit()
    assert not isinstance(caught.value, TrainingInterrupted)


def test_the_interrupt_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    trainer(None).fit()
    assert signal.getsignal(signal.SIGINT) is before


def test_training_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(trainer(None).fit()))
    thread.start()
    thread.join()
    assert results[0].steps == 20


def test_couplings_have_their_own_rate_and_are_not_decayed():
    ours = trainer(None, dataclasses.replace(SETTINGS, weight_decay=0.1))
    groups = {id(p): group for group in ours.optimizer.param_groups for p in group["params"]}
    chosen = {name: groups[id(p)] for name, p in ours.model.named_parameters()}
    assert {name: (g["base_rate"], g["weight_decay"]) for name, g in chosen.items()} == {
        "couplings": (0.05, 0.0),
        "inner.weight": (0.01, 0.1),
        "inner.bias": (0.01, 0.0),
        "outer.weight": (0.01, 0.1),
        "outer.bias": (0.01, 0.0),
    }


def test_a_coupling_rate_of_zero_freezes_them():
    ours = trainer(None, dataclasses.replace(SETTINGS, coupling_learning_rate=0.0))
    ours.fit()
    assert model_of(ours).couplings.eq(0).all()
    assert not torch.equal(model_of(ours).inner.weight, Model().inner.weight)


def test_a_foreign_coupling_parameter_is_refused():
    with pytest.raises(InvalidOptionError, match="no parameter of the model"):
        trainer(None, coupling_parameters=[nn.Parameter(torch.zeros(2, 2))])


def test_the_gradient_is_clipped_to_the_given_norm():
    ours = trainer(None, dataclasses.replace(SETTINGS, steps=1, clip=0.01))
    ours.fit()
    gradients = [p.grad.flatten() for p in ours.model.parameters() if p.grad is not None]
    assert len(gradients) == len(list(ours.model.parameters()))
    norm = torch.cat(gradients).norm()
    assert norm == pytest.approx(0.01, rel=1e-4)


def test_rates_rise_and_fall_as_scheduled():
    settings = dataclasses.replace(SETTINGS, steps=14, warmup=4, schedule="cosine")
    factors = [settings.rate_factor(k) for k in range(14)]
    assert factors[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert factors[4] == 1.0
    assert factors[9] == pytest.approx(0.5)
    assert factors == sorted(factors[:5]) + sorted(factors[5:], reverse=True)
    assert dataclasses.replace(SETTINGS, warmup=0).rate_factor(19) == 1.0


def test_callbacks_see_every_step_before_it_is_made():
    seen = []
    trainer(None, dataclasses.replace(SETTINGS, steps=3), callbacks=[lambda step, model: seen.append(step)]).fit()
    assert seen == [0, 1, 2]


def test_fits_with_labels_share_a_run(tmp_path, whole):
    with folder(tmp_path / "run") as run:
        trainer(run, label="a").fit()
        with pytest.raises(Killed):
            trainer(run, task=Regression(kill_at(6)), label="b").fit()
    with folder(tmp_path / "run", resume=True) as run:
        assert trainer(run, seed=1, label="a").fit(resume=True).steps == 20
        trainer(run, label="b").fit(resume=True)
        rows = metrics_without_times(run)
    for label in "ab":
        assert [{k: v for k, v in row.items() if k != "label"} for row in rows if row["label"] == label] == whole[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_config": {"width": 7}}, "is from another model: width is 6 there and 7 here"),
        ({"samplers": []}, "was trained with Coins, not no sampler"),
        ({"coupling_parameters": []}, "no optimiser state that fits"),
    ],
)
def test_a_resumption_that_does_not_fit_changes_nothing(tmp_path, change, message):
    with folder(tmp_path / "run") as run:
        trainer(run, dataclasses.replace(SETTINGS, steps=8)).fit()
    files = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != "environment.json"}
    with RunFolder.create(tmp_path / "run", config={"width": 7}, resume=True) as run:
        ours = trainer(run, seed=1, **change)
        with pytest.raises(CheckpointError, match=message):
            ours.fit(resume=True)
        assert same_bits(dict(ours.model.state_dict()), dict(Model(1).state_dict()))
    assert files == {p: p.read_bytes() for p in files}


def test_a_resumption_with_another_seed_is_refused(tmp_path):
    with folder(tmp_path / "run") as run:
        trainer(run, dataclasses.replace(SETTINGS, steps=8, seed=3)).fit()
    files = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != "environment.json"}
    with folder(tmp_path / "run", resume=True) as run:
        with pytest.raises(CheckpointError, match="was trained with --seed=3, not 9; resume with the same seed"):
            trainer(run, dataclasses.replace(SETTINGS, seed=9)).fit(resume=True)
        assert files == {p: p.read_bytes() for p in files}
        assert trainer(run, dataclasses.replace(SETTINGS, seed=3)).fit(resume=True).steps == 20


BEST_FIRST = [1.0, 2.0]


def fitted(path: Path, numbers: list[float] = BEST_FIRST, **more: Any) -> Path:
    """A finished run of an evaluation per number; by default its best weights are not its last."""
    settings = dataclasses.replace(SETTINGS, steps=4 * len(numbers))
    with folder(path) as run:
        trainer(run, settings, Scripted(numbers), **more).fit()
        return run.checkpoints / "best.safetensors"


def test_a_resumption_refuses_best_weights_that_are_not_this_run_s(tmp_path):
    best, other = fitted(tmp_path / "run"), fitted(tmp_path / "other", [5.0, 6.0])
    later = fitted(tmp_path / "later", [3.0, 2.0, 4.0])
    foreign = fitted(tmp_path / "foreign", model_config={"width": 7})
    last = best.with_name("last.safetensors").read_bytes()
    for wrong, message in (
        (other, "best.safetensors is of step 4 with loss 5.0, but last.safetensors beside it records step 4 with 1.0"),
        (later, "best.safetensors is of step 8 with loss 2.0"),
        (foreign, "best.safetensors is from another model: width is 7 there and 6 here"),
    ):
        best.write_bytes(wrong.read_bytes())
        with folder(tmp_path / "run", resume=True) as run:
            ours = trainer(run, task=Scripted([1.0]))
            with pytest.raises(CheckpointError, match=message):
                ours.fit(resume=True)
            assert ours.step == 0 and same_bits(dict(ours.model.state_dict()), dict(Model().state_dict()))
        assert best.with_name("last.safetensors").read_bytes() == last
        assert best.read_bytes() == wrong.read_bytes()


def test_a_run_killed_between_its_two_checkpoints_keeps_the_best_weights(tmp_path, monkeypatch):
    saved = Trainer._save

    def save(self, which):
        if which == "best" and self.step == 8:
            raise Killed
        saved(self, which)

    monkeypatch.setattr(Trainer, "_save", save)
    with pytest.raises(Killed):
        fitted(tmp_path / "run", [2.0, 1.0, 3.0])
    monkeypatch.setattr(Trainer, "_save", saved)
    with folder(tmp_path / "run", resume=True) as run:
        settings = dataclasses.replace(SETTINGS, steps=12)
        result = trainer(run, settings, Scripted([3.0])).fit(resume=True)
        assert (result.steps, result.best_step, result.best_metrics) == (12, 8, {"loss": 1.0})
        assert load_checkpoint(run.checkpoints / "best.safetensors").step == 8


def test_a_resumption_takes_the_rates_of_the_present_settings(tmp_path):
    with folder(tmp_path / "run") as run:
        trainer(run, dataclasses.replace(SETTINGS, steps=8)).fit()
    with folder(tmp_path / "run", resume=True) as run:
        ours = trainer(run, dataclasses.replace(SETTINGS, learning_rate=0.002))
        ours.fit(resume=True)
    assert {group["lr"] for group in ours.optimizer.param_groups} == {0.002, 0.05}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "--steps is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, "--learning-rate is 0.0; it must be above 0"),
        ({"learning_rate": float("nan")}, "--learning-rate is nan; it must be finite and above 0"),
        ({"target": float("nan")}, "--target is nan; it must be finite"),
        ({"clip": -1.0}, "--clip is -1.0; it must be above 0"),
        ({"patience": 0}, "--patience is 0"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(InvalidOptionError, match=message):
        dataclasses.replace(SETTINGS, **change)
