"""`TaskLM`: a character model over any training task with a mask: block two-stream, butterfly, block-causal, causal.

The task (Li & Guo, arXiv 2606.09951) says what every position holds, sees and is asked for. One forward pass gives the
logits of all that is asked for, and nothing that a prediction can see, at any depth, holds its target.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ising_attn import IsingProblem, Sampler, masks
from models.config import DecoderConfig, FeedForwardConfig
from models.decoder import Decoder, sinusoids
from models.generation import drawn, generating
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError, did_you_mean

TASKS = ("causal", "block-causal", "block-two-stream", "butterfly")
_BLOCKWISE = ("block-causal", "block-two-stream")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskLMConfig(DecoderConfig):
    """A language model whose positions, mask and targets are those of a task over `context` characters.

    Args:
        context: characters of a window, n. All tasks are about the same n characters.
        task: "causal" (each from those before it), "block-causal" (a block from the positions of the block before),
            "block-two-stream" (a block from masks at its places) or "butterfly" (each from all the others).
        block: characters of a block, which divides `context`; for the tasks of blocks.
        content: of "block-two-stream": see `masks.block_two_stream`.
        characters: the character of every token in order; None where the caller keeps them.
    """

    model: ClassVar[str] = "task-lm"
    vocabulary: int = 65
    context: int = 12
    embed_dim: int = 64
    feed_forward: FeedForwardConfig | int = 128
    task: str = "causal"
    block: int = 4
    content: str = "token"
    characters: str | None = None

    @property
    def predicted_at_once(self) -> int:
        """Characters of one step of generation."""
        return self.block if self.task in _BLOCKWISE else 1

    @property
    def num_positions(self) -> int:
        return make_task(self).size


def make_task(config: TaskLMConfig) -> masks.Task:
    """The task of a configuration, checked for leaks and without positions that no prediction depends on.

    Raises:
        InvalidOptionError: no such task, or fewer than 2 characters.
        InvalidMaskError: a block that does not divide the context.
    """
    n, block = config.context, config.block
    if config.task not in TASKS:
        raise InvalidOptionError(
            f"task={config.task!r}; it must be one of {', '.join(map(repr, TASKS))}{did_you_mean(config.task, TASKS)}"
        )
    if not isinstance(n, int) or n < 2:
        raise InvalidOptionError(f"context={n!r}; a task needs at least 2 characters")
    if config.task in _BLOCKWISE and block == n:
        raise InvalidOptionError(
            f"block={block} is the whole context={n}: no block comes before it; give a smaller one"
        )
    made = {
        "causal": lambda: masks.causal(n - 1),
        "block-causal": lambda: masks.block_causal(n - block, block),
        "block-two-stream": lambda: masks.block_two_stream(n, block, content=config.content).trimmed(),
        "butterfly": lambda: masks.butterfly(n),
    }
    return made[config.task]().check()


class TaskLM(Decoder):
    """Logits (batch, targets, vocabulary) of the characters `label_tokens` of a window of `context` characters.

    A position holds the mean of the embeddings of its characters (a learned vector where it is a mask), its place in
    the window and its stream: content, masks or backward chain, predictions. Free couplings J belong to pairs of the
    task's positions; couplings and biases by distance count positions in the task's order, not places in the text.

    Args:
        config: sizes, slots and the task.
        sampler: see `Decoder`.

    Raises:
        InvalidOptionError, InvalidMaskError: no such task, a block that does not divide the context.
    """

    Config: ClassVar[type[DecoderConfig]] = TaskLMConfig
    config: TaskLMConfig
    allowed: Bool[Tensor, "positions positions"]
    inputs: Float[Tensor, "positions context"]
    places: Int[Tensor, " positions"]
    streams: Int[Tensor, " positions"]
    answers: Int[Tensor, " targets"]
    label_tokens: Int[Tensor, " targets"]

    def __init__(self, config: TaskLMConfig, *, sampler: str | Sampler | None = None):
        super().__init__(config, sampler=sampler)
        self.task = make_task(config)
        labels = self.task.label_numbers()
        answers = (labels >= 0).nonzero().flatten()
        self.stream = nn.Embedding(_STREAMS, config.embed_dim)
        self.mask_token = nn.Parameter(torch.randn(config.embed_dim))
        buffers = {
            "allowed": self.task.allowed,
            "inputs": self.task.input_weights(config.context),
            "places": torch.tensor(_places(self.task)),
            "streams": torch.tensor(_streams(config, self.task)),
            "answers": answers,
            "label_tokens": labels[answers],
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def _num_classes(self, config: DecoderConfig) -> int:
        return config.vocabulary

    def _max_length(self) -> int | None:
        return self.config.context

    def forward(
        self, tokens: Int[Tensor, "batch t"], allowed: Bool[Tensor, "..."] | None = None, *, need_weights: bool = False
    ) -> Float[Tensor, "batch targets classes"] | tuple[Float[Tensor, "batch targets classes"], list[Tensor]]:
        """Logits of every target, or those and each layer's attention weights (batch, H, positions, positions).

        Args:
            tokens: (batch, context).
            allowed: a narrower mask than the task's, over its positions; None is the task's.
        """
        found = super().forward(tokens, self.allowed if allowed is None else allowed, need_weights=need_weights)
        if isinstance(found, tuple):
            return found[0][:, self.answers], found[1]
        return found[:, self.answers]

    def problems(
        self, tokens: Int[Tensor, "batch t"], allowed: Bool[Tensor, "..."] | None = None
    ) -> list[IsingProblem]:
        return super().problems(tokens, self.allowed if allowed is None else allowed)

    def embed(self, tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch positions dim"]:
        """What the first block sees: one vector for each position of the task."""
        if tokens.ndim != 2 or tokens.shape[1] != self.config.context:
            raise InvalidProblemError(
                f"tokens have shape {tuple(tokens.shape)}; whole windows are (batch, {self.config.context})"
            )
        x = self.inputs @ self.tokens(tokens)
        x = x + torch.where(self.inputs.any(-1)[:, None], 0.0, self.mask_token)
        if self.positions is not None:
            x = x + self.positions(self.places)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(self.config.context, x.shape[-1], device=x.device).to(x.dtype)[self.places]
        return self.dropout(x + self.stream(self.streams))

    def predict(
        self, tokens: Int[Tensor, "batch context"], targets: Sequence[int]
    ) -> Float[Tensor, "batch targets classes"]:
        """Logits of some characters of the window, as `forward` has them, at the cost of what they depend on.

        Characters that they do not depend on may be anything: in generation, those that are not there yet.

        Args:
            tokens: (batch, context).
            targets: their numbers in the window.

        Raises:
            InvalidOptionError: a character that this task never asks for.
        """
        if not targets:
            raise InvalidOptionError("no characters to predict were given; name at least one")
        known = {token: place for place, token in enumerate(self.label_tokens.tolist())}
        for target in targets:
            if target not in known:
                raise InvalidOptionError(f"character {target} is none of those that this task asks for: {list(known)}")
        chosen = torch.tensor([known[target] for target in targets], device=tokens.device)
        used = self.task.order.reach.to(tokens.device)[self.answers[chosen]].any(0)
        # A query without keys is no problem for the sampler: the other positions cost their linear maps alone.
        logits = self(tokens, self.allowed & used[:, None])
        return logits[:, chosen]

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "batch t"],
        length: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch longer"]:
        """Append `length` characters, those of a block at once, each drawn from its own marginal.

        One forward pass makes a block, from the whole blocks before it that the context holds.

        Args:
            tokens: (batch, T) prompts. Where T is no multiple of the block, its first characters are not used.
            temperature: divides the logits; 0 takes the likeliest character.
            generator: the source of randomness; None is torch's global one.

        Raises:
            NotSupportedError: a task that is not from left to right.
        """
        if self.config.task == "butterfly":
            raise NotSupportedError(
                "the butterfly predicts each character from both sides; it cannot go on with a text"
            )
        block, context = self.config.predicted_at_once, self.config.context
        least = min(self.label_tokens.tolist())
        wanted = tokens.shape[1] + length
        with generating(self, temperature):
            while tokens.shape[1] < wanted:
                before = min(tokens.shape[1] // block * block, context - block)
                if before < least:
                    raise InvalidProblemError(
                        f"the prompt has {tokens.shape[1]} characters; {self.config.task!r} in blocks of {block} goes "
                        f"on from at least {least}"
                    )
                window = tokens.new_zeros(len(tokens), context)
                if before:
                    window[:, :before] = tokens[:, -before:]
                logits = self.predict(window, range(before, before + block)).float()
                tokens = torch.cat([tokens, drawn(logits, temperature, generator).to(tokens.dtype)], -1)
        return tokens[:, :wanted]


_STREAMS = 3


def _places(task: masks.Task) -> list[int]:
    """The place in the text that each position stands for: its character's, its mask's, or its target's."""
    found = []
    for held, label in zip(task.inputs, task.labels, strict=True):
        (atom, *others) = held
        if others or not isinstance(atom, int | tuple):
            found.append(label[0])
        else:
            found.append(atom if isinstance(atom, int) else atom[1])
    return found


def _streams(config: TaskLMConfig, task: masks.Task) -> list[int]:
    """Which of the task's parts each position is in."""
    n = config.context
    if config.task == "butterfly":
        return [0] * (n - 1) + [1] * (n - 1) + [2] * n
    return [int(not isinstance(held[0], int)) for held in task.inputs]
