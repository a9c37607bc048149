"""Distillation: losses against their formulas, teachers from checkpoints, tasks that learn from them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ising_attn.distill import attention_matching, distillation_loss, router_matching
from ising_attn.lab.checkpoints import Checkpoint, save_checkpoint
from ising_attn.lab.distillation import DistillationSettings, DistilledTask, load_teacher
from ising_attn.lab.errors import CheckpointError
from ising_attn.lab.last_position import LastPositionTask
from ising_attn.lab.text import TextData
from ising_attn.lab.text_task import TextTask
from ising_attn.lab.training import Trainer, TrainingSettings
from ising_attn.lab.wrapped_task import EntropyTask
from ising_attn.routers import Routing, use_routing
from models import AttentionConfig, CharLM, CharLMConfig, LogicLM, LogicLMConfig, model_from_config
from samplers import InvalidOptionError, InvalidProblemError

TEXT = "the quick brown fox jumps over the lazy dog. " * 60
DATA = TextData.tuned(TEXT)
CHARACTERS = DATA.vocabulary.characters


def lm(kind: str = "softmax", seed: int = 0, **options: Any) -> CharLM:
    torch.manual_seed(seed)
    config = CharLMConfig(
        vocabulary=len(CHARACTERS),
        characters=CHARACTERS,
        context=6,
        embed_dim=16,
        num_heads=2,
        feed_forward=16,
        **{"dropout": 0.0, "attention": AttentionConfig(kind=kind), **options},
    )
    return CharLM(config)


def task(kind: type[TextTask] = TextTask) -> TextTask:
    return kind(DATA, context=6, batch_size=8)


def saved(model: Any, path: Path) -> Path:
    save_checkpoint(path, Checkpoint(model=model.state_dict(), model_config=model.config.to_dict()))
    return path


def test_the_loss_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(5, 7, generator=generator), 2 * torch.randn(5, 7, generator=generator)
    targets = torch.tensor([0, 3, 6, 1, 2])
    p, q = (teacher / 3).softmax(-1), (student / 3).softmax(-1)
    kl = (p * (p / q).log()).sum(-1).mean()
    expected = 0.7 * cross_entropy(student, targets) + 0.3 * 9 * kl
    found = distillation_loss(student, teacher, targets, alpha=0.3, temperature=3.0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(distillation_loss(student, teacher, targets, alpha=0.0), cross_entropy(student, targets))
    assert distillation_loss(student, student, targets, alpha=1.0).item() == pytest.approx(0, abs=1e-6)


def test_the_softened_gradient_keeps_its_size():
    """T² is there so that α means the same at every T: the gradient tends to a limit as T grows."""
    generator = torch.Generator().manual_seed(0)
    teacher, targets = torch.randn(5, 7, generator=generator), torch.zeros(5, dtype=torch.int64)
    sizes = []
    for temperature in (8.0, 64.0):
        student = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
        distillation_loss(student, teacher, targets, alpha=1.0, temperature=temperature).backward()
        assert student.grad is not None
        sizes.append(student.grad.norm().item())
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_no_gradient_goes_to_the_teacher():
    student, teacher = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    distillation_loss(student, teacher, torch.tensor([0, 1, 2])).backward()
    assert student.grad is not None and teacher.grad is None


def test_attention_maps_are_matched_from_the_last_layer_back():
    generator = torch.Generator().manual_seed(0)
    deep = [torch.rand(2, 3, 4, 4, generator=generator).softmax(-1) for _ in range(3)]
    shallow = [deep[1][:, :1], deep[2][:, :2]]
    expected = [(a.mean(1) - b.mean(1)).square().sum(-1).mean() for a, b in zip(shallow, deep[1:], strict=True)]
    torch.testing.assert_close(attention_matching(shallow, deep), sum(expected) / 2)
    assert attention_matching(deep, deep).item() == 0
    with pytest.raises(InvalidProblemError, match="has none"):
        attention_matching([], deep)
    with pytest.raises(InvalidProblemError, match="differ"):
        attention_matching([deep[0][:1]], deep)


def test_router_choices_are_matched_over_allowed_keys():
    allowed = torch.ones(3, 3, dtype=torch.bool).tril()
    own, wanted = torch.full((1, 1, 3, 3), 0.25), torch.zeros(1, 1, 3, 3)
    wanted[..., 0] = 1.0
    student = Routing((own * allowed).requires_grad_(), allowed)
    loss = router_matching([student], [Routing(wanted, allowed)])
    assert loss.item() == pytest.approx(-(3 * math.log(0.25) + 3 * math.log(0.75)) / 6, rel=1e-5)
    with pytest.raises(InvalidProblemError, match="same number of routers"):
        router_matching([student], [])


def test_a_teacher_comes_back_frozen_and_as_it_was(tmp_path: Path):
    model = lm(attention=AttentionConfig(kind="router", temperature=0.5, routing="straight-through"))
    file = saved(model, tmp_path / "teacher.safetensors")
    teacher = load_teacher(file, model_from_config, characters=CHARACTERS, context=6)
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    tokens = task().batch(0).tokens
    with torch.no_grad():
        torch.testing.assert_close(teacher(tokens), model.eval()(tokens), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("characters", "context", "message"),
    [
        (CHARACTERS[:-1], 6, rf"speaks {len(CHARACTERS)} characters and the student .*only one of them has 'z'"),
        (CHARACTERS[::-1], 6, "in another order"),
        (CHARACTERS, 8, "sees 6 characters and the student 8"),
    ],
)
def test_a_teacher_of_another_vocabulary_or_context(tmp_path: Path, characters: str, context: int, message: str):
    file = saved(lm(), tmp_path / "teacher.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_teacher(file, model_from_config, characters=characters, context=context)


def test_a_checkpoint_that_is_no_teacher(tmp_path: Path):
    file = tmp_path / "other.safetensors"
    save_checkpoint(file, Checkpoint(model={}, model_config={"model": "bracket-matcher", "context": 6}))
    with pytest.raises(CheckpointError, match="no language model that names its characters"):
        load_teacher(file, model_from_config, characters=CHARACTERS, context=6)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_teacher(tmp_path / "none", model_from_config, characters=CHARACTERS, context=6)


@pytest.mark.parametrize("kind", [TextTask, LastPositionTask])
def test_a_student_comes_nearer_to_its_teacher(kind: type[TextTask]):
    teacher, own = lm(seed=5).eval().requires_grad_(False), task(kind)
    with torch.no_grad():
        teacher.head.weight.mul_(10)
    student = lm("scalar-router", seed=1)
    taught = DistilledTask(own, teacher, DistillationSettings(alpha=1.0, softening=1.0))
    batch = taught.batch(0)
    before = taught.loss(student, batch)[0].item()
    settings = TrainingSettings(steps=40, learning_rate=1e-2, eval_every=40, monitor="loss", monitor_mode="min")
    Trainer(student, taught, settings).fit()
    assert taught.loss(student, batch)[0].item() < 0.5 * before
    assert all(p.grad is None for p in teacher.parameters())


def test_matching_terms_reach_the_student():
    routers = AttentionConfig(kind="scalar-router")
    teacher, student, own = lm(seed=5).eval(), lm(seed=1), task()
    batch = own.batch(0)
    plain = DistilledTask(own, teacher, DistillationSettings(teacher_row="t")).loss(student, batch)[0]
    mapped = DistillationSettings(teacher_row="t", attention_matching=3.0)
    with_maps = DistilledTask(own, teacher, mapped).loss(student, batch)[0]
    maps = [model(batch.tokens, need_weights=True)[1] for model in (student, teacher)]
    torch.testing.assert_close(with_maps - plain, 3 * attention_matching(*maps), rtol=1e-4, atol=1e-6)
    routed = DistillationSettings(teacher_row="t", router_matching=1.0)
    both = [lm(seed=k, attention=routers) for k in (2, 3)]
    with use_routing(both[1], "hard"):
        loss = DistilledTask(own, both[1], routed).loss(both[0], batch)[0]
    loss.backward()
    assert both[0].blocks[0].attention.query_scalar.weight.grad.abs().max() > 0  # type: ignore[union-attr, operator]
    with pytest.raises(InvalidOptionError, match="--router-matching compares routers"):
        DistilledTask(own, teacher, routed).loss(both[0], batch)
    gates = LogicLM(LogicLMConfig(vocabulary=len(CHARACTERS), context=6, widths=(200,)))
    with pytest.raises(InvalidOptionError, match="--attention-matching compares attention"):
        DistilledTask(own, teacher, mapped).loss(gates, batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"softening": 0.0}, "temperature=0.0 of distillation"),
        ({"softening": math.nan}, "temperature=nan"),
        ({"attention_matching": -1.0}, "--attention-matching is -1.0"),
        ({"router_matching": 1.0}, "need a --teacher"),
        ({"teacher": Path("a"), "teacher_row": "b"}, "both name a teacher"),
    ],
)
def test_settings_that_are_none(settings: dict, message: str):
    with pytest.raises(InvalidOptionError, match=message):
        DistillationSettings(**settings)


def test_where_the_teacher_of_a_row_is(tmp_path: Path):
    settings = DistillationSettings(teacher_row="first")
    out = tmp_path / "runs" / "second" / "seed-3"
    assert settings.checkpoint(out, 3) == tmp_path / "runs" / "first" / "seed-3" / "checkpoints" / "best.safetensors"
    with pytest.raises(InvalidOptionError, match="give --out"):
        settings.checkpoint(None, 3)


def test_the_last_position_protocol_of_the_repository():
    data = TextData.repository("".join(chr(97 + (k * k) % 23) for k in range(100_000)))
    own = LastPositionTask(data, context=16, batch_size=4)
    assert data.selects_on_test and len(data.train) == 72_000
    windows = own.windows(own.split("test"))
    assert sum(len(w.tokens) for w in windows) == 7_984
    first = windows[0]
    assert torch.equal(first.tokens[0], own.split("test")[:16]) and first.targets[0, 0] == own.split("test")[16]
    batch = own.batch(0)
    assert batch.tokens.shape == (4, 16) and batch.targets.shape == (4, 1)
    model = LogicLM(LogicLMConfig(vocabulary=len(data.vocabulary), widths=(200,)))
    dense = LastPositionTask(data, context=16, batch_size=4, dense=True)
    assert torch.equal(dense.batch(0).targets[:, -1:], batch.targets) and dense.batch(0).targets.shape == (4, 16)
    torch.testing.assert_close(dense.logits(model, dense.batch(0))[:, -1:], own.logits(model, batch))
    scores = dense.scores(model, own.split("test")[:100])
    assert len(scores.nats) == 84 and set(scores.positions.tolist()) == {15}
    with torch.no_grad():
        torch.testing.assert_close(own.logits(model, batch)[:, 0], model(batch.tokens)[:, -1])


def test_an_entropy_reward_is_subtracted_per_choice():
    model, own = lm("scalar-router"), task()
    batch = own.batch(0)
    plain, _ = own.loss(model, batch)
    rewarded, values = EntropyTask(own, 2.0).loss(model, batch)
    assert 0 < values["routing_entropy"] <= math.log(2) + 1e-6
    torch.testing.assert_close(plain - rewarded, torch.tensor(2.0 * values["routing_entropy"]), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidOptionError, match="has no router"):
        EntropyTask(own, 1.0).loss(lm(), batch)
    assert isinstance(model, nn.Module)
