"""How the interactions of the keys are parameterised: J free, banded, by distance or of low rank; three-body K.

Every module gives, for a length T, one tensor per head that is exactly symmetric and exactly zero where two
indices coincide, made from as many parameters as there are free numbers (one per pair, not two).

Initial values: the paper (arXiv 2606.12478) gives none. With `std=0` training starts from J = 0, which is sigmoid
attention, and J moves at once because ∂⟨s⟩/∂J ≠ 0 wherever the fields are not zero.
"""

import abc
import itertools
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from samplers.errors import InvalidOptionError, did_you_mean

COUPLINGS = ("free", "distance", "band", "low-rank", "none")


class Interaction(nn.Module, abc.ABC):
    """Interactions of the spins of one attention layer, shared by the batch and by all queries.

    `forward(length)` returns J (heads, T, T), or K (heads, T, T, T), for the first `length` positions.
    """

    max_length: int | None  # None: any length

    @abc.abstractmethod
    def forward(self, length: int) -> Float[Tensor, "heads ..."]: ...


class FreeCouplings(Interaction):
    """J_jk of its own for every pair of positions, or (width w) for every pair with |j − k| ≤ w.

    T(T−1)/2 numbers per head for w = T−1. Pairs are stored by their larger index, so the parameters of a
    shorter context are the first ones of a longer context. (Boltzmann attention, arXiv 2606.12478, eq. 5.)
    """

    index: Int[Tensor, "context context"]

    def __init__(self, num_heads: int, context: int, *, width: int | None = None, std: float = 0.0):
        super().__init__()
        width = context - 1 if width is None else width
        larger, smaller = torch.tril_indices(context, context, offset=-1)
        near = larger - smaller <= width
        larger, smaller = larger[near], smaller[near]
        index = torch.full((context, context), -1)
        index[larger, smaller] = index[smaller, larger] = torch.arange(len(larger))
        self.max_length = context
        self.values = nn.Parameter(_start(std, num_heads, len(larger)))
        self.register_buffer("index", index, persistent=False)

    def forward(self, length: int) -> Float[Tensor, "heads t t"]:
        return _tied(self.values, self.index[:length, :length])


class DistanceCouplings(Interaction):
    """J_jk = w(|j − k|) for |j − k| ≤ width and 0 beyond: translation invariant, for any length.

    `width` numbers per head; what is trained at one length is used unchanged at another.
    """

    def __init__(self, num_heads: int, *, width: int, std: float = 0.0):
        super().__init__()
        self.max_length = None
        self.values = nn.Parameter(_start(std, num_heads, width))

    def forward(self, length: int) -> Float[Tensor, "heads t t"]:
        position = torch.arange(length, device=self.values.device)
        distance = (position[:, None] - position).abs()
        return _tied(self.values, torch.where(distance <= self.values.shape[-1], distance - 1, -1))


class LowRankCouplings(Interaction):
    """J = ½(UVᵀ + VUᵀ) off the diagonal, with U and V of shape (heads, T, rank): couplings of either sign.

    V starts at 0 for std = 0 and U never does, since at U = V = 0 no gradient flows.
    """

    def __init__(self, num_heads: int, context: int, *, rank: int, std: float = 0.0):
        super().__init__()
        self.max_length = context
        self.left = nn.Parameter(torch.randn(num_heads, context, rank) / rank**0.5)
        self.right = nn.Parameter(_start(std, num_heads, context, rank))

    def forward(self, length: int) -> Float[Tensor, "heads t t"]:
        product = 0.5 * self.left[:, :length] @ self.right[:, :length].mT
        diagonal = torch.eye(length, dtype=torch.bool, device=product.device)
        return (product + product.mT).masked_fill(diagonal, 0.0)


class TripleCouplings(Interaction):
    """K_jkl of its own for every three positions, or (width w) for those no more than w apart.

    T(T−1)(T−2)/6 numbers per head for w = T−1 (arXiv 2606.12478, app. C). Stored by the largest index, then the
    middle one, so a shorter context is a prefix of a longer one.
    """

    index: Int[Tensor, "context context context"]

    def __init__(self, num_heads: int, context: int, *, width: int | None = None, std: float = 0.0):
        super().__init__()
        self.max_length = context
        triples = _ordered_triples(context, context - 1 if width is None else width)
        self.values = nn.Parameter(_start(std, num_heads, triples.shape[1]))
        index = _symmetric_index(triples, torch.arange(triples.shape[1]), context)
        self.register_buffer("index", index, persistent=False)

    def forward(self, length: int) -> Float[Tensor, "heads t t t"]:
        return _tied(self.values, self.index[:length, :length, :length])


class DistanceTriples(Interaction):
    """K_jkl = w(k − j, l − k) for j < k < l and l − j ≤ width, 0 beyond: translation invariant, for any length.

    width(width−1)/2 numbers per head.
    """

    def __init__(self, num_heads: int, *, width: int, std: float = 0.0):
        super().__init__()
        self.max_length = None
        self.width = width
        self.values = nn.Parameter(_start(std, num_heads, width * (width - 1) // 2))

    def forward(self, length: int) -> Float[Tensor, "heads t t t"]:
        largest, middle, smallest = triples = _ordered_triples(length, self.width)
        span, upper = largest - smallest, largest - middle
        # Spans 2, 3, … have 1, 2, … ways to place the middle one.
        number = (span - 1) * (span - 2) // 2 + upper - 1
        return _tied(self.values, _symmetric_index(triples, number, length).to(self.values.device))


def _ordered_triples(context: int, width: int) -> Int[Tensor, "three count"]:
    """Every largest > middle > smallest of `context` positions with largest − smallest ≤ width, in that order."""
    positions = torch.arange(context)
    largest, middle, smallest = torch.meshgrid(positions, positions, positions, indexing="ij")
    chosen = (largest > middle) & (middle > smallest) & (largest - smallest <= width)
    return torch.stack([largest, middle, smallest])[:, chosen]


def _symmetric_index(
    triples: Int[Tensor, "three count"], number: Int[Tensor, "count"], context: int
) -> Int[Tensor, "context context context"]:
    """`number` at all six orders of each triple, −1 elsewhere."""
    index = torch.full((context,) * 3, -1)
    for order in itertools.permutations(triples):
        index[order] = number
    return index


def make_couplings(
    kind: str, num_heads: int, context: int, *, width: int | None = None, rank: int | None = None, std: float = 0.0
) -> Interaction | None:
    """Pair couplings by name; None for "none".

    Args:
        kind: "free", "distance", "band", "low-rank" or "none".
        width: largest |j − k| that is coupled; needed by "band", optional for "distance" (context − 1).
        rank: of "low-rank", which needs it.
        std: standard deviation of the initial values (of V for "low-rank").

    Raises:
        InvalidOptionError: an unknown kind, a missing, useless or impossible width or rank.
    """
    if kind not in COUPLINGS:
        raise InvalidOptionError(
            f"couplings={kind!r}; it must be one of {', '.join(map(repr, COUPLINGS))}{did_you_mean(kind, COUPLINGS)}"
        )
    _check_size("width", width, kind, takes=("band", "distance"), needs=("band",))
    _check_size("rank", rank, kind, takes=("low-rank",), needs=("low-rank",))
    if not 0 <= std < float("inf"):
        raise InvalidOptionError(f"coupling_std={std!r}; it must be a finite number of at least 0")
    if kind == "free":
        return FreeCouplings(num_heads, context, std=std)
    if kind == "band":
        return FreeCouplings(num_heads, context, width=width, std=std)
    if kind == "distance":
        return DistanceCouplings(num_heads, width=max(context - 1, 1) if width is None else width, std=std)
    if kind == "low-rank":
        return LowRankCouplings(num_heads, context, rank=rank or 1, std=std)
    return None


def make_triples(kind: str, num_heads: int, context: int, *, width: int | None = None, std: float = 0.0) -> Interaction:
    """Three-body K in the manner of the pair couplings `kind`: by distance, banded, or else free."""
    if kind == "distance":
        return DistanceTriples(num_heads, width=max(context - 1, 1) if width is None else width, std=std)
    return TripleCouplings(num_heads, context, width=width if kind == "band" else None, std=std)


def coupling_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Every parameter of J and K in `model`, each once: the optimiser group with a learning rate of its own."""
    return list(dict.fromkeys(_interaction_parameters(model)))


def _interaction_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, Interaction):
            yield from module.parameters()


def _start(std: float, *shape: int) -> Tensor:
    # Zeros draw nothing, so that equally seeded models with and without couplings start from the same weights.
    return std * torch.randn(shape) if std else torch.zeros(shape)


def _tied(values: Float[Tensor, "heads count"], index: Int[Tensor, "..."]) -> Float[Tensor, "heads ..."]:
    """values[:, index], with 0 where the index is −1."""
    padded = nn.functional.pad(values, (0, 1))
    picked = padded.index_select(1, (index % padded.shape[1]).flatten())
    return picked.reshape(values.shape[0], *index.shape)


def _check_size(name: str, value: int | None, kind: str, *, takes: tuple[str, ...], needs: tuple[str, ...]) -> None:
    if value is None:
        if kind in needs:
            raise InvalidOptionError(f"couplings={kind!r} needs {name}=; give an integer of at least 1")
        return
    if kind not in takes:
        raise InvalidOptionError(f"couplings={kind!r} has no {name}; only {' and '.join(map(repr, takes))} have")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOptionError(f"{name}={value!r}; it must be an integer of at least 1")
