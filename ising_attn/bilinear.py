"""Feed-forward layers as attention over learned key-value memories: MLPs, bilinear forms of any rank, gated MLPs.

One family (Breslow, "Gated MLPs as Symmetry-Broken Rank-1 Bilinear Attention", arXiv 2606.22172). Unit j of m holds a
value v_j and scores the input x with a bilinear form; the layers differ in the form's rank r and in where σ stands:

    MLP                      Σ_j σ(x·k_j) v_j                          a static query: the form is linear in x
    full bilinear            Σ_j σ(xᵀ Q_j K_jᵀ x) v_j                  `FullBilinear`
    rank r, symmetric        Σ_j σ(Σ_r (x·q_jr)(x·k_jr)) v_j           `LowRankBilinear(place="outside")`
    rank r, gated            Σ_j (Σ_r σ(x·q_jr)(x·k_jr)) v_j           `LowRankBilinear(place="factor")`

At r = 1 the gated form is the gated MLP of Shazeer (arXiv 2002.05202): GLU, Bilinear, ReGLU, GEGLU, SwiGLU for σ the
sigmoid, identity, ReLU, GELU, SiLU. The forms of rank above 1 are ours: the paper leaves them open. The gated form of
rank r is a gated MLP of r·m units whose values are tied in groups of r; the symmetric one is no such thing.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from samplers.errors import InvalidOptionError, did_you_mean

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
PLACES = ("outside", "factor")


class MLP(nn.Sequential):
    """Linear, σ, Linear: Σ_j σ(x·k_j + b_j) v_j + c, (*batch, D) → (*batch, D).

    Args:
        embed_dim: D.
        hidden_dim: m, the number of units.
        activation: σ, a name of `ACTIVATIONS`; GELU is the feed-forward slot of arXiv 2606.12478.
        bias: whether b and c exist.

    Raises:
        InvalidOptionError: a size below 1, an unknown activation.
    """

    def __init__(self, embed_dim: int, hidden_dim: int, *, activation: str = "gelu", bias: bool = True):
        _check_sizes(embed_dim, hidden_dim)
        super().__init__(
            nn.Linear(embed_dim, hidden_dim, bias=bias),
            make_activation(activation),
            nn.Linear(hidden_dim, embed_dim, bias=bias),
        )


class LowRankBilinear(nn.Module):
    """Rank-r bilinear units with σ outside the product (symmetric) or on one factor (gated); (*batch, D) → (*batch, D).

    outside: Σ_j σ(Σ_r q_jr(x) k_jr(x)) v_j + c;  factor: Σ_j (Σ_r σ(q_jr(x)) k_jr(x)) v_j + c, where
    q_jr(x) = x·q_jr + b_jr, and k_jr(x) likewise. Costs 2·r·m·D multiplications for the scores and m·D for the values.

    Symmetries: exchanging q_j and k_j, and scaling (q_jr, k_jr) by (a, 1/a), leave the symmetric form as it is. The
    gated form keeps the exchange only for a linear σ, and the scaling only for σ(az) = aσ(z): at all a for a linear σ,
    at a > 0 for ReLU. See `ising_attn.symmetry`.

    Weights start as those of `nn.Linear`, queries and keys times r^(−1/4), so that the sum over r has the spread that
    it has at r = 1. Both places start from the same weights.

    Args:
        embed_dim: D.
        hidden_dim: m, the number of units.
        rank: r, from 1 to D; at D the forms are those of `FullBilinear`.
        place: where σ stands.
        activation: σ, a name of `ACTIVATIONS`.
        bias: whether the b and c exist.

    Raises:
        InvalidOptionError: a size below 1, a rank below 1 or above D, an unknown place or activation.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        rank: int = 1,
        place: str = "outside",
        activation: str = "gelu",
        bias: bool = True,
    ):
        super().__init__()
        _check_sizes(embed_dim, hidden_dim)
        _check_rank(rank, embed_dim)
        if place not in PLACES:
            raise InvalidOptionError(
                f"place={place!r}; it must be one of {', '.join(map(repr, PLACES))}{did_you_mean(str(place), PLACES)}"
            )
        self.embed_dim, self.hidden_dim, self.rank, self.place = embed_dim, hidden_dim, rank, place
        self.query = nn.Linear(embed_dim, hidden_dim * rank, bias=bias)
        self.key = nn.Linear(embed_dim, hidden_dim * rank, bias=bias)
        self.activation = make_activation(activation)
        self.value = nn.Linear(hidden_dim, embed_dim, bias=bias)
        with torch.no_grad():
            for parameter in (*self.query.parameters(), *self.key.parameters()):
                parameter.mul_(rank**-0.25)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        query, key = self.query(x), self.key(x)
        if self.place == "outside":
            return self.value(self.activation(self._summed(query * key)))
        return self.value(self._summed(self.activation(query) * key))

    def _summed(self, products: Float[Tensor, "*batch units_by_rank"]) -> Float[Tensor, "*batch units"]:
        # Factor r of unit j is row j·rank + r.
        return products if self.rank == 1 else products.unflatten(-1, (self.hidden_dim, self.rank)).sum(-1)

    def extra_repr(self) -> str:
        return f"rank={self.rank}, place={self.place!r}"


class FullBilinear(nn.Module):
    """Σ_j σ(xᵀ M_j x + a_j·x + b_j) v_j + c with a free matrix M_j = Q_j K_jᵀ for each unit; (*batch, D) → (*batch, D).

    D² + D numbers for each unit: for small D, and as the limit of `LowRankBilinear` at r = D. The linear part a_j is
    what biases of queries and keys add to the form. M starts with the spread of one product of linear maps.

    Args: as `LowRankBilinear`, without rank and place.
    """

    def __init__(self, embed_dim: int, hidden_dim: int, *, activation: str = "gelu", bias: bool = True):
        super().__init__()
        _check_sizes(embed_dim, hidden_dim)
        self.embed_dim, self.hidden_dim = embed_dim, hidden_dim
        bound = (3**0.5) / (3 * embed_dim)  # Var(M_jab) = Var(q)Var(k) = 1/(3D)²
        self.forms = nn.Parameter(torch.empty(hidden_dim, embed_dim, embed_dim).uniform_(-bound, bound))
        self.linear = nn.Linear(embed_dim, hidden_dim) if bias else None
        self.activation = make_activation(activation)
        self.value = nn.Linear(hidden_dim, embed_dim, bias=bias)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        turned = nn.functional.linear(x, self.forms.flatten(0, 1)).unflatten(-1, (self.hidden_dim, self.embed_dim))
        scores = (turned * x.unsqueeze(-2)).sum(-1)
        if self.linear is not None:
            scores = scores + self.linear(x)
        return self.value(self.activation(scores))

    @torch.no_grad()
    def factored(self, rank: int) -> LowRankBilinear:
        """The symmetric layer of this rank whose forms are nearest to these in Frobenius norm, biases included.

        A product of two linear functions of x is a form with one positive and one negative eigenvalue, so r of them
        give any form with at most r of each sign: the result is this function at rank D, or at D/2 where the signs
        are balanced. (With biases a form has D + 1 eigenvalues, and one that has them all of one sign is not reached.)

        Raises:
            InvalidOptionError: a rank below 1 or above D.
        """
        units, bias = self.hidden_dim, self.linear is not None
        layer = LowRankBilinear(self.embed_dim, units, rank=rank, bias=bias).to(self.forms)
        layer.activation = self.activation
        layer.value.load_state_dict(self.value.state_dict())
        values, vectors = torch.linalg.eigh(self._homogeneous().double())
        # Ascending: the most negative eigenvalues come first, the most positive last.
        negative = vectors[..., :rank] * (-values[:, None, :rank]).clamp_min(0).sqrt()
        positive = vectors.flip(-1)[..., :rank] * values.flip(-1)[:, None, :rank].clamp_min(0).sqrt()
        for part, factors in ((layer.query, positive + negative), (layer.key, positive - negative)):
            rows = factors.transpose(1, 2).flatten(0, 1).to(self.forms.dtype)
            part.weight.copy_(rows[:, : self.embed_dim])
            if bias:
                part.bias.copy_(rows[:, -1])
        return layer

    def _homogeneous(self) -> Float[Tensor, "units extended extended"]:
        """Symmetric matrices of the scores as forms in (x, 1), or in x without biases."""
        forms = (self.forms + self.forms.mT) / 2
        if self.linear is None:
            return forms
        border = self.linear.weight[:, None] / 2
        corner = torch.cat([border, self.linear.bias[:, None, None]], -1)
        return torch.cat([torch.cat([forms, border.mT], -1), corner], -2)

    @classmethod
    @torch.no_grad()
    def of(cls, layer: LowRankBilinear) -> "FullBilinear":
        """The full form of a symmetric layer: the same function, M_j = Σ_r q_jr k_jrᵀ.

        Raises:
            InvalidOptionError: a gated layer, which is no form inside σ.
        """
        if layer.place != "outside":
            raise InvalidOptionError(f"place={layer.place!r} has σ on a factor; only place='outside' is σ of a form")
        full = cls(layer.embed_dim, layer.hidden_dim, bias=layer.value.bias is not None).to(layer.key.weight)
        full.activation = layer.activation
        q, k = (part.weight.unflatten(0, (layer.hidden_dim, layer.rank)) for part in (layer.query, layer.key))
        full.forms.copy_(torch.einsum("jra,jrb->jab", q, k))
        full.value.load_state_dict(layer.value.state_dict())
        if full.linear is not None:
            b, c = (part.bias.view(layer.hidden_dim, layer.rank, 1) for part in (layer.query, layer.key))
            full.linear.weight.copy_((c * q + b * k).sum(1))
            full.linear.bias.copy_((b * c).sum((1, 2)))
        return full


def make_activation(name: str) -> nn.Module:
    """σ by its name in `ACTIVATIONS`.

    Raises:
        InvalidOptionError: a name that is not there.
    """
    if name not in ACTIVATIONS:
        raise InvalidOptionError(
            f"no activation is named {name!r}{did_you_mean(str(name), ACTIVATIONS)}; known: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]()


def _check_sizes(embed_dim: int, hidden_dim: int) -> None:
    for name, value in (("embed_dim", embed_dim), ("hidden_dim", hidden_dim)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidOptionError(f"{name}={value!r}; it must be an integer of at least 1")


def _check_rank(rank: int, embed_dim: int) -> None:
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= embed_dim:
        raise InvalidOptionError(
            f"rank={rank!r}; a bilinear form of {embed_dim} numbers has a rank from 1 to embed_dim={embed_dim}"
        )
