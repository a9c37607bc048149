"""Hardened networks packed, pruned and stored: every evaluator gives the same bits, counts and logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logic_networks import HEADS, boolean, circuit_of, every_input, samples
from torch import nn

from ising_attn import logic
from ising_attn.logic.circuit import ONE, ZERO, Removed


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 511, 513, 700])
@pytest.mark.parametrize(("inputs", "widths"), [(2, [3]), (70, [66, 3]), (64, [40, 129, 66]), (9, [9, 9, 9, 9])])
@pytest.mark.parametrize("head", HEADS)
def test_packed_evaluation_is_bit_exact(count: int, inputs: int, widths: list[int], head: str):
    network = boolean(inputs, widths, head, seed=count)
    x = samples(count, inputs)
    expected, packed = network(x), network.packed()
    found = packed(x)
    assert found.dtype == expected.dtype and found.equal(expected)
    assert packed(x.float()).equal(network(x.float()))


def test_packing_keeps_every_bit_in_its_place():
    for count, features in [(1, 1), (64, 64), (65, 70), (512, 8), (513, 9), (1100, 130)]:
        x = samples(count, features)
        packed = logic.PackedBits.of(x.T.contiguous().T)
        assert packed.words.shape == (features, -(-count // 64))
        for sample, feature in [(0, 0), (count - 1, features - 1), (count // 2, features // 3)]:
            assert (int(packed.words[feature, sample // 64]) >> sample % 64) & 1 == int(x[sample, feature])
        assert packed.unpacked().equal(x)


def test_packed_gates_one_by_one():
    x, numbers = every_input(3), torch.arange(16, dtype=torch.uint8)
    layer = logic.BooleanLayer(3, torch.tensor([[2] * 16, [0] * 16]), numbers)
    found = logic.BooleanNetwork([layer]).packed()(x)
    for row, bits in zip(x.tolist(), found.tolist(), strict=True):
        assert bits == [bool(logic.GATES[gate].truth_table[2 * row[2] + row[0]]) for gate in range(16)]


def test_packed_threads_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    network, x = boolean(40, [50, 60, 30], "group-sum"), samples(64 * 23 + 5, 40)
    expected = network(x)
    monkeypatch.setattr("ising_attn.logic.packed._BLOCK", 3)
    torch.set_num_threads(3)
    try:
        assert network.packed()(x).equal(expected)
    finally:
        torch.set_num_threads(1)


def test_packed_networks_take_any_shape_and_refuse_what_is_no_bit(unchecked):
    network = boolean(6, [8, 6], "group-sum")
    packed, x = network.packed(), samples(30, 6).view(2, 3, 5, 6).transpose(0, 2)
    assert packed(x).equal(network(x)) and packed(x[0, 0, 0]).equal(network(x[0, 0, 0]))
    with pytest.raises(logic.InvalidLogicError, match="takes bits in hard mode, 0.5"):
        packed(torch.full((2, 6), 0.5))
    with pytest.raises(logic.InvalidLogicError, match=r"takes \(…, 6\)"):
        packed(torch.ones(2, 7))
    with pytest.raises(logic.InvalidLogicError, match="takes 6 features; 7 were given"):
        packed.evaluate(logic.PackedBits.of(samples(3, 7)))


@pytest.mark.parametrize("seed", range(12))
def test_pruning_keeps_the_function_and_accounts_for_every_gate(seed: int):
    widths = [[30, 30, 12], [12], [6, 50, 9], [20, 20, 20, 20, 15]][seed % 4]
    network = boolean(7, widths, "group-sum", seed)
    circuit, x = network.circuit(), every_input(7)
    pruned = circuit.pruned()
    expected = network.bits(x).numpy()
    assert (circuit.evaluate(x.numpy()) == expected).all() and (pruned.evaluate(x.numpy()) == expected).all()
    removed = pruned.unpruned
    assert removed is not None and removed.gates == sum(widths) == circuit.num_gates
    lost = removed.constants + removed.pass_throughs + removed.duplicates + removed.dead
    assert pruned.num_gates == removed.gates - lost + removed.inverters < circuit.num_gates
    again = pruned.pruned()
    assert again.num_gates == pruned.num_gates and (again.evaluate(x.numpy()) == expected).all()
    report = circuit.report()
    assert (report.before, report.after) == (sum(widths), pruned.num_gates) == (pruned.report().before, report.after)
    assert sum(report.kinds.values()) == report.after and report.depth == pruned.depth <= circuit.depth


def test_pruned_gates_all_differ_and_are_all_needed():
    pruned = boolean(8, [60, 60, 40], seed=5).circuit().pruned()
    x = every_input(8).numpy()
    everything = np.arange(8 + pruned.num_gates)
    signals = logic.Circuit(8, pruned.numbers, pruned.first, pruned.second, everything).evaluate(x).T
    reads = set(pruned.first.tolist()) | set(pruned.second.tolist()) | set(pruned.outputs.tolist())
    assert set(range(8, 8 + pruned.num_gates)) <= reads
    structures = list(zip(pruned.numbers.tolist(), pruned.first.tolist(), pruned.second.tolist(), strict=True))
    assert len(set(structures)) == len(structures)
    for (number, a, b), signal in zip(structures, signals[8:], strict=True):
        assert logic.GATES[number].name == "~a" or (a < b and logic.GATES[number].uses == (True, True))
        # Its table on what it reads is what it gives.
        assert (signal == np.array(logic.GATES[number].truth_table)[2 * signals[a] + signals[b]]).all()


@pytest.mark.parametrize(
    ("gates", "outputs", "kept", "removed"),
    [
        # a pass-through, an inverter that its reader takes in, and the reader: a AND NOT b
        ([(3, 0, 1), (10, 0, 1), (1, 2, 3)], [4], [(2, 0, 1)], {"pass_throughs": 2}),
        # x XOR x, and what follows from a constant
        ([(6, 0, 0), (7, 1, 2), (15, 0, 1)], [3, 4], [], {"constants": 2, "pass_throughs": 1}),
        # the same gate thrice: as it is, with its inputs exchanged, and inverted by De Morgan
        ([(2, 0, 1), (4, 1, 0), (13, 0, 1)], [2, 3], [(2, 0, 1)], {"duplicates": 2}),
        # no output depends on the second gate
        ([(1, 0, 1), (7, 0, 1)], [2], [(1, 0, 1)], {"dead": 1}),
        # an inverted output flips its gate, unless the gate is needed as it is too
        ([(14, 0, 1)], [2], [(14, 0, 1)], {}),
        ([(14, 0, 1), (1, 0, 1)], [2, 3], [(1, 0, 1), (12, 2, 2)], {"duplicates": 1, "inverters": 1}),
        # an inverted input as an output needs an inverter
        ([(12, 0, 1)], [2, 2], [(12, 0, 0)], {"pass_throughs": 1, "inverters": 1}),
    ],
)
def test_pruning_case_by_case(gates, outputs, kept, removed):
    circuit = circuit_of(2, gates, outputs)
    pruned = circuit.pruned()
    found = list(zip(pruned.numbers.tolist(), pruned.first.tolist(), pruned.second.tolist(), strict=True))
    assert found == kept and pruned.unpruned == Removed(gates=len(gates), **removed)
    x = every_input(2).numpy()
    assert (pruned.evaluate(x) == circuit.evaluate(x)).all()
    assert set(pruned.outputs[pruned.outputs < 0].tolist()) <= {ZERO, ONE}


def test_the_report_counts_adders_apart():
    report = boolean(9, [21], "group-sum").circuit().report()
    assert report.adders == 3 * 4  # seven bits take four full adders
    assert "21 gates" in str(report) and "12 adders of the head not counted" in str(report)


@pytest.mark.parametrize("head", HEADS)
def test_json_comes_back_as_the_same_network(tmp_path: Path, head: str):
    network, x = boolean(6, [12, 9], head, seed=1), every_input(6)
    logic.save_circuit(network, tmp_path / "c.json")
    loaded = logic.load_circuit(tmp_path / "c.json")
    assert loaded(x).equal(network(x))
    content = json.loads((tmp_path / "c.json").read_text())
    layer = content["layers"][0]
    for bits in ((0, 1, 1, 0, 0, 1), (1, 1, 1, 1, 0, 0)):  # as a reader in any language would
        outputs = [
            int(t[2 * bits[a] + bits[b]]) for t, a, b in zip(layer["truth_tables"], layer["a"], layer["b"], strict=True)
        ]
        assert network.boolean_layers()[0](torch.tensor(bits)).tolist() == outputs


def test_broken_circuit_files_are_refused(tmp_path: Path):
    path = tmp_path / "c.json"
    with pytest.raises(logic.CircuitFileError, match="there is no circuit"):
        logic.load_circuit(path)
    logic.save_circuit(boolean(6, [12, 9], "linear"), path)
    good = path.read_text()

    def refused(text: str, message: str) -> None:
        path.write_text(text)
        with pytest.raises(logic.CircuitFileError, match=message):
            logic.load_circuit(path)

    def changed(change: Callable[[dict], Any]) -> str:
        content = json.loads(good)
        change(content)
        return json.dumps(content)

    refused(good[:-9], "is no JSON")
    refused("[1]", "holds no circuit")
    refused(changed(lambda c: c.update(version=2)), "circuit version 2; this program reads up to 1")
    refused(changed(lambda c: c.pop("head")), "'head' is missing")
    refused(changed(lambda c: c["layers"][0].update(a=[0])), "must be 12 integers each")
    refused(changed(lambda c: c["layers"][0]["a"].__setitem__(3, 6)), "there are 0 … 5")
    refused(changed(lambda c: c["layers"][0]["truth_tables"].__setitem__(3, "0120")), "not four of 0 and 1")
    refused(changed(lambda c: c.update(layers=[], head=None)), "at least one layer")
    refused(changed(lambda c: c["head"]["weight"][0].__setitem__(0, "x")), "not of numbers alone")
    refused(changed(lambda c: c["head"]["weight"].__setitem__(0, [1.0])), "not of numbers alone")
    refused(changed(lambda c: c["head"].update(bias=[1.0])), "bias of the head is not 3 finite numbers")
    refused(changed(lambda c: c["head"].update(kind="mlp")), "unknown kind 'mlp'")
    refused(changed(lambda c: c["head"]["bias"].__setitem__(0, float("nan"))), "finite numbers")
    refused(changed(lambda c: c["head"].update(dtype="complex64")), "unknown dtype 'complex64'")
    refused(changed(lambda c: c["layers"][0]["a"].__setitem__(3, 10**30)), "must be 12 integers each, of at most")
    refused(changed(lambda c: c["layers"][0]["b"].__setitem__(3, -(10**30))), "must be 12 integers each, of at most")
    refused(changed(lambda c: c.update(in_features=10**30)), "in_features is no integer of at most")
    refused(good.replace('"bias": [', '"bias": [1' + "0" * 400 + ", "), "not of numbers alone")
    refused("[" * 100_000, "nested too deeply")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("head", ["group-sum", "linear"])
def test_the_dtype_of_a_head_comes_back(tmp_path: Path, head: str, dtype: torch.dtype):
    network, x = boolean(6, [12, 9], head, seed=1).to(dtype), every_input(6)
    logic.save_circuit(network, tmp_path / "c.json")
    loaded = logic.load_circuit(tmp_path / "c.json")
    assert loaded(x).dtype == dtype and loaded(x).equal(network(x))


def test_files_without_a_dtype_hold_float32(tmp_path: Path):
    network = boolean(6, [12, 9], "linear", seed=1)
    logic.save_circuit(network, tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    del content["head"]["dtype"]
    (tmp_path / "c.json").write_text(json.dumps(content))
    assert logic.load_circuit(tmp_path / "c.json")(every_input(6)).equal(network(every_input(6)))


def test_a_trained_network_survives_every_way_out(tmp_path: Path):
    torch.manual_seed(0)
    x = every_input(6)
    target = (x[:, :3].sum(-1) > x[:, 3:].sum(-1)).long()
    network = logic.LogicNetwork(6, [64, 64, 32], head=logic.GroupSum(32, 2), mode="hard")
    optimizer = torch.optim.Adam(network.parameters(), 0.03)
    for _ in range(60):
        loss = nn.functional.cross_entropy(network(x.float()), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hard = network.eval()(x.float()).detach()
    assert (hard.argmax(-1) == target).float().mean() > 0.8
    boolean = network.harden()
    logic.save_circuit(boolean, tmp_path / "c.json")
    assert boolean(x).equal(hard) and network.packed()(x).equal(hard)
    assert logic.load_circuit(tmp_path / "c.json")(x).equal(hard)
    pruned = boolean.circuit().pruned()
    counts = torch.from_numpy(pruned.evaluate(x.numpy())).unflatten(-1, (2, -1)).sum(-1)
    assert boolean.head is not None and isinstance(boolean.head, logic.GroupSum)
    assert boolean.head.logits(counts).equal(hard) and pruned.num_gates < 160
