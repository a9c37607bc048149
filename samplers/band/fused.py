"""Sums of grouped problems on the CPU by compiled passes, with a hand-written backward."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samplers.band.chain import compensated
from samplers.band.kernels import gradient_kernel, sums_kernel
from samplers.errors import NotSupportedError
from samplers.kernels import in_threads
from samplers.problem import IsingProblem

# Lanes come in pairs of vectors; more of them than this many bytes of one message leave the first-level cache.
_LANE_STEP = 32
_MOST_LANES = 64
_CACHE_BYTES = 32_768
# Groups of fewer queries than this are solved side by side, each lane with its own table.
_FEW_QUERIES = 16
# log of a number type's range, less that of what may be lost unnoticed.
_RANGE = {torch.float32: 87.0 - 17.0, torch.float64: 708.0 - 37.0}
# Below this, messages would be rescaled at almost every spin.
_LEAST_ROOM = 8.0


def room(band: Tensor, dtype: torch.dtype) -> float:
    """How far (in log) a message may shrink before it is rescaled in this dtype.

    A state's posterior weight is at most its share of the message times e^{2C}, with C = Σ|J| over the pairs across
    the cut behind it, whatever the fields. So shares that far below the range's end are nothing.
    """
    w, size = band.shape[-1], band.detach().abs().double()
    across = torch.stack([size[:, :, d:].sum(-1).roll(-d - 1, 1) for d in range(w)]).sum(0)
    worst = float(across.max()) + float(size.sum(-1).max())
    return _RANGE[dtype] - 2 * worst - w * math.log(2.0)


def fits(band: Tensor, dtype: torch.dtype) -> bool:
    """Whether weights of this dtype can hold what matters of every message, for any fields."""
    return room(band, dtype) > _LEAST_ROOM


def fused_sums(inner: IsingProblem, band: Tensor) -> tuple[Tensor, Tensor]:
    """⟨s⟩ (G, Q, n) and log Z (G, Q) of a grouped problem, in the dtype of the band, which must fit."""
    fields = inner.beta * inner.fields.to(band.dtype)
    plan = _Plan.of(inner, band.shape[-1], band.dtype)
    if plan.absent is not None:
        fields = compensated(fields, band, plan.absent)
    return _Sums.apply(fields, band, plan)


@dataclass(frozen=True)
class _Plan:
    """Where problems lie: R rows of B blocks of L lanes. A row shares J, or (`own`) all groups are one row.

    Args:
        order: (R, queries of a row), sorted by their last allowed spin; None where all spins are allowed.
        spans: (R, B, 2) the first and the last spin that any query of a block may use.
        absent: (G, Q, n) spins that are held at −1; those that no pass of their block meets are left out.
    """

    groups: int
    queries: int
    lanes: int
    own: bool
    order: Tensor | None
    spans: Tensor
    absent: Tensor | None

    @staticmethod
    def of(inner: IsingProblem, width: int, dtype: torch.dtype) -> "_Plan":
        groups, queries, n = inner.fields.shape
        masked = inner.allowed is not None and not bool(inner.allowed.all())
        own = groups > 1 and queries < _FEW_QUERIES
        rows, length = (1, groups * queries) if own else (groups, queries)
        lanes = _lanes_for(length, rows, masked, width, dtype)
        blocks = math.ceil(length / lanes)
        if not masked:
            spans = torch.tensor([0, n - 1]).expand(rows, blocks, 2).contiguous()
            return _Plan(groups, queries, lanes, own, None, spans, None)
        allowed = inner.allowed.reshape(rows, length, n)  # type: ignore[union-attr]
        some = allowed.any(-1)
        first = torch.where(some, allowed.to(torch.uint8).argmax(-1), n)
        last = torch.where(some, n - 1 - allowed.flip(-1).to(torch.uint8).argmax(-1), -1)
        order = torch.argsort(last, dim=-1, stable=True)
        pad = (0, blocks * lanes - length)
        lowest = torch.nn.functional.pad(first.gather(1, order), pad, value=n).view(rows, blocks, lanes).amin(-1)
        highest = torch.nn.functional.pad(last.gather(1, order), pad, value=-1).view(rows, blocks, lanes).amax(-1)
        block = torch.empty_like(order).scatter_(1, order, torch.arange(length).expand_as(order)) // lanes
        spin = torch.arange(n)
        met = (spin >= lowest.gather(1, block)[..., None] - width) & (spin <= highest.gather(1, block)[..., None])
        absent = (~allowed & met).view(groups, queries, n)
        return _Plan(groups, queries, lanes, own, order, torch.stack([lowest, highest], -1), absent)

    def lay_out(self, values: Tensor) -> Tensor:
        """(G, Q, n) or (G, Q) as lanes (R, B, n, L) or (R, B, L), zeros past the end."""
        rows, blocks = self.spans.shape[:2]
        values = values.reshape(rows, -1, *values.shape[2:])
        if self.order is not None:
            values = values[torch.arange(rows)[:, None], self.order]
        missing = blocks * self.lanes - values.shape[1]
        if missing:
            values = torch.cat([values, values.new_zeros(rows, missing, *values.shape[2:])], 1)
        values = values.reshape(rows, blocks, self.lanes, *values.shape[2:])
        return values.movedim(2, -1).contiguous()

    def gather(self, values: Tensor) -> Tensor:
        """The inverse of `lay_out`."""
        rows = len(self.spans)
        values = values.movedim(-1, 2).flatten(1, 2)[:, : self.groups * self.queries // rows]
        if self.order is not None:
            values = torch.empty_like(values).index_put_((torch.arange(rows)[:, None], self.order), values)
        return values.reshape(self.groups, self.queries, *values.shape[2:])

    def lanes_of_band(self, band: Tensor) -> Tensor:
        """(G, n, w) as (B, n, w, L): J of each lane."""
        return self.lay_out(band.repeat_interleave(self.queries, 0).unsqueeze(1).flatten(0, 1).unsqueeze(0))[0]


def _lanes_for(queries: int, rows: int, masked: bool, width: int, dtype: torch.dtype) -> int:
    """Masked queries lie in smaller blocks, each of which stops at its own last spin."""
    most = min(_MOST_LANES, max(_LANE_STEP, _CACHE_BYTES // (torch.finfo(dtype).bits // 8) >> width))
    parts = max(1 if rows > 1 else torch.get_num_threads(), 8 if masked else 1)
    return min(most // _LANE_STEP * _LANE_STEP, _LANE_STEP * math.ceil(queries / parts / _LANE_STEP))


class _Sums(torch.autograd.Function):
    """(⟨s⟩, log Z) of fields (G, Q, n) and a band (G, n, w), both times β, absent spins compensated."""

    @staticmethod
    def forward(ctx, fields: Tensor, band: Tensor, plan: _Plan):
        given = _Given(fields, band, plan)
        mean = torch.empty_like(given.ups)
        log_z = torch.empty(*given.ups.shape[:2], plan.lanes, dtype=torch.float64)
        out = mean.numpy(), log_z.numpy()
        given.run(lambda start, stop: sums_kernel(*given.arguments, start, stop, *out))
        rows = plan.spans.shape[:2]
        means = plan.gather(mean.reshape(*rows, *mean.shape[2:]))
        ctx.save_for_backward(fields, band, means)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return means, plan.gather(log_z.reshape(*rows, -1) + given.log_factors).to(fields.dtype)

    @staticmethod
    def backward(ctx, *gradients):
        if torch.is_grad_enabled():
            raise NotSupportedError(
                "create_graph=True asks for second derivatives of a magnetization or log Z of the sampler 'band', "
                "which are not recorded; pair_correlations() is differentiable"
            )
        fields, band, mean = ctx.saved_tensors
        plan, (g_mean, g_log_z) = ctx.plan, gradients
        given = _Given(fields, band, plan)
        slope = torch.zeros_like(mean) if g_mean is None else g_mean
        log_slope = mean.new_zeros(mean.shape[:2]) if g_log_z is None else g_log_z
        shape, lanes = given.ups.shape, plan.lanes
        slopes = [plan.lay_out(x).view(shape).numpy() for x in (slope * (1 - mean), -slope * (1 + mean))]
        log_slopes = plan.lay_out(log_slope).view(*shape[:2], lanes).numpy()
        field_out = torch.empty_like(given.ups)
        pair_shape = (len(shape) and shape[0], *band.shape[1:], *((lanes,) if plan.own else ()))
        shares: list[np.ndarray] = []

        def part(start: int, stop: int) -> None:
            pairs = np.zeros(pair_shape)
            gradient_kernel(*given.arguments, start, stop, *slopes, log_slopes, field_out.numpy(), pairs)
            shares.append(pairs)

        given.run(part)
        pairs = torch.from_numpy(sum(shares[1:], shares[0]))
        if plan.own:
            pairs = plan.gather(pairs.unsqueeze(0)).sum(1)
        fields_grad = plan.gather(field_out.view(*plan.spans.shape[:2], *shape[2:]))
        return fields_grad, pairs.to(band.dtype), None


class _Given:
    """What the kernels are given: factors of spins and of couplings, and the log of what was divided out of them."""

    def __init__(self, fields: Tensor, band: Tensor, plan: _Plan):
        h, n = plan.lay_out(fields.detach()), fields.shape[-1]
        ups, downs, size = (2 * h).clamp_max_(0).exp_(), (-2 * h).clamp_max_(0).exp_(), h.abs()
        spans, spin = plan.spans, torch.arange(n)
        inside = (spin >= spans[..., :1]) & (spin <= spans[..., 1:])
        if plan.absent is not None:
            gone = plan.lay_out(plan.absent)
            ups.masked_fill_(gone, 0)
            downs.masked_fill_(gone, 1)
            size = torch.where(gone, -h, size) * inside[..., None]
        j = band.detach()
        if plan.own:
            j = plan.lanes_of_band(j)
            bounds = j.abs().sum(2, dtype=torch.float64)
            factors = torch.stack([j - j.abs(), -j - j.abs()], 3).exp_()
            pulls = (bounds * inside[0, :, :, None]).sum(1).unsqueeze(0)
            bounds, ups, downs = bounds.amax(-1), ups.transpose(0, 1), downs.transpose(0, 1)
            spans = spans.transpose(0, 1)
        else:
            j = j.double()
            bounds = j.abs().sum(2)
            factors = torch.stack([j - j.abs(), -j - j.abs()], -1).exp_()
            pulls = (bounds[:, None] * inside).sum(-1, keepdim=True)
        self.log_factors = size.sum(2, dtype=torch.float64) + pulls
        self.ups = ups
        arrays = [t.contiguous().numpy() for t in (ups, downs, spans, factors, bounds)]
        self.arguments = (*arrays, room(band, band.dtype))

    def run(self, work: Callable[[int, int], object]) -> None:
        """Run a kernel over all blocks, in threads, numbers below the normal range taken as 0."""

        def part(start: int, stop: int) -> None:
            with _flushed():
                work(start, stop)

        rows, blocks = self.ups.shape[:2]
        in_threads(part, rows * blocks)


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Within the block this thread treats denormal numbers as 0: they mean nothing here and are very slow."""
    before = float(np.float32(1e-40) * np.float32(1.0)) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
