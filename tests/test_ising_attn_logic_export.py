"""Hardened networks as C and Verilog: compiled, simulated, and equal in bits, counts and logits."""

import ctypes
import operator
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from logic_networks import HEADS, boolean, circuit_of, every_input, samples

from ising_attn import logic
from ising_attn.logic.circuit import ONE, ZERO
from ising_attn.logic.verilog_export import fixed_point

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc, gcc, clang) is on the path")
needs_iverilog = pytest.mark.skipif(shutil.which("iverilog") is None, reason="iverilog is not on the path")


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
        for name, language in (("int", "C"), ("constexpr", "C"), ("wire", "Verilog"), ("logic", "Verilog")):
            with pytest.raises(logic.InvalidLogicError, match=f"is a keyword of {language}; use another"):
                export(circuit, name)
        assert "circuit" in export(circuit)
    with pytest.raises(logic.InvalidLogicError, match="fraction_bits=-1"):
        logic.to_verilog(circuit, fraction_bits=-1)
