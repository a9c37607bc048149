"""Summation over all 2^n states by two halves: the states of n spins as a matrix, a query as two vectors.

The shared energy of a group of queries is a matrix over (state of the high spins, state of the low spins),
W[x, y] = exp(βΣJ_jk s_j s_k + βΣK_jkl s_j s_k s_l − max); a query's fields are a vector u over x and a vector v over y.
Z = uᵀWv; the high spins' marginals come from u∘(Wv), the low spins' from v∘(Wᵀu): two matrix products for all
queries of a group. With a(s) = Σ_j g_j s_j for an incoming gradient g, the backward pass needs
⟨(a − ⟨a⟩) s_k⟩ and D[x, y] = Σ_q p_q(x, y) (a_q − ⟨a_q⟩), four more matrix products.

A spin that is not allowed is clamped to +1 (factors 1 and 0) after its J column is taken off the others' fields.
Every entry of u, v and W lies in [0, 1], so a sum Z above `smallest_sum` is right to the dtype's precision; a
query below it is reported in `lost` and contributes nothing, for `samplers.exact.logspace` to redo.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from samplers import second_derivatives
from samplers.states import spin_table


@lru_cache(maxsize=256)
def signs(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`spin_table`, kept; (2^k, k)."""
    with torch.inference_mode(False):
        return spin_table(num_spins, dtype=dtype, device=device)


def smallest_sum(num_spins: int, dtype: torch.dtype) -> float:
    """Z below which terms lost to underflow (each under `tiny`, 2^n of them) could show in the result."""
    info = torch.finfo(dtype)
    return info.tiny / info.eps * 2.0**num_spins


@dataclass(frozen=True)
class Layout:
    """Which spins are columns (0…low−1) and which are rows (low…n−1), and how many rows of W a block holds."""

    num_spins: int
    low: int
    rows_per_block: int

    @property
    def high(self) -> int:
        return self.num_spins - self.low

    @property
    def rows(self) -> int:
        return 2**self.high

    def blocks(self) -> list[slice]:
        step = self.rows_per_block
        return [slice(i, min(i + step, self.rows)) for i in range(0, self.rows, step)]


def balanced(num_spins: int, groups: int, limit_bytes: int, itemsize: int, low: int | None = None) -> Layout:
    """Halves of equal size, with W in blocks of rows where all of it (some copies of it) exceeds `limit_bytes`."""
    low = num_spins // 2 if low is None else low
    row_bytes = groups * 2**low * itemsize * 4
    rows = 2 ** (num_spins - low)
    step = 1 << max(0, (max(1, limit_bytes // row_bytes)).bit_length() - 1)
    return Layout(num_spins, low, min(rows, step))


def half_vector(fields: Tensor, clamped: Tensor | None = None) -> Tensor:
    """Π_k exp(h_k s_k − |h_k|) for all states of the k spins: (…, k) → (…, 2^k); largest entry exactly 1.

    Built as products, never as exp of a sum: one field of 1e4 would round away the others.
    """
    magnitude = fields.abs()
    up, down = (fields - magnitude).exp(), (-fields - magnitude).exp()
    if clamped is not None:
        up, down = up.masked_fill(clamped, 1.0), down.masked_fill(clamped, 0.0)
    factors = torch.stack((up, down), -1)
    if fields.shape[-1] == 0:
        return fields.new_ones(*fields.shape[:-1], 1)
    vector = factors[..., 0, :]
    for k in range(1, fields.shape[-1]):
        vector = (factors[..., k, :, None] * vector[..., None, :]).flatten(-2)
    return vector


def compensated_fields(fields: Tensor, couplings: Tensor | None, allowed: Tensor | None) -> Tensor:
    """Fields from which the pull of spins clamped to +1 is taken off: (G, Q, n), differentiable.

    The pull is split over J_jk and J_kj, so that the gradient of J stays symmetric.
    """
    if allowed is None or couplings is None:
        return fields
    absent = (~allowed).to(fields.dtype)
    pull = absent @ ((couplings + couplings.mT) / 2)
    return torch.where(allowed, fields - pull, 0.0)


def clamped_energy(couplings: Tensor | None, allowed: Tensor | None) -> Tensor | float:
    """½ cᵀJc of the spins that are clamped to +1, (G, Q): what W holds too much; for log Z."""
    if allowed is None or couplings is None:
        return 0.0
    absent = (~allowed).to(couplings.dtype)
    return 0.5 * ((absent @ couplings) * absent).sum(-1)


def log_weights(couplings: Tensor | None, triples: Tensor | None, layout: Layout, rows: slice) -> Tensor:
    """β × the shared energies of a block of W, (G, rows, 2^low); plain torch, differentiable."""
    like = couplings if couplings is not None else triples
    assert like is not None
    low = layout.low
    cols = signs(low, like.dtype, like.device)
    high = signs(layout.high, like.dtype, like.device)[rows]
    total = like.new_zeros(like.shape[0], len(high), len(cols))
    if couplings is not None:
        own_high = ((high @ couplings[:, low:, low:]) * high).sum(-1) / 2
        own_low = ((cols @ couplings[:, :low, :low]) * cols).sum(-1) / 2
        total = torch.baddbmm(own_low.unsqueeze(-2), high @ couplings[:, low:, :low], cols.T.expand(len(like), -1, -1))
        total = total + own_high.unsqueeze(-1)
    if triples is not None:
        total = total + _triple_energies(triples, high, cols, low)
    return total


def _pairs(table: Tensor) -> Tensor:
    """s_j s_k of every state, (states, k·k)."""
    return (table.unsqueeze(-1) * table.unsqueeze(-2)).flatten(-2)


def _triple_energies(triples: Tensor, high: Tensor, cols: Tensor, low: int) -> Tensor:
    high_pairs, col_pairs = _pairs(high), _pairs(cols)
    own_high = ((high_pairs @ triples[:, low:, low:, low:].flatten(1, 2)) * high).sum(-1) / 6
    own_low = ((col_pairs @ triples[:, :low, :low, :low].flatten(1, 2)) * cols).sum(-1) / 6
    two_high = high_pairs @ triples[:, low:, low:, :low].flatten(1, 2) @ cols.T / 2
    two_low = high @ triples[:, low:, :low, :low].flatten(2, 3) @ col_pairs.T / 2
    return two_high + two_low + own_high.unsqueeze(-1) + own_low.unsqueeze(-2)


class EnergyGradient:
    """Collects ∂L/∂J and ∂L/∂K from blocks of D = ∂L/∂(log W); the adjoint of `log_weights`."""

    def __init__(self, couplings: Tensor | None, triples: Tensor | None, layout: Layout):
        self.layout = layout
        self.couplings = None if couplings is None else torch.zeros_like(couplings)
        self.triples = None if triples is None else torch.zeros_like(triples)
        self._column_sums: Tensor | None = None

    def add(self, weights: Tensor, rows: slice) -> None:
        low = self.layout.low
        cols = signs(low, weights.dtype, weights.device)
        high = signs(self.layout.high, weights.dtype, weights.device)[rows]
        row_sums, column_sums = weights.sum(-1), weights.sum(-2)
        self._column_sums = column_sums if self._column_sums is None else self._column_sums + column_sums
        by_col = weights @ cols
        if self.couplings is not None:
            self.couplings[:, low:, low:] += (high.T @ (row_sums.unsqueeze(-1) * high)).to(self.couplings.dtype)
            self.couplings[:, low:, :low] += (high.T @ by_col).to(self.couplings.dtype)
        if self.triples is not None:
            k, r = low, self.layout.high
            pairs = _pairs(high)
            own = pairs.T @ (row_sums.unsqueeze(-1) * high)
            self.triples[:, low:, low:, low:] += own.unflatten(1, (r, r)).to(self.triples.dtype)
            self.triples[:, low:, low:, :low] += (pairs.T @ by_col).unflatten(1, (r, r)).to(self.triples.dtype)
            two_low = high.T @ (weights @ _pairs(cols))
            self.triples[:, low:, :low, :low] += two_low.unflatten(2, (k, k)).to(self.triples.dtype)

    def finish(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the full symmetric tensors."""
        low, sums = self.layout.low, self._column_sums
        assert sums is not None
        cols = signs(low, sums.dtype, sums.device)
        if self.couplings is not None:
            j = self.couplings
            j[:, :low, :low] = (cols.T @ (sums.unsqueeze(-1) * cols)).to(j.dtype)
            j[:, :low, low:] = j[:, low:, :low].mT
            j.diagonal(dim1=-2, dim2=-1).zero_()
            j /= 2
        if self.triples is not None:
            k = self.triples
            own = _pairs(cols).T @ (sums.unsqueeze(-1) * cols)
            k[:, :low, :low, :low] = own.unflatten(1, (low, low)).to(k.dtype)
            k[:, low:, :low, low:] = k[:, low:, low:, :low].transpose(-1, -2)
            k[:, :low, low:, low:] = k[:, low:, :low, low:].transpose(1, 2)
            k[:, :low, low:, :low] = k[:, low:, :low, :low].transpose(1, 2)
            k[:, :low, :low, low:] = k[:, low:, :low, :low].permute(0, 2, 3, 1)
            for one, two in ((1, 2), (1, 3), (2, 3)):
                k.diagonal(dim1=one, dim2=two).zero_()
            k /= 6
        return self.couplings, self.triples


def refuse_second_derivative() -> None:
    """The hand-written backward passes are no graph."""
    second_derivatives.refuse_second_derivative(
        "an exact magnetization or log Z",
        "∂⟨s_j⟩/∂h_k = β(⟨s_j s_k⟩ − ⟨s_j⟩⟨s_k⟩) is differentiable through correlations()",
    )


# Above this bound on |log W|, float32 sums of energies would lose the sixth digit of exp.
_SINGLE_ENERGY_BOUND = 48.0


def energy_dtype(couplings: Tensor | None, triples: Tensor | None, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which energies are summed: float64 where float32 could not hold them to 1e-5."""
    if dtype != torch.float32:
        return dtype
    bound = 0.0
    if couplings is not None:
        bound += float(couplings.abs().sum((-1, -2)).max()) / 2
    if triples is not None:
        bound += float(triples.abs().sum((-1, -2, -3)).max()) / 6
    return torch.float64 if bound > _SINGLE_ENERGY_BOUND else torch.float32


class WeightBlocks:
    """W of some groups, block by block: kept where it is one block, rebuilt at every pass where it is more."""

    def __init__(self, couplings: Tensor | None, triples: Tensor | None, layout: Layout, dtype: torch.dtype):
        precise = energy_dtype(couplings, triples, dtype)
        self.couplings = None if couplings is None else couplings.to(precise)
        self.triples = None if triples is None else triples.to(precise)
        self.layout, self.dtype = layout, dtype
        blocks = layout.blocks()
        energies = self._energies(blocks[0])
        self.peak = energies.amax((-1, -2))
        for rows in blocks[1:]:
            self.peak = torch.maximum(self.peak, self._energies(rows).amax((-1, -2)))
        self._kept = self._weights(energies) if len(blocks) == 1 else None

    def _energies(self, rows: slice) -> Tensor:
        return log_weights(self.couplings, self.triples, self.layout, rows)

    def _weights(self, energies: Tensor) -> Tensor:
        return energies.sub_(self.peak[:, None, None]).to(self.dtype).exp_()

    def __iter__(self):
        for rows in self.layout.blocks():
            yield rows, self._weights(self._energies(rows)) if self._kept is None else self._kept


class HalvesSum(torch.autograd.Function):
    """(m, log Z, lost) of queries (G, Q, n) that share W within a group; fields, J and K already times β.

    log Z is that of the clamped problem: `clamped_energy` is still to be taken off. Rows of `lost` (G, Q) are
    meaningless and carry no gradient.
    """

    @staticmethod
    def forward(ctx, fields, couplings, triples, clamped, layout: Layout):
        low, dtype = layout.low, fields.dtype
        weights = WeightBlocks(couplings, triples, layout, dtype)
        u = half_vector(fields[..., low:], None if clamped is None else clamped[..., low:])
        v = half_vector(fields[..., :low], None if clamped is None else clamped[..., :low])
        if len(layout.blocks()) == 1:
            ((_, w),) = weights
            by_row, by_col = v @ w.mT, u @ w
        else:
            by_row, by_col = torch.empty_like(u), torch.zeros_like(v)
            for rows, w in weights:
                by_row[..., rows] = v @ w.mT
                by_col += u[..., rows] @ w
        p_row, p_col = u * by_row, v * by_col
        total = p_row.sum(-1)
        lost = ~(total >= smallest_sum(layout.num_spins, dtype))
        inverse = torch.where(lost, 0.0, 1 / total)
        high_m = p_row @ signs(layout.high, dtype, fields.device)
        low_m = p_col @ signs(low, dtype, fields.device)
        m = torch.cat((low_m, high_m), -1) * inverse.unsqueeze(-1)
        shift = fields.abs().sum(-1) if clamped is None else fields.abs().masked_fill(clamped, 0.0).sum(-1)
        log_z = torch.where(lost, 0.0, total.log()) + shift + weights.peak.to(dtype).unsqueeze(-1)
        ctx.save_for_backward(couplings, triples, u, v, by_row, by_col, inverse, m, clamped)
        ctx.weights, ctx.layout = weights, layout
        ctx.mark_non_differentiable(lost)
        return m, log_z, lost

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivative()
        g, g_log_z, _ = gradients
        couplings, triples, u, v, by_row, by_col, inverse, m, clamped = ctx.saved_tensors
        layout: Layout = ctx.layout
        low, dtype = layout.low, u.dtype
        high_signs, low_signs = signs(layout.high, dtype, u.device), signs(low, dtype, u.device)
        # Per state: a(s) − ⟨a⟩ + ∂L/∂log Z, split into a part per row state and a part per column state.
        offset = (g_log_z - (g * m).sum(-1)).unsqueeze(-1)
        u = u * inverse.unsqueeze(-1)
        u1 = u * (g[..., low:] @ high_signs.T + offset)
        v1 = v * (g[..., :low] @ low_signs.T)
        wants_weights = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        collected = EnergyGradient(couplings, triples, layout)
        left, right = torch.cat((u1, u), -2), torch.cat((v, v1), -2)
        v1_by_row, u1_by_col = torch.empty_like(u), torch.zeros_like(v)
        for rows, w in ctx.weights:
            v1_by_row[..., rows] = v1 @ w.mT
            u1_by_col += u1[..., rows] @ w
            if wants_weights:
                collected.add((left[..., rows].mT @ right).mul_(w), rows)
        high_g = (u1 * by_row + u * v1_by_row) @ high_signs
        low_g = (v * u1_by_col + v1 * by_col * inverse.unsqueeze(-1)) @ low_signs
        fields_g = torch.cat((low_g, high_g), -1)
        if clamped is not None:
            fields_g = fields_g.masked_fill(clamped, 0.0)
        couplings_g, triples_g = collected.finish() if wants_weights else (None, None)
        return fields_g, couplings_g, triples_g, None, None
