"""Problems packed into tiles for the compiled evolution, and angles brought to the range it takes.

Mixers are reduced to |x| ≤ π/4: exp(iπ/2 ΣX) flips every spin up to phases, and commutes with all mixers, so a
quarter turn taken out of layer l only reverses the fields of later layers, and at last the spins of the result.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samplers.dqa import evolution, kernels
from samplers.dqa.kernels import CHUNK_SPINS
from samplers.dqa.mixing import LANES, PADDED, PADDED_CHUNK, ROWS, WIDTH
from samplers.kernels import in_threads


@dataclass(frozen=True)
class Reduced:
    """Angles (P, 4): field, coupling, tan x, cosⁿ x; the signs that fields got; whether the result is flipped."""

    table: np.ndarray
    flipped: bool


def reduced(angles: Tensor, num_spins: int) -> Reduced:
    """Bring layer angles (P, 3) to |x| ≤ π/4."""
    f, c, x = angles.detach().cpu().double().numpy().T
    turns = np.rint(x / (math.pi / 2))
    after = np.cumsum(turns)
    before = after - turns
    rest = x - turns * (math.pi / 2)
    table = np.stack([np.where(before % 2 == 1, -f, f), c, np.tan(rest), np.cos(rest) ** num_spins], 1)
    return Reduced(np.ascontiguousarray(table), bool(after[-1] % 2 == 1))


@dataclass(frozen=True)
class Tiling:
    """How (g, q) problems of n spins lie in tiles of `lanes`, each tile in one group."""

    groups: int
    queries: int
    num_spins: int

    @property
    def tiled(self) -> bool:
        """Whether a tile is padded rows of up to 8 qubits; else it is chunks of them."""
        return self.num_spins <= CHUNK_SPINS

    @property
    def lanes(self) -> int:
        """Problems in a tile: 8 of a large state; else what fills 16 rows of 64 · (1, 2, …, 16) numbers."""
        if not self.tiled:
            return LANES
        wanted = -(-self.queries * 2**self.num_spins // (ROWS * WIDTH))
        columns = ROWS if self.num_spins > 4 else min(ROWS, 1 << max(0, wanted - 1).bit_length())
        return ROWS * columns * WIDTH >> self.num_spins

    @property
    def per_group(self) -> int:
        return -(-self.queries // self.lanes)

    @property
    def count(self) -> int:
        return self.groups * self.per_group

    @property
    def state_size(self) -> int:
        return 2 * (ROWS * PADDED if self.tiled else PADDED_CHUNK << (self.num_spins - CHUNK_SPINS))

    def pack(self, values: Tensor, dtype: torch.dtype) -> np.ndarray:
        """(g, q, k) to (tiles, k · lanes), missing problems zero."""
        k = values.shape[-1]
        full = values.new_zeros(self.groups, self.per_group * self.lanes, k, dtype=dtype)
        full[:, : self.queries] = values.detach()
        tiles = full.reshape(self.count, self.lanes, k).transpose(1, 2)
        return tiles.reshape(self.count, k * self.lanes).numpy()

    def unpack(self, values: np.ndarray) -> Tensor:
        """(tiles, k · lanes) to (g, q, k)."""
        k = values.shape[1] // self.lanes
        tiles = torch.from_numpy(values).reshape(self.count, k, self.lanes).transpose(1, 2)
        return tiles.reshape(self.groups, self.per_group * self.lanes, k)[:, : self.queries]

    @property
    def group_of_tile(self) -> np.ndarray:
        return np.repeat(np.arange(self.groups), self.per_group)


def pair_table(couplings: Tensor | None, groups: int, num_spins: int) -> np.ndarray:
    """Pair energies (g, 2^n) float64."""
    if couplings is None:
        return np.zeros((groups, 2**num_spins))
    return evolution.pair_energies(couplings.detach().double().squeeze(1)).contiguous().numpy()


def forward(
    fields: Tensor, couplings: Tensor | None, angles: Tensor, dtype: torch.dtype, marginals: bool
) -> tuple[Tensor, np.ndarray]:
    """Magnetizations (g, q, n) or probabilities (g, q, 2^n), and the final states for `backward`."""
    groups, queries, n = fields.shape
    tiling, schedule = Tiling(groups, queries, n), reduced(angles, n)
    states = torch.empty(tiling.count, tiling.state_size, dtype=dtype).numpy()
    out = np.empty((tiling.count, (n if marginals else 2**n) * tiling.lanes), states.dtype)
    arguments = (
        tiling.pack(fields, torch.float64), pair_table(couplings, groups, n), tiling.group_of_tile,
        schedule.table, n, tiling.tiled, marginals, states, out,
    )  # fmt: skip
    in_threads(lambda start, stop: kernels.forward_tiles(start, stop, *arguments), tiling.count)
    return _flipped(tiling.unpack(out), schedule.flipped, marginals), states


def backward(
    fields: Tensor, couplings: Tensor | None, angles: Tensor, states: np.ndarray, grad: Tensor, marginals: bool
) -> tuple[Tensor, Tensor]:
    """Derivatives in the fields (g, q, n) and in the pair energies (g, 2^n)."""
    groups, queries, n = fields.shape
    tiling, schedule = Tiling(groups, queries, n), reduced(angles, n)
    own = torch.float32 if states.dtype == np.float32 else torch.float64
    grad_h = np.empty((tiling.count, n * tiling.lanes), states.dtype)
    grad_pairs = np.empty((tiling.count, 2**n), states.dtype)
    arguments = (
        tiling.pack(fields, torch.float64), pair_table(couplings, groups, n), tiling.group_of_tile,
        schedule.table, n, tiling.tiled, marginals, states,
        tiling.pack(_flipped(grad, schedule.flipped, marginals), own), grad_h, grad_pairs,
    )  # fmt: skip
    in_threads(lambda start, stop: kernels.backward_tiles(start, stop, *arguments), tiling.count)
    pairs = torch.from_numpy(grad_pairs).reshape(groups, tiling.per_group, 2**n).sum(1)
    return tiling.unpack(grad_h), pairs


def _flipped(values: Tensor, flipped: bool, marginals: bool) -> Tensor:
    """The result of a circuit whose quarter turns were taken out."""
    if not flipped:
        return values
    return -values if marginals else values.flip(-1)
