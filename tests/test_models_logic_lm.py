"""Logic language models and HBA: sizes, causality soft and hard, bits in the loop, configurations, hardening."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import nn

from ising_attn.boolean import boolean_parts, run_as, set_temperatures, temperature_of
from ising_attn.logic import forward_mode
from models import (
    HBA,
    MODELS,
    AttentionConfig,
    CharLM,
    CharLMConfig,
    HBAConfig,
    LogicLM,
    LogicLMConfig,
    LoopedLogicLM,
    LoopedLogicLMConfig,
    model_from_config,
)
from models.logic_windows import one_hot_window, one_hot_windows, recent_pairs
from samplers import InvalidOptionError, InvalidProblemError

SMALL: dict[str, Any] = {"vocabulary": 5, "context": 4}
CONFIGS: dict[str, Any] = {
    "flat": LogicLMConfig(**SMALL, widths=(64, 48)),
    "flat-raw": LogicLMConfig(**SMALL, widths=(60,), parametrisation="raw", head="group-sum", reach=None),
    "looped": LoopedLogicLMConfig(**SMALL, state=24, widths=(30, 24), iterations=3),
    "looped-as-coded": LoopedLogicLMConfig.as_coded(**SMALL, state=8, widths=(16, 8), iterations=1),
    "hba": HBAConfig(**SMALL, embed_dim=8, num_heads=2, feed_forward=16),
}


def build(name: str) -> Any:
    torch.manual_seed(0)
    model: Any = model_from_config(CONFIGS[name].to_dict()).eval()
    if name == "looped-as-coded":
        # Small random weights forget the input within one iteration.
        with torch.no_grad():
            model.encoder.weight.mul_(20)
            model.feedback.weight.mul_(20)
    return model


def tokens(batch: int = 6) -> torch.Tensor:
    return torch.randint(5, (batch, 4), generator=torch.Generator().manual_seed(1))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_goes_to_json_and_back(name: str):
    config = CONFIGS[name]
    stored = json.loads(json.dumps(config.to_dict()))
    model = build(name)
    assert MODELS[stored["model"]].Config.from_dict(stored) == config == model.config
    again = model_from_config(stored).eval()
    assert again is not model
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(tokens()), model(tokens()), rtol=0, atol=0)


@pytest.mark.parametrize("hardness", ["soft", "hard"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_future_changes_nothing_and_the_past_does(name: str, hardness: str):
    model, x = build(name), tokens(32)
    y = x.clone()
    y[:, 2:] = (y[:, 2:] + 1) % 5
    with run_as(model, hardness), torch.no_grad():
        torch.testing.assert_close(model(x)[:, :2], model(y)[:, :2], rtol=0, atol=1e-6)
        assert (model(x)[:, 2:] - model(y)[:, 2:]).abs().max() > 1e-3


@pytest.mark.parametrize("hardness", ["soft", "hard"])
@pytest.mark.parametrize("name", [n for n in CONFIGS if n != "hba"])
def test_the_last_position_alone_is_the_last_of_all(name: str, hardness: str):
    model = build(name)
    with run_as(model, hardness), torch.no_grad():
        for length in (1, 3, 4):
            x = tokens()[:, :length]
            torch.testing.assert_close(model.next_logits(x), model(x)[:, -1])


def test_windows_are_what_was_seen():
    x = torch.tensor([[1, 3, 0]])
    windows = one_hot_windows(x, 5, 4)
    assert windows.shape == (1, 3, 20)
    for position in range(3):
        seen = windows[0, position].view(4, 5)
        assert not seen[: 3 - position].any()
        assert seen[3 - position :].argmax(-1).tolist() == x[0, : position + 1].tolist()
    torch.testing.assert_close(one_hot_window(x, 5, 4), windows[:, -1])


def test_wiring_looks_at_recent_characters():
    pairs = recent_pairs(7, 16, 20000, reach=2.0, generator=torch.Generator().manual_seed(0))
    places = pairs // 7
    assert (pairs[0] != pairs[1]).all() and pairs.min() >= 0 and pairs.max() < 7 * 16
    share = torch.stack([(places == 15 - d).float().mean() for d in range(4)])
    expected = torch.exp(-torch.arange(4) / 2.0) / torch.exp(-torch.arange(16) / 2.0).sum()
    torch.testing.assert_close(share, expected, rtol=0.05, atol=0)


def test_hard_loops_pass_bits_alone():
    model = build("looped")
    seen: list[torch.Tensor] = []
    model.block.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output]))
    with forward_mode(model, "hard"):
        model(tokens())
    assert len(seen) == 6 and all(set(t.unique().tolist()) <= {0.0, 1.0} for t in seen)
    # What was coded passes floats round.
    coded = build("looped-as-coded")
    states: list[torch.Tensor] = []
    coded.feedback.register_forward_hook(lambda _, inputs, output: states.append(torch.sigmoid(output)))
    with forward_mode(coded, "hard"):
        coded(tokens())
    assert all(((s > 0.01) & (s < 0.99)).any() for s in states)


def test_an_untrained_loop_of_passing_gates_changes_nothing():
    torch.manual_seed(0)
    config = LoopedLogicLMConfig(**SMALL, state=24, widths=(24,), residual=0.99, noise=0.0)
    one, many = (LoopedLogicLM(dataclasses.replace(config, iterations=n)) for n in (1, 9))
    many.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(tokens()), many(tokens()))


@pytest.mark.parametrize(("gain", "residual", "survives"), [(1.0, None, False), (60.0, 0.9, True)])
def test_the_loop_as_coded_forgets_its_input(gain: float, residual: float | None, survives: bool):
    """Before training its rounds are a contraction by a factor of hundreds; other initial values keep the input."""
    torch.manual_seed(0)
    config = LoopedLogicLMConfig.as_coded(**{**SMALL, "context": 16}, gain=gain, residual=residual)
    model = LoopedLogicLM(config).eval()
    with torch.no_grad():
        logits = model.next_logits(torch.randint(5, (64, 16)))
    assert (logits.std(0).mean() > 1e-3) == survives


def test_hardening_gives_the_same_logits():
    model = build("flat")
    with forward_mode(model, "hard"), torch.no_grad():
        soft_side = model.next_logits(tokens())
    bits = one_hot_window(tokens(), 5, 4)
    torch.testing.assert_close(model.harden()(bits), soft_side)
    torch.testing.assert_close(model.harden().packed()(bits), soft_side)


def test_cold_gates_are_hard_gates():
    model = build("flat")
    with torch.no_grad(), forward_mode(model, "hard"):
        hard = model(tokens())
    gaps = []
    for temperature in (1.0, 0.2, 0.01):
        set_temperatures(model, temperature)
        with torch.no_grad(), forward_mode(model, "soft"):
            gaps.append((model(tokens()) - hard).abs().max().item())
    assert temperature_of(model) == pytest.approx(0.01)
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.05


def test_sizes_are_those_of_the_repository():
    assert parameters(HBA(HBAConfig.v1())) == 92_365
    assert parameters(HBA(HBAConfig.v2())) == 296_269
    teacher = CharLMConfig(
        context=16, num_heads=2, num_layers=2, feed_forward=256, attention=AttentionConfig(kind="softmax")
    )
    # The repository's Transformer has no norm before its head: 128 numbers fewer.
    assert parameters(CharLM(teacher)) == 108_861 + 128
    coded = LoopedLogicLM(LoopedLogicLMConfig.as_coded())
    assert [layer.out_features for layer in coded.block.logic_layers()] == [256, 256, 128]


def test_the_head_of_hba_has_unit_spectral_norm():
    model = build("hba").train()
    for _ in range(30):  # power iteration goes on with every forward pass
        model(tokens())
    torch.testing.assert_close(torch.linalg.matrix_norm(model.head.weight, ord=2), torch.tensor(1.0), rtol=1e-3, atol=0)
    assert len(boolean_parts(model)) == 2


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (LogicLMConfig, {"widths": ()}, "widths is empty"),
        (LogicLMConfig, {"widths": (0,)}, "widths=0"),
        (LogicLMConfig, {"head": "liner"}, "head='liner'.*did you mean 'linear'"),
        (LogicLMConfig, {"head": "group-sum", "widths": (64,)}, "64, among 5 characters"),
        (LogicLMConfig, {"reach": 0.0}, "reach=0.0"),
        (LogicLMConfig, {"dropout": 1.0}, "dropout=1.0"),
        (LogicLMConfig, {"characters": "ab"}, "2 different characters"),
        (LogicLMConfig, {"characters": "abcd\ud800"}, r"characters has '\\ud800', half of a surrogate pair"),
        (LoopedLogicLMConfig, {"form": "bit"}, "form='bit'.*did you mean 'bits'"),
        (LoopedLogicLMConfig, {"state": 8, "widths": (16,)}, "must come out as it goes in"),
        (LoopedLogicLMConfig, {"iterations": 0}, "iterations=0"),
        (LoopedLogicLMConfig, {"gain": 0.0}, "gain=0.0"),
    ],
)
def test_configurations_that_fit_nothing(kind: Any, change: dict, message: str):
    with pytest.raises(InvalidOptionError, match=message):
        kind(**{**SMALL, **change})


def test_other_bad_input():
    with pytest.raises(InvalidOptionError, match="is of the model 'logic-lm', not of 'looped-logic-lm'"):
        LoopedLogicLMConfig.from_dict(CONFIGS["flat"].to_dict())
    with pytest.raises(InvalidOptionError, match="no model is named 'logic'"):
        model_from_config({"model": "logic"})
    with pytest.raises(InvalidProblemError, match="5 tokens were given; this model takes 1 to 4"):
        build("flat")(torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(InvalidOptionError, match="neither 'soft' nor 'hard'"), run_as(build("flat"), "harder"):
        pass
    with pytest.raises(InvalidOptionError, match="Linear has no router and no logic gates"):
        set_temperatures(nn.Linear(2, 2), 1.0)
    with pytest.raises(InvalidOptionError, match="temperature=0"):
        set_temperatures(build("flat"), 0)


def test_gradients_reach_every_part_through_the_loop():
    for name in ("looped", "looped-as-coded", "flat"):
        model = build(name).train()
        model(tokens()).square().sum().backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, (name, key)


def test_configurations_older_than_routers_still_agree():
    stored = CharLMConfig(attention=AttentionConfig(kind="softmax")).to_dict()
    assert not {"temperature", "threshold", "routing"} & stored["attention"].keys()
    routed = CharLMConfig(attention=AttentionConfig(kind="router", routing="hard", temperature=0.5))
    assert CharLMConfig.from_dict(json.loads(json.dumps(routed.to_dict()))) == routed
    assert isinstance(LogicLM(CONFIGS["flat"]), nn.Module)
