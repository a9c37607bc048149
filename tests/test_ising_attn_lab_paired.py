"""Paired tests against scipy, and Holm's correction against its definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ising_attn.lab.paired import PairedDifference, holm
from samplers.errors import InvalidOptionError


def test_the_t_test_is_scipy_s():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=6), rng.normal(0.5, size=6)
    ours, theirs = PairedDifference.of(dict(enumerate(a)), dict(enumerate(b))), stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert (ours.count, ours.mean) == (6, pytest.approx((a - b).mean()))
    assert (ours.p, ours.low, ours.high) == pytest.approx((theirs.pvalue, interval.low, interval.high))


def test_pairs_are_matched_by_seed():
    ours = PairedDifference.of({3: 1.0, 1: 5.0, 2: 0.0}, {1: 4.0, 3: 1.5, 9: 7.0})
    assert (ours.count, ours.mean) == (2, pytest.approx(0.25))


def test_the_chance_of_a_false_alarm_is_the_level():
    rng = np.random.default_rng(1)
    p = [PairedDifference.of_differences(rng.normal(size=5).tolist()).p for _ in range(4000)]
    assert abs(np.mean(np.array(p, dtype=float) < 0.05) - 0.05) < 5 * np.sqrt(0.05 * 0.95 / 4000)


def test_one_pair_has_no_test_and_equal_pairs_have_no_spread():
    assert PairedDifference.of_differences([2.0]) == PairedDifference(1, 2.0, None, None, None)
    assert PairedDifference.of_differences([0.0, 0.0]).p == 1.0
    equal = [0.3 - 0.1, 0.2, 0.5 - 0.3]
    assert len(set(equal)) > 1  # but for rounding
    for found in (PairedDifference.of_differences([0.5, 0.5]), PairedDifference.of_differences(equal)):
        assert found.low is found.high is found.p is None and found.signed_rank_p is not None


@pytest.mark.parametrize("differences", [[], [1.0, float("nan")]])
def test_what_cannot_be_tested_is_refused(differences: list[float]):
    with pytest.raises(InvalidOptionError, match="finite numbers"):
        PairedDifference.of_differences(differences)
    with pytest.raises(InvalidOptionError, match=r"no pairs: the first has seeds \[1\], the second \[2\]"):
        PairedDifference.of({1: 0.0}, {2: 0.0})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p: list[float]):
    """Holm rejects a hypothesis where Bonferroni rejects every intersection that it is part of."""
    for index, adjusted in enumerate(holm(p)):
        others = [value for k, value in enumerate(p) if k != index]
        subsets = itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(len(p)))
        closed = max(min(1.0, (len(s) + 1) * min((p[index], *s))) for s in subsets)
        assert adjusted == pytest.approx(closed)


def test_holm_of_a_known_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
