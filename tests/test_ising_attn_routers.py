"""Boolean routers: formulas, limits, causality in every routing, temperature in the state dict, bad input."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from ising_attn import (
    BoltzmannAttention,
    InvalidOptionError,
    IsingProblem,
    NotSupportedError,
    SigmoidAttention,
    get_sampler,
    make_attention,
)
from ising_attn.routers import (
    ROUTINGS,
    ArticleRouter,
    Router,
    RouterAttention,
    ScalarRouter,
    recorded_routing,
    routers_of,
    set_routing,
    set_temperature,
    set_threshold,
    use_routing,
)

ROUTERS: dict[str, dict[str, Any]] = {
    "router": {"coupling_std": 0.7},
    "article-router": {},
    "scalar-router": {},
}
D, H, T = 8, 2, 6


def router(kind: str, **options: Any) -> Router:
    torch.manual_seed(0)
    layer = make_attention(kind, D, H, T, **ROUTERS[kind], **options)
    assert isinstance(layer, Router)
    return layer


def inputs(seed: int = 1, batch: int = 3) -> torch.Tensor:
    return 2 * torch.randn(batch, T, D, generator=torch.Generator().manual_seed(seed))


def causal() -> torch.Tensor:
    return torch.ones(T, T, dtype=torch.bool).tril()


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_the_future_changes_nothing(kind: str, routing: str, temperature: float):
    layer = router(kind, routing=routing, temperature=temperature).eval()
    x, y = inputs(), inputs()
    for cut in range(1, T):
        y = x.clone()
        y[:, cut:] = inputs(seed=cut + 9)[:, cut:]
        out, weights = layer(x, need_weights=True)
        out_y, weights_y = layer(y, need_weights=True)
        torch.testing.assert_close(out[:, :cut], out_y[:, :cut], rtol=0, atol=1e-6)
        assert not weights.triu(1).any() and not weights_y.triu(1).any()
        # The test can fail: what lies at the cut does move what comes after it.
        assert (out[:, cut:] - out_y[:, cut:]).abs().max() > 1e-3


def test_the_leak_of_the_article_is_seen_by_the_causality_test():
    """Masking before the decision, as the article prints it, gives the future weight."""
    layer = router("article-router", routing="hard", temperature=0.1)
    fields = layer.fields(inputs()).masked_fill(~causal(), -torch.inf)
    leaking = (torch.sign(fields) / 0.1).softmax(-1)
    rows = (fields < 0).all(-1)
    assert rows.any(), "no query of this example decides for no key"
    assert leaking[rows].triu(1).sum() > 0.1
    assert not layer.weights(inputs()).triu(1).any()


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_weights_sum_to_one_and_forbidden_rows_to_zero(kind: str, routing: str):
    allowed = causal().clone()
    allowed[2] = False
    allowed[3, 1] = False
    weights = router(kind, routing=routing, temperature=0.3).weights(inputs(), allowed)
    total = weights.sum(-1)
    torch.testing.assert_close(total[:, :, 2], torch.zeros_like(total[:, :, 2]))
    torch.testing.assert_close(total[:, :, 3:], torch.ones_like(total[:, :, 3:]), rtol=0, atol=1e-5)
    assert not weights[:, :, ~allowed].any() and weights.min() >= 0


def test_the_soft_router_is_boltzmann_attention_at_its_temperature():
    soft = router("router", temperature=0.5, bias="distance", bias_init=0.2)
    twin = BoltzmannAttention(D, H, T, coupling_std=0.7, bias="distance", beta=2.0)
    twin.load_state_dict({k: v for k, v in soft.state_dict().items() if k not in ("temperature", "threshold")})
    torch.testing.assert_close(soft.weights(inputs()), twin.weights(inputs()))


def test_without_couplings_it_is_sigmoid_attention_and_sign():
    soft = make_attention("router", D, H, T, mode="h")
    twin = SigmoidAttention(D, H, T)
    twin.load_state_dict({k: v for k, v in soft.state_dict().items() if k not in ("temperature", "threshold")})
    torch.testing.assert_close(soft.weights(inputs()), twin.weights(inputs()))
    with use_routing(soft, "hard"):
        weights = soft.weights(inputs())
    up = (soft.fields(inputs()) >= 0) & causal()
    empty = ~up.any(-1, keepdim=True)
    expected = torch.where(empty, causal(), up).float()
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True), rtol=0, atol=1e-5)


@pytest.mark.parametrize("threshold", [0.0, 0.8])
def test_hard_decisions_are_ground_states(threshold: float):
    layer = router("router", routing="hard", threshold=threshold)
    weights = layer.weights(inputs())
    with torch.no_grad():
        fields, couplings = layer.fields(inputs()) - threshold, layer.get_submodule("couplings")(T)
    for b, h, i in itertools.product(range(3), range(H), range(T)):
        states = torch.tensor(list(itertools.product((1.0, -1.0), repeat=i + 1)))
        j = couplings[h, : i + 1, : i + 1]
        best = states[(states @ fields[b, h, i, : i + 1] + 0.5 * ((states @ j) * states).sum(-1)).argmax()]
        up = (best > 0).float() if (best > 0).any() else torch.ones(i + 1)
        torch.testing.assert_close(weights[b, h, i, : i + 1], up / up.sum(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ROUTERS)
def test_cooling_leads_to_the_hard_router(kind: str):
    layer = router(kind)
    with use_routing(layer, "hard"):
        layer.set_temperature(1e-3)
        hard = layer.weights(inputs())
    distances = []
    for temperature in (1.0, 0.1, 1e-3):
        layer.set_temperature(temperature)
        soft = layer.weights(inputs())
        # A query that decides for no key has no limit in common: the soft one goes to its best key.
        with recorded_routing(layer) as kept, use_routing(layer, "hard"):
            layer.weights(inputs())
        some = kept[0].chosen.sum(-1) > 0
        distances.append((soft - hard).abs()[some].mean().item())
    assert distances[0] > distances[1] > distances[2] and distances[2] < 5e-3


@pytest.mark.parametrize("kind", ROUTERS)
def test_straight_through_is_hard_forwards_and_soft_backwards(kind: str):
    layer, x = router(kind, temperature=0.7), inputs()
    projection = torch.randn(3, H, T, T, generator=torch.Generator().manual_seed(3))
    grads, values = {}, {}
    for routing in ROUTINGS:
        layer.zero_grad()
        with use_routing(layer, routing):
            values[routing] = layer.weights(x)
        if routing != "hard":
            (values[routing] * projection).sum().backward()
            grads[routing] = [None if p.grad is None else p.grad.clone() for p in layer.parameters()]
    torch.testing.assert_close(values["straight-through"], values["hard"], rtol=0, atol=1e-6)
    assert not values["hard"].requires_grad
    for soft, through in zip(grads["soft"], grads["straight-through"], strict=True):
        torch.testing.assert_close(soft, through)
    assert any(g is not None and g.abs().max() > 0 for g in grads["soft"])


def test_the_spectral_norm_is_one_before_and_after_training():
    layer = router("article-router")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for step in range(4):
        largest = torch.linalg.svdvals(layer.router_matrix())[:, 0]  # type: ignore[operator]
        torch.testing.assert_close(largest, torch.ones(H), rtol=1e-5, atol=0)
        loss = (layer(inputs(step)) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        assert layer.router.grad is not None and layer.router.grad.abs().max() > 0  # type: ignore[operator]
        optimizer.step()


def test_the_scalar_router_is_its_formula():
    layer = router("scalar-router", temperature=0.4)
    assert isinstance(layer, ScalarRouter)
    x = inputs()
    q, k = layer.query_scalar(x), layer.key_scalar(x)
    logits = torch.einsum("bih,bjh->bhij", q, k)
    alpha = torch.sigmoid(logits / 0.4) * causal()
    torch.testing.assert_close(layer.weights(x), alpha / alpha.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6)
    with use_routing(layer, "hard"):
        layer.set_threshold(-0.3)
        up = ((logits > -0.3) & causal()).float()
        some = up.sum(-1) > 0
        torch.testing.assert_close(layer.weights(x)[some], (up / up.sum(-1, keepdim=True))[some], rtol=0, atol=1e-5)


@pytest.mark.parametrize("sampler", ["gibbs", "annealing", "dqa", "band"])
def test_any_sampler_runs_it(sampler: str):
    options: dict[str, Any] = {"couplings": "band", "width": 2} if sampler == "band" else {}
    torch.manual_seed(0)
    layer = RouterAttention(D, H, T, sampler=sampler, coupling_std=0.3, routing="straight-through", **options)
    out = layer(inputs(batch=1))
    out.square().sum().backward()
    assert layer.query_key is not None and layer.query_key.weight.grad is not None
    assert out.isfinite().all() and layer.query_key.weight.grad.abs().max() > 0


def test_a_sampler_without_ground_states_is_soft_only():
    layer = RouterAttention(D, H, T, sampler="mean-field")
    layer(inputs())
    with use_routing(layer, "hard"), pytest.raises(NotSupportedError, match="mean-field.*ground states.*'exact'"):
        layer(inputs())


def test_what_is_recorded():
    model = nn.ModuleList([router("router"), router("scalar-router")])
    with recorded_routing(model) as kept:
        for layer in model:
            layer(inputs())
    assert [one.chosen.shape for one in kept] == [(3, H, T, T)] * 2
    assert all(0 < one.entropy().item() <= math.log(2) + 1e-6 and 0 < one.share_up() < 1 for one in kept)
    kept[0].entropy().backward()
    assert model[0].query_key.weight.grad is not None  # type: ignore[union-attr]
    with recorded_routing(model) as kept, use_routing(model, "hard"):
        model[1](inputs())
    assert kept[0].entropy().item() == 0 and set(kept[0].chosen.unique().tolist()) == {0.0, 1.0}
    model[0](inputs())
    assert len(kept) == 1, "nothing is recorded after the block"


def test_a_checkpoint_brings_its_temperature_back():
    trained, fresh = router("router", temperature=1.0), router("router", temperature=1.0)
    set_temperature(trained, 0.1)
    set_threshold(trained, -0.25)
    fresh.load_state_dict(trained.state_dict())
    assert (fresh.tau, float(fresh.threshold)) == (0.1, -0.25)
    torch.testing.assert_close(fresh.weights(inputs()), trained.weights(inputs()), rtol=0, atol=0)
    spoilt = {**trained.state_dict(), "temperature": torch.tensor(0.0)}
    with pytest.raises(InvalidOptionError, match="temperature=0.0"):
        fresh.load_state_dict(spoilt)


def test_routing_is_switched_for_a_whole_model_and_put_back():
    model = nn.Sequential(router("router"), router("article-router", routing="hard"))
    assert [r.routing for r in routers_of(model)] == ["soft", "hard"]
    with pytest.raises(RuntimeError, match="inside"), use_routing(model, "straight-through"):
        assert [r.routing for r in routers_of(model)] == ["straight-through"] * 2
        raise RuntimeError("inside")
    assert [r.routing for r in routers_of(model)] == ["soft", "hard"]
    set_routing(model, "hard")
    assert [r.routing for r in routers_of(model)] == ["hard"] * 2


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", ROUTERS)
def test_temperatures_that_are_none(kind: str, bad: float):
    with pytest.raises(InvalidOptionError, match="temperature=.*above 0"):
        router(kind, temperature=bad)
    layer = router(kind)
    with pytest.raises(InvalidOptionError, match="temperature"):
        set_temperature(layer, bad)
    assert layer.tau == 1.0


def test_other_bad_input():
    with pytest.raises(InvalidOptionError, match="no attention is named 'scaler-router'.*scalar-router"):
        make_attention("scaler-router", D, H, T)
    with pytest.raises(InvalidOptionError, match="routing='hrad'.*did you mean 'hard'"):
        make_attention("router", D, H, T, routing="hrad")
    with pytest.raises(InvalidOptionError, match="'scalar-router' attention has no option 'couplings'"):
        make_attention("scalar-router", D, H, T, couplings="band")
    with pytest.raises(InvalidOptionError, match="threshold=nan"):
        make_attention("article-router", D, H, T, threshold=math.nan)
    for switch in (lambda m: set_routing(m, "hard"), lambda m: set_temperature(m, 1.0), lambda m: set_threshold(m, 0)):
        with pytest.raises(InvalidOptionError, match="Linear has no router"):
            switch(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ROUTERS)
def test_half_precision_and_an_empty_batch(kind: str):
    layer = router(kind, routing="straight-through").bfloat16()
    assert layer.temperature.dtype in (torch.float64, torch.bfloat16)
    out = layer(inputs().bfloat16())
    assert out.dtype == torch.bfloat16 and out.isfinite().all()
    assert router(kind, routing="hard")(inputs()[:0]).shape == (0, T, D)


def test_problems_carry_the_temperature():
    layer = router("router", temperature=0.25)
    assert isinstance(layer, RouterAttention)
    problem = layer.problem(inputs())
    assert isinstance(problem, IsingProblem) and problem.beta == 4.0 and layer.beta == 4.0
    m = get_sampler("exact").magnetization(problem)
    with recorded_routing(layer) as kept:
        layer(inputs())
    torch.testing.assert_close(kept[0].chosen, torch.where(causal(), (1 + m) / 2, 0.0))


def test_the_article_keeps_a_little_of_what_is_not_chosen():
    layer = router("article-router", routing="hard", temperature=0.5)
    assert isinstance(layer, ArticleRouter)
    last = layer.weights(inputs())[:, :, -1]
    ratio = last.amin(-1) / last.amax(-1)
    mixed = ratio < 0.999
    assert mixed.any()
    torch.testing.assert_close(ratio[mixed], torch.full_like(ratio[mixed], math.exp(-4)), rtol=1e-4, atol=0)


def test_an_offset_bias_starts_with_one_head_per_near_key():
    """A hard router without content reads, head by head, the key one, two, … places back."""
    layer = make_attention("router", D, H, T, mode="h", bias="offset", routing="hard")
    assert layer.query_key is not None and layer.bias is not None
    with torch.no_grad():
        layer.query_key.weight.zero_()
        layer.query_key.bias.zero_()
    weights = layer.weights(inputs())
    for head in range(H):
        for query in range(head + 1, T):
            assert weights[0, head, query].argmax() == query - head - 1
            assert weights[0, head, query].max() > 0.999
    assert layer.bias.values.requires_grad and layer.max_length is None


@pytest.mark.parametrize("name", ["temperature", "threshold"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_an_impossible_temperature_or_threshold_is_refused(name, value):
    layer = make_attention("scalar-router", 16, 2, 8)
    state = layer.state_dict()
    state[name] = torch.full_like(state[name], value)
    with pytest.raises(InvalidOptionError, match=name):
        layer.load_state_dict(state)
