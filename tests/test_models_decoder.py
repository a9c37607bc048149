"""Decoder blocks and stacks: slots, norms, positions, causality, configurations that go to JSON and back."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from ising_attn import (
    InvalidOptionError,
    InvalidProblemError,
    NotSupportedError,
    SigmoidAttention,
    SoftmaxAttention,
    get_sampler,
    samplers_of,
    use_sampler,
)
from ising_attn.bilinear import MLP
from models import (
    MODELS,
    AttentionConfig,
    BracketMatcher,
    BracketMatcherConfig,
    CharLM,
    CharLMConfig,
    DecoderBlock,
    FeedForwardConfig,
    model_from_config,
)
from models.decoder import sinusoids

ATTENTIONS = {
    "softmax": AttentionConfig(kind="softmax", bias="distance"),
    "sigmoid": AttentionConfig(kind="sigmoid", bias="scalar", bias_init=-1.0),
    "h+J": AttentionConfig(coupling_std=0.5),
    "h+J+K": AttentionConfig(mode="h+J+K", couplings="low-rank", rank=2, learn_beta=True, coupling_std=0.3),
}


def matcher(**options) -> BracketMatcher:
    torch.manual_seed(0)
    return BracketMatcher(BracketMatcherConfig(**options))


def tokens(length: int = 8, *, batch: int = 3, vocabulary: int = 12) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("with_feed_forward", [True, False])
def test_a_block_is_its_formula(norm: str, with_feed_forward: bool):
    torch.manual_seed(0)
    attention = SoftmaxAttention(8, 2, 5)
    feed_forward = MLP(8, 16) if with_feed_forward else None
    block = DecoderBlock(attention, feed_forward, 8, norm=norm)
    x = 3 * torch.randn(2, 5, 8) + 1
    first, second = block.attention_norm, block.feed_forward_norm
    expected = x
    if norm == "pre":
        expected = expected + attention(first(expected))
        expected = expected + feed_forward(second(expected)) if feed_forward else expected
    elif norm == "post":
        expected = first(expected + attention(expected))
        expected = second(expected + feed_forward(expected)) if feed_forward else expected
    else:
        expected = expected + attention(expected)
        expected = expected + feed_forward(expected) if feed_forward else expected
    out, weights = block(x, need_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(block(x), expected)
    torch.testing.assert_close(weights, attention.weights(block.attention_input(x)))
    norms = [m for m in block.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == (0 if norm == "none" else 1 + with_feed_forward)


def test_without_a_feed_forward_slot_attention_is_the_only_computation():
    model = matcher(feed_forward=0)
    assert not [m for m in model.modules() if isinstance(m, nn.GELU)]
    linear = {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert linear == {"head", *(f"blocks.0.attention.{part}" for part in ("query_key", "value", "out"))}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_logits_do_not_see_the_future(name: str, norm: str):
    model = matcher(attention=ATTENTIONS[name], num_layers=2, num_heads=2, norm=norm).eval()
    given = tokens()
    logits = model(given)
    assert tuple(logits.shape) == (3, 8, 8)
    for t in (1, 4, 7):
        changed = given.clone()
        changed[:, t:] = (changed[:, t:] + 5) % 12
        torch.testing.assert_close(model(changed)[:, :t], logits[:, :t], rtol=1e-4, atol=1e-5)
        assert (model(changed)[:, t:] - logits[:, t:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_parameter_learns(name: str):
    model = matcher(attention=ATTENTIONS[name], num_layers=2, num_heads=2)
    nn.functional.cross_entropy(model(tokens()).flatten(0, 1), torch.randint(0, 8, (24,))).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 1e-9, parameter_name


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("kind", [BracketMatcher, CharLM])
def test_a_configuration_goes_through_json_to_the_same_model(name: str, kind: Any):
    torch.manual_seed(0)
    model = kind(kind.Config(attention=ATTENTIONS[name], num_layers=2, norm="post", context=6)).eval()
    stored = json.loads(json.dumps(model.config.to_dict()))
    again = model_from_config(stored, sampler="exact").eval()
    assert type(again) is kind
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(tokens(6)), model(tokens(6)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("slot", "stored"),
    [
        (128, 128),
        (0, 0),
        (FeedForwardConfig(hidden_dim=9), 9),
        (FeedForwardConfig(kind="none"), 0),
        (FeedForwardConfig(kind="none", hidden_dim=9), 0),
        (FeedForwardConfig(hidden_dim=9, activation="relu"), {"kind": "mlp", "hidden_dim": 9, "activation": "relu"}),
        (FeedForwardConfig(kind="gated", hidden_dim=9, rank=2), {"kind": "gated", "hidden_dim": 9, "rank": 2}),
    ],
)
def test_feed_forward_slots_are_stored_shortly_and_come_back(slot: FeedForwardConfig | int, stored: Any):
    """A number, as in every checkpoint that is older than the choice, is the hidden width of a GELU MLP."""
    torch.manual_seed(0)
    model = CharLM(CharLMConfig(feed_forward=slot, num_layers=2)).eval()
    values = json.loads(json.dumps(model.config.to_dict()))
    assert values["feed_forward"] == stored
    again = model_from_config(values).eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(tokens(6)), model(tokens(6)), rtol=0, atol=0)
    assert again.config.to_dict() == model.config.to_dict()


def test_the_slot_of_a_number_has_the_names_that_old_checkpoints_have():
    model = CharLM(CharLMConfig(feed_forward=9))
    names = {name for name in model.state_dict() if "feed_forward." in name}
    assert names == {f"blocks.0.feed_forward.{part}" for part in ("0.weight", "0.bias", "2.weight", "2.bias")}
    layer = model.decoder_blocks()[0].feed_forward
    assert layer is not None and [type(part) for part in layer.children()] == [nn.Linear, nn.GELU, nn.Linear]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "char-ml"}, "did you mean 'char-lm'"),
        ({"model": None}, "no model is named None"),
        ({"contxt": 8}, "did you mean 'context'"),
        ({"attention": {"kind": "softmax", "mod": "h"}}, "did you mean 'mode'"),
        ({"attention": {"kind": "softmax", "mode": "h"}}, "'softmax' attention has no option 'mode'"),
        ({"norm": "prae"}, "did you mean 'pre'"),
        ({"feed_forward": {"kind": "gatd", "hidden_dim": 4}}, "did you mean 'gated'"),
        ({"feed_forward": {"kind": "gated", "hiden_dim": 4}}, "did you mean 'hidden_dim'"),
        ({"feed_forward": {"kind": "gated", "hidden_dim": 4, "rank": 65}}, "rank=65; .* embed_dim=32"),
        ({"feed_forward": {"kind": "mlp", "hidden_dim": 4, "rank": 2}}, "'mlp' has no option 'rank'"),
        ({"feed_forward": {"kind": "mlp"}}, "hidden_dim=0"),
        ({"feed_forward": {"kind": "none", "rank": 2}}, "no feed-forward slot to have rank"),
        ({"positions": "learnt"}, "did you mean 'learned'"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"feed_forward": -1}, "at least 0"),
        ({"context": 2.5}, "context=2.5"),
        ({"num_heads": 5}, "not a multiple"),
    ],
)
def test_a_foreign_configuration_is_refused(change: dict, words: str, unchecked):
    config = {**BracketMatcherConfig().to_dict(), **change}
    with pytest.raises(InvalidOptionError, match=words):
        model_from_config(config)


def test_a_configuration_of_another_model_is_refused_by_its_class():
    with pytest.raises(InvalidOptionError, match="of the model 'char-lm', not of 'bracket-matcher'"):
        BracketMatcherConfig.from_dict(CharLMConfig().to_dict())
    assert set(MODELS) >= {"bracket-matcher", "char-lm", "hba", "logic-lm", "looped-logic-lm"}


def test_weights_of_every_layer_are_returned():
    model = matcher(num_layers=3, num_heads=2)
    logits, weights = model(tokens(), need_weights=True)
    torch.testing.assert_close(logits, model(tokens()))
    assert [tuple(w.shape) for w in weights] == [(3, 2, 8, 8)] * 3
    assert all(w.triu(1).abs().max() == 0 for w in weights)


def test_the_problems_are_those_the_layers_solve():
    model = matcher(num_layers=2, attention=ATTENTIONS["h+J"]).eval()
    _, weights = model(tokens(), need_weights=True)
    problems = model.problems(tokens())
    assert len(problems) == 2
    for problem, weight in zip(problems, weights, strict=True):
        alpha = (1 + get_sampler("exact").magnetization(problem)) / 2
        torch.testing.assert_close(alpha / alpha.sum(-1, keepdim=True), weight, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotSupportedError, match="SigmoidAttention"):
        matcher(attention=ATTENTIONS["sigmoid"]).problems(tokens())


def test_layers_share_one_sampler_so_that_their_draws_differ():
    torch.manual_seed(0)
    model = BracketMatcher(BracketMatcherConfig(num_layers=3), sampler="exact")
    assert len(samplers_of(model)) == 1
    other = get_sampler("exact", seed=7)
    with use_sampler(model, other):
        assert samplers_of(model) == [other]
    assert samplers_of(model)[0] is not other


def test_a_block_takes_any_module_in_its_slots():
    block = DecoderBlock(SigmoidAttention(8, 2, 5), nn.Linear(8, 8), 8)
    assert tuple(block(torch.randn(2, 5, 8)).shape) == (2, 5, 8)


def test_positions():
    given = torch.full((1, 6), 3)
    allowed = torch.ones(6, 6, dtype=torch.bool)
    for positions, told_apart in (("learned", True), ("sinusoidal", True), ("none", False)):
        model = matcher(positions=positions, attention=AttentionConfig(kind="softmax"))
        logits = model(given, allowed)
        assert ((logits - logits[:, :1]).abs().max() > 1e-3) == told_apart
    table = sinusoids(5, 6)
    torch.testing.assert_close(table[3, :3], torch.tensor([3.0, 3 / 10000 ** (1 / 3), 3 / 10000 ** (2 / 3)]).sin())
    torch.testing.assert_close(table[3, 3:], torch.tensor([3.0, 3 / 10000 ** (1 / 3), 3 / 10000 ** (2 / 3)]).cos())
    assert tuple(sinusoids(4, 5).shape) == (4, 5)


def test_lengths_are_refused_with_advice():
    with pytest.raises(InvalidProblemError, match="9 tokens were given; this model takes 1 to 8"):
        matcher()(tokens(9))
    with pytest.raises(InvalidProblemError, match="0 tokens"):
        matcher()(tokens(0))


def test_dropout_acts_in_training_only():
    model = matcher(dropout=0.5)
    assert (model(tokens()) - model(tokens())).abs().max() > 1e-3
    model.eval()
    torch.testing.assert_close(model(tokens()), model(tokens()), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "boltzmann"])
def test_a_matcher_learns_to_point_at_a_marked_position(kind: str):
    # One opening bracket among fillers, asked for at the last position: solvable by attention alone.
    torch.manual_seed(0)
    model = matcher(context=5, feed_forward=0, attention=AttentionConfig(kind=kind))
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), 5e-3)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        given = torch.randint(2, 12, (48, 5), generator=generator)
        target = torch.randint(0, 4, (48,), generator=generator)
        given[torch.arange(48), target] = 0
        given[:, 4] = 1
        return given, target

    for _ in range(130):
        given, target = batch()
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(given)[:, 4], target).backward()
        optimiser.step()
    given, target = batch()
    assert (model(given)[:, 4].argmax(-1) == target).float().mean() > 0.9
