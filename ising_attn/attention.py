"""`Attention`: what every attention layer shares: projections, scores, masks, normalisation, mixing of values."""

import abc

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear

from ising_attn.bias import make_bias
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError


class Attention(nn.Module, abc.ABC):
    """Multi-head self-attention whose weights a subclass computes: out_i = W_o Σ_j w_ij v_j, Σ_j w_ij = 1.

    Scores and weights are computed in float32 (float64 for float64 input), also inside autocast and for
    half-precision modules; projections and the mixing of values follow the module's dtype and autocast.

    Args:
        embed_dim: width D of the input and the output; a multiple of num_heads.
        num_heads: H.
        context: the longest sequence; a limit only where a parameter is tied to a position.
        bias: learnable bias of the scores: "none", "scalar", "distance", "position" or "offset" (see `ScoreBias`).
        bias_init: its initial value.
        dropout: probability with which a weight is dropped in training, as in torch's own attention.
        projection_bias: whether the linear maps have a bias.
        scores: False: no queries and keys; the fields are the bias alone, or 0.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        context: int,
        *,
        bias: str = "none",
        bias_init: float = 0.0,
        dropout: float = 0.0,
        projection_bias: bool = True,
        scores: bool = True,
    ):
        super().__init__()
        _check_sizes(embed_dim, num_heads, context, dropout)
        self.embed_dim, self.num_heads, self.context = embed_dim, num_heads, context
        self.query_key = nn.Linear(embed_dim, 2 * embed_dim, bias=projection_bias) if scores else None
        self.value = nn.Linear(embed_dim, embed_dim, bias=projection_bias)
        self.out = nn.Linear(embed_dim, embed_dim, bias=projection_bias)
        self.bias = make_bias(bias, num_heads, context, initial=bias_init)
        self.dropout = nn.Dropout(dropout)
        # The longest sequence this layer can take; None where every length is fine.
        self.max_length: int | None = None if self.bias is None else self.bias.max_length

    def forward(
        self,
        x: Float[Tensor, "batch t dim"],
        allowed: Bool[Tensor, "..."] | None = None,
        *,
        need_weights: bool = False,
    ) -> Float[Tensor, "batch t dim"] | tuple[Float[Tensor, "batch t dim"], Float[Tensor, "batch heads t t"]]:
        """Attend.

        Args:
            x: (batch, T, D).
            allowed: bool, broadcastable to (batch, H, T, T); True where query i may use key j.
                None is the causal mask j ≤ i. A query without any allowed key mixes to 0 (before W_o).
            need_weights: also return the normalised weights (batch, H, T, T), those before dropout.

        Raises:
            InvalidProblemError: a wrong shape or mask, a sequence longer than a parameter reaches.
        """
        weights = self.weights(x, allowed)
        out = self.mix(weights, x)
        return (out, weights) if need_weights else out

    def weights(
        self, x: Float[Tensor, "batch t dim"], allowed: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch heads t t"]:
        """The normalised weights alone."""
        allowed = self._checked(x, allowed)
        return self._weights(self.fields(x), allowed)

    def weights_between(
        self,
        x: Float[Tensor, "batch queries dim"],
        keys: Float[Tensor, "batch keys dim"],
        allowed: Bool[Tensor, "..."],
        shift: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The normalised weights of queries from `x` over keys from another sequence.

        Args:
            allowed: broadcastable to (batch, H, queries, keys).
            shift: added to the scores; broadcastable alike.

        Raises:
            InvalidProblemError: more keys than a parameter reaches.
            NotSupportedError: a bias by distance between sequences of different lengths.
        """
        self._check_length(keys.shape[1])
        fields = self.fields(x) if keys is x else self.fields(x, keys)
        return self._weights(fields if shift is None else fields + shift.to(fields.dtype), allowed)

    def mix(
        self, weights: Float[Tensor, "batch heads queries keys"], x: Float[Tensor, "batch keys dim"]
    ) -> Float[Tensor, "batch queries dim"]:
        """W_o Σ_j w_ij v_j with values from `x`; in training after dropout of weights."""
        values = self._heads(self.value(x))
        mixed = self.dropout(weights).to(values.dtype) @ values
        return self.out(mixed.transpose(1, 2).flatten(2))

    @abc.abstractmethod
    def _weights(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Normalised weights from the scores; 0 where not allowed."""

    def fields(
        self, x: Float[Tensor, "batch queries dim"], keys: Float[Tensor, "batch keys dim"] | None = None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """h_ij = q_i·k_j / √d_k + bias, or the bias alone, in float32 or better; the keys are those of x by default."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.query_key is None:
            sizes = (x.shape[1], (x if keys is None else keys).shape[1])
            return self._biased(x.new_zeros(x.shape[0], self.num_heads, *sizes, dtype=wide))
        query, key = self._queries_and_keys(x, keys)
        with torch.autocast(x.device.type, enabled=False):
            scores = query.to(wide) @ key.to(wide).mT * query.shape[-1] ** -0.5
        return self._biased(scores)

    def _queries_and_keys(
        self, x: Float[Tensor, "batch queries dim"], keys: Float[Tensor, "batch keys dim"] | None
    ) -> tuple[Float[Tensor, "batch heads queries dim_head"], Float[Tensor, "batch heads keys dim_head"]]:
        assert self.query_key is not None
        if keys is None:
            query, key = self.query_key(x).chunk(2, -1)
        else:
            weights = self.query_key.weight.chunk(2)
            biases = (None, None) if self.query_key.bias is None else self.query_key.bias.chunk(2)
            query, key = (linear(*each) for each in zip((x, keys), weights, biases, strict=True))
        return self._heads(query), self._heads(key)

    def _biased(self, scores: Float[Tensor, "batch heads queries keys"]) -> Float[Tensor, "batch heads queries keys"]:
        if self.bias is None:
            return scores
        queries, keys = scores.shape[-2:]
        if queries != keys and self.bias.kind in ("distance", "offset"):
            raise NotSupportedError(
                f"a bias by {self.bias.kind} has no meaning between {queries} queries and {keys} keys of another "
                "sequence; use 'none', 'scalar' or 'position'"
            )
        return scores + self.bias(keys).to(scores.dtype)

    def _heads(self, projected: Float[Tensor, "batch t dim"]) -> Float[Tensor, "batch heads t dim_head"]:
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _checked(self, x: Tensor, allowed: Tensor | None) -> Tensor:
        if x.ndim != 3 or x.shape[-1] != self.embed_dim or x.shape[1] == 0:
            raise InvalidProblemError(
                f"x has shape {tuple(x.shape)}; attention takes (batch, T, {self.embed_dim}) with T of at least 1"
            )
        batch, length, _ = x.shape
        self._check_length(length)
        if allowed is None:
            return torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        target = (batch, self.num_heads, length, length)
        if allowed.dtype != torch.bool or not _broadcasts(allowed.shape, target):
            raise InvalidProblemError(
                f"allowed is {allowed.dtype} of shape {tuple(allowed.shape)}; it must be bool, True where a key may be "
                f"used, and broadcast to (batch, heads, T, T) = {target}"
            )
        return allowed.expand(*allowed.shape[:-2], length, length)

    def _check_length(self, length: int) -> None:
        limit = self.max_length
        if limit is not None and length > limit:
            raise InvalidProblemError(
                f"{length} positions were given; this layer was made for context={limit}; make it with a larger "
                "context, or with couplings='distance' and bias 'none', 'scalar' or 'distance' for any length"
            )

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, context={self.context}"


def softmax_over_allowed(
    scores: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
) -> Float[Tensor, "batch heads queries keys"]:
    """exp(score) over its sum on the allowed keys; a row without any gives zeros, in value and gradient."""
    lowest = torch.finfo(scores.dtype).min
    return torch.where(allowed, torch.where(allowed, scores, lowest).softmax(-1), 0.0)


def normalised_over_allowed(
    weights: Float[Tensor, "*batch t"], allowed: Bool[Tensor, "..."]
) -> Float[Tensor, "*batch t"]:
    """w_j / Σ_k w_k on the allowed keys; a row without any gives zeros, in value and gradient.

    The weights come from magnetizations, α = (1 + m)/2, and near m = −1 that difference carries an absolute
    error of about ε = finfo(dtype).eps. So ε is added to each weight: a row whose weights are all far above ε is
    changed by a relative n ε / Σα, and a row that has vanished fades to the mean of its keys instead of
    dividing noise by noise.
    """
    floored = torch.where(allowed, weights.clamp_min(0.0) + torch.finfo(weights.dtype).eps, 0.0)
    total = floored.sum(-1, keepdim=True)
    return floored / torch.where(total > 0, total, 1.0)


def _broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def _check_sizes(embed_dim: int, num_heads: int, context: int, dropout: float) -> None:
    for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads), ("context", context)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidOptionError(f"{name}={value!r}; it must be an integer of at least 1")
    if embed_dim % num_heads:
        raise InvalidOptionError(f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}; heads split it")
    if not 0 <= dropout < 1:
        raise InvalidOptionError(f"dropout={dropout!r}; it must be at least 0 and below 1")
