"""Wiring: drawn, unique and learned, in the state dict, and what is refused."""

import itertools
import math
from typing import Any

import pytest
import torch
from logic_networks import every_input, generator

from ising_attn import logic
from ising_attn.logic import gates as table
from ising_attn.logic.functional import combine
from ising_attn.logic.wiring import FixedWiring, LearnableWiring, unique_pairs


def test_learnable_wiring_differentiates_the_softmax_over_candidates():
    layer = logic.LogicLayer(8, 5, wiring="learnable", candidates=3, temperature=0.7, generator=generator()).double()
    x = torch.rand(4, 8, generator=generator(1), dtype=torch.float64, requires_grad=True)
    slope = torch.randn(4, 5, generator=generator(2), dtype=torch.float64)
    wiring = layer.wiring
    assert isinstance(wiring, LearnableWiring)
    probabilities = (wiring.logits / 0.7).softmax(-1)
    relaxed = [(x[:, wiring.candidates[i]] * probabilities[i]).sum(-1) for i in (0, 1)]
    picked = [x[:, wiring.pairs()[i]] for i in (0, 1)]
    a, b = (hard.detach() + soft - soft.detach() for hard, soft in zip(picked, relaxed, strict=True))
    slow = combine(a, b, table.coefficients(layer.truth_tables()).T)
    fast = layer(x)
    assert torch.allclose(fast, slow, atol=1e-14)
    over = (x, wiring.logits, layer.gates.logits)
    expected = torch.autograd.grad((slow * slope).sum(), over)
    for ours, theirs in zip(torch.autograd.grad((fast * slope).sum(), over), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-13)


def test_temperature_and_wiring_travel_in_the_state_dict():
    first, second = (logic.LogicLayer(8, 16, residual=None, generator=generator(seed)) for seed in (1, 2))
    x = every_input(8).float()
    logic.set_temperature(first, 0.37)
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert second(x).equal(first(x)) and float(second.temperature) == pytest.approx(0.37)


@pytest.mark.parametrize("wiring", logic.WIRINGS)
@pytest.mark.parametrize("sizes", [(7, 16), (8, 17), (9, 16)])
def test_a_state_dict_of_another_wiring_is_refused(wiring: str, sizes: tuple[int, int]):
    theirs = logic.LogicLayer(
        *sizes, wiring=wiring, candidates=2 if wiring == "learnable" else None, noise=0, residual=0.5
    )
    ours = logic.LogicLayer(8, 16, wiring=wiring, candidates=2 if wiring == "learnable" else None)
    with pytest.raises(logic.WiringError, match=f"wires {sizes[0]} to {sizes[1]} features, this layer 8 to 16"):
        ours.load_state_dict(theirs.state_dict())


def test_a_state_dict_of_another_kind_of_wiring_is_refused():
    fixed, learnable = (logic.LogicLayer(8, 16, wiring=wiring) for wiring in ("unique", "learnable"))
    with pytest.raises(
        logic.WiringError, match="holds a learnable wiring, this layer has a fixed one; build the layer"
    ):
        fixed.load_state_dict(learnable.state_dict())
    with pytest.raises(
        logic.WiringError, match="holds a fixed wiring, this layer has a learnable one; build the layer"
    ):
        learnable.load_state_dict(fixed.state_dict())


def test_broken_wiring_in_a_state_dict_is_refused():
    layer = logic.LogicLayer(8, 16)
    for place, value, message in [((0, 3), 8, "there are 0 … 7"), ((1, 3), -1, "there are")]:
        state = layer.state_dict()
        state["wiring.index"] = state["wiring.index"].clone()
        state["wiring.index"][place] = value
        with pytest.raises(logic.WiringError, match=message):
            layer.load_state_dict(state)
    state["wiring.index"][:, 3] = 2
    with pytest.raises(logic.WiringError, match="gate 3 reads input 2 twice"):
        layer.load_state_dict(state)
    learnable = logic.LogicLayer(8, 16, wiring="learnable", candidates=3)
    with pytest.raises(logic.WiringError, match="candidates"):
        learnable.load_state_dict(logic.LogicLayer(8, 16, wiring="learnable", candidates=2).state_dict())


@pytest.mark.parametrize(("inputs", "gates"), [(2, 5), (3, 3), (7, 64), (8, 64), (64, 40), (100, 1000)])
@pytest.mark.parametrize("wiring", logic.WIRINGS)
def test_no_gate_reads_one_input_twice(inputs: int, gates: int, wiring: str):
    if wiring == "unique" and gates > math.comb(inputs, 2):
        return
    for seed in range(5):
        layer = logic.LogicLayer(inputs, gates, wiring=wiring, generator=generator(seed))
        a, b = pairs = layer.wiring.pairs()
        assert (a != b).all() and int(pairs.min()) >= 0 and int(pairs.max()) < inputs
        if wiring == "unique":
            assert len({frozenset(pair) for pair in pairs.T.tolist()}) == gates
        if wiring == "random" and 2 * gates >= inputs:
            assert set(pairs.flatten().tolist()) == set(range(inputs))
            assert a.bincount(minlength=inputs).max() <= -(-gates // inputs)


def test_all_pairs_can_be_wired_and_one_more_cannot():
    pairs = unique_pairs(9, 36, generator())
    assert {frozenset(pair) for pair in pairs.T.tolist()} == set(map(frozenset, itertools.combinations(range(9), 2)))
    with pytest.raises(logic.WiringError, match="3 inputs have 3 pairs, 4 unique ones were asked for"):
        logic.LogicLayer(3, 4, wiring="unique")


def test_wiring_that_cannot_exist(unchecked):
    cases: list[tuple[Any, Any, str]] = [
        ((1, 4), {}, "in_features=1"),
        ((4, 0), {}, "out_features=0"),
        ((4.0, 2), {}, "in_features=4.0"),
        ((5, 4), {"wiring": "learnable", "candidates": 3}, "5 features allow 1 to 2"),
        ((5, 4), {"candidates": 3}, "only 'learnable' has"),
        ((5, 4), {"wiring": "learnabel"}, "did you mean 'learnable'"),
        ((5, 4), {"parametrisation": "lite"}, "did you mean 'light'"),
        ((5, 4), {"mode": "gumble-hard"}, "did you mean 'gumbel-hard'"),
        ((5, 4), {"temperature": 0.0}, "above 0"),
        ((5, 4), {"residual": 1.0}, "residual=1.0"),
        ((5, 4), {"noise": -1.0}, "noise=-1.0"),
    ]
    for arguments, options, message in cases:
        with pytest.raises((logic.WiringError, logic.InvalidLogicError), match=message):
            logic.LogicLayer(*arguments, **options)
    with pytest.warns(UserWarning, match="8 gates read at most 16 of 64 features"):
        logic.LogicLayer(64, 8)
    with pytest.raises(logic.WiringError, match="reads input 1 twice"):
        FixedWiring(3, 1, index=torch.tensor([[1], [1]]))


def test_a_seed_means_one_start_whatever_the_default_device():
    here, there = generator(), generator()
    first = logic.LogicLayer(6, 8, wiring="learnable", generator=here)
    with torch.device("meta"):
        second = logic.LogicLayer(6, 8, wiring="learnable", generator=there)
    assert {tensor.device.type for tensor in second.state_dict().values()} == {"meta"}
    assert here.get_state().equal(there.get_state())  # the same numbers were drawn
    again = logic.LogicLayer(6, 8, wiring="learnable", generator=generator())
    assert all(again.state_dict()[name].equal(value) for name, value in first.state_dict().items())
