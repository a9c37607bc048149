"""The paper's claims one by one: its gain over softmax attention, ours, and whether ours confirms it.

A claim is a published mean of a variant beside that of softmax at the same T. Our gain is paired over seeds, with a
95 % interval by Student's t.
"""

from collections.abc import Sequence

from ising_attn.lab.paired import PairedDifference
from ising_attn.lab.reproduction_report import Measured, gain, spoken_gain, spoken_interval
from ising_attn.lab.reproduction_rows import SOFTMAX, Row
from ising_attn.lab.tables import Table

CONFIRMED, SIGN_ONLY, CONTRADICTED, OPEN = "confirmed", "confirmed in sign", "contradicted", "not decidable"
SOLVED = "solved by both"
"""Every run of both variants has an accuracy of 100 %, so that no difference can be seen."""


def verdict(published: float, ours: PairedDifference) -> str:
    """What our interval says of a published gain.

    Returns:
        "confirmed": the interval lies on the published side of 0 and holds the published gain; "confirmed in sign": it
        lies on that side and does not hold it; "contradicted": it does not hold the published gain and does not lie on
        its side; "not decidable": it holds both 0 and the published gain, or there are too few seeds for one.
    """
    if ours.low is None or ours.high is None:
        return OPEN
    holds = ours.low <= published <= ours.high
    same_side = ours.low > 0 if published > 0 else ours.high < 0
    if published != 0 and same_side:
        return CONFIRMED if holds else SIGN_ONLY
    return OPEN if holds else CONTRADICTED


def claims_table(results: Sequence[Measured]) -> Table:
    """Every variant whose gain over softmax is published and was measured."""
    columns = ["task", "T", "variant", "paper", "ours", "95 % interval", "verdict"]
    table = Table("Claims of the paper: gain over softmax attention", columns)
    counts: set[int] = set()
    softmax = {(m.row.part, m.row.group, m.row.context): m for m in results if m.row.variant == SOFTMAX}
    for one in results:
        row = one.row
        base = softmax.get((row.part, row.group, row.context))
        if row.variant == SOFTMAX or base is None or row.published is None or base.row.published is None:
            continue
        if not one.values.keys() & base.values.keys():
            continue
        ours = gain(one, base)
        published = row.published.value - base.row.published.value
        published = -published if row.measure == "perplexity" else published
        table.add(
            _task(row), row.context, row.variant, spoken_gain(row, published), spoken_gain(row, ours.mean),
            spoken_interval(row, ours), SOLVED if _is_solved(one) and _is_solved(base) else verdict(published, ours),
        )  # fmt: skip
        counts.add(ours.count)
    spoken = " to ".join(str(count) for count in sorted({min(counts, default=0), max(counts, default=0)}))
    table.caption = (
        "Perplexity below softmax, or accuracy above it (pp: percentage points): a positive gain is good. "
        f"Paired over {spoken} seeds; the intervals are not corrected for the number of lines. The paper trains in "
        "other ways; see the budget."
    )
    return table


def _is_solved(one: Measured) -> bool:
    return one.row.measure == "accuracy" and min(one.values.values()) == 1


def _task(row: Row) -> str:
    return row.group or "text"
