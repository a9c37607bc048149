"""Logic layers: the gate table, parametrisations, modes, heads and hardening, against slow twins."""

import itertools
import math
from typing import Any

import pytest
import torch
from logic_networks import every_input, generator
from torch import nn

from ising_attn import logic
from ising_attn.feed_forward import feed_forward_parameters, make_feed_forward
from ising_attn.logic import functional
from ising_attn.logic import gates as table
from ising_attn.logic.functional import apply_gates, combine, gates_by_definition
from ising_attn.logic.modes import relaxed_bits, relaxed_choice
from ising_attn.logic.parametrisation import LightGates, RawGates, WalshGates, make_parametrisation
from samplers.errors import NotSupportedError

PYTHON = [
    lambda a, b: 0, lambda a, b: a and b, lambda a, b: a and not b, lambda a, b: a,
    lambda a, b: not a and b, lambda a, b: b, lambda a, b: a != b, lambda a, b: a or b,
    lambda a, b: not (a or b), lambda a, b: a == b, lambda a, b: not b, lambda a, b: a or not b,
    lambda a, b: not a, lambda a, b: not a or b, lambda a, b: not (a and b), lambda a, b: 1,
]  # fmt: skip


BITS = list(itertools.product((0, 1), repeat=2))


@pytest.mark.parametrize("gate", logic.GATES, ids=lambda gate: gate.name)
def test_every_form_of_a_gate_agrees_on_bits(gate: logic.Gate):
    for (a, b), listed in zip(BITS, gate.truth_table, strict=True):
        expected = int(PYTHON[gate.number](a, b))
        c, c_a, c_b, c_ab = gate.relaxation
        n, n_a, n_b, n_ab = gate.normal_form
        assert listed == expected
        assert c + c_a * a + c_b * b + c_ab * a * b == expected
        assert n ^ (n_a & a) ^ (n_b & b) ^ (n_ab & a & b) == expected
        assert eval(gate.expression, {}, {"a": a, "b": b}) & 1 == expected
    assert gate.uses == (
        any(PYTHON[gate.number](0, b) != PYTHON[gate.number](1, b) for b in (0, 1)),
        any(PYTHON[gate.number](a, 0) != PYTHON[gate.number](a, 1) for a in (0, 1)),
    )


def test_tables_numbers_and_normal_forms_of_tensors():
    numbers = torch.arange(16, dtype=torch.uint8)
    assert table.numbers_of(table.truth_tables()).equal(numbers)
    assert table.tables_of(numbers).float().equal(table.truth_tables())
    assert table.normal_forms(numbers).tolist() == [list(gate.normal_form) for gate in logic.GATES]
    assert table.coefficients(table.truth_tables()).tolist() == [list(gate.relaxation) for gate in logic.GATES]
    with pytest.raises(logic.InvalidLogicError, match="0 to 15"):
        table.tables_of(torch.tensor([16]))


def test_a_relaxed_gate_is_the_probability_of_a_one():
    a, b, expected = 0.3, 0.8, []
    for gate in range(16):
        expected.append(sum((a if x else 1 - a) * (b if y else 1 - b) for x, y in BITS if PYTHON[gate](x, y)))
    forms = table.coefficients(table.truth_tables(dtype=torch.float64)).T
    found = combine(torch.full((1, 16), a).double(), torch.full((1, 16), b).double(), forms)
    assert found[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("count", "inputs", "gates"), [(7, 9, 12), (0, 3, 4), (1, 2, 1), (300, 700, 500)])
def test_the_fused_layer_is_the_sum_over_sixteen_gates_in_value_and_gradient(
    monkeypatch, compiled: bool, dtype: torch.dtype, tolerance: float, count: int, inputs: int, gates: int
):
    monkeypatch.setattr(functional, "_compiles", lambda *_: compiled)
    make = generator()
    x = torch.rand(inputs, count, generator=make, dtype=dtype).T.requires_grad_()
    logits = torch.randn(gates, 16, generator=make, dtype=dtype, requires_grad=True)
    index = logic.LogicLayer(inputs, gates, generator=make).wiring.pairs()
    slope = torch.randn(gates, count, generator=make, dtype=dtype).T
    weights = logits.softmax(-1)
    slow = gates_by_definition(x[:, index[0]], x[:, index[1]], weights)
    fast = apply_gates(x, index, table.coefficients(weights @ table.truth_tables(dtype=dtype)).T)
    assert torch.allclose(fast, slow, atol=tolerance)
    expected = torch.autograd.grad((slow * slope).sum(), (x, logits), retain_graph=True)
    for ours, theirs in zip(torch.autograd.grad((fast * slope).sum(), (x, logits)), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize("wiring", logic.WIRINGS)
def test_second_derivatives_are_refused_rather_than_wrong(wiring: str):
    layer = logic.LogicLayer(6, 5, wiring=wiring)
    with pytest.raises(NotSupportedError, match="second derivatives of logic gates"):
        torch.autograd.grad(layer(torch.rand(3, 6)).sum(), layer.gates.logits, create_graph=True)


def test_threads_change_no_gradient_by_more_than_rounding():
    layer, x = logic.LogicLayer(300, 400, generator=generator()), torch.rand(900, 300, generator=generator(1))
    layer(x).square().sum().backward()
    alone, layer.gates.logits.grad = layer.gates.logits.grad, None
    torch.set_num_threads(3)
    try:
        layer(x).square().sum().backward()
    finally:
        torch.set_num_threads(1)
    assert alone is not None and layer.gates.logits.grad is not None
    assert torch.allclose(layer.gates.logits.grad, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wiring", logic.WIRINGS)
@pytest.mark.parametrize("parametrisation", logic.PARAMETRISATIONS)
def test_gradients_of_a_soft_layer_by_finite_differences(parametrisation: str, wiring: str):
    layer = logic.LogicLayer(6, 5, parametrisation=parametrisation, wiring=wiring, generator=generator()).double()
    x = torch.rand(3, 6, generator=generator(1), dtype=torch.float64, requires_grad=wiring != "learnable")
    assert torch.autograd.gradcheck(lambda x, logits: torch.func.functional_call(
        layer, {"gates.logits": logits}, (x,)), (x, layer.gates.logits))  # fmt: skip


def test_walsh_is_a_rotation_of_light():
    walsh, light = WalshGates(6, residual=None, noise=1.0), LightGates(6, residual=None, noise=1.0)
    signs = 2 * torch.tensor(BITS).T - 1
    basis = torch.stack([torch.ones(4), signs[0], signs[1], signs[0] * signs[1]])
    with torch.no_grad():
        light.logits.copy_(walsh.logits @ basis)
    for hard in (False, True):
        ours, theirs = (gates.truth_tables(0.6, hard=hard, noise=False) for gates in (walsh, light))
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("parametrisation", logic.PARAMETRISATIONS)
def test_residual_initialisation_passes_the_first_input_on(parametrisation: str):
    gates = make_parametrisation(parametrisation, 50, residual=0.9, noise=0.0)
    soft = gates.truth_tables(1.0, hard=False, noise=False)
    expected = [0.1, 0.1, 0.9, 0.9]
    if parametrisation == "raw":  # the other 15 gates share 0.1: 7 of them have a 1 where `a` has one, 8 where not
        expected = [0.1 * 8 / 15] * 2 + [0.9 + 0.1 * 7 / 15] * 2
    assert torch.allclose(soft, torch.tensor(expected).expand(50, 4), atol=1e-6)
    noisy = make_parametrisation(parametrisation, 50, residual=0.9, noise=0.25, generator=generator())
    assert len({tuple(row) for row in noisy.logits.tolist()}) == 50
    assert (noisy.numbers() == table.A).all()


def test_deep_residual_networks_keep_their_gradients():
    def first_to_last(residual: float | None) -> float:
        network = logic.LogicNetwork(64, [64] * 12, residual=residual, generator=generator())
        network(torch.rand(32, 64, generator=generator(1)).round()).sum(0).pow(2).sum().backward()
        norms = [torch.as_tensor(layer.gates.logits.grad).norm() for layer in network.logic_layers()]
        return float(norms[0] / norms[-1])

    assert first_to_last(0.95) > 0.1
    assert first_to_last(None) < 1e-3


@pytest.mark.parametrize("hard", [False, True])
def test_noise_has_the_law_of_the_softmax(hard: bool):
    torch.manual_seed(0)
    logits = torch.tensor([0.5, -1.0, 1.5]).expand(40_000, 3)
    choice = relaxed_choice(logits, 0.3, hard=hard, noise=True)
    chosen = nn.functional.one_hot(choice.argmax(-1), 3).double().mean(0)
    law = logits[0].softmax(-1).double()
    z = (chosen - law) / (law * (1 - law) / len(logits)).sqrt()
    assert z.abs().max() < 4.5
    other = (2 * logits[0]).softmax(-1).double()
    assert ((chosen - other) / (other * (1 - other) / len(logits)).sqrt()).abs().max() > 20
    bits = relaxed_bits(torch.full((40_000,), 0.8), 0.3, hard=hard, noise=True)
    p = 1 / (1 + math.exp(-0.8))
    assert abs(float((bits > 0.5).double().mean()) - p) < 4.5 * (p * (1 - p) / 40_000) ** 0.5


@pytest.mark.parametrize("parametrisation", logic.PARAMETRISATIONS)
@pytest.mark.parametrize("wiring", logic.WIRINGS)
def test_hard_modes_give_bits_and_gradients_and_eval_draws_nothing(parametrisation: str, wiring: str):
    torch.manual_seed(3)
    network = logic.LogicNetwork(
        10, [20, 20], mode="gumbel-hard", parametrisation=parametrisation, wiring=wiring, residual=None
    )
    x = torch.rand(30, 10).round()
    out = network(x)
    assert ((out == 0) | (out == 1)).all()
    out.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())
    assert not network(x).equal(network(x))
    network.eval()
    state = torch.get_rng_state()
    hard = network(x)
    assert torch.get_rng_state().equal(state) and hard.equal(network(x))
    assert hard.equal(network.harden()(x))
    with logic.forward_mode(network, "soft"):
        assert not network(x).equal(hard)
    assert {part.mode for part in logic.relaxed_modules(network)} == {"gumbel-hard"}


def test_the_straight_through_gradient_is_that_of_the_soft_mode():
    logits = torch.randn(5, 4, generator=generator(), dtype=torch.float64, requires_grad=True)
    slope = torch.randn(5, 4, generator=generator(1), dtype=torch.float64)
    for relax in (relaxed_bits, relaxed_choice):
        soft, hard = (
            torch.autograd.grad((relax(logits, 0.5, hard=hard, noise=False) * slope).sum(), logits)[0]
            for hard in (False, True)
        )
        assert torch.allclose(soft, hard)


def test_cold_soft_networks_become_hard():
    network = logic.LogicNetwork(8, [16, 16], residual=None, generator=generator())
    x = every_input(8).float()
    network.set_temperature(1e-4)
    assert torch.allclose(network(x), network.harden()(x), atol=1e-3)


def test_values_that_no_gate_takes(unchecked):
    layer, x = logic.LogicLayer(6, 4), torch.full((5, 6), 0.5)
    for wrong in (-0.01, 1.01, math.nan, math.inf):
        x[2, 3] = wrong
        with pytest.raises(logic.InvalidLogicError, match=r"inputs in \[0, 1\]"):
            layer(x)
        with pytest.raises(logic.InvalidLogicError, match=r"inputs in \[0, 1\]"):
            logic.LogicNetwork(6, [4])(x)
    with pytest.raises(logic.InvalidLogicError, match="floating point"):
        layer(torch.ones(5, 6, dtype=torch.int64))
    x[2, 3] = 0.5
    assert layer(x).shape == (5, 4)
    boolean = layer.harden()
    for module in (logic.LogicLayer(6, 4, mode="hard"), logic.LogicNetwork(6, [4], mode="gumbel-hard"), boolean):
        with pytest.raises(logic.InvalidLogicError, match=r"takes bits in hard mode, 0.5"):
            module(x)
    owners: list[nn.Module] = [layer, boolean, logic.LogicNetwork(6, [4]), logic.GroupSum(6, 2), logic.BitEncoder(6)]
    for owner in owners:
        with pytest.raises(logic.InvalidLogicError, match=r"takes \(…, 6\); the input is \(5, 7\)"):
            owner(torch.ones(5, 7))


def test_any_leading_shape_and_any_view():
    network = logic.LogicNetwork(6, [12, 12], head=logic.GroupSum(12, 3), residual=None, generator=generator())
    boolean = network.harden()
    x = torch.rand(4, 6, 3, 5, generator=generator(1)).round().transpose(1, 3)[:, 1:]
    assert not x.is_contiguous()
    flat = torch.stack([network(row) for row in x.reshape(-1, 6)]).view(4, 4, 3, 3)
    assert torch.allclose(network(x), flat, atol=1e-6)
    assert torch.allclose(boolean(x), torch.stack([boolean(row) for row in x.reshape(-1, 6)]).view(4, 4, 3, 3))
    for shape in ((6,), (0, 6), (2, 0, 6)):
        assert network(torch.zeros(shape)).shape == (*shape[:-1], 3) == boolean(torch.zeros(shape)).shape


def test_a_boolean_network_keeps_the_dtype_of_bits():
    boolean = logic.LogicNetwork(6, [8, 4], residual=None, generator=generator()).harden()
    x = every_input(6).float()
    expected = boolean(x)
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.bfloat16):
        found = boolean(x.to(dtype))
        assert found.dtype == dtype and found.float().equal(expected)


def test_a_boolean_layer_follows_its_gates():
    numbers = torch.arange(16, dtype=torch.uint8)
    layer = logic.BooleanLayer(3, torch.tensor([[2] * 16, [0] * 16]), numbers)
    for x in itertools.product((0, 1), repeat=3):
        assert layer(torch.tensor(x)).tolist() == [int(PYTHON[gate](x[2], x[0])) for gate in range(16)]


def test_hardening_is_a_snapshot():
    network = logic.LogicNetwork(6, [8, 4], head=logic.LinearHead(4, 2), residual=None, generator=generator())
    boolean, x = network.harden(), every_input(6).float()
    before = boolean(x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.neg_()
    assert boolean(x).equal(before) and not network.harden()(x).equal(before)


def test_heads():
    x = torch.tensor([[1.0, 1, 0, 1, 0, 0], [1, 1, 1, 0, 0, 1]])
    assert logic.GroupSum(6, 2, tau=2.0)(x).tolist() == [[1.0, 0.5], [1.5, 0.5]]
    assert logic.GroupSum(6, 2, tau=2.0)(x.bool()).tolist() == [[1.0, 0.5], [1.5, 0.5]]
    torch.manual_seed(0)
    head = logic.LinearHead(6, 3)
    assert torch.allclose(head(x.bool()), head(x), atol=1e-6)
    with pytest.raises(logic.InvalidLogicError, match="7 features cannot be split into 2 equal groups"):
        logic.GroupSum(7, 2)
    with pytest.raises(logic.InvalidLogicError, match="tau=0"):
        logic.GroupSum(6, 2, tau=0)
    with pytest.raises(logic.InvalidLogicError, match="the head takes 6 features, the last layer has 5 gates"):
        logic.LogicNetwork(6, [5], head=logic.GroupSum(6, 2))
    with pytest.raises(logic.InvalidLogicError, match="widths is empty"):
        logic.LogicNetwork(6, [])


def test_the_encoder_thresholds_and_passes_the_gradient_of_the_sigmoid():
    encoder = logic.BitEncoder(2, bits=3, temperature=0.5)
    x = torch.tensor([[-2.0, 0.1], [0.5, 3.0]], requires_grad=True)
    soft = encoder(x)
    assert torch.allclose(soft, torch.sigmoid((x[..., None] - encoder.thresholds) / 0.5).flatten(1))
    (slope,) = torch.autograd.grad(soft.pow(2).sum() / 2, x)
    encoder.mode = "hard"
    bits = encoder(x)
    assert bits.tolist() == [[0, 0, 0, 1, 1, 0], [1, 1, 0, 1, 1, 1]]
    (hard_slope,) = torch.autograd.grad((bits * soft.detach()).sum(), x)
    assert torch.allclose(hard_slope, slope)
    (threshold_slope,) = torch.autograd.grad(encoder(x).sum(), encoder.thresholds)
    assert (threshold_slope < 0).all()


@pytest.mark.parametrize(
    ("mode", "inputs", "steps"), [("soft", 4, 120), ("hard", 4, 200), ("gumbel-hard", 2, 150), ("gumbel-soft", 2, 150)]
)
def test_training_learns_a_parity_that_survives_hardening(mode: str, inputs: int, steps: int):
    torch.manual_seed(0)
    x = every_input(4).float()
    target = x[:, :inputs].sum(-1).long() % 2
    network = logic.LogicNetwork(4, [48, 48, 24], head=logic.GroupSum(24, 2), mode=mode)
    optimizer = torch.optim.Adam(network.parameters(), 0.05)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert network.harden()(x).argmax(-1).equal(target)


def test_nothing_is_printed(capsys):
    network = logic.LogicNetwork(6, [8, 4])
    network(every_input(6).float())
    network.harden()(every_input(6).float())
    assert capsys.readouterr() == ("", "")


def test_raw_gates_have_sixteen_numbers_and_light_four():
    assert RawGates(3, residual=0.9, noise=0.1).logits.shape == (3, 16)
    assert LightGates(3, residual=0.9, noise=0.1).logits.shape == (3, 4)


@pytest.mark.parametrize("head", logic.HEADS)
@pytest.mark.parametrize("mode", logic.MODES)
def test_a_feed_forward_layer_hardens_to_what_it_gives_in_hard_mode(head: str, mode: str):
    torch.manual_seed(0)
    layer = logic.LogicFeedForward(6, 24, depth=3, bits=2, head=head, mode=mode)
    x = torch.randn(2, 5, 6, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape
    out.pow(2).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in layer.parameters())
    layer.eval()
    with logic.forward_mode(layer, "hard"), torch.no_grad():
        expected = layer(x)
    found = layer.harden()(x)
    assert torch.allclose(found, expected, atol=1e-6) and not found.requires_grad
    assert torch.allclose(layer(x), expected, atol=1e-6) == mode.endswith("hard")
    assert int(layer.gate_counts().sum()) == 3 * 24


def test_the_feed_forward_slot_takes_logic_by_name():
    layer = make_feed_forward("logic", 6, 24, depth=3, mode="gumbel-hard", parametrisation="raw")
    assert isinstance(layer, logic.LogicFeedForward)
    numbers = sum(parameter.numel() for parameter in layer.parameters())
    assert feed_forward_parameters("logic", 6, 24, depth=3, parametrisation="raw") == numbers
    assert numbers == 6 * 2 + 3 * 24 * 16 + 24 * 6 + 6
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"depth": 0}, "depth=0"),
        ({"bits": 0}, "bits=0"),
        ({"head": "linaer"}, "did you mean 'linear'"),
        ({"head": "group-sum"}, "25 features cannot be split into 6 equal groups; use a multiple of 6 such as 24"),
    ]
    for options, message in wrong:
        with pytest.raises(logic.InvalidLogicError, match=message):
            make_feed_forward("logic", 6, 25, **options)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_state_dict_with_an_impossible_temperature_is_refused(value):
    layer = logic.LogicLayer(4, 3)
    state = layer.state_dict()
    state["temperature"] = torch.tensor(value)
    with pytest.raises(logic.InvalidLogicError, match="temperature"):
        layer.load_state_dict(state)


def test_temperatures_that_float32_does_not_hold_are_refused():
    for value in (1e-46, 1e39, True):
        with pytest.raises(logic.InvalidLogicError, match="temperature"):
            logic.set_temperature(logic.LogicLayer(4, 3), value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head", [None, logic.GroupSum(6, 3), logic.LinearHead(6, 3)], ids=["bits", "sum", "linear"])
def test_inputs_of_another_dtype_give_logits_of_theirs(head, dtype: torch.dtype):
    network = logic.LogicNetwork(4, [5, 6], head=head)
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    out = network(x.to(dtype))
    assert out.dtype == dtype and torch.allclose(out.float(), network(x), atol=0.05)
