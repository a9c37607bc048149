"""`CharLM`: a causal character language model."""

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from models.config import DecoderConfig, FeedForwardConfig, require_characters
from models.decoder import Decoder
from models.generation import drawn, generating


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharLMConfig(DecoderConfig):
    """Defaults are those of the paper (arXiv 2606.12478, section 4.1) at T = 12, with its 61 characters.

    Args:
        characters: the character of every token in order, so that a checkpoint can be read without its text; None
            where the caller keeps them.

    Raises:
        InvalidOptionError: not as many different characters as `vocabulary`, or half of a surrogate pair among them.
    """

    model: ClassVar[str] = "char-lm"
    vocabulary: int = 61
    context: int = 12
    embed_dim: int = 64
    feed_forward: FeedForwardConfig | int = 128
    dropout: float = 0.1
    characters: str | None = None

    def __post_init__(self) -> None:
        require_characters(self.characters, self.vocabulary)


class CharLM(Decoder):
    """Logits (batch, T, vocabulary) of the next character at every position."""

    Config: ClassVar[type[DecoderConfig]] = CharLMConfig

    def _num_classes(self, config: DecoderConfig) -> int:
        return config.vocabulary

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "batch t"],
        length: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch longer"]:
        """Append `length` characters drawn one by one, each from the last `context` characters.

        Args:
            tokens: (batch, T) prompts, T of at least 1.
            temperature: divides the logits; 0 takes the likeliest character.
            generator: the source of randomness; None is torch's global one.
        """
        with generating(self, temperature):
            for _ in range(length):
                logits = self(tokens[:, -self.config.context :])[:, -1:].float()
                tokens = torch.cat([tokens, drawn(logits, temperature, generator).to(tokens.dtype)], -1)
        return tokens
