"""Tables of the reproduction from the finished runs: ours beside published, and which attention beats which.

A difference is a gain of the first over the second, so that a positive one is good: perplexity of the second minus that
of the first, accuracy of the first minus that of the second. Differences are taken seed by seed; two runs of one seed
see the same data in the same order.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from ising_attn.lab.paired import PairedDifference, holm
from ising_attn.lab.reproduction_rows import SOFTMAX, Row
from ising_attn.lab.sweep_results import Runs, finished_runs, provenance, runs_table, values
from ising_attn.lab.tables import Table, spread

FORMATS = {"perplexity": ".3f", "accuracy": ".2%"}
KEYS = ("test_perplexity", "test_perplexity_exact", "test_accuracy", "test_accuracy_exact", "marginal_mae")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A row and its finished runs."""

    row: Row
    runs: Runs

    @property
    def table(self) -> str:
        """Name of the table and figure that it stands in."""
        return "-".join([self.row.part, *self.row.group.lower().replace(",", "").split()])

    @property
    def values(self) -> dict[int, float]:
        """What the row measures, by seed."""
        return values(self.runs, f"test_{self.row.measure}")

    def through_exact(self) -> dict[int, float]:
        """The same weights evaluated by exact summation."""
        return values(self.runs, f"test_{self.row.measure}_exact")

    def other_contexts(self) -> dict[int, dict[int, float]]:
        """Perplexities on windows of other lengths, by length and seed."""
        found: dict[int, dict[int, float]] = {}
        for seed, run in self.runs.items():
            for context, value in (run.summary.get("perplexity_by_context") or {}).items():
                found.setdefault(int(context), {})[seed] = float(value)
        return found


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The gain of one variant over another at the same setting; `adjusted` are p-values after Holm's correction."""

    first: Measured
    second: Measured
    gain: PairedDifference
    adjusted: float | None = None
    adjusted_ranks: float | None = None


def measured(out: Path, rows: Iterable[Row]) -> list[Measured]:
    """The rows that have a finished run."""
    known = {row.name: row for row in rows}
    found = finished_runs(out, {name: row.arguments for name, row in known.items()})
    return [Measured(known[name], runs) for name, runs in found.items()]


def part_tables(results: Sequence[Measured]) -> dict[str, Table]:
    """All tables: for every part what was measured and compared, then every run."""
    tables: dict[str, Table] = {}
    for part in dict.fromkeys(m.row.part for m in results):
        own = [m for m in results if m.row.part == part]
        for group in dict.fromkeys(m.row.group for m in own):
            shown = [m for m in own if m.row.group == group]
            tables[shown[0].table] = value_table(shown)
        if (compared := comparison_table(own)).rows:
            tables[f"{part}-gains"] = compared
        if any(m.through_exact() != m.values and m.through_exact() for m in own):
            tables[f"{part}-inference"] = inference_table(own)
        if any(m.other_contexts() for m in own):
            tables[f"{part}-by-context"] = context_table(own)
    tables["runs"] = runs_table({m.row.name: m.runs for m in results}, KEYS)
    return tables


def heading(row: Row) -> str:
    """The part and the group as a title."""
    what = {
        "text-paper": "Tiny Shakespeare, the paper's data",
        "text-tuned": "Tiny Shakespeare, whole text, rates chosen for each run",
        "brackets": "Bracket matching",
        "brackets-tuned": "Bracket matching, rates chosen for each run",
        "recipe": "Bracket matching, longer, with a long warm-up",
        "settings": "The recipe in other settings",
        "samplers": "Trained through different samplers"
        + (", bracket matching" if row.group else ", Tiny Shakespeare"),
        "long": "Tiny Shakespeare, longer contexts",
        "length-transfer": "Tiny Shakespeare, trained at one length",
    }[row.part]
    return f"{what}, {row.group}" if row.group else what


def value_table(results: Sequence[Measured]) -> Table:
    """Variants down, T across: mean ± standard deviation over seeds, and the published number below each."""
    measure, contexts = results[0].row.measure, sorted({m.row.context for m in results})
    form = FORMATS[measure]
    table = Table(f"{heading(results[0].row)}: {measure}", ["variant", "", *(f"T = {t}" for t in contexts)])
    for variant in dict.fromkeys(m.row.variant for m in results):
        own = {m.row.context: m for m in results if m.row.variant == variant}
        counts = sorted({len(m.values) for m in own.values()})
        seeds = f"ours, {'-'.join(map(str, {counts[0]: 0, counts[-1]: 0}))} seed{'' if counts[-1] == 1 else 's'}"
        table.add(variant, seeds, *(spread(list(own[t].values.values()), form) if t in own else None for t in contexts))
        published = [own[t].row.published if t in own else None for t in contexts]
        if any(published):
            table.add("", "published", *(None if p is None else p.shown(form) for p in published))
    table.caption = f"Mean ± sample standard deviation over seeds. {_provenance(results)}"
    return table


def comparisons(results: Sequence[Measured]) -> list[Comparison]:
    """Every pair that is compared, corrected together: for every variant its baselines at the same T and group."""
    place = {(m.row.group, m.row.context, m.row.variant): m for m in results}
    found = []
    for (group, context, _), first in place.items():
        for name in baselines(first.row):
            second = place.get((group, context, name))
            if second is not None and first.values.keys() & second.values.keys():
                found.append(Comparison(first, second, gain(first, second)))
    tested = [c for c in found if c.gain.p is not None]
    by_t = holm([c.gain.p for c in tested if c.gain.p is not None])
    by_rank = holm([c.gain.signed_rank_p for c in tested if c.gain.signed_rank_p is not None])
    corrected = {id(c): (t, r) for c, t, r in zip(tested, by_t, by_rank, strict=True)}
    return [
        dataclasses.replace(c, adjusted=corrected[id(c)][0], adjusted_ranks=corrected[id(c)][1])
        if id(c) in corrected
        else c
        for c in found
    ]


# Each against softmax at every rate that it was given, which is what decides.
_STEADY = (SOFTMAX, f"{SOFTMAX}, faster", f"{SOFTMAX}, bias")
_FASTER = (f"{SOFTMAX}, faster", f"{SOFTMAX}, fastest", f"{SOFTMAX}, bias, faster")
_OF_THE_RECIPE = {
    f"{SOFTMAX}, faster": (SOFTMAX,),
    f"{SOFTMAX}, fastest": (f"{SOFTMAX}, faster",),
    f"{SOFTMAX}, bias, faster": (f"{SOFTMAX}, faster",),
    "h, steady": _STEADY,
    "h+J, steady": (*_STEADY, "h, steady"),
    "h, steady, faster": _FASTER,
    "h+J, steady, faster": (*_FASTER, "h, steady, faster"),
}


def baselines(row: Row) -> list[str]:
    """What a variant is held against: softmax; with a bias, softmax with one; with couplings, the same without.

    What was trained through a sampler is held against what was trained through exact.
    """
    variant = row.variant
    if variant == SOFTMAX:
        return []
    if variant in _OF_THE_RECIPE:
        return list(_OF_THE_RECIPE[variant])
    found = [SOFTMAX]
    if row.part == "samplers":
        return found if variant == "exact" else [*found, "exact"]
    if ", bias" in variant and variant != f"{SOFTMAX}, bias":
        found.append(f"{SOFTMAX}, bias")
    if variant == "h, bias":
        found.append("h")
    if variant.startswith("h+J") and variant != "h+J+K":
        found.append("h, scalar bias" if "scalar" in variant else "h, bias" if ", bias" in variant else "h")
        found += ["h+J"] if variant != "h+J" else []
    if variant in ("h+K", "h+J+K"):
        found.append("h+J")
    return list(dict.fromkeys(found))


def spoken_gain(row: Row, value: float) -> str:
    """A difference in the row's measure: of perplexities, or of accuracies in percentage points."""
    return f"{value:+.3f}" if row.measure == "perplexity" else f"{100 * value:+.2f} pp"


def spoken_interval(row: Row, gained: PairedDifference) -> str | None:
    """Its 95 % interval; None where there is none."""
    if gained.low is None or gained.high is None:
        return None
    return f"{spoken_gain(row, gained.low).removesuffix(' pp')} to {spoken_gain(row, gained.high)}"


def gain(first: Measured, second: Measured) -> PairedDifference:
    """By how much the first is better, seed by seed."""
    if first.row.measure == "perplexity":
        return PairedDifference.of(second.values, first.values)
    return PairedDifference.of(first.values, second.values)


def comparison_table(results: Sequence[Measured]) -> Table:
    """Every comparison of a part with its interval and p-values."""
    columns = ["group", "T", "first", "second", "seeds", "gain", "95 % interval", "p (t)", "p (ranks)", "Holm (t)",
               "Holm (ranks)"]  # fmt: skip
    if not results:
        return Table("Gains", columns)
    table = Table(f"{heading(results[0].row).split(', with')[0]}: gains of the first over the second", columns)
    table.formats = dict.fromkeys(columns[7:], ".2g")
    pairs = comparisons(results)
    for one in sorted(pairs, key=lambda c: (c.first.row.group, c.first.row.context)):
        row = one.first.row
        table.add(
            row.group, row.context, row.variant, one.second.row.variant, one.gain.count,
            spoken_gain(row, one.gain.mean), spoken_interval(row, one.gain),
            one.gain.p, one.gain.signed_rank_p, one.adjusted, one.adjusted_ranks,
        )  # fmt: skip
    table.caption = (
        "A positive gain is good: lower perplexity, higher accuracy (pp: percentage points). Paired over seeds; "
        "two-sided t-test and Wilcoxon's signed ranks (at least 2/2^n for n seeds); Holm's correction over the "
        f"{len(pairs)} lines. "
        f"{_provenance(results)}"
    )
    return table


def inference_table(results: Sequence[Measured]) -> Table:
    """What each model comes to through its own sampler and through exact, and how far the marginals are apart."""
    columns = ["group", "T", "variant", "own sampler", "through exact", "mean |Δ|", "train seconds", "seeds"]
    table = Table(f"{heading(results[0].row).split(',')[0]}: own sampler and exact, same weights", columns)
    for m in results:
        form = FORMATS[m.row.measure]
        numbers = (
            (m.values, form), (m.through_exact(), form), (values(m.runs, "marginal_mae"), ".4f"),
            (values(m.runs, "train_seconds"), ".0f"),
        )  # fmt: skip
        cells = [spread(list(found.values()), pattern) for found, pattern in numbers]
        table.add(m.row.group or m.row.measure, m.row.context, m.row.variant, *cells, len(m.runs))
    table.caption = f"|Δ|: error of ⟨s⟩ against exact. {_provenance(results)}"
    return table


def context_table(results: Sequence[Measured]) -> Table:
    """Perplexity of each model on windows of other lengths than it was trained on."""
    contexts = sorted({t for m in results for t in m.other_contexts()})
    table = Table(
        f"{heading(results[0].row)}, evaluated at others: perplexity",
        ["variant", "trained at T", "seeds", *(f"T = {t}" for t in contexts)],
    )
    for m in results:
        others = m.other_contexts()
        cells = [spread(list(others.get(t, {}).values()), ".3f") for t in contexts]
        table.add(m.row.variant, m.row.context, len(m.runs), *cells)
    table.caption = _provenance(results)
    return table


def _provenance(results: Sequence[Measured]) -> str:
    return provenance(run for m in results for run in m.runs.values())
