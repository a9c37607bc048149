"""`MultiheadAttention` against torch's: equal weights, equal outputs under every mask; inside torch's own layers."""

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from ising_attn import (
    ATTENTION_KINDS,
    BoltzmannAttention,
    InvalidOptionError,
    InvalidProblemError,
    MultiheadAttention,
    NotSupportedError,
    get_sampler,
    replace_attention,
    samplers_of,
)

DIM, HEADS, BATCH, QUERIES, KEYS = 8, 2, 3, 5, 7


def pair(seed: int = 0, **options) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """torch's attention in float64 and ours with its weights."""
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(DIM, HEADS, dtype=torch.float64, **options)
    if theirs.in_proj_bias is not None:  # which starts at 0
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    return theirs, MultiheadAttention.from_torch(theirs, context=KEYS, kind="softmax")


def sequence(length: int, *, batch_first: bool, seed: int = 1) -> Tensor:
    x = torch.randn(BATCH, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x if batch_first else x.transpose(0, 1)


def agree(ours: tuple[Tensor, Tensor | None], theirs: tuple[Tensor, Tensor | None]) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-10, atol=1e-12)
    assert (ours[1] is None) == (theirs[1] is None)
    if ours[1] is not None:
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-10, atol=1e-12)


RANDOM = torch.Generator().manual_seed(5)
BOOL = torch.rand(QUERIES, KEYS, generator=RANDOM) < 0.4
BOOL[:, 0] = False  # torch gives NaN where nothing is left
PER_HEAD = torch.rand(BATCH * HEADS, QUERIES, KEYS, generator=RANDOM) < 0.4
PER_HEAD[..., 0] = False
ADDED = torch.randn(QUERIES, KEYS, dtype=torch.float64, generator=RANDOM)
PADDING = torch.arange(KEYS) >= torch.tensor([[KEYS], [KEYS - 2], [1]])
MASKS = {
    "none": None,
    "bool": BOOL,
    "per head": PER_HEAD,
    "added": ADDED,
    "added and forbidden": ADDED.masked_fill(BOOL, -math.inf),
}
AS_NUMBERS = torch.zeros(PADDING.shape, dtype=torch.float64).masked_fill(PADDING, -math.inf)
PADDINGS = {"none": None, "bool": PADDING, "added": AS_NUMBERS}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_softmax_gives_torchs_outputs_and_weights(batch_first, mask, padding):
    theirs, ours = pair(batch_first=batch_first)
    query, key = (sequence(n, batch_first=batch_first, seed=n) for n in (QUERIES, KEYS))
    value = sequence(KEYS, batch_first=batch_first, seed=99)
    m, p = MASKS[mask], PADDINGS[padding]
    if p is not None and m is not None and m.is_floating_point() != p.is_floating_point():
        p = p.to(torch.float64).masked_fill(p, -math.inf) if m.is_floating_point() else p == -math.inf
    for average in (True, False):
        arguments = {"key_padding_mask": p, "attn_mask": m, "average_attn_weights": average}
        agree(ours(query, key, value, **arguments), theirs(query, key, value, **arguments))
    agree(ours(query, key, value, p, False, m), theirs(query, key, value, p, False, m))  # by position, no weights


@pytest.mark.parametrize("bias", [False, True])
def test_self_attention_unbatched_and_without_biases(bias):
    theirs, ours = pair(bias=bias)
    x = sequence(KEYS, batch_first=False)
    agree(ours(x, x, x), theirs(x, x, x))
    alone = x[:, 0]
    agree(ours(alone, alone, alone), theirs(alone, alone, alone))
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    wanted = theirs(x, x, x, attn_mask=causal)
    agree(ours(x, x, x, attn_mask=causal), wanted)
    agree(ours(x, x, x, attn_mask=causal, is_causal=True), wanted)
    agree(ours(x, x, x, is_causal=True), wanted)


def test_gradients_are_torchs():
    theirs, ours = pair(batch_first=True)
    inputs = [
        sequence(n, batch_first=True, seed=n + s).requires_grad_() for s, n in ((0, QUERIES), (1, KEYS), (2, KEYS))
    ]
    mask = ADDED.clone().requires_grad_()
    found = []
    for layer in (ours, theirs):
        loss = layer(*inputs, attn_mask=mask, need_weights=False)[0].square().sum()
        found.append(torch.autograd.grad(loss, [*inputs, mask]))
        loss = layer(*inputs, attn_mask=mask, need_weights=False)[0].square().sum()
        loss.backward()
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    inner = ours.attention
    assert inner.query_key is not None and theirs.in_proj_weight.grad is not None
    joint = torch.cat([inner.query_key.weight.grad, inner.value.weight.grad])  # type: ignore[list-item]
    torch.testing.assert_close(joint, theirs.in_proj_weight.grad, rtol=1e-9, atol=1e-11)


def test_a_query_without_any_key_gives_the_bias_of_the_output():
    theirs, ours = pair(batch_first=True)
    x = sequence(KEYS, batch_first=True)
    nothing = torch.ones(KEYS, KEYS, dtype=torch.bool)
    out, weights = ours(x, x, x, attn_mask=nothing)
    assert theirs(x, x, x, attn_mask=nothing)[0].isnan().all()
    assert weights is not None and not weights.any()
    torch.testing.assert_close(out, ours.attention.out.bias.expand_as(out))


def test_dtype_device_mode_and_what_is_frozen_are_kept():
    theirs, _ = pair(dropout=0.25, batch_first=True)
    theirs.eval()
    theirs.in_proj_weight.requires_grad_(False)
    theirs.out_proj.bias.requires_grad_(False)
    ours = MultiheadAttention.from_torch(theirs.half(), context=4)
    frozen = {name for name, p in ours.attention.named_parameters() if not p.requires_grad}
    assert frozen == {"query_key.weight", "value.weight", "out.bias"}
    assert {p.dtype for p in ours.parameters()} == {torch.float16} and not ours.training
    assert ours.attention.dropout.p == 0.25 and ours.batch_first


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("lowest", [True, False])
def test_the_lowest_number_of_a_mask_forbids_as_infinity_does(dtype, lowest):
    torch.manual_seed(0)
    ours = MultiheadAttention(DIM, HEADS, batch_first=True, context=KEYS, coupling_std=0.5)
    x = sequence(KEYS, batch_first=True).float()
    later = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    number = torch.finfo(dtype).min if lowest else -math.inf
    mask = torch.zeros(KEYS, KEYS, dtype=dtype).masked_fill(later, number)
    agree(ours(x, x, x, attn_mask=mask), ours(x, x, x, attn_mask=later))
    padding = torch.zeros(BATCH, KEYS, dtype=dtype).masked_fill(PADDING, number)
    agree(ours(x, x, x, key_padding_mask=padding), ours(x, x, x, key_padding_mask=PADDING))


# ---- Boltzmann attention under the same call -------------------------------------------------------------------------


def test_it_is_the_layer_itself_on_one_sequence():
    torch.manual_seed(0)
    ours = MultiheadAttention(
        DIM, HEADS, batch_first=True, context=KEYS, coupling_std=0.3, score_bias="scalar"
    ).double()
    layer = ours.attention
    assert isinstance(layer, BoltzmannAttention) and layer.bias is not None
    x = sequence(KEYS, batch_first=True)
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    for allowed in (causal, torch.ones_like(causal)):
        out, weights = ours(x, x, x, attn_mask=~allowed, average_attn_weights=False)
        expected, theirs = layer(x, allowed, need_weights=True)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(weights, theirs)


def test_padding_does_not_reach_a_result():
    torch.manual_seed(0)
    ours = MultiheadAttention(DIM, HEADS, batch_first=True, context=KEYS, coupling_std=0.5).double()
    x = sequence(KEYS, batch_first=True)
    padding = torch.arange(KEYS) >= torch.tensor([[KEYS], [4], [2]])
    out, _ = ours(x, x, x, key_padding_mask=padding)
    short, _ = ours(x[1:2, :4], x[1:2, :4], x[1:2, :4])
    torch.testing.assert_close(out[1:2, :4], short)
    moved = torch.where(padding[..., None], 1e3, x)
    torch.testing.assert_close(ours(x, moved, moved, key_padding_mask=padding)[0], out)


def test_cross_attention_against_summation_by_hand():
    torch.manual_seed(0)
    ours = MultiheadAttention(DIM, 1, batch_first=True, context=3, coupling_std=0.5).double()
    layer = ours.attention
    assert isinstance(layer, BoltzmannAttention) and layer.couplings is not None and layer.query_key is not None
    query, key = sequence(2, batch_first=True, seed=3), sequence(3, batch_first=True, seed=4)
    (wq, wk), (bq, bk) = layer.query_key.weight.chunk(2), layer.query_key.bias.chunk(2)
    h = (query @ wq.T + bq) @ (key @ wk.T + bk).mT / DIM**0.5
    states = torch.tensor(list(itertools.product([1.0, -1.0], repeat=3)), dtype=torch.float64)
    pairs = 0.5 * torch.einsum("sj,jk,sk->s", states, layer.couplings(3)[0], states)
    law = (h @ states.T + pairs).softmax(-1)
    alpha = (1 + law @ states) / 2
    weights = ours(query, key, key)[1]
    torch.testing.assert_close(weights, alpha / alpha.sum(-1, keepdim=True))


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_every_kind_takes_the_call(kind):
    torch.manual_seed(0)
    ours = MultiheadAttention(DIM, HEADS, context=KEYS, kind=kind)
    query, key = (sequence(n, batch_first=False).float() for n in (QUERIES, KEYS))
    out, weights = ours(query, key, key)
    assert out.shape == query.shape and weights is not None and weights.shape == (BATCH, QUERIES, KEYS)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, QUERIES))


# ---- inside torch's layers -------------------------------------------------------------------------------------------


def encoder(layers: int = 2, **options) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True, dtype=torch.float64, **options)
    return nn.TransformerEncoder(layer, layers)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # said of torch's own fused path
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_softmax_replaced_in_an_encoder_changes_nothing(training, padded):
    model = encoder()
    theirs = copy.deepcopy(model).train(training)
    assert replace_attention(model, context=KEYS, kind="softmax") == ["layers.0.self_attn", "layers.1.self_attn"]
    model.train(training)
    x = sequence(KEYS, batch_first=True)
    padding = torch.arange(KEYS) >= torch.tensor([[KEYS], [5], [2]]) if padded else None
    with torch.set_grad_enabled(training):  # torch's fused path wants evaluation without gradients
        ours, wanted = (m(x, src_key_padding_mask=padding) for m in (model, theirs))
    kept = torch.ones(BATCH, KEYS, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(ours[kept], wanted[kept], rtol=1e-8, atol=1e-10)


def test_a_decoder_with_both_attentions_goes_on_as_before():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    model = nn.TransformerDecoder(layer, 1)
    theirs = copy.deepcopy(model)
    assert len(replace_attention(model, context=KEYS, kind="softmax")) == 2
    target, memory = sequence(QUERIES, batch_first=True, seed=2), sequence(KEYS, batch_first=True, seed=3)
    mask = nn.Transformer.generate_square_subsequent_mask(QUERIES, dtype=torch.float64)
    torch.testing.assert_close(model(target, memory, tgt_mask=mask), theirs(target, memory, tgt_mask=mask))


def test_an_encoder_with_boltzmann_attention_trains_every_weight():
    model = encoder(norm_first=False)
    sampler = get_sampler("exact")
    replace_attention(model, context=KEYS, sampler=sampler, coupling_std=0.1)
    assert samplers_of(model) == [sampler]  # one for all layers
    model(sequence(KEYS, batch_first=True)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert any(name.endswith("couplings.values") and p.grad.any() for name, p in model.named_parameters())  # type: ignore[union-attr]


def test_layers_that_are_replaced_start_with_couplings_of_their_own():
    model = encoder()
    replace_attention(model, context=KEYS, coupling_std=0.1)
    first, second = (value for name, value in model.named_parameters() if name.endswith("couplings.values"))
    assert first.any() and not torch.equal(first, second)


def test_a_layer_that_stands_in_two_places_is_replaced_in_both():
    theirs, _ = pair()
    model = nn.ModuleDict({"a": theirs, "b": theirs})
    assert replace_attention(model, context=4) == ["a", "b"]
    assert isinstance(model["a"], MultiheadAttention) and model["a"] is model["b"]


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_has_no_counterpart_is_refused():
    for options in ({"kdim": 4}, {"add_bias_kv": True}, {"add_zero_attn": True}):
        with pytest.raises(NotSupportedError, match="have no counterpart"):
            MultiheadAttention.from_torch(nn.MultiheadAttention(DIM, HEADS, **options), context=4)
    with pytest.raises(NotSupportedError, match="no queries and keys"):
        MultiheadAttention.from_torch(nn.MultiheadAttention(DIM, HEADS), context=4, mode="J")
    with pytest.raises(InvalidOptionError, match="no torch.nn.MultiheadAttention to replace"):
        replace_attention(nn.Linear(2, 2), context=4)
    with pytest.raises(InvalidOptionError, match="from_torch"):
        replace_attention(nn.MultiheadAttention(DIM, HEADS), context=4)
    model = encoder()
    with pytest.raises(InvalidOptionError, match="no option 'widht'"):
        replace_attention(model, context=4, widht=2)
    assert sum(isinstance(m, nn.MultiheadAttention) for m in model.modules()) == 2  # left as it was


def test_shapes_and_masks_that_do_not_fit_are_refused(unchecked):
    _, ours = pair(batch_first=True)
    x, y = sequence(5, batch_first=True), sequence(KEYS, batch_first=True)
    for arguments, message in (
        ((x, y, x), "keys and values be of one length"),
        ((x[:2], y, y), "their batches must agree"),
        ((x[..., :4], y, y), "query has shape .3, 5, 4."),
        ((x, y[0], y[0]), "key has shape .7, 8."),
        ((x[:, :0], y, y), "query has shape .3, 0, 8."),
    ):
        with pytest.raises(InvalidProblemError, match=message):
            ours(*arguments)
    with pytest.raises(InvalidProblemError, match="attn_mask has shape .7, 5.; it must be .L, S. = .5, 7."):
        ours(x, y, y, attn_mask=BOOL.T)
    with pytest.raises(InvalidProblemError, match="key_padding_mask has shape .3, 5."):
        ours(x, y, y, key_padding_mask=PADDING[:, :5])
    with pytest.raises(InvalidProblemError, match="attn_mask is torch.int64; it must be bool, True where"):
        ours(x, y, y, attn_mask=BOOL.long())
    longer = MultiheadAttention(DIM, HEADS, context=4, batch_first=True).double()
    with pytest.raises(InvalidProblemError, match="7 positions were given; this layer was made for context=4"):
        longer(x, y, y)
    distant = MultiheadAttention(DIM, HEADS, context=KEYS, batch_first=True, score_bias="distance").double()
    distant(y, y, y)
    with pytest.raises(NotSupportedError, match="a bias by distance has no meaning between 5 queries and 7 keys"):
        distant(x, y, y)
