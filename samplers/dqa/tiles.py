"""Problems packed into tiles for the compiled evolution, and angles brought to the range it takes.

Mixers are reduced to |x| ≤ π/4: exp(iπ/2 ΣX) flips every spin up to phases, and commutes with all mixers, so a
quarter turn taken out of layer l only reverses the fields of later layers, and at last the spins of the result.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samplers.dqa import kernels
from samplers.dqa.kernels import CHUNK_SPINS
from samplers.dqa.mixing import LANES, PADDED, PADDED_CHUNK, ROWS, WIDTH
from samplers.kernels import in_threads


@dataclass(frozen=True)
class Reduced:
    """Angles (P, 4): field, coupling, tan x, cosⁿ x; the signs (P,) that fields got; whether the result is flipped."""

    table: np.ndarray
    signs: np.ndarray
    flipped: bool


def reduced(angles: Tensor, num_spins: int) -> Reduced:
    """Bring layer angles (P, 3) to |x| ≤ π/4."""
    f, c, x = angles.detach().cpu().double().numpy().T
    turns = np.rint(x / (math.pi / 2))
    after = np.cumsum(turns)
    before = after - turns
    rest = x - turns * (math.pi / 2)
    signs = 1.0 - 2.0 * (before % 2)
    table = np.stack([signs * f, c, np.tan(rest), np.cos(rest) ** num_spins], 1)
    return Reduced(np.ascontiguousarray(table), signs, bool(after[-1] % 2 == 1))


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


class PackedAnneal:
    """Problems (g, q, n) that share couplings within groups, and layers, ready for the kernels."""

    def __init__(self, fields: Tensor, couplings: Tensor | None, angles: Tensor, dtype: torch.dtype):
        groups, queries, n = fields.shape
        self.tiling, self.schedule, self.dtype = Tiling(groups, queries, n), reduced(angles, n), dtype
        self._fields = self.tiling.pack(fields, torch.float64)
        self._energies = np.zeros((groups, 2**n))
        if couplings is not None:
            matrices = couplings.detach().double().reshape(groups, n, n).contiguous().numpy()
            for g in range(groups):
                kernels.pair_energies(matrices[g], self._energies[g])
        self._states = torch.empty(self.tiling.count, self.tiling.state_size, dtype=dtype).numpy()

    def forward(self, marginals: bool) -> Tensor:
        """Magnetizations (g, q, n) or probabilities (g, q, 2^n). Keeps the final states for `backward`."""
        tiling = self.tiling
        rows = tiling.num_spins if marginals else 2**tiling.num_spins
        out = np.empty((tiling.count, rows * tiling.lanes), self._states.dtype)
        shared = self._shared(marginals)
        in_threads(lambda start, stop: kernels.forward_tiles(start, stop, *shared, out), tiling.count)
        return _flipped(tiling.unpack(out), self.schedule.flipped, marginals)

    def backward(self, grad: Tensor, marginals: bool, with_angles: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """From derivatives in the result of `forward` to those in its causes.

        Returns:
            Derivatives in the fields (g, q, n), the pair energies (g, 2^n) and the angles, (P, 3) float64; the last
            is empty, (0, 3), unless `with_angles`.
        """
        tiling, kind = self.tiling, self._states.dtype
        own = tiling.pack(_flipped(grad, self.schedule.flipped, marginals), self.dtype)
        grad_h = np.empty((tiling.count, tiling.num_spins * tiling.lanes), kind)
        grad_pairs = np.empty((tiling.count, 2**tiling.num_spins), kind)
        depth = len(self.schedule.table)
        slopes = np.empty((tiling.count if with_angles else 0, depth, 3))
        arguments = (*self._shared(marginals), own, grad_h, grad_pairs, slopes)
        in_threads(lambda start, stop: kernels.backward_tiles(start, stop, *arguments), tiling.count)
        by_pair = torch.from_numpy(grad_pairs).reshape(tiling.groups, tiling.per_group, -1).sum(1)
        by_angle = slopes.sum(0) if with_angles else np.empty((0, 3))
        if with_angles:
            by_angle[:, 0] *= self.schedule.signs
        return tiling.unpack(grad_h), by_pair, torch.from_numpy(by_angle)

    def _shared(self, marginals: bool) -> tuple:
        tiling, table = self.tiling, self.schedule.table
        problem = self._fields, self._energies, tiling.group_of_tile, table
        return (*problem, tiling.num_spins, tiling.tiled, marginals, self._states)


def _flipped(values: Tensor, flipped: bool, marginals: bool) -> Tensor:
    """The result of a circuit whose quarter turns were taken out."""
    if not flipped:
        return values
    return -values if marginals else values.flip(-1)
