"""Bracket data: the law that is documented is the law that is drawn, splits are disjoint, nothing else is random."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from ising_attn.lab.brackets import (
    CLOSE,
    FIRST_FILLER,
    IGNORE,
    MATCHINGS,
    NUM_FILLERS,
    OPEN,
    VOCABULARY,
    BracketBatch,
    BracketData,
    BracketLaw,
    dyck_words,
    is_bracket,
    matches,
    split_of,
    vocabulary,
)
from samplers import InvalidOptionError


def all_dyck_words(pairs: int) -> list[tuple[bool, ...]]:
    words = set(itertools.permutations([True] * pairs + [False] * pairs))
    return sorted(w for w in words if min(np.cumsum(np.where(w, 1, -1))) >= 0)


def word_p_value(words: np.ndarray, pairs: int) -> float:
    known = all_dyck_words(pairs)
    seen = dict.fromkeys(known, 0)
    for word in words:
        seen[tuple(word.tolist())] += 1
    return float(stats.chisquare(list(seen.values())).pvalue)


def random_walk_words(pairs: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A wrong generator: a fair coin wherever both brackets are possible. Well nested, not uniform."""
    words = np.zeros((count, 2 * pairs), dtype=bool)
    for row in range(count):
        opened = height = 0
        for position in range(2 * pairs):
            up = opened < pairs and (height == 0 or rng.random() < 0.5)
            words[row, position] = up
            opened, height = opened + up, height + (1 if up else -1)
    return words


def matches_one_by_one(tokens: list[int], matching: str) -> tuple[list[int], list[int]]:
    targets, depths, still_open = [IGNORE] * len(tokens), [0] * len(tokens), []
    for position, token in enumerate(tokens):
        if token == OPEN:
            still_open.append(position)
        elif token == CLOSE:
            depths[position] = len(still_open)
            targets[position] = still_open.pop(-1 if matching == "nested" else 0)
    assert not still_open
    return targets, depths


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_words_are_uniform_over_all_dyck_words(pairs):
    words = dyck_words(pairs, 14_000, np.random.default_rng(pairs))
    assert words.shape == (14_000, 2 * pairs)
    assert pairs == 1 or word_p_value(words, pairs) > 1e-3


def test_the_uniformity_test_rejects_a_coin_flipping_generator():
    words = random_walk_words(3, 14_000, np.random.default_rng(0))
    assert word_p_value(words, 3) < 1e-6


@pytest.mark.parametrize("context", [2, 3, 4, 5, 8, 17, 64])
@pytest.mark.parametrize("filler_share", [0.0, 0.25, 0.95])
def test_every_sequence_is_well_nested_with_at_least_one_pair(context, filler_share):
    tokens = BracketLaw(context, filler_share).draw(300, np.random.default_rng(1))
    assert tokens.shape == (300, context) and tokens.min() >= 0 and tokens.max() < len(vocabulary())
    height = np.cumsum(np.where(tokens == OPEN, 1, np.where(tokens == CLOSE, -1, 0)), axis=1)
    assert height.min() >= 0 and not height[:, -1].any()
    assert (tokens == OPEN).any(axis=1).all()
    if filler_share == 0:
        assert ((tokens >= FIRST_FILLER).sum(axis=1) == context % 2).all()


def test_number_of_pairs_follows_the_documented_law():
    law = BracketLaw(9, filler_share=0.4)
    pairs = (law.draw(20_000, np.random.default_rng(2)) == OPEN).sum(axis=1)
    binomial = stats.binom.pmf(np.arange(1, 5), 4, 0.6)
    expected = binomial / binomial.sum()
    np.testing.assert_allclose(law.pair_probabilities(), expected, rtol=1e-12)
    seen = np.bincount(pairs, minlength=5)[1:]
    assert stats.chisquare(seen, 20_000 * expected).pvalue > 1e-3
    assert stats.chisquare(seen, 20_000 * np.roll(expected, 1)).pvalue < 1e-6


def test_places_of_brackets_and_kinds_of_fillers_are_uniform():
    tokens = BracketLaw(6, filler_share=0.5).draw(30_000, np.random.default_rng(3))
    tokens = tokens[(tokens == OPEN).sum(axis=1) == 1]
    places = (tokens < FIRST_FILLER) @ (1 << np.arange(6))
    seen = [int((places == (1 << a) + (1 << b)).sum()) for a, b in itertools.combinations(range(6), 2)]
    assert sum(seen) == len(tokens) and stats.chisquare(seen).pvalue > 1e-3
    fillers = np.bincount(tokens[tokens >= FIRST_FILLER] - FIRST_FILLER, minlength=NUM_FILLERS)
    assert stats.chisquare(fillers).pvalue > 1e-3


@pytest.mark.parametrize(
    ("context", "share", "types"),
    [(2, 0.25, 1), (3, 0.25, 1), (3, 0.0, 1), (4, 0.0, 1), (6, 0.0, 1), (4, 0.5, 1), (4, 0.0, 3), (3, 0.25, 2)],
)
def test_count_of_distinct_sequences_is_what_can_be_drawn(context, share, types):
    law = BracketLaw(context, share, types)
    drawn = law.draw(20_000, np.random.default_rng(4))
    assert law.num_distinct() == len(np.unique(drawn, axis=0))


@pytest.mark.parametrize("matching", MATCHINGS)
def test_targets_and_depths_are_those_of_a_stack_or_a_queue(matching):
    tokens = BracketLaw(16, 0.2).draw(200, np.random.default_rng(5))
    targets, depths = matches(tokens, matching)
    for row in range(200):
        assert (targets[row].tolist(), depths[row].tolist()) == matches_one_by_one(tokens[row].tolist(), matching)
    assert not np.array_equal(targets, matches(tokens, next(m for m in MATCHINGS if m != matching))[0])


def test_closing_brackets_that_cross_copy_the_opening_ones():
    data = BracketData(BracketLaw(16, 0.2, types=4, matching="crossing"), test_size=100)
    for tokens, targets in zip(data.test.tokens, data.test.targets, strict=True):
        brackets = tokens[is_bracket(tokens)]
        assert torch.equal(brackets[brackets % 2 == OPEN], brackets[brackets % 2 == CLOSE] - 1)
        assert (targets[targets != IGNORE].diff() > 0).all()
    batch = data.train_batch(50, seed=0, step=0)
    assert torch.equal(BracketBatch.of(batch.tokens.numpy(), "crossing").targets, batch.targets)


@pytest.mark.parametrize("matching", MATCHINGS)
def test_types_are_uniform_over_pairs_and_change_nothing_else(matching):
    plain = BracketLaw(12, 0.2).draw(4000, np.random.default_rng(8))
    typed = BracketLaw(12, 0.2, types=3, matching=matching).draw(4000, np.random.default_rng(8))
    assert typed.max() == len(vocabulary(3)) - 1
    for ours, theirs in zip(matches(typed, matching), matches(plain, matching), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(is_bracket(typed), is_bracket(plain))
    np.testing.assert_array_equal(typed[~is_bracket(typed)], plain[~is_bracket(plain)])
    seen = [int((typed == token).sum()) for token in range(len(VOCABULARY)) if VOCABULARY[token] in "([{"]
    assert len(seen) == 3 and stats.chisquare(seen).pvalue > 1e-3
    # Types of two pairs of one sequence are independent: nine combinations, equally likely.
    opened = np.array([row[is_bracket(row) & (row % 2 == OPEN)][:2] for row in typed if is_bracket(row).sum() > 3])
    assert stats.chi2_contingency(stats.contingency.crosstab(*opened.T).count).pvalue > 1e-3


def test_a_bracket_closed_by_another_type_is_refused():
    square = VOCABULARY.index("]")
    with pytest.raises(InvalidOptionError, match="position 1 with a bracket of another type"):
        matches(np.array([[OPEN, square]]))


def test_the_example_of_the_paper():
    """Figure 5 of arXiv 2606.12478: ( ) ( ( ( ( f9 ( f5 ( ) ) ) ) ) )."""
    text = ["(", ")", "(", "(", "(", "(", "f9", "(", "f5", "(", ")", ")", ")", ")", ")", ")"]
    batch = BracketBatch.of(np.array([[VOCABULARY.index(t) for t in text]]))
    closing = {q: k for q, k in enumerate(batch.targets[0].tolist()) if k != IGNORE}
    assert closing == {1: 0, 10: 9, 11: 7, 12: 5, 13: 4, 14: 3, 15: 2}
    assert batch.depths[0][[1, 10, 15]].tolist() == [1, 6, 1]
    assert batch.distances[0][[0, 1, 10, 15]].tolist() == [0, 1, 1, 13]


def test_a_bracket_that_was_never_opened_is_refused():
    with pytest.raises(InvalidOptionError, match="position 0"):
        matches(np.array([[CLOSE, OPEN]]))


@pytest.mark.parametrize("context", [5, 7])
@pytest.mark.parametrize("train_size", [None, 3000])
def test_splits_share_no_sequence_but_common_ones_whatever_the_seeds(context, train_size):
    law = BracketLaw(context, 0.5)

    def rows(tokens: torch.Tensor) -> set[bytes]:
        return {row.tobytes() for row in tokens.numpy()[~law.is_common(tokens.numpy())]}

    data = BracketData(law, validation_size=500, test_size=700, train_size=train_size, seed=1)
    other = BracketData(law, validation_size=500, test_size=700, train_size=train_size, seed=2)
    train = set().union(*(rows(data.train_batch(300, seed=7, step=s).tokens) for s in range(10)))
    assert (len(data.validation), len(data.test)) == (500, 700)
    for held_out in (data.validation, data.test, other.validation, other.test):
        assert rows(held_out.tokens) and not train & rows(held_out.tokens)
    assert not rows(data.validation.tokens) & rows(other.test.tokens)


@pytest.mark.parametrize(("context", "common"), [(4, 2), (6, 5), (8, 14), (10, 42), (12, 0), (7, 0), (300, 0)])
def test_common_sequences_are_those_that_fill_the_context_at_a_short_one(context, common):
    law = BracketLaw(context)
    assert law.num_common() == common
    tokens = law.draw(2000, np.random.default_rng(11))
    full = (tokens < FIRST_FILLER).all(axis=1)
    np.testing.assert_array_equal(law.is_common(tokens), full & (common > 0))
    share = law.pair_probabilities()[-1] if common else 0.0
    assert law.common_share == pytest.approx(share)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_split_keeps_the_law_of_words_without_fillers(split):
    """Each of the 14 words of 4 pairs has 2.3 % of the law; left out of training, it is a quarter of a test set."""
    law = BracketLaw(8)
    drawn = law.draw_split(split, 20_000, np.random.default_rng(12))
    full = (drawn < FIRST_FILLER).all(axis=1)
    words, counts = np.unique(drawn[full], axis=0, return_counts=True)
    assert len(words) == 14 and stats.chisquare(counts).pvalue > 1e-3
    pairs = np.bincount((drawn == OPEN).sum(axis=1), minlength=5)[1:]
    assert stats.chisquare(pairs, 20_000 * law.pair_probabilities()).pvalue > 1e-3
    by_content = law.draw(60_000, np.random.default_rng(13))
    by_content = by_content[split_of(by_content) == ["train", "validation", "test"].index(split)]
    left = len(np.unique(by_content[(by_content < FIRST_FILLER).all(axis=1)], axis=0))
    assert left < 14, "the test must tell the law from a split of all sequences by content"


def test_a_split_holds_its_share_of_the_law():
    tokens = BracketLaw(12).draw(30_000, np.random.default_rng(6))
    shares = np.bincount(split_of(tokens), minlength=3)
    assert stats.chisquare(shares, np.array([0.8, 0.1, 0.1]) * 30_000).pvalue > 1e-3
    test = BracketLaw(12).draw_split("test", 4000, np.random.default_rng(7))
    pairs = np.bincount((test == OPEN).sum(axis=1), minlength=7)[2:]
    expected = BracketLaw(12).pair_probabilities()[1:]
    assert stats.chisquare(pairs, pairs.sum() * expected / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("context", "share"), [(2, 0.25), (3, 0.25), (4, 0.0), (7, 0.0), (8, 0.0), (8, 0.02)])
def test_where_too_few_sequences_exist_the_overlap_is_told(context, share):
    data = BracketData(BracketLaw(context, share), validation_size=20, test_size=20)
    assert not data.law.is_splittable
    assert len(data.train_batch(16, seed=0, step=0)) == 16 and len(data.test) == 20
    remark = data.remark()
    assert remark is not None and f"only {data.law.num_distinct()} different" in remark and "overlap" in remark


def test_where_the_held_out_sequences_repeat_it_is_told_and_where_not_there_is_no_remark():
    remark = BracketData(BracketLaw(4, 0.5), test_size=2000).remark()
    assert remark is not None and "none of them is in the training data" in remark
    assert BracketData(BracketLaw(12)).remark() is None


def test_sequences_in_every_split_are_told():
    remark = BracketData(BracketLaw(8)).remark()
    assert remark == (
        "the 14 most common sequences, 32% of all, are in training and test data alike; no other sequence is in both"
    )
    short = BracketData(BracketLaw(4, 0.5), test_size=2000).remark()
    assert short is not None and short.startswith("the 2 most common sequences, 33% of all")
    assert "other validation sequences are" in short


def test_batches_depend_on_seed_and_step_alone():
    first, second = (BracketData(BracketLaw(8), seed=3) for _ in range(2))
    second.train_batch(32, seed=0, step=99)
    assert torch.equal(first.train_batch(32, seed=0, step=5).tokens, second.train_batch(32, seed=0, step=5).tokens)
    drawn = [first.train_batch(32, seed=s, step=t).tokens for s in range(3) for t in range(3)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))


@pytest.mark.parametrize("batch_size", [7, 25, 40])
def test_a_fixed_training_set_is_passed_through_in_a_new_order_each_time(batch_size):
    data = BracketData(BracketLaw(12), train_size=25)
    assert data.train is not None
    steps = math.lcm(25, batch_size) // batch_size
    seen = torch.cat([data.train_batch(batch_size, seed=1, step=s).tokens for s in range(steps)])
    passes = seen.reshape(-1, 25, 12)
    for one in passes:
        assert sorted(one.tolist()) == sorted(data.train.tokens.tolist())
    assert not torch.equal(passes[0], data.train.tokens)
    assert len(passes) == 1 or not torch.equal(passes[0], passes[1])


def numpy_words() -> np.ndarray:
    """The state of numpy's global generator."""
    return np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002


def test_no_global_generator_is_moved():
    torch_state, numpy_state = torch.get_rng_state(), numpy_words()
    data = BracketData(BracketLaw(8), train_size=50)
    data.train_batch(16, seed=0, step=0)
    assert len(data.test) and torch.equal(torch_state, torch.get_rng_state())
    assert (numpy_words() == numpy_state).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BracketLaw(1), "at least 2"),
        (lambda: BracketLaw(8, filler_share=1.0), "between 0 and 0.95"),
        (lambda: BracketLaw(8, filler_share=float("nan")), "between 0 and 0.95"),
        (lambda: BracketLaw(8, types=0), "types is 0; there are 1 to 4"),
        (lambda: BracketLaw(8, types=True), "types is True; there are 1 to 4"),
        (lambda: BracketLaw(8, types=5), "types is 5; there are 1 to 4"),
        (lambda: BracketData(BracketLaw(8), test_size=0), "test_size is 0"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(InvalidOptionError, match=message):
        make()
