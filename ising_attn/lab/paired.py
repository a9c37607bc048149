"""Paired comparisons over seeds: mean difference, confidence interval, t-test and signed ranks, Holm's correction."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from samplers.errors import InvalidOptionError


@dataclass(frozen=True)
class PairedDifference:
    """What differences d of paired numbers say of their mean.

    Args:
        count: pairs, n.
        mean: of d.
        low, high: 95 % confidence interval of the mean by Student's t with n − 1 degrees of freedom; None for n = 1,
            and where all d are the same number but 0: their spread, which both are made of, is then not known.
        p: two-sided p-value of the paired t-test of mean 0; None where there is no interval. It takes d as normally
            distributed, which a handful of seeds cannot confirm.
        signed_rank_p: two-sided p-value of Wilcoxon's signed-rank test, which takes d as symmetric alone; with n
            pairs it is at least 2/2^n, which is 0.06 for five. None for n = 1.
    """

    count: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    signed_rank_p: float | None = None

    @classmethod
    def of(cls, first: Mapping[int, float], second: Mapping[int, float]) -> "PairedDifference":
        """first − second, paired by key (the seed); keys that only one of them has are left out.

        Raises:
            InvalidOptionError: no key in common.
        """
        shared = sorted(first.keys() & second.keys())
        if not shared:
            raise InvalidOptionError(f"no pairs: the first has seeds {sorted(first)}, the second {sorted(second)}")
        return cls.of_differences([first[key] - second[key] for key in shared])

    @classmethod
    def of_differences(cls, differences: Sequence[float]) -> "PairedDifference":
        """The same for differences that are at hand."""
        from scipy import stats

        d = np.asarray(differences, dtype=np.float64)
        if not d.size or not np.isfinite(d).all():
            raise InvalidOptionError(f"differences must be finite numbers, at least one; got {d.tolist()}")
        n, mean = d.size, float(d.mean())
        if n == 1:
            return cls(n, mean, None, None, None)
        error = float(d.std(ddof=1)) / math.sqrt(n)
        half = error * float(stats.t.ppf(0.975, n - 1))
        ranked = signed_rank_p(d)
        if error <= 1e-9 * abs(mean):  # rounding of equal differences
            return cls(n, 0.0, 0.0, 0.0, 1.0, ranked) if mean == 0 else cls(n, mean, None, None, None, ranked)
        return cls(n, mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, n - 1)), ranked)


_MOST_ENUMERATED = 16


def signed_rank_p(differences: Float[np.ndarray, "pairs"] | Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test; zeros are left out, ties share their mean rank.

    Exact up to 16 differences, over all 2^n signs; the normal approximation beyond (Wilcoxon, Biometrics Bulletin 1,
    1945).
    """
    from scipy import stats

    d = np.asarray(differences, dtype=np.float64)
    d = d[d != 0]
    if not d.size:
        return 1.0
    if d.size > _MOST_ENUMERATED:
        return float(stats.wilcoxon(d, method="asymptotic").pvalue)
    ranks = stats.rankdata(np.abs(d))
    signs = 1 - 2 * (np.arange(2**d.size)[:, None] >> np.arange(d.size) & 1)
    # Rounded: sums of the same half-integers in another order.
    sums = np.round(np.abs(signs @ ranks), 6)
    return float((sums >= np.round(abs(np.sign(d) @ ranks), 6)).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's step-down method, in the order given: rejecting those below a level keeps the chance
    of any false rejection below that level, whatever the dependence of the tests (Holm, Scand. J. Stat. 6, 1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * float(p_values[index])))
        adjusted[index] = largest
    return adjusted
