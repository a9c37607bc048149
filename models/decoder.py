"""`Decoder`: embeddings, decoder blocks and a linear head; what the bracket matcher and the language model share."""

import abc
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ising_attn import BoltzmannAttention, IsingProblem, Sampler
from ising_attn.boltzmann import as_sampler
from models.block import DecoderBlock
from models.config import DecoderConfig, FeedForwardConfig
from models.pretrained import Pretrained
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError, did_you_mean

POSITIONS = ("learned", "sinusoidal", "none")


class Decoder(Pretrained, nn.Module, abc.ABC):
    """Token and position embeddings, `num_layers` blocks, a linear head.

    Args:
        config: sizes and slots.
        sampler: for attention that uses one; a name makes one sampler for all layers, so that their random
            draws are independent. None: "exact".

    Raises:
        InvalidOptionError: sizes or options that do not fit together.
    """

    Config: ClassVar[type[DecoderConfig]]

    def __init__(self, config: DecoderConfig, *, sampler: str | Sampler | None = None):
        super().__init__()
        _check(config)
        self.config = config
        width, context = config.embed_dim, config.context
        shared = None if sampler is None else as_sampler(sampler)
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(context, width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList()
        slot = FeedForwardConfig.of(config.feed_forward)
        for _ in range(config.num_layers):
            attention = config.attention.build(
                width, config.num_heads, config.num_positions, sampler=shared, dropout=config.dropout
            )
            feed_forward = slot.build(width)
            self.blocks.append(DecoderBlock(attention, feed_forward, width, norm=config.norm, dropout=config.dropout))
        self.final_norm = nn.LayerNorm(width) if config.norm == "pre" else nn.Identity()
        self.head = nn.Linear(width, self._num_classes(config))
        # The longest sequence; None where any length is fine.
        self.max_length = self._max_length()

    @abc.abstractmethod
    def _num_classes(self, config: DecoderConfig) -> int:
        """Number of logits at each position."""

    def _max_length(self) -> int | None:
        limits = [None if self.positions is None else self.config.context]
        limits += [getattr(block.attention, "max_length", None) for block in self.decoder_blocks()]
        return min((limit for limit in limits if limit is not None), default=None)

    def decoder_blocks(self) -> list[DecoderBlock]:
        """The blocks, in order."""
        return [block for block in self.blocks if isinstance(block, DecoderBlock)]

    def forward(
        self, tokens: Int[Tensor, "batch t"], allowed: Bool[Tensor, "..."] | None = None, *, need_weights: bool = False
    ) -> Float[Tensor, "batch positions classes"] | tuple[Float[Tensor, "batch positions classes"], list[Tensor]]:
        """Logits at every position, or those and each layer's attention weights (batch, H, T, T).

        Args:
            tokens: (batch, T) integers below the vocabulary.
            allowed: bool, broadcastable to (batch, H, T, T); None is the causal mask.

        Raises:
            InvalidProblemError: T of 0, or beyond `max_length`.
        """
        x, weights = self.embed(tokens), []
        for block in self.decoder_blocks():
            x = block(x, allowed, need_weights=need_weights)
            if need_weights:
                x, layer_weights = x
                weights.append(layer_weights)
        logits = self.head(self.final_norm(x))
        return (logits, weights) if need_weights else logits

    def embed(self, tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch t dim"]:
        """What the first block sees."""
        length, limit = tokens.shape[-1], self.max_length
        if length == 0 or (limit is not None and length > limit):
            raise InvalidProblemError(f"{length} tokens were given; this model takes 1 to {limit or 'any number'}")
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[:length]
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(length, x.shape[-1], device=x.device).to(x.dtype)
        return self.dropout(x)

    def problems(
        self, tokens: Int[Tensor, "batch t"], allowed: Bool[Tensor, "..."] | None = None
    ) -> list[IsingProblem]:
        """The Ising problem that each Boltzmann layer solves for these tokens, to try other samplers on it.

        In training mode dropout makes them random; call `eval()` first.

        Raises:
            NotSupportedError: the attention slot of a block holds no Boltzmann attention.
        """
        x, found = self.embed(tokens), []
        blocks = self.decoder_blocks()
        for block in blocks:
            if not isinstance(block.attention, BoltzmannAttention):
                raise NotSupportedError(f"{type(block.attention).__name__} is no Ising problem; use kind='boltzmann'")
            found.append(block.attention.problem(block.attention_input(x), allowed))
            if block is not blocks[-1]:
                x = block(x, allowed)
        return found


def sinusoids(length: int, width: int, *, device: torch.device | str = "cpu") -> Float[Tensor, "length width"]:
    """Sines, then cosines, of position / 10000^(2i/width) (Vaswani et al., arXiv 1706.03762, section 3.5)."""
    half = (width + 1) // 2
    rate = 10000.0 ** (-2 * torch.arange(half, device=device) / width)
    angle = torch.arange(length, device=device)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :width]


def _check(config: DecoderConfig) -> None:
    for name in ("vocabulary", "context", "embed_dim", "num_heads", "num_layers"):
        _check_integer(name, getattr(config, name), 1)
    if not isinstance(config.feed_forward, FeedForwardConfig):
        _check_integer("feed_forward", config.feed_forward, 0)
    if config.positions not in POSITIONS:
        raise InvalidOptionError(
            f"positions={config.positions!r}; it must be one of {', '.join(map(repr, POSITIONS))}"
            f"{did_you_mean(str(config.positions), POSITIONS)}"
        )


def _check_integer(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidOptionError(f"{name}={value!r}; it must be an integer of at least {least}")
