"""What all attention layers share, the softmax and sigmoid baselines, and the factory."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import ising_attn
import samplers
from ising_attn import (
    ATTENTION_KINDS,
    Attention,
    BoltzmannAttention,
    ForeignPackageError,
    InvalidOptionError,
    SigmoidAttention,
    SoftmaxAttention,
    attention_options,
    cli,
    get_sampler,
    make_attention,
    require_own_package,
)
from ising_attn.attention import softmax_over_allowed

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (SoftmaxAttention, SigmoidAttention, BoltzmannAttention)
HOLES = torch.tensor([[0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


def made(kind: type[Attention], **options) -> Any:
    torch.manual_seed(0)
    return kind(8, 2, 5, **options)


def inputs(length: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    return torch.randn(3, length, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_is_torchs_own(causal: bool):
    layer, x = made(SoftmaxAttention).double(), inputs(dtype=torch.float64).requires_grad_()
    query, key = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in layer.query_key(x).chunk(2, -1))
    value = layer.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    own = scaled_dot_product_attention(query, key, value, is_causal=causal)
    expected = layer.out(own.transpose(1, 2).flatten(2))
    out = layer(x, None if causal else torch.ones(4, 4, dtype=torch.bool))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), x)[0], torch.autograd.grad(expected.square().sum(), x)[0]
    )


def test_softmax_with_a_multihead_module_of_torch_carrying_the_same_weights():
    layer, x = made(SoftmaxAttention), inputs()
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.query_key.weight, layer.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([layer.query_key.bias, layer.value.bias]))
        theirs.out_proj.load_state_dict(layer.out.state_dict())
    forbidden = ~torch.ones(4, 4, dtype=torch.bool).tril()
    expected, their_weights = theirs(x, x, x, attn_mask=forbidden, average_attn_weights=False)
    out, weights = layer(x, need_weights=True)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights, their_weights, rtol=1e-5, atol=1e-6)


def test_a_very_negative_bias_turns_sigmoid_into_softmax_of_twice_the_scores():
    sigmoid, softmax = made(SigmoidAttention, bias="scalar", bias_init=-40.0), made(SoftmaxAttention)
    softmax.load_state_dict(sigmoid.state_dict(), strict=False)
    with torch.no_grad():
        softmax.query_key.weight[:8] *= 2
        softmax.query_key.bias[:8] *= 2
    torch.testing.assert_close(sigmoid(inputs()), softmax(inputs()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bias", ["none", "scalar", "distance", "position"])
def test_every_layer_is_causal_and_normalised(kind: type[Attention], bias: str):
    layer, x = made(kind, bias=bias, bias_init=0.3), inputs()
    out, weights = layer(x, need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4))
    assert weights.triu(1).abs().max() == 0
    x[:, 2:] += 3
    torch.testing.assert_close(layer(x)[:, :2], out[:, :2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_queries_without_keys_give_zeros_and_no_gradient(kind: type[Attention]):
    layer, x = made(kind), inputs().requires_grad_()
    out, weights = layer(x, HOLES, need_weights=True)
    assert weights[:, :, 0].abs().max() == 0
    torch.testing.assert_close(out[:, 0], layer.out.bias.expand(3, -1))
    out[:, 0].sum().backward()
    assert x.grad.abs().max() == 0
    assert all(bool(torch.isfinite(p.grad).all()) for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept_and_weights_are_at_least_float32(kind: type[Attention], dtype: torch.dtype):
    layer, x = made(kind).to(dtype), inputs(dtype=dtype)
    out, weights = layer(x, need_weights=True)
    assert out.dtype == dtype
    assert weights.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(out.float(), made(kind)(x.float()), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("kind", LAYERS)
def test_autocast_keeps_scores_in_float32(kind: type[Attention]):
    layer, x = made(kind), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, weights = layer(x, need_weights=True)
        assert layer.fields(x).dtype == torch.float32
    assert (out.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    out.float().sum().backward()
    assert layer.out.weight.grad.dtype == torch.float32


def test_scores_of_any_size_stay_finite():
    scores = torch.tensor([[[[1e4, -1e4], [-1e30, -1e30]]]], requires_grad=True)
    weights = softmax_over_allowed(scores, torch.ones(2, 2, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]))
    masked = softmax_over_allowed(scores, torch.tensor([[False, True], [True, False]]))
    torch.testing.assert_close(masked, torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]]))
    (weights[..., 0].sum() + masked[..., 0].sum()).backward()
    assert scores.grad is not None
    assert bool(torch.isfinite(scores.grad).all())


def test_the_factory_makes_each_kind_with_its_options():
    for name, kind in ATTENTION_KINDS.items():
        # One command line serves all kinds: a sampler is left alone where none is used.
        assert type(make_attention(name, 8, 2, 4, sampler="exact", bias="scalar", dropout=0.1)) is kind
        parameters = inspect.signature(kind.__init__).parameters
        assert set(attention_options(name)) <= {*parameters, *inspect.signature(Attention.__init__).parameters}
    default: Any = make_attention("boltzmann", 8, 2, 4)
    assert default.sampler.name == "exact"
    chosen = get_sampler("exact")
    layer: Any = make_attention("boltzmann", 8, 2, 4, sampler=chosen, mode="h+K", coupling_std=0.1)
    assert layer.sampler is chosen
    assert layer.triples is not None
    assert layer.couplings is None


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("boltzman", {}, "did you mean 'boltzmann'"),
        ("softmax", {"couplings": "free"}, "'softmax' attention has no option 'couplings'"),
        ("boltzmann", {"coupling": "free"}, "did you mean 'couplings'"),
        ("softmax", {"scores": False}, "no option 'scores'"),
    ],
)
def test_the_factory_refuses_with_advice(kind: str, options: dict, words: str):
    with pytest.raises(InvalidOptionError, match=words):
        make_attention(kind, 8, 2, 4, **options)


def test_the_sampler_api_is_there_from_one_import():
    for name in samplers.__all__:
        assert getattr(ising_attn, name) is getattr(samplers, name)
        assert name in ising_attn.__all__
    assert len(set(ising_attn.__all__)) == len(ising_attn.__all__)
    assert all(hasattr(ising_attn, name) for name in ising_attn.__all__)


def test_a_foreign_package_is_named(tmp_path: Path):
    foreign = tmp_path / "samplers"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import ising_attn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "ForeignPackageError" in done.stderr
    assert str(foreign) in done.stderr


def test_the_command_line_names_a_foreign_models_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    foreign = ModuleType("models")
    foreign.__file__ = "/elsewhere/models/__init__.py"
    monkeypatch.setitem(sys.modules, "models", foreign)
    assert cli.main(["brackets", "--help"]) == 2
    assert "/elsewhere/models/__init__.py" in capsys.readouterr().err


def test_a_bare_folder_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "namesake").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ForeignPackageError, match="namesake"):
        require_own_package("namesake")
    assert require_own_package("samplers") is samplers
    assert require_own_package("models").ISING_ATTN_PACKAGE is True
