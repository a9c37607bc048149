"""A circuit as combinational Verilog-2001: a wire per gate, and adders for the head."""

import math

from ising_attn.logic.c_export import gate_expression
from ising_attn.logic.circuit import ONE, ZERO, Circuit
from ising_attn.logic.errors import InvalidLogicError
from ising_attn.logic.heads import GroupSum, LinearHead
from ising_attn.logic.identifiers import check_identifier


def to_verilog(circuit: Circuit, name: str = "circuit", *, fraction_bits: int = 16) -> str:
    """A module NAME of a circuit, as it is: prune it before.

        input  wire [inputs−1:0]         x        bit k is feature k
        output wire [outputs−1:0]        y        bit k is output k
        output wire [classes·width−1:0]  counts   with a GroupSum: class c in bits c·width and up, unsigned
        output wire [classes·width−1:0]  logits   with a LinearHead: the same, signed, in units of 2^−fraction_bits

    Counts are exact; logits are sums of weights rounded to that unit, so at most (outputs + 1)/2 units off. Offset and
    divisor of a GroupSum stay outside.

    Raises:
        InvalidLogicError: a name that is no identifier or a keyword of C or Verilog, a negative number of fraction
            bits.
    """
    check_identifier(name)
    if not isinstance(fraction_bits, int) or fraction_bits < 0:
        raise InvalidLogicError(f"fraction_bits={fraction_bits!r}; it must be an integer of at least 0")
    ports = [f"input wire [{circuit.in_features - 1}:0] x", f"output wire [{len(circuit.outputs) - 1}:0] y"]
    body = [_wire(circuit, gate) for gate in range(circuit.num_gates)]
    body += [f"assign y[{k}] = {_signal(circuit, s)};" for k, s in enumerate(circuit.outputs.tolist())]
    if circuit.head is not None:
        adders = _Adders()
        if isinstance(circuit.head, GroupSum):
            port, sums = "counts", _count_sums(circuit.head, adders)
        else:
            port, sums = "logits", _weight_sums(circuit.head, fraction_bits, adders)
        width = max(width for _, width in sums)
        ports.append(f"output wire [{len(sums) * width - 1}:0] {port}")
        body += adders.lines
        body += [f"assign {port}[{width * (c + 1) - 1}:{width * c}] = {wire};" for c, (wire, _) in enumerate(sums)]
    lines = [f"// {circuit.in_features} inputs, {circuit.num_gates} gates, {len(circuit.outputs)} outputs."]
    lines += [f"module {name} (", *_joined(ports), ");", *("    " + line for line in body), "endmodule"]
    return "\n".join(lines) + "\n"


def _joined(ports: list[str]) -> list[str]:
    return [f"    {port}{',' if place < len(ports) - 1 else ''}" for place, port in enumerate(ports)]


def _signal(circuit: Circuit, signal: int) -> str:
    constants = {ZERO: "1'b0", ONE: "1'b1"}
    if signal in constants:
        return constants[signal]
    return f"x[{signal}]" if signal < circuit.in_features else f"g{signal - circuit.in_features}"


def _wire(circuit: Circuit, gate: int) -> str:
    a, b = (_signal(circuit, int(k[gate])) for k in (circuit.first, circuit.second))
    expression = gate_expression(int(circuit.numbers[gate]), a, b, "1'b1", "1'b0")
    return f"wire g{gate} = {expression};"


class _Adders:
    """Trees of two-input adders."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def total(self, terms: list[tuple[str, int]], *, grow: bool) -> tuple[str, int]:
        """The wire of the sum of (wire, width) terms; it is a bit wider than its terms if it may `grow`."""
        while len(terms) > 1:
            pairs = [self._sum(*terms[k : k + 2], grow=grow) for k in range(0, len(terms) - 1, 2)]
            terms = pairs + terms[len(terms) - len(terms) % 2 :]
        return terms[0]

    def _sum(self, first: tuple[str, int], second: tuple[str, int], *, grow: bool) -> tuple[str, int]:
        width = max(first[1], second[1]) + grow
        operands = (_widened(wire, own, width) for wire, own in (first, second))
        name = f"t{len(self.lines)}"
        self.lines.append(f"wire [{width - 1}:0] {name} = {' + '.join(operands)};")
        return name, width


def _widened(wire: str, width: int, to: int) -> str:
    return wire if width == to else f"{{{to - width}'b{'0' * (to - width)}, {wire}}}"


def _count_sums(head: GroupSum, adders: _Adders) -> list[tuple[str, int]]:
    size = head.in_features // head.classes
    groups = ([(f"y[{o}]", 1) for o in range(c * size, (c + 1) * size)] for c in range(head.classes))
    return [adders.total(group, grow=True) for group in groups]


def _weight_sums(head: LinearHead, fraction_bits: int, adders: _Adders) -> list[tuple[str, int]]:
    """Two's complement sums, all of the width that the largest can reach."""
    bias = [0.0] * head.out_features if head.bias is None else head.bias.tolist()
    rows = [[fixed_point(v, fraction_bits) for v in (*w, b)] for w, b in zip(head.weight.tolist(), bias, strict=True)]
    width = max(sum(map(abs, row)) for row in rows).bit_length() + 1
    digits = math.ceil(width / 4)

    def constant(value: int) -> str:
        return f"{width}'h{value % 2**width:0{digits}x}"

    sums = []
    for row in rows:
        terms = [(f"(y[{o}] ? {constant(value)} : {constant(0)})", width) for o, value in enumerate(row[:-1])]
        sums.append(adders.total([*terms, (constant(row[-1]), width)], grow=False))
    return sums


def fixed_point(value: float, fraction_bits: int) -> int:
    """The nearest integer number of units of 2^−fraction_bits."""
    return round(value * 2**fraction_bits)
