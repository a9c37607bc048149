"""Bilinear feed-forward layers: formulas unit by unit, torch compositions they equal, ranks, symmetries and gaps."""

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from ising_attn import feed_forward_options, make_feed_forward
from ising_attn.bilinear import ACTIVATIONS, MLP, FullBilinear, LowRankBilinear, make_activation
from ising_attn.feed_forward import feed_forward_parameters, hidden_dim_for_parameters
from ising_attn.symmetry import exchanged, rescaled, symmetry_gaps, symmetry_gaps_in
from models import CharLM, CharLMConfig, FeedForwardConfig
from samplers.errors import InvalidOptionError

D, UNITS = 6, 5
PLACES = ["outside", "factor"]
KINDS = ["mlp", "symmetric", "gated", "full-bilinear", "glu", "bilinear", "reglu", "geglu", "swiglu"]


def layer(seed: int = 0, **options: Any) -> LowRankBilinear:
    """In float64, with weights large enough for σ to bend."""
    torch.manual_seed(seed)
    made = LowRankBilinear(D, UNITS, **options).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return made


def inputs(seed: int = 1, *shape: int) -> Tensor:
    return torch.randn(*(shape or (7, 3)), D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- formulas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rank", [1, 2, 3, D])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_is_its_formula_unit_by_unit(place: str, rank: int, bias: bool, activation: str):
    made, x, act = layer(rank=rank, place=place, bias=bias, activation=activation), inputs(), ACTIVATIONS[activation]()
    expected = torch.zeros_like(x) if made.value.bias is None else made.value.bias.expand_as(x).clone()
    for unit in range(UNITS):
        score = torch.zeros(x.shape[:-1], dtype=x.dtype)
        for r in range(rank):
            row = unit * rank + r
            q, k = x @ made.query.weight[row], x @ made.key.weight[row]
            if bias:
                q, k = q + made.query.bias[row], k + made.key.bias[row]
            score += q * k if place == "outside" else act(q) * k
        weight = act(score) if place == "outside" else score
        expected += weight[..., None] * made.value.weight[:, unit]
    torch.testing.assert_close(made(x), expected)


@pytest.mark.parametrize(
    ("kind", "function"),
    [("glu", torch.sigmoid), ("bilinear", lambda z: z), ("reglu", relu), ("geglu", gelu), ("swiglu", silu)],
)
def test_gated_mlps_equal_compositions_of_torch(kind: str, function: Any):
    torch.manual_seed(0)
    gate, up, down = nn.Linear(D, UNITS), nn.Linear(D, UNITS), nn.Linear(UNITS, D)
    made = make_feed_forward(kind, D, UNITS)
    assert isinstance(made, LowRankBilinear)
    for ours, theirs in ((made.query, gate), (made.key, up), (made.value, down)):
        ours.load_state_dict(theirs.state_dict())
    x = inputs().float()
    torch.testing.assert_close(made(x), down(function(gate(x)) * up(x)), rtol=0, atol=0)


def test_glu_is_torch_s_glu():
    made, x = layer(place="factor", activation="sigmoid"), inputs()
    both = torch.cat([made.key(x), made.query(x)], -1)
    torch.testing.assert_close(made(x), made.value(nn.functional.glu(both)))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_a_gated_layer_of_rank_r_is_a_gated_mlp_with_values_tied_in_groups(activation: str):
    rank = 3
    made, x = layer(rank=rank, place="factor", activation=activation), inputs()
    wide = LowRankBilinear(D, UNITS * rank, place="factor", activation=activation).double()
    wide.query.load_state_dict(made.query.state_dict())
    wide.key.load_state_dict(made.key.state_dict())
    with torch.no_grad():
        wide.value.weight.copy_(made.value.weight.repeat_interleave(rank, 1))
        wide.value.bias.copy_(made.value.bias)
    torch.testing.assert_close(made(x), wide(x))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_static_query_makes_an_mlp(activation: str):
    """Queries that do not look at x: the symmetric form is an MLP; so is the gated one with static keys."""
    for place, static, dynamic in (("outside", "query", "key"), ("factor", "key", "query")):
        made, x = layer(place=place, activation=activation), inputs()
        with torch.no_grad():
            getattr(made, static).weight.zero_()
            getattr(made, static).bias.fill_(1.0)
        mlp = MLP(D, UNITS, activation=activation).double()
        mlp[0].load_state_dict(getattr(made, dynamic).state_dict())
        mlp[2].load_state_dict(made.value.state_dict())
        torch.testing.assert_close(made(x), mlp(x))


def test_one_query_matrix_for_all_units_is_absorbed_by_the_keys():
    """Σ_j σ((Qx)·k_j) v_j is the MLP with keys Qᵀk_j."""
    torch.manual_seed(0)
    mlp, query, x = MLP(D, UNITS).double(), torch.randn(D, D, dtype=torch.float64), inputs()
    absorbed, (keys, biases, values, last) = copy.deepcopy(mlp), mlp.parameters()
    with torch.no_grad():
        next(absorbed.parameters()).copy_(keys @ query)
    expected = gelu((x @ query.T) @ keys.T + biases) @ values.T + last
    torch.testing.assert_close(mlp(x @ query.T), expected)
    torch.testing.assert_close(absorbed(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_maps_rows_one_by_one_and_differentiates(kind: str):
    torch.manual_seed(0)
    made, x = make_feed_forward(kind, D, UNITS).double(), inputs(2, 4, 3)
    for shape in ((D,), (0, 2, D), (1, 4, 3, D)):
        assert made(torch.zeros(shape, dtype=torch.float64)).shape == shape
    torch.testing.assert_close(made(x)[1, 2], made(x[1, 2]))
    assert torch.autograd.gradcheck(made, (x[0].requires_grad_(),))
    made(x).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in made.parameters())


# ---- ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2, D])
def test_the_full_form_of_a_symmetric_layer_is_the_same_function(bias: bool, rank: int):
    made, x = layer(rank=rank, bias=bias, activation="silu"), inputs()
    torch.testing.assert_close(FullBilinear.of(made)(x), made(x))


def full(bias: bool = True, activation: str = "gelu") -> FullBilinear:
    torch.manual_seed(3)
    made = FullBilinear(D, UNITS, bias=bias, activation=activation).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["identity", "gelu"])
def test_at_rank_d_the_low_rank_layer_is_the_full_one(bias: bool, activation: str):
    made, x = full(bias, activation), inputs()
    torch.testing.assert_close(made.factored(D)(x), made(x))


def test_the_full_layer_is_its_formula():
    made, x = full(), inputs(4, 3)
    assert made.linear is not None
    for row in x:
        scores = torch.stack([row @ made.forms[j] @ row + made.linear(row)[j] for j in range(UNITS)])
        torch.testing.assert_close(made(row), made.value(gelu(scores)))


def test_a_form_needs_as_many_products_as_it_has_eigenvalues_of_one_sign():
    made, x = full(bias=False), inputs()
    vectors = torch.linalg.qr(made.forms).Q
    balanced, positive = torch.tensor([3.0, 2, 1, -1, -2, -3]), torch.tensor([6.0, 5, 4, 3, 2, 1])
    for values, enough in ((balanced, 3), (positive, 6)):
        with torch.no_grad():
            made.forms.copy_(vectors @ torch.diag(values.double()) @ vectors.mT)
        torch.testing.assert_close(made.factored(enough)(x), made(x))
        assert (made.factored(enough - 1)(x) - made(x)).abs().max() > 0.1


def test_factoring_keeps_the_largest_eigenvalues_of_each_sign():
    made = full(bias=False)
    want = (made.forms + made.forms.mT).detach() / 2
    for rank in range(1, D + 1):
        ours = FullBilinear.of(made.factored(rank)).forms.detach()
        for unit, values in enumerate(torch.linalg.eigvalsh(want)):
            positive, negative = values[values > 0].sort().values, (-values[values < 0]).sort().values
            missed = torch.cat([part[: max(len(part) - rank, 0)] for part in (positive, negative)])
            torch.testing.assert_close(((ours + ours.mT)[unit] / 2 - want[unit]).norm(), missed.norm())


def test_places_start_from_the_same_weights_and_scores_from_the_same_spread():
    spreads = {}
    for rank in (1, 4, 16):
        torch.manual_seed(0)
        outside = LowRankBilinear(64, 256, rank=rank, bias=False)
        torch.manual_seed(0)
        factor = LowRankBilinear(64, 256, rank=rank, bias=False, place="factor")
        assert all(torch.equal(a, b) for a, b in zip(outside.parameters(), factor.parameters(), strict=True))
        x = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
        products = (outside.query(x) * outside.key(x)).unflatten(-1, (256, rank)).sum(-1)
        spreads[rank] = products.std().item()
    assert spreads == pytest.approx(dict.fromkeys(spreads, 1 / 3), rel=0.1)


# ---- symmetries -----------------------------------------------------------------------------------------------

factors = st.sampled_from([-4.0, -1.0, 0.125, 0.5, 2.0, 8.0])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, D), st.sampled_from(list(ACTIVATIONS)), st.booleans(), factors)
def test_the_symmetric_form_keeps_both_symmetries_exactly(seed, rank, activation, bias, factor):
    made, x = layer(seed, rank=rank, activation=activation, bias=bias), inputs(seed + 1)
    torch.testing.assert_close(exchanged(made)(x), made(x), rtol=0, atol=0)
    # A power of two scales without rounding, so that even this is equal bit for bit.
    torch.testing.assert_close(rescaled(made, factor)(x), made(x), rtol=0, atol=0)
    gaps = symmetry_gaps(made, x, factors=[factor])
    assert (gaps.exchange, dict(gaps.scaling)) == (0.0, {factor: 0.0})


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, D))
def test_the_symmetric_form_depends_on_the_form_alone(seed, rank):
    """Q → QA, K → KA⁻ᵀ for any invertible A of each unit."""
    made, x = layer(seed, rank=rank, bias=False), inputs(seed)
    mixed, generator = copy.deepcopy(made), torch.Generator().manual_seed(seed)
    a = torch.linalg.qr(torch.randn(UNITS, rank, rank, dtype=torch.float64, generator=generator)).Q
    a = a * (0.5 + torch.rand(UNITS, 1, rank, dtype=torch.float64, generator=generator))
    with torch.no_grad():
        for part, matrix in ((mixed.query, a), (mixed.key, torch.linalg.inv(a).mT)):
            factors_of_units = part.weight.unflatten(0, (UNITS, rank))
            part.weight.copy_((matrix.mT @ factors_of_units).flatten(0, 1))
    torch.testing.assert_close(mixed(x), made(x))
    assert (mixed.query.weight - made.query.weight).abs().max() > 0.01


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, D), st.sampled_from(["relu", "gelu", "silu"]))
def test_gating_breaks_the_exchange(seed, rank, activation):
    made = layer(seed, rank=rank, place="factor", activation=activation)
    assert symmetry_gaps(made, inputs(seed + 1, 50)).exchange > 0.05


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, D), st.sampled_from([0.125, 0.5, 2.0, 8.0]))
def test_gating_breaks_the_scaling_for_gelu_and_silu_and_not_for_relu(seed, rank, factor):
    x = inputs(seed + 1, 50)
    gaps = {
        name: symmetry_gaps(layer(seed, rank=rank, place="factor", activation=name), x, factors=[factor]).scaling
        for name in ("relu", "gelu", "silu")
    }
    assert gaps["relu"][factor] == 0
    assert min(gaps["gelu"][factor], gaps["silu"][factor]) > 0.005


def test_relu_keeps_the_scaling_for_positive_factors_alone():
    made = layer(place="factor", activation="relu")
    assert symmetry_gaps(made, inputs(), factors=[-1.0]).scaling[-1.0] > 0.1


@pytest.mark.parametrize("rank", [1, 3])
def test_a_linear_gate_breaks_nothing(rank: int):
    made, x = layer(rank=rank, place="factor", activation="identity"), inputs()
    gaps = symmetry_gaps(made, x)
    assert (gaps.exchange, set(gaps.scaling.values())) == (0.0, {0.0})
    torch.testing.assert_close(made(x), layer(rank=rank, activation="identity")(x))


def test_a_gap_is_the_relative_difference_without_the_bias_of_the_values():
    made, x = layer(place="factor", activation="silu"), inputs()
    swapped = copy.deepcopy(made)
    swapped.query.load_state_dict(made.key.state_dict())
    swapped.key.load_state_dict(made.query.state_dict())
    expected = (swapped(x) - made(x)).norm() / (made(x) - made.value.bias).norm()
    assert symmetry_gaps(made, x).exchange == pytest.approx(expected.item())


def test_gaps_of_a_layer_that_does_nothing():
    made = layer(place="factor", activation="silu")
    with torch.no_grad():
        made.value.weight.zero_()
    assert symmetry_gaps(made, inputs()).exchange == 0.0


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gaps_in_a_model_are_those_on_what_its_layers_meet(norm: str):
    torch.manual_seed(0)
    slot = FeedForwardConfig(kind="gated", hidden_dim=9, rank=2, activation="silu")
    config = CharLMConfig(vocabulary=7, context=4, embed_dim=8, num_layers=2, norm=norm, feed_forward=slot)
    model, tokens = CharLM(config).eval(), torch.randint(0, 7, (5, 4))
    found = symmetry_gaps_in(model, tokens, factors=[2.0])
    assert list(found) == ["blocks.0.feed_forward", "blocks.1.feed_forward"]
    block = model.decoder_blocks()[0]
    x = model.embed(tokens)
    attended = x + block.attention(block.attention_input(x))
    met = block.feed_forward_norm(attended) if norm == "pre" else block.attention_norm(attended)
    assert isinstance(block.feed_forward, LowRankBilinear)
    assert found["blocks.0.feed_forward"] == symmetry_gaps(block.feed_forward, met.flatten(0, 1), factors=[2.0])
    assert not torch.allclose(exchanged(model)(tokens), model(tokens))
    assert symmetry_gaps_in(CharLM(CharLMConfig()), torch.zeros(1, 3, dtype=torch.long)) == {}


def test_changed_copies_leave_the_layer_alone():
    made, x = layer(place="factor", activation="silu"), inputs()
    before, values = made(x), {name: p.clone() for name, p in made.named_parameters()}
    assert not torch.allclose(exchanged(made)(x), before)
    assert not torch.allclose(rescaled(made, 2.0)(x), before)
    assert all(torch.equal(values[name], p) for name, p in made.named_parameters())
    torch.testing.assert_close(exchanged(exchanged(made))(x), before, rtol=0, atol=0)


# ---- the factory ----------------------------------------------------------------------------------------------


def test_options_of_each_kind():
    assert feed_forward_options("mlp") == ["activation", "bias"]
    assert feed_forward_options("gated") == feed_forward_options("symmetric") == ["rank", "activation", "bias"]
    assert feed_forward_options("swiglu") == ["bias"]
    for kind, bias in itertools.product(KINDS, (True, False)):
        names = dict(make_feed_forward(kind, D, UNITS, bias=bias).named_parameters())
        assert any("bias" in name for name in names) is bias


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_without_making_them(kind: str):
    count = sum(p.numel() for p in make_feed_forward(kind, D, UNITS).parameters())
    assert feed_forward_parameters(kind, D, UNITS) == count
    assert feed_forward_parameters(kind, D, 10**6) > 10**7


@pytest.mark.parametrize(("kind", "options"), [("mlp", {}), *(("gated", {"rank": r}) for r in (1, 2, 4))])
def test_the_hidden_width_comes_nearest_to_a_number_of_parameters(kind: str, options: dict[str, int]):
    for wanted in (200, 1000, 4567):
        best = hidden_dim_for_parameters(kind, D, wanted, **options)
        errors = {w: abs(feed_forward_parameters(kind, D, w, **options) - wanted) for w in range(1, 500)}
        assert errors[best] == min(errors.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_feed_forward("gatd", 4, 4), "no feed-forward layer is named 'gatd'; did you mean 'gated'"),
        (lambda: make_feed_forward("swiglu", 4, 4, rank=2), "'swiglu' has no option 'rank'.*options are bias"),
        (lambda: make_feed_forward("mlp", 4, 4, activatoin="relu"), "did you mean 'activation'"),
        (lambda: make_feed_forward("gated", 4, 4, rank=0), "rank=0; .* from 1 to embed_dim=4"),
        (lambda: make_feed_forward("symmetric", 4, 4, rank=5), "rank=5; .* of 4 numbers .* from 1 to embed_dim=4"),
        (lambda: make_feed_forward("gated", 4, 4, rank=True), "rank=True"),
        (lambda: full().factored(7), "rank=7; .* from 1 to embed_dim=6"),
        (lambda: make_feed_forward("mlp", 0, 4), "embed_dim=0; it must be an integer of at least 1"),
        (lambda: make_feed_forward("full-bilinear", 4, -1), "hidden_dim=-1; it must be an integer of at least 1"),
        (lambda: make_feed_forward("mlp", 4, 4, activation="glu"), "no activation is named 'glu'.*known: identity"),
        (lambda: LowRankBilinear(4, 4, place="inside"), "place='inside'; it must be one of 'outside', 'factor'"),
        (lambda: FullBilinear.of(layer(place="factor")), "place='factor' has σ on a factor"),
        (lambda: rescaled(layer(), 0.0), r"factor=0\.0"),
        (lambda: symmetry_gaps(layer(), torch.zeros(0, D)), r"x has none \(shape \(0, 6\)\)"),
        (lambda: hidden_dim_for_parameters("gated", 64, 100), "100 parameters are too few .* one hidden unit takes"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_numbers(make: Any, message: str):
    with pytest.raises(InvalidOptionError, match=message):
        make()


def test_activations_are_torch_s():
    z = torch.linspace(-3, 3, 25)
    for name, function in (("relu", relu), ("gelu", gelu), ("silu", silu), ("identity", lambda z: z)):
        torch.testing.assert_close(make_activation(name)(z), function(z))
