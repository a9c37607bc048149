"""Hardened networks packed, pruned and exported: every evaluator gives the same bits, counts and logits."""

import ctypes
import itertools
import json
import operator
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from ising_attn import logic
from ising_attn.logic.circuit import ONE, ZERO, Removed
from ising_attn.logic.verilog_export import fixed_point

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc, gcc, clang) is on the path")
needs_iverilog = pytest.mark.skipif(shutil.which("iverilog") is None, reason="iverilog is not on the path")
HEADS = ["bits", "group-sum", "linear"]


def boolean(
    inputs: int, widths: list[int], head: str = "bits", seed: int = 0, classes: int = 3
) -> logic.BooleanNetwork:
    """A network of random gates: constants, pass-throughs and duplicates are among them."""
    torch.manual_seed(seed)
    kinds: dict[str, Callable[[], Any]] = {
        "bits": lambda: None,
        "group-sum": lambda: logic.GroupSum(widths[-1], classes, tau=1.7, centred=seed % 2 == 1),
        "linear": lambda: logic.LinearHead(widths[-1], classes),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* features; the others have no effect")
        return logic.LogicNetwork(inputs, widths, head=kinds[head](), residual=None).harden()


def samples(count: int, inputs: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, inputs, generator=torch.Generator().manual_seed(seed)) < 0.5


def every_input(n: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product((False, True), repeat=n)))


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


def circuit_of(inputs: int, gates: list[tuple[int, int, int]], outputs: list[int]) -> logic.Circuit:
    numbers, first, second = np.array(gates, dtype=np.int64).reshape(-1, 3).T
    return logic.Circuit(inputs, numbers.astype(np.uint8), first.copy(), second.copy(), np.array(outputs))


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


class Compiled:
    """A circuit's C source, compiled with all warnings as errors."""

    def __init__(self, circuit: logic.Circuit, folder: Path):
        source, library = folder / "circuit.c", folder / "circuit.so"
        source.write_text(logic.to_c(circuit, "net"))
        strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O0", "-shared", "-fPIC"]
        subprocess.run([COMPILER or "", *strict, "-o", library, source], check=True)
        self.library = ctypes.CDLL(str(library))

    def call(self, name: str, x: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The function's output; it must leave what lies behind it alone."""
        rows, out = x.to(torch.uint8).contiguous(), torch.full((len(x) * width + 64,), 77, dtype=dtype)
        pointers = ctypes.c_void_p(rows.data_ptr()), ctypes.c_size_t(len(x)), ctypes.c_void_p(out.data_ptr())
        assert getattr(self.library, f"net_{name}")(*pointers) == 0
        assert (out[len(x) * width :] == 77).all()
        return out[: len(x) * width].view(len(x), width)


@needs_compiler
@pytest.mark.parametrize("widths", [[6], [20, 12], [30, 600, 12]])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("pruned", [False, True])
def test_the_compiled_c_gives_equal_bits_counts_and_logits(tmp_path: Path, widths: list[int], head: str, pruned: bool):
    network = boolean(9, widths, head, seed=len(widths))
    circuit = network.circuit()
    compiled = Compiled(circuit.pruned() if pruned else circuit, tmp_path)
    for count in (0, 1, 10, 63, 64, 65, 200):
        x = samples(count, 9, seed=count)
        bits = network.bits(x)
        assert compiled.call("bits", x, widths[-1], torch.uint8).bool().equal(bits)
        if head == "group-sum":
            counts = compiled.call("counts", x, 3, torch.int32)
            assert counts.equal(bits.unflatten(-1, (3, -1)).sum(-1).int())
            assert compiled.call("logits", x, 3, torch.float32).equal(network(x))
        elif head == "linear":
            found, expected = compiled.call("logits", x, 3, torch.float32), network(x)
            unit = torch.nextafter(expected.abs(), torch.tensor(torch.inf)) - expected.abs()
            assert ((found - expected).abs() <= unit).all()


@needs_compiler
def test_the_compiled_c_in_double_and_of_constants(tmp_path: Path):
    network, x = boolean(9, [6], "group-sum", seed=1).double(), samples(70, 9)
    assert Compiled(network.circuit(), tmp_path).call("logits", x, 3, torch.float64).equal(network(x))
    constant = circuit_of(2, [(0, 0, 1), (15, 0, 1), (3, 0, 1)], [2, 3, 4, 3])
    for place, circuit in enumerate((constant, constant.pruned(), circuit_of(2, [], [ONE, ZERO]))):
        folder = tmp_path / str(place)
        folder.mkdir()
        x = every_input(2)
        found = Compiled(circuit, folder).call("bits", x, len(circuit.outputs), torch.uint8)
        assert (found.bool().numpy() == circuit.evaluate(x.numpy())).all()


@needs_compiler
def test_the_c_code_stays_within_its_memory(tmp_path: Path):
    """Odd batches through a program built with the address sanitizer, its buffers exactly as long as they must be."""
    network, x = boolean(9, [20, 12], "group-sum"), samples(77, 9)
    main = """
#include <stdio.h>
int main(void) {
    for (size_t n = 0; n <= 77; n += 11) {
        uint8_t *rows = malloc(n * INPUTS + (n == 0)), *bits = malloc(n * OUTPUTS + (n == 0));
        int32_t *counts = malloc((n * CLASSES + (n == 0)) * sizeof(int32_t));
        for (size_t k = 0; k < n * INPUTS; k++) rows[k] = DATA[k];
        if (net_bits(rows, n, bits) || net_counts(rows, n, counts)) return 1;
        if (n == 77) for (size_t k = 0; k < n * CLASSES; k++) printf("%d ", counts[k]);
        free(rows); free(bits); free(counts);
    }
    return 0;
}
"""
    data = f"static const uint8_t DATA[] = {{{', '.join(map(str, x.int().flatten().tolist()))}}};"
    (tmp_path / "main.c").write_text(logic.to_c(network.circuit(), "net") + data + main)
    options = ["-std=c99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = tmp_path / "main"
    if subprocess.run([COMPILER or "", *options, "-o", program, tmp_path / "main.c"], capture_output=True).returncode:
        pytest.skip("the compiler has no address sanitizer")
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    counts = network.bits(x).unflatten(-1, (3, -1)).sum(-1)
    assert [int(word) for word in ran.stdout.split()] == counts.flatten().tolist()


class Simulated:
    """An evaluator of the Verilog that is written: wires and assigns of &, |, ^, ~, +, ?:, parts and constants."""

    TOKEN = re.compile(r"\s*(\d+'[bh][0-9a-f]+|[a-z]\w*(?:\[\d+(?::\d+)?\])?|[~&|^+?:(){},])")

    OPERATORS: ClassVar[dict[str, Callable[[int, int], int]]] = {
        "|": operator.or_,
        "^": operator.xor,
        "&": operator.and_,
        "+": operator.add,
    }

    def __init__(self, source: str):
        self.widths = {
            name: int(high) + 1 for high, name in re.findall(r"(?:input|output) wire \[(\d+):0\] (\w+)", source)
        }
        self.statements = re.findall(r"^\s*(?:wire(?: \[(\d+):0\])?|assign) (\S+) = (.*);$", source, re.M)
        declared = source.count("wire g") + source.count("wire [") + source.count("assign")
        assert len(self.statements) == declared - len(self.widths), "a statement was not understood"

    def run(self, x: list[int]) -> dict[str, int]:
        self.values = {"x": (sum(bit << k for k, bit in enumerate(x)), self.widths["x"])}
        for high, name, expression in self.statements:
            self.tokens = self.TOKEN.findall(expression)
            assert "".join(self.tokens) == expression.replace(" ", "")
            value, width = self.choice()
            assert not self.tokens
            target, part = re.fullmatch(r"(\w+)(\[\d+(?::\d+)?\])?", name).groups()  # type: ignore[union-attr]
            if part is None:
                own = int(high or 0) + 1
                assert own == width
                self.values[name] = value, own
            else:
                ends = [int(end) for end in part[1:-1].split(":")]
                assert ends[0] - ends[-1] + 1 == width
                before = self.values.get(target, (0, self.widths[target]))[0]
                self.values[target] = before | value << ends[-1], self.widths[target]
        return {name: self.values[name][0] for name in self.widths}

    def take(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def choice(self) -> tuple[int, int]:
        value = self.binary(0)
        if not self.take("?"):
            return value
        first = self.choice()
        assert self.take(":")
        second = self.choice()
        assert first[1] == second[1]
        return first if value[0] else second

    def binary(self, level: int) -> tuple[int, int]:
        if level == 4:
            return self.unary()
        symbol = "|^&+"[level]
        value, width = self.binary(level + 1)
        while self.take(symbol):
            other, own = self.binary(level + 1)
            assert own == width
            value = self.OPERATORS[symbol](value, other) % 2**width
        return value, width

    def unary(self) -> tuple[int, int]:
        if self.take("~"):
            value, width = self.unary()
            return 2**width - 1 - value, width
        if self.take("("):
            inner = self.choice()
            assert self.take(")")
            return inner
        if self.take("{"):
            value, width = self.choice()
            while self.take(","):
                other, own = self.choice()
                value, width = value << own | other, width + own
            assert self.take("}")
            return value, width
        token = self.tokens.pop(0)
        if "'" in token:
            size, base, digits = re.fullmatch(r"(\d+)'([bh])(\w+)", token).groups()  # type: ignore[union-attr]
            return int(digits, {"b": 2, "h": 16}[base]), int(size)
        name, *place = re.findall(r"\w+", token)
        value, width = self.values[name]
        if not place:
            return value, width
        assert int(place[0]) < width
        return value >> int(place[0]) & 1, 1


def expected_ports(network: logic.BooleanNetwork, x: torch.Tensor, fraction_bits: int) -> dict[str, list[list[int]]]:
    """What each output port must give for each sample, as lists of bits or classes."""
    bits = network.bits(x)
    found = {"y": bits.int().tolist()}
    if isinstance(network.head, logic.GroupSum):
        found["counts"] = bits.unflatten(-1, (3, -1)).sum(-1).tolist()
    elif isinstance(network.head, logic.LinearHead):
        weight = torch.tensor([[fixed_point(v, fraction_bits) for v in row] for row in network.head.weight.tolist()])
        bias = torch.tensor([fixed_point(v, fraction_bits) for v in network.head.bias.tolist()])
        found["logits"] = ((bits.long()[:, None] * weight).sum(-1) + bias).tolist()
        units = 2.0**fraction_bits
        assert (network(x) - torch.tensor(found["logits"]) / units).abs().max() <= (bits.shape[1] + 1) / 2 / units
    return found


def port_values(port: str, value: int, width: int) -> list[int]:
    if port == "y":
        return [value >> k & 1 for k in range(width)]
    own = width // 3
    classes = [value >> own * c & (2**own - 1) for c in range(3)]
    return classes if port == "counts" else [v - 2**own if v >> (own - 1) else v for v in classes]


@pytest.mark.parametrize("widths", [[6], [20, 15], [30, 40, 12]])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("pruned", [False, True])
def test_the_verilog_means_the_same_network(widths: list[int], head: str, pruned: bool):
    network, x = boolean(6, widths, head, seed=len(widths)), samples(12, 6)
    circuit = network.circuit()
    simulated = Simulated(logic.to_verilog(circuit.pruned() if pruned else circuit, "net", fraction_bits=10))
    expected = expected_ports(network, x, 10)
    assert simulated.widths.keys() == {"x", *expected}
    for place, row in enumerate(x.int().tolist()):
        found = simulated.run(row)
        for port, rows in expected.items():
            assert port_values(port, found[port], simulated.widths[port]) == rows[place]


@needs_iverilog
@pytest.mark.parametrize("head", HEADS)
def test_the_verilog_simulated_by_iverilog(tmp_path: Path, head: str):
    network, x = boolean(6, [20, 15], head), samples(40, 6)
    source = logic.to_verilog(network.circuit().pruned(), "net")
    simulated, expected = Simulated(source), expected_ports(network, x, 16)
    ports = ", ".join(f".{name}({name})" for name in simulated.widths)
    wires = "\n".join(f"wire [{width - 1}:0] {name};" for name, width in simulated.widths.items() if name != "x")
    show = f'$display("{" ".join(["%b"] * len(expected))}", {", ".join(expected)});'
    words = ["".join(map(str, reversed(row))) for row in x.int().tolist()]
    steps = "\n".join(f"x = 6'b{word}; #1 {show}" for word in words)
    bench = f"module bench; reg [5:0] x; {wires} net unit ({ports}); initial begin {steps} end endmodule\n"
    (tmp_path / "net.v").write_text(source + bench)
    subprocess.run(
        ["iverilog", "-Wall", "-g2001", "-s", "bench", "-o", tmp_path / "net", tmp_path / "net.v"], check=True
    )
    lines = subprocess.run(["vvp", tmp_path / "net"], check=True, capture_output=True, text=True).stdout.splitlines()
    for place, line in enumerate(lines):
        for (port, rows), word in zip(expected.items(), line.split(), strict=True):
            assert port_values(port, int(word, 2), simulated.widths[port]) == rows[place]
    assert len(lines) == len(x)


def test_names_that_are_no_identifier():
    circuit = boolean(4, [3]).circuit()
    for export in (logic.to_c, logic.to_verilog):
        with pytest.raises(logic.InvalidLogicError, match="letters, digits and underscores"):
            export(circuit, "a-b")
    with pytest.raises(logic.InvalidLogicError, match="fraction_bits=-1"):
        logic.to_verilog(circuit, fraction_bits=-1)


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
