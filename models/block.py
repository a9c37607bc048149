"""`DecoderBlock`: an attention slot and a feed-forward slot, each with a residual path and an optional norm."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from samplers.errors import InvalidOptionError, did_you_mean

NORMS = ("pre", "post", "none")


class DecoderBlock(nn.Module):
    """x ← x + attention(x); x ← x + feed_forward(x), with LayerNorm before ("pre") or after the sum ("post").

    Args:
        attention: called as attention(x, allowed, need_weights=…), see `ising_attn.attention.Attention`.
        feed_forward: (batch, T, D) → (batch, T, D), see `ising_attn.make_feed_forward`, or None: attention is the only
            computation.
        embed_dim: D.
        norm: "pre", "post" or "none".
        dropout: on what each slot adds, in training.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module | None,
        embed_dim: int,
        *,
        norm: str = "pre",
        dropout: float = 0.0,
    ):
        super().__init__()
        if norm not in NORMS:
            raise InvalidOptionError(
                f"norm={norm!r}; it must be one of {', '.join(map(repr, NORMS))}{did_you_mean(norm, NORMS)}"
            )
        self.norm = norm
        self.attention = attention
        self.attention_norm = _norm(norm, embed_dim)
        self.feed_forward = feed_forward
        self.feed_forward_norm = _norm("none" if feed_forward is None else norm, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def attention_input(self, x: Float[Tensor, "batch t dim"]) -> Float[Tensor, "batch t dim"]:
        """What the attention slot sees for a block input x."""
        return self.attention_norm(x) if self.norm == "pre" else x

    def forward(
        self,
        x: Float[Tensor, "batch t dim"],
        allowed: Bool[Tensor, "..."] | None = None,
        *,
        need_weights: bool = False,
    ) -> Float[Tensor, "batch t dim"] | tuple[Float[Tensor, "batch t dim"], Float[Tensor, "batch heads t t"]]:
        """The block's output, or that and the attention weights."""
        weights = None
        attended = self.attention(self.attention_input(x), allowed, need_weights=need_weights)
        if need_weights:
            attended, weights = attended
        x = self._after(x + self.dropout(attended), self.attention_norm)
        if self.feed_forward is not None:
            inner = self.feed_forward_norm(x) if self.norm == "pre" else x
            x = self._after(x + self.dropout(self.feed_forward(inner)), self.feed_forward_norm)
        return x if weights is None else (x, weights)

    def _after(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.norm == "post" else x


def _norm(kind: str, embed_dim: int) -> nn.Module:
    return nn.Identity() if kind == "none" else nn.LayerNorm(embed_dim)
