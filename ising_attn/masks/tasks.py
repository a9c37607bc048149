"""`Task`: a training task as the triple of inputs, labels and mask (Li & Guo, arXiv 2606.09951)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ising_attn.masks.checks import checked_mask, checked_size
from ising_attn.masks.content import checked_inputs, checked_labels
from ising_attn.masks.errors import InvalidTaskError
from ising_attn.masks.leaks import Leak, leaks, raise_leaks
from ising_attn.masks.order import Order, order_of


@dataclass(frozen=True, eq=False)
class Task:
    """What every position holds, what it is asked for, and which positions it may attend to.

    Tokens are numbered places in a text, not words: input 3 is "the third token, whatever it is".

    Args:
        allowed: (n, n) bool, True where a row attends to a column, in every layer.
        inputs: one per position: a token's number; a tuple of several, whose average is the input; or a symbol
            that holds no token, text or a tuple that begins with text: ("mask", 3) is a mask at place 3.
        labels: one per position: the number of the token that it must predict, a tuple of several, or None.

    Raises:
        InvalidMaskError: a mask that is not square or not bool.
        InvalidTaskError: inputs or labels of another number or kind.
    """

    allowed: Bool[Tensor, "n n"]
    inputs: Sequence[Any]
    labels: Sequence[Any]

    def __post_init__(self) -> None:
        size = len(checked_mask(self.allowed))
        object.__setattr__(self, "inputs", checked_inputs(self.inputs, size))
        object.__setattr__(self, "labels", checked_labels(self.labels, size))

    @property
    def size(self) -> int:
        """n, the number of positions."""
        return len(self.allowed)

    @cached_property
    def order(self) -> Order:
        """The order that the mask generates."""
        return order_of(self.allowed)

    @property
    def is_dense(self) -> bool:
        """Whether one layer sees all that many layers see (a dense task: A = R)."""
        return self.order.is_dense

    @property
    def label_density(self) -> float:
        """The share of positions that are asked for something."""
        return sum(map(bool, self.labels)) / self.size

    def leaks(self, layers: int | None = None) -> list[Leak]:
        """Positions whose target reaches them, at any depth or after `layers` layers; see `masks.leaks`."""
        return leaks(self.allowed, self.inputs, self.labels, layers=layers)

    def check(self, layers: int | None = None) -> "Task":
        """The task itself, if nothing leaks.

        Raises:
            LeakError: a target reaches its own prediction.
        """
        raise_leaks(self.leaks(layers), sum(map(bool, self.labels)))
        return self

    def needed(self) -> Bool[Tensor, " n"]:
        """The positions with a label, and those that one of them depends on. The others change no prediction."""
        asked = torch.tensor([bool(label) for label in self.labels], device=self.allowed.device)
        return self.order.reach[asked].any(0)

    def restricted(self, positions: Sequence[int]) -> "Task":
        """The task on some of its positions, in the order given."""
        for position in positions:
            checked_size("position", position, minimum=0, maximum=self.size - 1)
        if not positions or len(set(positions)) < len(positions):
            raise InvalidTaskError(f"positions are {list(positions)}; give at least one, and each once")
        kept = list(positions)
        return Task(self.allowed[kept][:, kept], [self.inputs[p] for p in kept], [self.labels[p] for p in kept])

    def trimmed(self) -> "Task":
        """The task without the positions that change no prediction."""
        return self.restricted(self.needed().nonzero().flatten().tolist())

    def input_weights(self, num_tokens: int) -> Float[Tensor, "n tokens"]:
        """W with input_i = Σ_t W_it · embedding(token t): each row averages the tokens that the position holds.

        Rows of symbols and of empty inputs are 0. `W @ embeddings` feeds a model.
        """
        held = [[atom for atom in atoms if isinstance(atom, int)] for atoms in self.inputs]
        last = max((token for tokens in held for token in tokens), default=-1)
        checked_size("num_tokens", num_tokens, minimum=max(last + 1, 1))
        weights = torch.zeros(self.size, num_tokens)
        for position, tokens in enumerate(held):
            for token in tokens:
                weights[position, token] += 1 / len(tokens)
        return weights

    def label_numbers(self, ignored: int = -100) -> Int[Tensor, " n"]:
        """The token each position is asked for, `ignored` where none, as torch's cross-entropy takes it.

        Raises:
            InvalidTaskError: a position is asked for several.
        """
        for position, tokens in enumerate(self.labels):
            if len(tokens) > 1:
                raise InvalidTaskError(f"position {position} is asked for the tokens {tokens}; one number holds one")
        return torch.tensor([tokens[0] if tokens else ignored for tokens in self.labels])
