"""Bracket sequences: a seeded generator of well-nested words among fillers, and the match of every `)`.

The law of a sequence of T tokens (the paper states none; arXiv 2606.12478, section 4.3, gives the task):

1. the number of pairs n is Binomial(⌊T/2⌋, 1 − filler_share), given n ≥ 1;
2. the brackets form a Dyck word drawn uniformly from the Catalan(n) words of n pairs;
3. they stand at 2n of the T positions, every subset equally likely; each other position holds one of the ten
   fillers, uniformly and independently;
4. with k types of brackets (k = 1 in the paper) each pair has one of the k types, uniformly and independently.

Which brackets are a pair is a matter of `matching`: "nested", as in the paper, where one closes the latest that is
still open, or "crossing", where it closes the earliest, so that the k-th `)` belongs to the k-th `(`. With several
types the closing brackets of a crossing sequence are a copy of its opening ones.

Splits are disjoint by content: a hash of the tokens alone, the same for every seed, assigns a sequence to train
(eight tenths), validation or test (a tenth each). No run can have trained on the test sequences of another. But a
sequence with more than 1/500 of the probability, such as a short word without fillers, would be a fiftieth or more of a
held-out set and missing from training, so that the two followed different laws. Such common sequences are in every
split, as often as in the law.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from samplers.errors import InvalidOptionError
from samplers.streams import derive_key, mix64

OPEN, CLOSE, FIRST_FILLER, NUM_FILLERS = 0, 1, 2, 10
FIRST_OTHER = FIRST_FILLER + NUM_FILLERS
VOCABULARY = ("(", ")", *(f"f{i}" for i in range(NUM_FILLERS)), "[", "]", "{", "}", "<", ">")
"""The token of every id: 0 is `(`, 1 is `)`, 2…11 are f0…f9; from 12 on an opening bracket is even, its closing odd."""
MOST_TYPES = 1 + (len(VOCABULARY) - FIRST_OTHER) // 2
IGNORE = -100
"""The target at every position but a closing bracket (what `torch.nn.functional.cross_entropy` skips)."""

Split = Literal["train", "validation", "test"]
Matching = Literal["nested", "crossing"]
MATCHINGS: tuple[Matching, ...] = ("nested", "crossing")
_Tokens = TypeVar("_Tokens", NDArray[Any], Tensor)
_SPLIT_OF_TENTH = np.array([2, 1, 0, 0, 0, 0, 0, 0, 0, 0])
_SPLIT_NUMBER: dict[str, int] = {"train": 0, "validation": 1, "test": 2}
_COMMON = 1 / 500
"""More probable sequences are in every split."""
_LEAST_TO_SPLIT = 0.2
_PROBE = 4000


def vocabulary(types: int = 1) -> tuple[str, ...]:
    """The tokens of a law with so many types of brackets."""
    return VOCABULARY[: FIRST_OTHER + 2 * (types - 1)]


def is_bracket(tokens: _Tokens) -> _Tokens:
    """Whether each token (any shape, an array or a tensor) is a bracket of any type."""
    return (tokens < FIRST_FILLER) | (tokens >= FIRST_OTHER)


def dyck_words(pairs: int, count: int, rng: np.random.Generator) -> Bool[np.ndarray, "count twice_pairs"]:
    """`count` independent uniform Dyck words of `pairs` pairs, True for `(`; cost O(count · pairs).

    Cycle lemma (Dvoretzky and Motzkin 1947): of the 2n+1 rotations of any arrangement of n `(` and n+1 `)`, exactly
    one is a Dyck word followed by `)`: the one that starts after the first lowest point. Each word has the same
    number of arrangements, so a uniform arrangement gives a uniform word.
    """
    steps = np.repeat([True, False], [pairs, pairs + 1])
    arranged = rng.permuted(np.tile(steps, (count, 1)), axis=1)
    heights = np.cumsum(np.where(arranged, 1, -1), axis=1)
    start = heights.argmin(axis=1) + 1
    index = (start[:, None] + np.arange(2 * pairs)) % (2 * pairs + 1)
    return np.take_along_axis(arranged, index, axis=1)


@dataclass(frozen=True)
class BracketLaw:
    """The distribution of the module's docstring.

    Args:
        context: sequence length T ≥ 2.
        filler_share: in [0, 0.95]; the expected share of fillers before the condition n ≥ 1 (an odd T has one more).
        types: k ≥ 1 types of brackets.
        matching: "nested" or "crossing".
    """

    context: int
    filler_share: float = 0.25
    types: int = 1
    matching: Matching = "nested"

    def __post_init__(self) -> None:
        if self.context < 2:
            raise InvalidOptionError(f"context is {self.context}; a bracket pair needs at least 2 positions")
        if not 0 <= self.filler_share <= 0.95:
            raise InvalidOptionError(f"filler_share is {self.filler_share}; it must be between 0 and 0.95")
        if type(self.types) is not int or not 1 <= self.types <= MOST_TYPES:
            raise InvalidOptionError(f"types is {self.types!r}; there are 1 to {MOST_TYPES} types of brackets")
        if self.matching not in MATCHINGS:
            raise InvalidOptionError(f"matching is {self.matching!r}; it must be one of {', '.join(MATCHINGS)}")

    def pair_probabilities(self) -> Float[np.ndarray, "pairs"]:
        """P(n pairs) for n = 1…⌊T/2⌋."""
        most, share = self.context // 2, self.filler_share
        weights = [math.comb(most, n) * (1 - share) ** n * share ** (most - n) for n in range(1, most + 1)]
        return np.array(weights) / math.fsum(weights)

    def _counts(self) -> list[int]:
        """C(T, 2n) · Catalan(n) · kⁿ · 10^(T−2n): different sequences of n pairs, for n = 1…⌊T/2⌋."""
        t = self.context
        return [
            math.comb(t, 2 * n) * (math.comb(2 * n, n) // (n + 1)) * self.types**n * NUM_FILLERS ** (t - 2 * n)
            for n in range(1, t // 2 + 1)
        ]

    def num_distinct(self) -> int:
        """How many different sequences have a positive probability."""
        counts = self._counts()
        return sum(counts if self.filler_share > 0 else counts[-1:])

    @functools.cached_property
    def _common_pairs(self) -> Bool[np.ndarray, "pairs"]:
        """Whether sequences of n pairs, all equally likely, are common ones, for n = 1…⌊T/2⌋."""
        most = [probability / _COMMON for probability in self.pair_probabilities().tolist()]
        return np.array([count < bound for count, bound in zip(self._counts(), most, strict=True)])

    @functools.cached_property
    def common_share(self) -> float:
        """The probability of a common sequence, one that is in every split."""
        return float(self.pair_probabilities()[self._common_pairs].sum())

    def num_common(self) -> int:
        """How many different sequences are common ones."""
        return sum(count for count, common in zip(self._counts(), self._common_pairs, strict=True) if common)

    def is_common(self, tokens: Int[np.ndarray, "count context"]) -> Bool[np.ndarray, "count"]:
        """Whether each sequence is so probable that it is in every split."""
        pairs = (is_bracket(tokens) & (tokens % 2 == CLOSE)).sum(axis=1)
        return np.asarray(self._common_pairs[pairs - 1])

    @functools.cached_property
    def is_splittable(self) -> bool:
        """False where there is too little to split: the sets are then drawn from the law itself, and overlap.

        That is where common sequences have more than four fifths of the probability, or where a split has less than a
        hundredth of what is left.
        """
        if 1 - self.common_share < _LEAST_TO_SPLIT:
            return False
        probe = self.draw(_PROBE, np.random.default_rng(0))
        probe = probe[~self.is_common(probe)]
        return bool((np.bincount(split_of(probe), minlength=3) >= len(probe) // 100).all())

    def draw(self, count: int, rng: np.random.Generator) -> Int[np.ndarray, "count context"]:
        """`count` independent sequences of token ids (int64)."""
        probabilities = self.pair_probabilities()
        pairs = 1 + rng.choice(len(probabilities), size=count, p=probabilities)
        tokens = FIRST_FILLER + rng.integers(NUM_FILLERS, size=(count, self.context))
        places = rng.random((count, self.context)).argsort(axis=1)
        for n in np.unique(pairs):
            (rows,) = np.nonzero(pairs == n)
            words = np.where(dyck_words(int(n), len(rows), rng), OPEN, CLOSE)
            tokens[rows[:, None], np.sort(places[rows, : 2 * n], axis=1)] = words
        return tokens if self.types == 1 else self._typed(tokens, rng)

    def _typed(self, tokens: Int[np.ndarray, "count context"], rng: np.random.Generator) -> NDArray[np.int64]:
        """A type for every pair of brackets of type 0."""
        targets, _ = matches(tokens, self.matching)
        opened = tokens == OPEN
        kinds = np.where(opened, rng.integers(self.types, size=tokens.shape), 0)
        closed = targets != IGNORE
        kinds[closed] = np.take_along_axis(kinds, np.where(closed, targets, 0), axis=1)[closed]
        other = FIRST_OTHER + 2 * (kinds - 1) + np.where(opened, OPEN, CLOSE)
        return np.where(kinds > 0, other, tokens)

    def draw_split(self, split: Split, count: int, rng: np.random.Generator) -> Int[np.ndarray, "count context"]:
        """`count` independent sequences: common ones as often as in the law, the others given that they are in `split`.

        Where the law is not splittable, from the law itself.
        """
        if not self.is_splittable:
            return self.draw(count, rng)
        rare, share = 1 - self.common_share, 0.8 if split == "train" else 0.1

        def is_own(drawn: NDArray[np.int64]) -> NDArray[np.bool_]:
            return split_of(drawn) == _SPLIT_NUMBER[split]

        if not self._common_pairs.any():
            return self._draw_where(is_own, share, count, rng)
        common = rng.random(count) > rare
        tokens = np.empty((count, self.context), dtype=np.int64)
        tokens[common] = self._draw_where(self.is_common, self.common_share, int(common.sum()), rng)
        tokens[~common] = self._draw_where(
            lambda drawn: is_own(drawn) & ~self.is_common(drawn), share * rare, int((~common).sum()), rng
        )
        return tokens

    def _draw_where(
        self,
        kept: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
        share: float,
        count: int,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """`count` sequences that are kept, by rejection; about `share` of all are."""
        found = [self.draw(0, rng)]
        missing = count
        while missing > 0:
            drawn = self.draw(int(1.2 * missing / share) + 8, rng)
            found.append(drawn[kept(drawn)][:missing])
            missing -= len(found[-1])
        return np.concatenate(found)


def split_of(tokens: Int[np.ndarray, "count context"]) -> Int[np.ndarray, "count"]:
    """0 train, 1 validation, 2 test: where each sequence belongs, by a hash of its content."""
    state = np.full(len(tokens), tokens.shape[1], dtype=np.uint64)
    for column in tokens.T.astype(np.uint64):
        state = mix64(state + column + np.uint64(1))
    return _SPLIT_OF_TENTH[(state % np.uint64(10)).astype(np.int64)]


def matches(
    tokens: Int[np.ndarray, "count context"], matching: Matching = "nested"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Targets and nesting depths (count, T).

    Returns:
        targets: at each closing bracket the index of its opening one; `IGNORE` elsewhere.
        depths: at each closing bracket how many are open, its own included: how many pairs enclose it where they are
            nested (1 is outermost); 0 elsewhere.

    Raises:
        InvalidOptionError: a bracket is closed that was never opened, or by one of another type.
    """
    count, context = tokens.shape
    rows = np.arange(count)
    targets = np.full((count, context), IGNORE, dtype=np.int64)
    depths = np.zeros((count, context), dtype=np.int64)
    # A stack of what is open where pairs are nested; where they cross, a queue of all that were opened.
    waiting = np.zeros((count, context + 1), dtype=np.int64)
    opened, closed = (np.zeros(count, dtype=np.int64) for _ in range(2))
    for position in range(context):
        bracket, odd = is_bracket(tokens[:, position]), tokens[:, position] % 2 == CLOSE
        opens, closes = bracket & ~odd, bracket & odd
        height = opened - closed
        waiting[rows[opens], (height if matching == "nested" else opened)[opens]] = position
        depths[closes, position] = height[closes]
        if (height[closes] < 1).any():
            raise InvalidOptionError(f"a sequence closes a bracket at position {position} that was never opened")
        opener = waiting[rows[closes], (height - 1 if matching == "nested" else closed)[closes]]
        if (tokens[closes, opener] != tokens[closes, position] - 1).any():
            raise InvalidOptionError(f"a sequence closes at position {position} with a bracket of another type")
        targets[closes, position] = opener
        opened += opens
        closed += closes
    return targets, depths


@dataclass(frozen=True)
class BracketBatch:
    """Tokens, targets and depths, each (batch, context) int64; see `matches`."""

    tokens: Int[Tensor, "batch context"]
    targets: Int[Tensor, "batch context"]
    depths: Int[Tensor, "batch context"]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: slice | Tensor) -> "BracketBatch":
        return BracketBatch(self.tokens[index], self.targets[index], self.depths[index])

    def to(self, device: torch.device | str) -> "BracketBatch":
        return BracketBatch(self.tokens.to(device), self.targets.to(device), self.depths.to(device))

    @property
    def distances(self) -> Int[Tensor, "batch context"]:
        """t − match at each `)`; 0 elsewhere."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return torch.where(self.targets == IGNORE, 0, positions - self.targets)

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "batch context"], matching: Matching = "nested") -> "BracketBatch":
        targets, depths = matches(tokens, matching)
        return cls(torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(depths))


class BracketData:
    """The three splits of a law. Every batch and set is a pure function of its seed (and step).

    Args:
        law: the distribution.
        validation_size, test_size: sequences in each held-out set, drawn independently (so a short context repeats
            some).
        train_size: sequences in a fixed training set; None draws fresh ones at every step.
        seed: of the held-out sets and the fixed training set.
    """

    def __init__(
        self,
        law: BracketLaw,
        *,
        validation_size: int = 1000,
        test_size: int = 2000,
        train_size: int | None = None,
        seed: int = 0,
    ):
        for name, size in (("validation_size", validation_size), ("test_size", test_size), ("train_size", train_size)):
            if size is not None and size < 1:
                raise InvalidOptionError(f"{name} is {size}; it must be at least 1")
        self.law, self.train_size, self.seed = law, train_size, seed
        self._sizes: dict[str, int] = {"validation": validation_size, "test": test_size}

    @functools.cached_property
    def validation(self) -> BracketBatch:
        return self._set("validation", self._sizes["validation"])

    @functools.cached_property
    def test(self) -> BracketBatch:
        return self._set("test", self._sizes["test"])

    @functools.cached_property
    def train(self) -> BracketBatch | None:
        """The fixed training set, None where every step draws fresh sequences."""
        return None if self.train_size is None else self._set("train", self.train_size)

    def _set(self, split: Split, size: int) -> BracketBatch:
        rng = np.random.default_rng(derive_key(self.seed, _SPLIT_NUMBER[split]))
        return self._batch(self.law.draw_split(split, size, rng))

    def _batch(self, tokens: Int[np.ndarray, "batch context"]) -> BracketBatch:
        return BracketBatch.of(tokens, self.law.matching)

    def train_batch(self, batch_size: int, *, seed: int, step: int) -> BracketBatch:
        """The training batch of `step`: fresh sequences, or the fixed set in a new order at every pass."""
        if self.train is None:
            rng = np.random.default_rng(derive_key(seed, 3, step))
            return self._batch(self.law.draw_split("train", batch_size, rng))
        size = len(self.train)
        place = np.arange(step * batch_size, (step + 1) * batch_size)
        order = [_shuffled(size, seed, int(p)) for p in np.unique(place // size)]
        index = np.concatenate(order)[place - size * int(place[0] // size)]
        return self.train[torch.from_numpy(index)]

    def is_held_out(self, batch: BracketBatch) -> Bool[Tensor, "batch"]:
        """Whether each sequence of a held-out set is in no training data."""
        tokens = batch.tokens.cpu().numpy()
        return torch.from_numpy(np.full(len(tokens), self.law.is_splittable) & ~self.law.is_common(tokens))

    def remark(self) -> str | None:
        """What a reader of the results must know about the splits, or None."""
        law, distinct = self.law, self.law.num_distinct()
        if not law.is_splittable:
            return (
                f"only {distinct} different sequences exist at context {law.context} with filler share "
                f"{law.filler_share:g}: training and test sequences overlap"
            )
        common = law.num_common()
        shared = (
            f"the {common} most common sequences, {law.common_share:.0%} of all, are in training and test data alike"
        )
        for name in ("validation", "test"):
            batch: BracketBatch = getattr(self, name)
            rare = batch.tokens[self.is_held_out(batch)]
            different = len(torch.unique(rare, dim=0))
            if different < 0.5 * len(rare):
                repeated = (
                    f"the {len(rare)} {'other ' if common else ''}{name} sequences are {different} different ones, for "
                    f"only {distinct} exist at context {law.context}; none of them is in the training data"
                )
                return f"{shared}; {repeated}" if common else repeated
        return f"{shared}; no other sequence is in both" if common else None


def _shuffled(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng(derive_key(seed, 4, epoch)).permutation(size)
