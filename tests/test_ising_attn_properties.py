"""What every attention, feed-forward and logic module keeps, whatever the shapes, masks, dtypes and sizes of inputs."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ising_strategies import examples
from torch import Tensor, nn

from ising_attn import ATTENTION_KINDS, FEED_FORWARD_KINDS, make_attention, make_feed_forward
from ising_attn.factory import attention_options
from ising_attn.logic import LogicNetwork
from ising_attn.logic.heads import GroupSum, LinearHead
from ising_attn.logic.modes import MODES
from ising_attn.logic.parametrisation import PARAMETRISATIONS
from ising_attn.logic.wiring import WIRINGS

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DIM, HEADS, CONTEXT = 4, 2, 5
# Largest inputs whose products half precision still holds; scores grow with their square.
SIZES = {torch.float32: (0.0, 1e-30, 1e-8, 1.0, 30.0, 1e4), torch.float64: (0.0, 1e-30, 1e-8, 1.0, 30.0, 1e6)}
HALF_SIZES = (0.0, 1e-6, 1.0, 8.0)
# Of each kind those options that take other paths; any kind without an entry is tested with its defaults.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "boltzmann": [
        {},
        {"mode": "h"},
        {"mode": "J"},
        {"mode": "h+J+K", "coupling_std": 0.3},
        {"couplings": "distance", "width": 2, "coupling_std": 1.0},
        {"couplings": "low-rank", "rank": 1, "coupling_std": 1.0},
        {"sampler": "band", "couplings": "band", "width": 2, "coupling_std": 30.0},
        {"sampler": "mean-field", "coupling_std": 0.1},
    ],
    "router": [{}, {"routing": "hard"}, {"temperature": 1e-3, "coupling_std": 0.5}, {"threshold": 1.0}],
}
BIASES = ("none", "scalar", "distance", "position", "offset")


@st.composite
def inputs(draw: st.DrawFn, length: int | None, batches: tuple[tuple[int, ...], ...]) -> Tensor:
    """(*batch, [T,] DIM) with magnitudes of its own in every row; T up to `length` where one is given."""
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    sizes = draw(st.lists(st.sampled_from(SIZES.get(dtype, HALF_SIZES)), min_size=1, max_size=3), label="sizes")
    shape = draw(st.sampled_from(batches), label="batch")
    if length is not None:
        shape = (*shape, draw(st.integers(1, length), label="T"))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    values = random.standard_normal((*shape, DIM)) * random.choice(sizes, (*shape, 1))
    return torch.from_numpy(values).to(dtype)


def made(seed: int, make: Any) -> nn.Module:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* features; the others have no effect")
        torch.manual_seed(seed)
        return make()


def called(module: nn.Module, x: Tensor, *rest: Any, **more: Any) -> Any:
    """module(x): the input and the global generators are as they were."""
    before, state = x.detach().clone(), torch.get_rng_state()
    out = module(x, *rest, **more)
    assert torch.equal(x.detach(), before) and torch.equal(torch.get_rng_state(), state)
    return out


def assert_trains(module: nn.Module, x: Tensor, *rest: Any) -> None:
    """Finite gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    out = module(x, *rest)
    assert out.dtype == x.dtype and bool(out.isfinite().all())
    (out.float() / out.detach().float().abs().amax().clamp_min(1.0) if out.numel() else out).sum().backward()
    for name, value in [("the input", x), *module.named_parameters()]:
        assert value.grad is None or bool(value.grad.isfinite().all()), name


def rounding(x: Tensor) -> float:
    return 64 * torch.finfo(x.dtype).eps


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """Equal up to rounding at the size of the larger."""
    scale = max([1.0, *(float(t.abs().max()) for t in (ours, theirs) if t.numel())])
    assert torch.allclose(ours.double(), theirs.double(), rtol=0, atol=rounding(ours) * scale)


def attention(data: st.DataObject, kind: str, dtype: torch.dtype) -> nn.Module:
    options = dict(data.draw(st.sampled_from(OPTIONS.get(kind, [{}])), label="options"))
    if "bias" in attention_options(kind):
        options["bias"] = data.draw(st.sampled_from(BIASES), label="bias")
    seed = data.draw(st.integers(0, 99))
    return made(seed, lambda: make_attention(kind, DIM, HEADS, CONTEXT, **options)).to(dtype)


def check_attention(kind: str, data: st.DataObject) -> None:
    x = data.draw(inputs(CONTEXT, ((0,), (1,), (3,))), label="x")
    batch, length, _ = x.shape
    module = attention(data, kind, x.dtype).eval()
    mask = data.draw(st.sampled_from(("causal", "random", "one query forbidden", "all forbidden")), label="mask")
    generator = torch.Generator().manual_seed(length)
    allowed = torch.rand(length, length, generator=generator) < 0.6
    if mask == "one query forbidden":
        allowed[0] = False
    elif mask != "random":
        allowed = torch.ones_like(allowed).tril() if mask == "causal" else torch.zeros_like(allowed)
    with torch.no_grad():
        out, weights = called(module, x, allowed, need_weights=True)
        assert out.shape == x.shape and out.dtype == x.dtype and bool(out.isfinite().all())
        assert weights.shape == (batch, HEADS, length, length)
        assert bool((weights >= 0).all()) and bool((weights[..., ~allowed] == 0).all())
        total = weights.double().sum(-1)
        some = allowed.any(-1)
        assert torch.allclose(total[..., some], torch.ones_like(total[..., some]), atol=1e-5)
        assert bool((total[..., ~some] == 0).all())
        assert_near(module(x.flip(0), allowed), out.flip(0))
        strided = torch.stack([x, torch.ones_like(x)], -1)[..., 0]
        assert_near(module(strided, allowed), out)
        if mask == "causal":
            assert_near(module(x), out)
            changed = torch.cat([x[:, :-1], -x[:, -1:]], 1)
            # Bit for bit would ask the same of matrix products, whose rows may be summed in another order.
            assert_near(module(changed)[:, :-1], out[:, :-1])
    assert_trains(module.train(), x, allowed)


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@examples(30)
@given(data=st.data())
def test_every_attention_keeps_its_weights_and_gradients_in_bounds(kind: str, data: st.DataObject):
    check_attention(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@examples(1000)
@given(data=st.data())
def test_every_attention_keeps_its_weights_and_gradients_in_bounds_on_many_inputs(kind: str, data: st.DataObject):
    check_attention(kind, data)


def check_feed_forward(kind: str, data: st.DataObject) -> None:
    x = data.draw(inputs(None, ((), (0,), (3,), (2, 3), (2, 0))), label="x")
    module = made(data.draw(st.integers(0, 99)), lambda: make_feed_forward(kind, DIM, 2 * DIM)).to(x.dtype).eval()
    with torch.no_grad():
        out = called(module, x)
        assert out.shape == x.shape and out.dtype == x.dtype
        if x.ndim > 1:
            assert_near(module(x.flip(0)), out.flip(0))
            strided = torch.stack([x, torch.ones_like(x)], -1)[..., 0]
            assert_near(module(strided), out)
            rows = [module(row) for row in x.reshape(-1, DIM)]
            assert_near(torch.stack(rows) if rows else out.reshape(0, DIM), out.reshape(-1, DIM))
    if x.numel() == 0 or float(x.abs().max()) <= 100:  # forms are of third degree, and overflow where theirs does
        assert_trains(module.train(), x)


@pytest.mark.parametrize("kind", FEED_FORWARD_KINDS)
@examples(15)
@given(data=st.data())
def test_every_feed_forward_layer_takes_each_row_by_itself(kind: str, data: st.DataObject):
    check_feed_forward(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEED_FORWARD_KINDS)
@examples(500)
@given(data=st.data())
def test_every_feed_forward_layer_takes_each_row_by_itself_on_many_inputs(kind: str, data: st.DataObject):
    check_feed_forward(kind, data)


def logic_network(data: st.DataObject, dtype: torch.dtype) -> LogicNetwork:
    head = data.draw(st.sampled_from(("none", "group-sum", "linear")), label="head")
    heads: dict[str, Any] = {
        "none": lambda: None,
        "group-sum": lambda: GroupSum(6, 3, centred=True),
        "linear": lambda: LinearHead(6, 3),
    }
    options = {
        "parametrisation": data.draw(st.sampled_from(sorted(PARAMETRISATIONS)), label="parametrisation"),
        "mode": data.draw(st.sampled_from(MODES), label="mode"),
        "wiring": data.draw(st.sampled_from(WIRINGS), label="wiring"),
        "temperature": data.draw(st.sampled_from((1e-3, 0.1, 1.0, 100.0)), label="temperature"),
    }
    seed = data.draw(st.integers(0, 99))
    network = made(seed, lambda: LogicNetwork(DIM, [5, 6], head=heads[head](), **options))
    assert isinstance(network, LogicNetwork)
    return network.to(dtype)


def check_logic(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES), label="dtype")
    batch = data.draw(st.sampled_from(((), (0,), (3,), (2, 3), (2, 0))), label="batch")
    network = logic_network(data, dtype).eval()
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    kind = data.draw(st.sampled_from(("probabilities", "bits")), label="input")
    hard = network.logic_layers()[0].is_hard
    values = random.random((*batch, DIM))
    x = torch.from_numpy(np.asarray(values if kind == "probabilities" and not hard else values > 0.5)).to(dtype)
    with torch.no_grad():
        bits, out = called(network.bits, x), called(network, x)  # type: ignore[arg-type]
        assert bits.shape == (*batch, 6) and bits.dtype == dtype and out.dtype == dtype
        slack = rounding(x)
        assert bool(((bits >= -slack) & (bits <= 1 + slack)).all()) and bool(out.isfinite().all())
        if hard:
            boolean = network.harden()
            assert torch.equal(boolean.bits(x), bits.bool()) and torch.equal(bits, bits.bool().to(dtype))
            assert torch.equal(boolean.packed()(x), boolean(x))
            assert_near(boolean(x).to(dtype), out)
        if batch:
            assert_near(network(x.flip(0)), out.flip(0))
            strided = torch.stack([x, torch.ones_like(x)], -1)[..., 0]
            assert_near(network(strided), out)
    assert_trains(network if network.logic_layers()[0].mode.startswith("gumbel") else network.train(), x)


@examples(150)
@given(data=st.data())
def test_every_logic_network_keeps_to_probabilities_and_bits(data: st.DataObject):
    check_logic(data)


@pytest.mark.slow
@examples(5000)
@given(data=st.data())
def test_every_logic_network_keeps_to_probabilities_and_bits_on_many_inputs(data: st.DataObject):
    check_logic(data)
