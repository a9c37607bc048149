"""The flags that describe a decoder with an attention slot, shared by the experiments that train one."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model."""

    attention: Literal["boltzmann", "softmax", "sigmoid", "router", "article-router", "scalar-router"] = "boltzmann"
    """Kind of attention; only boltzmann and router use the sampler. Routers are Boolean: see --routing."""
    routing: Literal["soft", "straight-through", "hard"] | None = None
    """How a router runs: from probabilities (soft, by default), by decisions (hard), or hard with a soft gradient."""
    router_temperature: float | None = None
    """Temperature of a router's probabilities, 1 by default; see --final-temperature."""
    mode: Literal["h+J", "h", "J", "K", "h+K", "J+K", "h+J+K"] = "h+J"
    """Terms of the Boltzmann energy: fields h, couplings J, three-body K."""
    couplings: Literal["free", "distance", "band", "low-rank"] = "free"
    """J per pair of positions, by distance alone, per pair of near positions, or of low rank."""
    coupling_width: int | None = None
    """Largest distance of coupled positions, for --couplings=band and distance."""
    coupling_rank: int | None = None
    """Rank of --couplings=low-rank."""
    coupling_std: float | None = None
    """Spread of the initial J and K; by default 0 with fields and 0.1 without."""
    learn_beta: bool = False
    """Learn the inverse temperature of each head."""
    score_bias: Literal["none", "scalar", "distance", "position", "offset"] = "none"
    """Learnable bias of the fields; offset is by distance, and starts with one head for each of the nearest keys."""
    score_bias_init: float | None = None
    """Its initial value; below 0 every key starts with a small weight, which steadies long contexts."""
    embed_dim: int = 64
    """Width of the model."""
    heads: int = 1
    """Attention heads, each with its own J."""
    layers: int = 1
    """Decoder blocks."""
    norm: Literal["pre", "post", "none"] = "pre"
    """Layer norm before each slot, after it, or none."""
    ffn: Literal[
        "mlp", "symmetric", "gated", "full-bilinear", "glu", "bilinear", "reglu", "geglu", "swiglu", "logic", "none"
    ] = "mlp"
    """Feed-forward slot after attention; none (also --no-ffn) leaves attention as the only computation."""
    ffn_dim: int = 128
    """Hidden width of the feed-forward slot; gates per layer of --ffn=logic."""
    ffn_rank: int | None = None
    """Rank of --ffn=symmetric and gated, 1 by default."""
    ffn_activation: Literal["identity", "relu", "gelu", "silu", "sigmoid", "tanh"] | None = None
    """Non-linearity of --ffn=mlp, symmetric, gated and full-bilinear, gelu by default."""
    ffn_depth: int | None = None
    """Layers of gates of --ffn=logic, 2 by default."""
    ffn_bits: int | None = None
    """Threshold codes per feature that --ffn=logic reads, 2 by default."""
    ffn_parametrisation: Literal["light", "raw", "walsh"] | None = None
    """Of the gates of --ffn=logic: 4 truth-table weights (light, by default), 16 logits (raw), Walsh coefficients."""
    ffn_mode: Literal["soft", "hard", "gumbel-soft", "gumbel-hard"] | None = None
    """How the gates of --ffn=logic are relaxed in training, soft by default."""
    dropout: float = 0.0
    """Dropout on embeddings, attention weights and residual paths, in training."""

    @property
    def uses_sampler(self) -> bool:
        return self.attention in ("boltzmann", "router")

    @property
    def is_router(self) -> bool:
        return self.attention.endswith("router")

    def attention_options(self) -> dict[str, Any]:
        """Keywords of `models.AttentionConfig`."""
        options: dict[str, Any] = {
            "kind": self.attention,
            "bias": self.score_bias,
            "bias_init": self.score_bias_init,
            "routing": self.routing,
            "temperature": self.router_temperature,
        }
        if self.uses_sampler:
            options |= {
                "mode": self.mode,
                "couplings": self.couplings,
                "width": self.coupling_width,
                "rank": self.coupling_rank,
                "coupling_std": self.coupling_std,
                "learn_beta": self.learn_beta or None,
            }
        return options

    def decoder_options(self) -> dict[str, Any]:
        """Keywords of `models.DecoderConfig`, but for the vocabulary, the context and the two slots."""
        return {
            "embed_dim": self.embed_dim,
            "num_heads": self.heads,
            "num_layers": self.layers,
            "norm": self.norm,
            "dropout": self.dropout,
        }

    def feed_forward_options(self) -> dict[str, Any]:
        """Keywords of `models.FeedForwardConfig`."""
        return {
            "kind": self.ffn,
            "hidden_dim": self.ffn_dim,
            "rank": self.ffn_rank,
            "activation": self.ffn_activation,
            "depth": self.ffn_depth,
            "bits": self.ffn_bits,
            "parametrisation": self.ffn_parametrisation,
            "mode": self.ffn_mode,
        }

    def spoken(self, sampler: str) -> str:
        """The attention and the feed-forward slot in a few words."""
        routed = f"{self.routing or 'soft'} " if self.is_router else ""
        named = {"boltzmann": "Boltzmann attention", "router": "router"}.get(self.attention, self.attention)
        if self.uses_sampler:
            how = f"{routed}{named} {self.mode} through {sampler}"
        else:
            how = f"{routed}{named}{'' if self.is_router else ' attention'}"
        return f"{how}, {self._spoken_ffn()}"

    def _spoken_ffn(self) -> str:
        details = [f"rank {self.ffn_rank}"] if self.ffn_rank is not None else []
        details += [f"{self.ffn_depth} deep"] if self.ffn_depth is not None else []
        words = (self.ffn_activation, self.ffn_parametrisation, self.ffn_mode)
        details += [word for word in words if word is not None]
        named = {"none": "no FFN", "mlp": "FFN"}.get(self.ffn, f"{self.ffn} FFN")
        return named + (f" ({', '.join(details)})" if details else "")
