"""`HBA`: hierarchical Boolean attention, a decoder of scalar routers with a head of unit spectral norm."""

import dataclasses
from typing import Any, ClassVar

from torch import nn

from models.char_lm import CharLM, CharLMConfig
from models.config import AttentionConfig, FeedForwardConfig
from samplers import Sampler


@dataclasses.dataclass(frozen=True, kw_only=True)
class HBAConfig(CharLMConfig):
    """Defaults are those of HBA v1 in karumaru-kakikukekodoumei/boolean-attention, src/hba_charlm.py: 92,365 numbers.

    Despite its name it has no logic gates; what is Boolean, after hardening, is which key a query uses.
    """

    model: ClassVar[str] = "hba"
    context: int = 16
    embed_dim: int = 64
    num_heads: int = 4
    num_layers: int = 2
    feed_forward: FeedForwardConfig | int = 256
    positions: str = "sinusoidal"
    dropout: float = 0.0
    attention: AttentionConfig = AttentionConfig(kind="scalar-router")

    @classmethod
    def v1(cls, **options: Any) -> "HBAConfig":
        """Width 64, 2 layers, 4 heads."""
        return cls(**options)

    @classmethod
    def v2(cls, **options: Any) -> "HBAConfig":
        """Width 96, 3 layers, 8 heads: 296,269 numbers."""
        return cls(**{"embed_dim": 96, "num_layers": 3, "num_heads": 8, "feed_forward": 384, **options})


class HBA(CharLM):
    """A character language model whose attention is routed; any kind of attention fits into its slot.

    Args:
        config: sizes and slots.
        sampler: for a router that uses one.
    """

    Config: ClassVar[type[CharLMConfig]] = HBAConfig

    def __init__(self, config: CharLMConfig, *, sampler: str | Sampler | None = None):
        super().__init__(config, sampler=sampler)
        nn.utils.parametrizations.spectral_norm(self.head)
