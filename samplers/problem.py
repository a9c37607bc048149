"""`IsingProblem`: a batch of Ising problems. The one sign convention of the project stands here.

    p(s) ∝ exp(−β E(s)),   E(s) = −( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l )

with s_j ∈ {−1, +1}: a larger field makes +1 likelier (dimod's fields have the opposite sign).
`J` and `K` are full symmetric tensors, so the pair sum is ½ sᵀJs. Gradients follow the full tensors:
∂/∂J_jk and ∂/∂J_kj each carry half of the derivative of the pair (a sixth for `K`).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from samplers.errors import InvalidProblemError

# The largest β|h|, β|J| and β|K|.
LARGEST = 1e15


class IsingProblem:
    """A batch of Ising problems over n spins, with couplings shared wherever their batch size is 1.

    Args:
        fields: h, shape (*batch, n), any floating dtype.
        couplings: J, shape (n, n) or broadcastable to (*batch, n, n); symmetric, zero diagonal.
            None means no couplings.
        allowed: (*batch, n) or broadcastable to it, bool. Spins that are not allowed do not exist: they
            enter no energy, and every result reads −1 for them. Their fields are ignored.
        beta: inverse temperature β > 0 of the law that is asked for.
        triples: K, shape (n, n, n) or broadcastable to (*batch, n, n, n); symmetric under every
            permutation, zero where two indices coincide.

    Raises:
        InvalidProblemError: NaN or infinite numbers, numbers whose product with β exceeds 1e15, wrong shapes, an
            asymmetric J or K.
    """

    def __init__(
        self,
        fields: Float[Tensor, "*batch n"],
        couplings: Float[Tensor, "*cbatch n n"] | None = None,
        *,
        allowed: Bool[Tensor, "*abatch n"] | None = None,
        beta: float = 1.0,
        triples: Float[Tensor, "*tbatch n n n"] | None = None,
        streams: Int[Tensor, "*batch"] | None = None,
    ):
        _check_fields(fields)
        batch, n = tuple(fields.shape[:-1]), fields.shape[-1]
        if not (isinstance(beta, int | float) and math.isfinite(beta) and beta > 0):
            raise InvalidProblemError(f"beta is {beta!r}; it must be one finite number > 0")
        if allowed is not None:
            _check_allowed(allowed, fields)
            fields = torch.where(allowed, fields, 0.0)
        _check_size("fields", fields, beta)
        if couplings is not None:
            _check_interaction("couplings", couplings, fields, beta, order=2)
        if triples is not None:
            _check_interaction("triples", triples, fields, beta, order=3)
        self.fields = fields
        self.allowed = allowed
        self.beta = float(beta)
        self.triples = triples
        self._couplings = couplings
        self._streams = streams
        self.batch_shape: tuple[int, ...] = batch
        self.num_spins: int = n

    @property
    def couplings(self) -> Float[Tensor, "*cbatch n n"]:
        """J; zeros of shape (n, n) where the problem has none."""
        if self._couplings is None:
            return self.fields.new_zeros(self.num_spins, self.num_spins)
        return self._couplings

    @property
    def is_independent(self) -> bool:
        """True where neither J nor K was given: every spin is on its own, ⟨s⟩ = tanh(βh)."""
        return self._couplings is None and self.triples is None

    @property
    def has_couplings(self) -> bool:
        return self._couplings is not None

    @property
    def num_problems(self) -> int:
        return math.prod(self.batch_shape)

    @property
    def streams(self) -> Int[Tensor, "*batch"]:
        """The random stream of each problem; a slice of a problem keeps the streams of its rows."""
        if self._streams is None:
            return torch.arange(self.num_problems).reshape(self.batch_shape)
        return self._streams

    @property
    def device(self) -> torch.device:
        return self.fields.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fields.dtype

    @property
    def is_causal(self) -> bool:
        """True where query i (the last batch axis) may use exactly the spins 0..i, with J shared by queries."""
        n, allowed = self.num_spins, self.allowed
        if allowed is None or allowed.ndim < 2 or not self.batch_shape or self.batch_shape[-1] != n:
            return False
        if any(size != 1 for size in allowed.shape[:-2]) or allowed.shape[-2] != n:
            return False
        if any(
            t is not None and t.ndim > order and t.shape[-order - 1] != 1
            for t, order in ((self._couplings, 2), (self.triples, 3))
        ):
            return False
        return torch.equal(allowed.reshape(n, n), _triangle(n, allowed.device))

    def expanded_allowed(self) -> Bool[Tensor, "*batch n"] | None:
        """`allowed` at the full batch shape (a view), or None where every spin is allowed."""
        return None if self.allowed is None else self.allowed.expand(self.fields.shape)

    def energy(self, spins: Shaped[Tensor, "*batch reads n"]) -> Float[Tensor, "*batch reads"]:
        """E(s) of the module's formula; spins that are not allowed count for nothing."""
        s = spins.to(self.dtype)
        if self.allowed is not None:
            s = s * self.allowed.to(self.dtype).unsqueeze(-2)
        total = (s @ self.fields.unsqueeze(-1)).squeeze(-1)
        if self._couplings is not None:
            total = total + 0.5 * ((s @ self._couplings) * s).sum(-1)
        if self.triples is not None:
            total = total + torch.einsum("...jkl,...rj,...rk,...rl->...r", self.triples, s, s, s) / 6
        return -total

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "IsingProblem":
        """The same problem in another dtype or on another device (differentiable)."""

        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device=device, dtype=dtype)

        return self._rebuilt(
            fields=self.fields.to(device=device, dtype=dtype),
            couplings=move(self._couplings),
            triples=move(self.triples),
            allowed=None if self.allowed is None else self.allowed.to(device=device),
        )

    def detach(self) -> "IsingProblem":
        """The same problem cut from the autograd graph."""
        return self._rebuilt(
            fields=self.fields.detach(),
            couplings=None if self._couplings is None else self._couplings.detach(),
            triples=None if self.triples is None else self.triples.detach(),
        )

    def __getitem__(self, index) -> "IsingProblem":
        """A part of the batch (basic indexing, slices or an index tensor); streams stay with their problems."""
        probe = torch.empty(self.batch_shape, device="meta")
        index = index if isinstance(index, tuple) else (index,)
        if any(i is Ellipsis or i is None for i in index) or len(index) > len(self.batch_shape):
            raise InvalidProblemError(
                f"index {index!r} does not fit the batch shape {self.batch_shape}; "
                "use integers, slices or index tensors for the leading batch axes"
            )
        batch = tuple(probe[index].shape)

        def cut(t: Tensor | None, order: int) -> Tensor | None:
            if t is None or t.ndim == order:
                return t
            own = t.shape[t.ndim - order :]
            if all(isinstance(i, slice) for i in index):
                # What the problems share, they share in every part.
                cuts = index[len(self.batch_shape) - (t.ndim - order) :]
                return t[tuple(slice(None) if t.shape[axis] == 1 else cut for axis, cut in enumerate(cuts))]
            return t.expand(*self.batch_shape, *own)[index]

        return self._rebuilt(
            fields=self.fields[index],
            couplings=cut(self._couplings, 2),
            triples=cut(self.triples, 3),
            allowed=cut(self.allowed, 1),
            streams=self.streams[index].reshape(batch),
        )

    def grouped(self) -> "GroupedProblem":
        """The batch as G groups of Q problems, each group sharing one J (and K): what backends loop over.

        Nothing is expanded along the shared axes except `allowed`. Cost: at most one copy of the fields.
        """
        rank = len(self.batch_shape)

        interactions = [(t, order) for t, order in ((self._couplings, 2), (self.triples, 3)) if t is not None]
        batches = [(1,) * (rank + order - t.ndim) + tuple(t.shape[: t.ndim - order]) for t, order in interactions]
        own_axes = [a for a in range(rank) if any(batch[a] != 1 for batch in batches)]
        shared_axes = [a for a in range(rank) if a not in own_axes]
        order = own_axes + shared_axes
        sizes = [self.batch_shape[a] for a in order]
        groups = math.prod(sizes[: len(own_axes)])
        queries = math.prod(sizes[len(own_axes) :])

        in_order = order == list(range(rank))

        def gather(t: Tensor, tail: int) -> Tensor:
            if not in_order:
                t = t.permute([*order, *range(rank, rank + tail)])
            return _shaped(t, (groups, queries, *t.shape[rank:]))

        def gather_interaction(t: Tensor | None, tail: int) -> Tensor | None:
            if t is None:
                return None
            own, shape = t.shape[t.ndim - tail :], [self.batch_shape[a] if a in own_axes else 1 for a in range(rank)]
            if not in_order or t.numel() != groups * own.numel():
                t = t.expand(*shape, *own)
            if not in_order:
                t = t.permute([*order, *range(rank, rank + tail)])
            return _shaped(t, (groups, 1, *own))

        allowed = self.expanded_allowed()
        inner = self._rebuilt(
            fields=gather(self.fields, 1),
            couplings=gather_interaction(self._couplings, 2),
            triples=gather_interaction(self.triples, 3),
            allowed=None if allowed is None else gather(allowed, 1),
            # Streams that were never set count the problems in their order, here as well as in the batch.
            streams=None if self._streams is None and in_order else gather(self.streams, 0),
        )
        return GroupedProblem(inner, tuple(order), tuple(sizes))

    def _rebuilt(self, **changes) -> "IsingProblem":
        """A copy with parts replaced; skips validation, since its parts were validated before."""
        new = object.__new__(IsingProblem)
        new.fields = changes.get("fields", self.fields)
        new._couplings = changes.get("couplings", self._couplings)
        new.triples = changes.get("triples", self.triples)
        new.allowed = changes.get("allowed", self.allowed)
        new.beta = changes.get("beta", self.beta)
        new._streams = changes.get("streams", self._streams)
        new.batch_shape = tuple(new.fields.shape[:-1])
        new.num_spins = new.fields.shape[-1]
        return new

    def __repr__(self) -> str:
        parts = [f"fields {tuple(self.fields.shape)}"]
        if self._couplings is not None:
            parts.append(f"couplings {tuple(self._couplings.shape)}")
        if self.triples is not None:
            parts.append(f"triples {tuple(self.triples.shape)}")
        if self.allowed is not None:
            parts.append(f"allowed {tuple(self.allowed.shape)}")
        return f"IsingProblem({', '.join(parts)}, beta={self.beta:g}, {self.dtype}, {self.device})"


@dataclass(frozen=True)
class GroupedProblem:
    """`problem` has fields (G, Q, n), couplings (G, 1, n, n) or none; `restore` undoes the grouping."""

    problem: IsingProblem
    _order: tuple[int, ...]
    _sizes: tuple[int, ...]

    def restore(self, values: Shaped[Tensor, "groups queries *rest"]) -> Shaped[Tensor, "..."]:
        """Bring per-problem values (G, Q, *rest) back to (*batch, *rest)."""
        rank, rest = len(self._order), tuple(values.shape[2:])
        inverse = [self._order.index(a) for a in range(rank)]
        unfolded = _shaped(values, (*self._sizes, *rest))
        if inverse == list(range(rank)):
            return unfolded
        return unfolded.permute((*inverse, *range(rank, rank + len(rest))))


def _shaped(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`t` in another shape. Each view is a step of the backward pass, so one that changes nothing is left out."""
    return t if tuple(t.shape) == shape else t.reshape(shape)


@lru_cache(maxsize=64)
def _triangle(size: int, device: torch.device) -> Tensor:
    """The causal mask, kept."""
    with torch.inference_mode(False):
        return torch.ones(size, size, dtype=torch.bool, device=device).tril()


def _check_fields(fields: Tensor) -> None:
    if not isinstance(fields, Tensor) or not fields.is_floating_point():
        kind = f"{fields.dtype} tensor" if isinstance(fields, Tensor) else type(fields).__name__
        raise InvalidProblemError(f"fields is a {kind}; it must be a floating-point torch tensor (*batch, n)")
    if fields.ndim == 0 or fields.shape[-1] == 0:
        raise InvalidProblemError(f"fields has shape {tuple(fields.shape)}; its last axis needs at least one spin")


def _check_size(name: str, values: Tensor, beta: float) -> None:
    """Refuse NaN, ∞, and what β times a number would lose in rounding or overflow."""
    if not values.numel():
        return
    values = values.detach()
    # One reduction for all cases: NaN and ∞ fail the comparison as well.
    largest = float(torch.linalg.vector_norm(values, math.inf))
    if largest * beta <= LARGEST:
        return
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise InvalidProblemError(
            f"{name} holds {bad} NaN or infinite numbers of {values.numel()}; all must be finite "
            "(to remove a spin, use allowed=, not a field of −inf)"
        )
    raise InvalidProblemError(
        f"{name} reach {largest:.3g}, times β = {beta:g}; the product may be at most {LARGEST:g}, where "
        "spins have long been frozen; scale the problem down"
    )


def _check_allowed(allowed: Tensor, fields: Tensor) -> None:
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise InvalidProblemError(f"allowed is {kind}; it must be a bool tensor, True where a spin exists")
    _check_device("allowed", allowed, fields)
    if not _broadcasts(allowed.shape, fields.shape) or allowed.shape[-1:] != fields.shape[-1:]:
        raise InvalidProblemError(
            f"allowed has shape {tuple(allowed.shape)}, which does not broadcast to the fields {tuple(fields.shape)}"
        )


def _check_interaction(name: str, values: Tensor, fields: Tensor, beta: float, order: int) -> None:
    n = fields.shape[-1]
    own = (n,) * order
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise InvalidProblemError(f"{name} must be a floating-point torch tensor with last axes {own}")
    _check_device(name, values, fields)
    if values.dtype != fields.dtype:
        raise InvalidProblemError(f"{name} is {values.dtype} and fields is {fields.dtype}; give both the same dtype")
    if tuple(values.shape[-order:]) != own or not _broadcasts(values.shape[:-order], fields.shape[:-1]):
        raise InvalidProblemError(
            f"{name} has shape {tuple(values.shape)}; for fields {tuple(fields.shape)} it must broadcast to "
            f"{(*fields.shape[:-1], *own)}"
        )
    _check_size(name, values, beta)
    # Symmetric in every neighbouring pair of axes is symmetric under all permutations.
    values = values.detach()
    for axis in range(-order, -1):
        if not torch.equal(values, values.transpose(axis, axis + 1)):
            worst = float((values - values.transpose(axis, axis + 1)).abs().max())
            raise InvalidProblemError(
                f"{name} is not symmetric (largest difference {worst:.3g}); symmetrise it, e.g. J = (A + A.mT) / 2"
            )
    if bool(values.diagonal(dim1=-2, dim2=-1).any()):
        raise InvalidProblemError(
            f"{name} has non-zero entries where two indices coincide; set them to 0 (a spin does not couple to itself)"
        )


def _check_device(name: str, values: Tensor, fields: Tensor) -> None:
    if values.device != fields.device:
        raise InvalidProblemError(f"{name} is on {values.device} and fields on {fields.device}; move one of them")


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a == b or a == 1 for a, b in zip(shape, tail, strict=True))
