"""`Circuit`: a Boolean network as a list of gates on numbered signals, and the report of what pruning takes away."""

import copy
import dataclasses
from collections import Counter

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from ising_attn.logic.gates import GATES
from ising_attn.logic.heads import GroupSum, LinearHead
from ising_attn.logic.network import BooleanNetwork

# Signals that are no gate's; they occur as outputs alone.
ZERO, ONE = -1, -2


@dataclasses.dataclass(frozen=True)
class Circuit:
    """Gates in an order in which each one reads inputs or earlier gates.

    Signal k is input k for k < in_features, else the gate k − in_features.

    Args:
        in_features: number of inputs.
        numbers: which of the 16 gates each one is.
        first, second: the signals a and b that each gate reads; a gate of one input may read it twice.
        outputs: the signals that leave the circuit; ZERO and ONE are constants.
        head: what makes logits of the outputs; it is no part of the gate counts.
        unpruned: what pruning found, for `report`; None: this circuit is as it was trained.
    """

    in_features: int
    numbers: UInt8[np.ndarray, "gates"]
    first: Int64[np.ndarray, "gates"]
    second: Int64[np.ndarray, "gates"]
    outputs: Int64[np.ndarray, "outputs"]
    head: GroupSum | LinearHead | None = None
    unpruned: "Removed | None" = None

    @classmethod
    def of(cls, network: BooleanNetwork) -> "Circuit":
        """Every gate of a Boolean network, layer by layer, needed or not."""
        numbers, pairs, offset = [], [], 0
        for layer in network.boolean_layers():
            numbers.append(layer.numbers.cpu().numpy())
            pairs.append(layer.wiring.pairs().cpu().numpy() + offset)
            offset += layer.in_features
        first, second = np.hstack(pairs)
        outputs = np.arange(offset, offset + network.out_features)
        head = copy.deepcopy(network.head).cpu() if network.head is not None else None
        return cls(network.in_features, np.concatenate(numbers), first, second, outputs, head)

    def pruned(self) -> "Circuit":
        """The same function of the inputs by fewer gates; see `ising_attn.logic.pruning`."""
        from ising_attn.logic.pruning import pruned

        return pruned(self)

    def evaluate(self, bits: Bool[np.ndarray, "samples features"]) -> Bool[np.ndarray, "samples outputs"]:
        """The outputs, gate by gate: the slow twin of `PackedNetwork` and of what is exported."""
        signals = [*bits.T]
        for number, a, b in zip(self.numbers, self.first, self.second, strict=True):
            table = np.array(GATES[number].truth_table, dtype=bool)
            signals.append(table[2 * signals[a].astype(int) + signals[b]])
        constants = {ZERO: np.zeros(len(bits), dtype=bool), ONE: np.ones(len(bits), dtype=bool)}
        found = [constants[k] if k in constants else signals[k] for k in self.outputs.tolist()]
        return np.stack(found, 1) if found else np.zeros((len(bits), 0), dtype=bool)

    @property
    def num_gates(self) -> int:
        """How many gates there are; the head is not counted."""
        return len(self.numbers)

    @property
    def depth(self) -> int:
        """The most gates between an input and an output."""
        depths = np.zeros(self.in_features + self.num_gates, dtype=np.int64)
        for gate, (number, a, b) in enumerate(zip(self.numbers, self.first, self.second, strict=True)):
            uses = GATES[number].uses
            depths[self.in_features + gate] = 1 + max(depths[a] * uses[0], depths[b] * uses[1])
        reached = depths[self.outputs[self.outputs >= 0]]
        return int(reached.max()) if reached.size else 0

    def report(self) -> "GateReport":
        """Gate counts of this circuit and, where it is not pruned, of what pruning makes of it."""
        after = self if self.unpruned is not None else self.pruned()
        removed = after.unpruned or Removed()
        kinds = Counter(GATES[number].name for number in after.numbers.tolist())
        adders, classes = 0, 0
        if isinstance(self.head, GroupSum):
            classes = self.head.classes
            size = self.head.in_features // classes
            adders = classes * (size - size.bit_count())
        return GateReport(removed.gates, after.num_gates, removed, after.depth, dict(kinds.most_common()), adders)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """What pruning took away: every gate of the unpruned circuit is in one of these or is kept.

    Args:
        gates: of the unpruned circuit.
        constants: gates whose output is the same for all inputs.
        pass_throughs: gates that give one signal or its inverse, which their readers take in.
        duplicates: gates that compute what another one does, or its inverse.
        dead: gates that no output depends on.
        inverters: gates that were added, for outputs that are the inverse of a signal in use.
    """

    gates: int = 0
    constants: int = 0
    pass_throughs: int = 0
    duplicates: int = 0
    dead: int = 0
    inverters: int = 0


@dataclasses.dataclass(frozen=True)
class GateReport:
    """Gates of two inputs before and after pruning, and apart from them the adders of a group-sum head.

    Args:
        before, after: numbers of gates.
        removed: where the difference went.
        depth: gates on the longest path after pruning.
        kinds: how often each gate stands after pruning.
        adders: full and half adders that count the bits of all groups: n less the ones in n's binary digits for each
            group of n bits.
    """

    before: int
    after: int
    removed: Removed
    depth: int
    kinds: dict[str, int]
    adders: int

    def __str__(self) -> str:
        r = self.removed
        lost = f"−{r.constants} constants, −{r.pass_throughs} pass-through, −{r.duplicates} duplicates, −{r.dead} dead"
        return (
            f"{self.before} gates, {self.after} after pruning ({lost}, +{r.inverters} inverters), depth {self.depth}; "
            f"{self.adders} adders of the head not counted"
        )
