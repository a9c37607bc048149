"""Fewer gates for the same outputs: constants, pass-through gates, inverters, duplicates and dead gates go.

One pass over the gates in order. Every signal is known as a literal: another signal, perhaps inverted, or a constant.
A gate's truth table is rewritten for the signals behind its literals, which folds constants and equal inputs; then it
is a constant, a literal itself, or a gate of two different signals, brought to one form (a < b, 0 for a = b = 0) and
looked up among those that exist. Inversions thus cost nothing but at outputs.
"""

import dataclasses

import numpy as np

from ising_attn.logic.circuit import ONE, ZERO, Circuit, Removed
from ising_attn.logic.gates import NOT_A

# A literal is 2·signal + inverted; the constant 0 is the literal of a signal of its own.
_CONSTANT = -1


class _Net:
    """Gates found so far, by what they compute."""

    def __init__(self, in_features: int):
        self.in_features = in_features
        self.gates: list[tuple[int, int, int]] = []  # truth table, first, second
        self.known: dict[tuple[int, int, int], int] = {}
        self.constants = self.pass_throughs = self.duplicates = 0

    def literal(self, number: int, first: int, second: int) -> int:
        """The literal of a gate on two literals."""
        (a, invert_a), (b, invert_b) = (divmod(literal, 2) for literal in (first, second))
        table = [_entry(number, x ^ invert_a, y ^ invert_b) for x in (0, 1) for y in (0, 1)]
        if a == _CONSTANT:
            table = table[:2] * 2
        if b == _CONSTANT:
            table = [table[0], table[0], table[2], table[2]]
        if a == b:
            table = [table[0], table[0], table[3], table[3]]
        uses_a, uses_b = table[:2] != table[2:], table[::2] != table[1::2]
        if not (uses_a or uses_b):
            self.constants += 1
            return 2 * _CONSTANT + table[0]
        if not (uses_a and uses_b):
            self.pass_throughs += 1
            return 2 * (a if uses_a else b) + table[0]
        return self._gate(table, a, b)

    def _gate(self, table: list[int], a: int, b: int) -> int:
        if a > b:
            a, b, table = b, a, [table[0], table[2], table[1], table[3]]
        inverted = table[0]
        number = sum((entry ^ inverted) << (3 - place) for place, entry in enumerate(table))
        key = number, a, b
        if key in self.known:
            self.duplicates += 1
        else:
            self.known[key] = self.in_features + len(self.gates)
            self.gates.append(key)
        return 2 * self.known[key] + inverted


def pruned(circuit: Circuit) -> Circuit:
    """A circuit of the same outputs for every input, with as few gates as these rules leave.

    Cost: linear in the number of gates.
    """
    net, inputs = _Net(circuit.in_features), circuit.in_features
    literals = [2 * signal for signal in range(inputs)]
    for number, a, b in zip(circuit.numbers.tolist(), circuit.first.tolist(), circuit.second.tolist(), strict=True):
        literals.append(net.literal(number, literals[a], literals[b]))
    constant = {ZERO: 2 * _CONSTANT, ONE: 2 * _CONSTANT + 1}
    outputs = [constant[k] if k in constant else literals[k] for k in circuit.outputs.tolist()]
    kept = _alive(net.gates, {literal // 2 for literal in outputs}, inputs)
    # A gate that leaves the circuit inverted alone, and that no gate reads, is inverted itself; readers of inverted
    # gates take the inversion in.
    signal_of = {signal: signal for signal in range(inputs)}
    signal_of |= {old: inputs + place for place, old in enumerate(kept)}
    plain, inverted = ({literal // 2 for literal in outputs if literal % 2 == i} for i in (0, 1))
    flipped = (inverted - plain) & set(kept)
    rows = []
    for old in kept:
        number, a, b = net.gates[old - inputs]
        table = [
            _entry(number, x ^ (a in flipped), y ^ (b in flipped)) ^ (old in flipped) for x in (0, 1) for y in (0, 1)
        ]
        rows.append((sum(entry << (3 - place) for place, entry in enumerate(table)), signal_of[a], signal_of[b]))
    inverters: dict[int, int] = {}
    found = []
    for literal in outputs:
        signal, invert = divmod(literal, 2)
        if signal == _CONSTANT:
            found.append(ONE if invert else ZERO)
        elif not invert or signal in flipped:
            found.append(signal_of[signal])
        else:
            if signal not in inverters:
                inverters[signal] = inputs + len(rows)
                rows.append((NOT_A, signal_of[signal], signal_of[signal]))
            found.append(inverters[signal])
    removed = Removed(
        gates=circuit.num_gates,
        constants=net.constants,
        pass_throughs=net.pass_throughs,
        duplicates=net.duplicates,
        dead=len(net.gates) - len(kept),
        inverters=len(inverters),
    )
    numbers, first, second = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return dataclasses.replace(
        circuit,
        numbers=numbers.astype(np.uint8),
        first=np.ascontiguousarray(first),
        second=np.ascontiguousarray(second),
        outputs=np.array(found, dtype=np.int64),
        unpruned=removed,
    )


def _alive(gates: list[tuple[int, int, int]], wanted: set[int], inputs: int) -> list[int]:
    """The signals of gates that a wanted signal depends on, in order."""
    for place in range(len(gates) - 1, -1, -1):
        if inputs + place in wanted:
            wanted |= {gates[place][1], gates[place][2]}
    return sorted(signal for signal in wanted if signal >= inputs)


def _entry(number: int, a: int, b: int) -> int:
    return number >> (3 - 2 * a - b) & 1
