"""`BracketMatcher`: points from every closing bracket to the position of its opening bracket."""

import dataclasses
from typing import ClassVar

from models.config import DecoderConfig, FeedForwardConfig
from models.decoder import Decoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class BracketMatcherConfig(DecoderConfig):
    """Defaults are those of the paper (arXiv 2606.12478, sections 4.1 and 4.3) at context 8."""

    model: ClassVar[str] = "bracket-matcher"
    vocabulary: int = 12
    context: int = 8
    embed_dim: int = 32
    feed_forward: FeedForwardConfig | int = 64


class BracketMatcher(Decoder):
    """Logits (batch, T, context): at each position, a linear classifier over all positions of the window.

    Only the logits at closing brackets mean anything. The head may name a position that lies ahead; nothing is
    masked, so that it learns, as the paper's T-way classification does, that a match always lies behind.
    `feed_forward=0` is the paper's appendix B: attention is the only computation.
    """

    Config: ClassVar[type[DecoderConfig]] = BracketMatcherConfig

    def _num_classes(self, config: DecoderConfig) -> int:
        return config.context

    def _max_length(self) -> int | None:
        # There are no logits for positions beyond.
        return self.config.context
