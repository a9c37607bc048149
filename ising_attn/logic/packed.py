"""`PackedNetwork`: a Boolean network on 64 samples a word, bit for bit what `BooleanNetwork` gives."""

import copy
import dataclasses

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, Shaped, UInt8, UInt64
from torch import Tensor

from ising_attn.logic.checks import check_bits, check_features
from ising_attn.logic.errors import InvalidLogicError
from ising_attn.logic.gates import GATES, NOT_B, B, Gate
from ising_attn.logic.heads import GroupSum
from ising_attn.logic.network import BooleanNetwork

# Kinds of gates in the kernels, which are not imported before they are used.
AND, XOR, ONE_INPUT = 0, 1, 2
# Words of each feature that are taken through all layers at once: two layers of 4096 gates fit into 1 MiB.
_BLOCK = 16


@dataclasses.dataclass(frozen=True)
class PackedBits:
    """Bits of a batch: bit s of words[f, w] is the feature f of sample 64·w + s; bits beyond the last mean nothing.

    Args:
        words: a row per feature.
        samples: how many samples the columns hold.
    """

    words: UInt64[np.ndarray, "features words"]
    samples: int

    @classmethod
    def of(cls, bits: Bool[Tensor, "samples features"]) -> "PackedBits":
        """Pack a batch. Cost: one pass over it."""
        from ising_attn.logic.packed_kernels import LANES, fill_packed
        from samplers.kernels import in_threads

        samples, features = bits.shape
        rows = _as_words(bits)
        words = np.empty((features, -(-samples // 64)), np.uint64)
        in_threads(lambda low, high: fill_packed(rows, features, low, high, words), -(-words.shape[1] // LANES))
        return cls(words, samples)

    def unpacked(self) -> Bool[Tensor, "samples features"]:
        """The inverse of `of`."""
        from ising_attn.logic.packed_kernels import LANES, fill_unpacked
        from samplers.kernels import in_threads

        features = self.words.shape[0]
        rows = np.empty((self.samples, -(-features // 8)), np.uint64)
        in_threads(lambda low, high: fill_unpacked(self.words, low, high, rows), -(-self.words.shape[1] // LANES))
        return torch.from_numpy(rows.view(np.uint8)[:, :features]).view(torch.bool)

    def group_counts(self, classes: int) -> Int[Tensor, "samples classes"]:
        """How many features of each of `classes` equal groups are 1."""
        from ising_attn.logic.packed_kernels import LANES, count_groups
        from samplers.kernels import in_threads

        counts = np.empty((self.samples, classes), np.int64)
        groups = -(-self.words.shape[1] // LANES)
        in_threads(lambda low, high: count_groups(self.words, classes, low, high, counts), groups)
        return torch.from_numpy(counts)


class PackedNetwork:
    """A Boolean network compiled to word operations on the CPU, spread over as many threads as torch uses.

    network(bits) packs, evaluates and gives what `BooleanNetwork` gives; `pack`, `evaluate` and `logits` are its three
    steps, to pack once and stay packed. Cost: one word operation per gate and 64 samples.

    Args:
        network: taken as it is now.
    """

    def __init__(self, network: BooleanNetwork):
        self.in_features, self.out_features = network.in_features, network.out_features
        self.head = copy.deepcopy(network.head).requires_grad_(False).cpu() if network.head is not None else None
        layers = network.boolean_layers()
        parts = [_sorted_gates(layer.wiring.pairs().cpu().numpy(), layer.numbers.cpu().numpy()) for layer in layers]
        starts = np.cumsum([0, *(layer.out_features for layer in layers[:-1])])
        self._bounds = np.stack([bounds + start for (bounds, _, _), start in zip(parts, starts, strict=True)])
        self._gates, self._masks = (np.hstack([part[i] for part in parts]) for i in (1, 2))
        self._widest = max((layer.out_features for layer in layers[:-1]), default=0)

    def __call__(self, x: Shaped[Tensor, "*batch features"]) -> Shaped[Tensor, "*batch classes"]:
        """Logits, or bits in the dtype of x where there is no head, on the device of x."""
        check_features(x, self.in_features, "PackedNetwork")
        out = self.logits(self.evaluate(self.pack(x.reshape(-1, self.in_features))))
        out = out.to(x.dtype) if self.head is None else out
        return out.view(*x.shape[:-1], out.shape[-1]).to(x.device)

    def pack(self, x: Shaped[Tensor, "samples features"]) -> PackedBits:
        """A batch, packed.

        Raises:
            InvalidLogicError: another number of features, or values other than 0 and 1.
        """
        check_features(x, self.in_features, "PackedNetwork")
        check_bits(x, "PackedNetwork")
        return PackedBits.of(x.bool())

    def evaluate(self, bits: PackedBits) -> PackedBits:
        """The bits of the last layer.

        Raises:
            InvalidLogicError: another number of features.
        """
        from ising_attn.logic.packed_kernels import run_layers
        from samplers.kernels import in_threads

        if bits.words.shape[0] != self.in_features:
            raise InvalidLogicError(f"PackedNetwork takes {self.in_features} features; {len(bits.words)} were given")
        out = np.empty((self.out_features, bits.words.shape[1]), np.uint64)
        given = bits.words, self._bounds, self._gates, self._masks, self._widest, _BLOCK
        in_threads(lambda low, high: run_layers(*given, low, high, out), out.shape[1], smallest=8)
        return PackedBits(out, bits.samples)

    def logits(self, bits: PackedBits) -> Shaped[Tensor, "samples classes"]:
        """The head's logits of the last layer's bits, or those bits where there is no head."""
        if isinstance(self.head, GroupSum):
            return self.head.logits(bits.group_counts(self.head.classes))
        found = bits.unpacked()
        return found if self.head is None else self.head(found)


def _as_words(bits: Bool[Tensor, "samples features"]) -> UInt64[np.ndarray, "samples eights"]:
    """Eight bytes of 0 or 1 to a word, the last ones 0."""
    rows = bits.detach().cpu().contiguous().view(torch.uint8).numpy()
    lacking = -rows.shape[1] % 8
    if lacking:
        rows = np.pad(rows, ((0, 0), (0, lacking)))
    return rows.view("<u8")


def _sorted_gates(
    pairs: Int64[np.ndarray, "2 gates"], numbers: UInt8[np.ndarray, "gates"]
) -> tuple[Int64[np.ndarray, "4"], UInt64[np.ndarray, "3 gates"], UInt64[np.ndarray, "3 gates"]]:
    """A layer's gates as `run_layers` takes them: (bounds, gates, masks), sorted by kind."""
    kinds, masks = (np.array(column)[numbers] for column in zip(*map(_as_masked, GATES), strict=True))
    order = np.argsort(kinds, kind="stable")
    # The one input of a gate that reads b alone.
    first = np.where((kinds == ONE_INPUT) & np.isin(numbers, (B, NOT_B)), pairs[1], pairs[0])
    gates = np.stack([first[order], pairs[1][order], order]).astype(np.uint64)
    full = np.uint64(2**64 - 1)
    return (
        np.searchsorted(kinds[order], np.arange(4)),
        gates,
        np.ascontiguousarray(masks[order].T.astype(np.uint64) * full),
    )


def _as_masked(gate: Gate) -> tuple[int, tuple[int, int, int]]:
    """Its kind and which of a, b and the output are inverted; for one input, whether it is used instead of a's."""
    _, a, b, ab = gate.normal_form
    if not ab:
        return (XOR, (0, 0, gate.truth_table[0])) if a and b else (ONE_INPUT, (a | b, 0, gate.truth_table[0]))
    # One entry of the table differs from the other three.
    odd = 1 if sum(gate.truth_table) == 1 else 0
    at = gate.truth_table.index(odd)
    return AND, (1 - (at >> 1), 1 - (at & 1), 1 - odd)
