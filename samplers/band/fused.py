"""Sums of grouped problems on the CPU by compiled passes, with a hand-written backward."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samplers.band.absent import compensated_fused
from samplers.band.kernels import gradient_kernel, sums_kernel
from samplers.kernels import in_threads
from samplers.problem import IsingProblem
from samplers.second_derivatives import refuse_second_derivative

# Lanes come in whole vectors; a message of more bytes than this leaves the first-level cache.
_LANE_STEP = 16
_MOST_LANES = 64
_CACHE_BYTES = 32_768
# Groups of fewer queries than this are solved side by side, each lane with its own table.
_FEW_QUERIES = 16
# log of a number type's range, less that of what may be lost unnoticed.
_RANGE = {torch.float32: 87.0 - 17.0, torch.float64: 708.0 - 37.0}
# With less `room` than this, messages would be rescaled at almost every spin.
LEAST_ROOM = 8.0


def room(band: Tensor, dtype: torch.dtype) -> float:
    """How far (in log) a message may shrink before it is rescaled in this dtype.

    A state's posterior weight is at most its share of the message times e^{2C}, with C = Σ|J| over the pairs across
    the cut behind it, whatever the fields. So shares that far below the range's end are nothing.
    """
    size = np.abs(band.detach().numpy().astype(np.float64))
    # reaching[t, d − 1] = Σ |J_{t,t−d'}| of d' ≥ d.
    reaching = size[..., ::-1].cumsum(-1)[..., ::-1]
    n, w = size.shape[1:]
    across = np.zeros(size.shape[:2])
    for d in range(1, min(w, n - 1) + 1):
        across[:, : n - d] += reaching[:, d:, d - 1]
    return _RANGE[dtype] - 2 * float(across.max() + reaching[..., 0].max()) - w * math.log(2.0)


def fused_sums(inner: IsingProblem, band: Tensor, room: float, *, log_z: bool) -> Tensor:
    """⟨s⟩ (G, Q, n), or log Z (G, Q), of a grouped problem, in the dtype of the band.

    Args:
        room: that of the function `room`, at least `LEAST_ROOM`.
    """
    fields = inner.beta * inner.fields.to(band.dtype)
    plan = _Plan.of(inner, band.shape[-1], band.dtype, room)
    if plan.absent is not None:
        fields = compensated_fused(fields, band, plan.absent)
    return _Sums.apply(fields, band, plan, log_z)


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
    room: float

    @staticmethod
    def of(inner: IsingProblem, width: int, dtype: torch.dtype, room: float) -> "_Plan":
        groups, queries, n = inner.fields.shape
        masked = inner.allowed is not None and not bool(inner.allowed.all())
        own = groups > 1 and queries < _FEW_QUERIES
        rows, length = (1, groups * queries) if own else (groups, queries)
        lanes = _lanes_for(length, rows, masked, width, dtype)
        blocks = math.ceil(length / lanes)
        if not masked:
            spans = torch.tensor([0, n - 1]).expand(rows, blocks, 2).contiguous()
            return _Plan(groups, queries, lanes, own, None, spans, None, room)
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
        return _Plan(groups, queries, lanes, own, order, torch.stack([lowest, highest], -1), absent, room)

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
    """⟨s⟩ or log Z of fields (G, Q, n) and a band (G, n, w), both times β, absent spins compensated."""

    @staticmethod
    def forward(ctx, fields: Tensor, band: Tensor, plan: _Plan, wants_log_z: bool):
        given = _Given(fields, band, plan)
        mean = torch.empty_like(given.ups)
        log_z = torch.empty(*given.ups.shape[:2], plan.lanes if wants_log_z else 0, dtype=torch.float64)
        out = mean.numpy(), log_z.numpy()
        given.run(lambda start, stop: sums_kernel(*given.arguments, start, stop, *out))
        rows = plan.spans.shape[:2]
        means = plan.gather(mean.view(*rows, *mean.shape[2:]))
        ctx.save_for_backward(fields, band, means)
        ctx.plan, ctx.wants_log_z = plan, wants_log_z
        if not wants_log_z:
            return means
        return plan.gather(log_z.view(*rows, -1) + given.log_factors()).to(fields.dtype)

    @staticmethod
    def backward(ctx, *gradients):
        (gradient,) = gradients
        refuse_second_derivative(
            "a magnetization or log Z of the sampler 'band'", "pair_correlations() is differentiable"
        )
        fields, band, mean = ctx.saved_tensors
        plan: _Plan = ctx.plan
        given = _Given(fields, band, plan)
        slope, log_slope = torch.zeros_like(mean), mean.new_zeros(mean.shape[:2])
        if ctx.wants_log_z:
            log_slope = gradient
        else:
            slope = gradient
        shape, lanes = given.ups.shape, plan.lanes
        slopes = [plan.lay_out(x).view(shape).numpy() for x in (slope * (1 - mean), -slope * (1 + mean))]
        log_slopes = plan.lay_out(log_slope).view(*shape[:2], lanes).numpy()
        field_out = torch.empty_like(given.ups)
        pair_shape = (shape[0], *band.shape[1:], *((lanes,) if plan.own else ()))
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
        return fields_grad, pairs.to(band.dtype), None, None


class _Given:
    """What the kernels are given: factors of spins and of couplings, in lanes."""

    def __init__(self, fields: Tensor, band: Tensor, plan: _Plan):
        self._h, self._plan = plan.lay_out(fields.detach()), plan
        ups, downs = (2 * self._h).clamp_max_(0).exp_(), (-2 * self._h).clamp_max_(0).exp_()
        self._gone = None if plan.absent is None else plan.lay_out(plan.absent)
        if self._gone is not None:
            ups.masked_fill_(self._gone, 0)
            downs.masked_fill_(self._gone, 1)
        j, spans = band.detach(), plan.spans
        if plan.own:
            j = plan.lanes_of_band(j)
            factors = torch.stack([j - j.abs(), -j - j.abs()], 3).exp_()
            self._bounds = j.abs().sum(2, dtype=torch.float64)
            bounds = self._bounds.amax(-1)
            # The blocks of the only row become rows, whose lanes do not share J.
            ups, downs, spans = ups.transpose(0, 1), downs.transpose(0, 1), spans.transpose(0, 1)
        else:
            j = j.double()
            factors = torch.stack([j - j.abs(), -j - j.abs()], -1).exp_()
            self._bounds = bounds = j.abs().sum(2)
        self.ups = ups
        arrays = [t.contiguous().numpy() for t in (ups, downs, spans, factors, bounds)]
        self.arguments = (*arrays, plan.room)

    def log_factors(self) -> Tensor:
        """(R, B, L): the log of what was divided out of the factors of the spins that a block goes over."""
        spans, spin = self._plan.spans, torch.arange(self._h.shape[2])
        inside = (spin >= spans[..., :1]) & (spin <= spans[..., 1:])
        size = self._h.abs() if self._gone is None else torch.where(self._gone, -self._h, self._h.abs())
        of_fields = (size * inside[..., None]).sum(2, dtype=torch.float64)
        if self._plan.own:
            return of_fields + (self._bounds * inside[0, :, :, None]).sum(1)
        return of_fields + (self._bounds[:, None] * inside).sum(-1, keepdim=True)

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
