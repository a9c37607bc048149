"""Tables and plots of the study of gated MLPs: perplexities, paired tests, symmetry gaps."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ising_attn.lab import plots
from ising_attn.lab.figures import draw_all, write_csv
from ising_attn.lab.gated_mlp_rows import Study, Variant
from ising_attn.lab.paired import PairedDifference, holm
from ising_attn.lab.tables import Table, mean_and_std, spread
from ising_attn.symmetry import FACTORS


@dataclass(frozen=True)
class Outcome:
    """One trained model.

    Args:
        validation, test: perplexities.
        learning_rate: chosen for the variant.
        exchange, scaling: symmetry gaps of its feed-forward layer on test text, the largest over layers (scaling by
            factor); None for an MLP.
        exchanged: perplexity, on the same part of the test text as `plain`, with queries and keys exchanged.
        plain: of the model as it is there.
    """

    variant: Variant
    seed: int
    validation: float
    test: float
    learning_rate: float
    parameters: int
    exchange: float | None = None
    scaling: Mapping[float, float] | None = None
    exchanged: float | None = None
    plain: float | None = None


Values = Mapping[int, float]


class Report:
    """What the outcomes of a study come to."""

    def __init__(self, study: Study, outcomes: Sequence[Outcome]):
        self.study, self.outcomes = study, list(outcomes)
        self.variants = [v for v in study.variants() if any(o.variant == v for o in outcomes)]

    def of(self, variant: Variant) -> list[Outcome]:
        """By seed."""
        return sorted((o for o in self.outcomes if o.variant == variant), key=lambda o: o.seed)

    def test(self, variant: Variant) -> Values:
        """Test perplexity by seed."""
        return {o.seed: o.test for o in self.of(variant)}

    def tables(self) -> dict[str, Table]:
        return {
            "results": self._results(),
            "gated_minus_symmetric": self._gated_minus_symmetric(),
            "minus_mlp": self._minus_mlp(),
            "minus_rank_1": self._minus_rank_1(),
            "symmetry": self._symmetry(),
            "runs": self._runs(),
        }

    def remarks(self) -> list[str]:
        """The answer in sentences."""
        table = self._gated_minus_symmetric()
        if not table.rows:
            return []
        signs = dict.fromkeys((-1, 1), 0)
        for row in table.rows[:-1]:
            if isinstance(row[-1], float) and row[-1] < 0.05:
                signs[1 if float(row[2] or 0) > 0 else -1] += 1
        number = len(table.rows) - 1
        mean, low, high = table.rows[-1][2:5]
        lines = [
            f"gated against symmetric at equal rank and activation: {signs[-1]} of {number} comparisons have the gated "
            f"form better at the 5 % level (Holm), {signs[1]} have it worse",
        ]
        if isinstance(low, float) and isinstance(high, float):
            lines.append(f"mean over all of them: {mean:+.3f} in perplexity, 95 % interval {low:+.3f} to {high:+.3f}")
        return lines

    # ---- tables -----------------------------------------------------------------------------------------------

    def _results(self) -> Table:
        columns = ["layer", "rank", "σ", "units", "parameters", "rate", "seeds", "validation", "test perplexity"]
        table = Table("Feed-forward layers at equal parameters", columns, {"parameters": ",", "rate": "g"})
        for variant in self.variants:
            own = self.of(variant)
            table.add(
                _form(variant),
                variant.rank or None,
                variant.activation,
                self.study.hidden_dim(variant),
                self.study.layer_parameters(variant),
                own[0].learning_rate,
                len(own),
                spread([o.validation for o in own], ".3f"),
                spread([o.test for o in own], ".3f"),
            )
        totals = {o.parameters for o in self.outcomes}
        table.caption = (
            f"Mean ± sample standard deviation over seeds. Whole models have {min(totals, default=0):,} to "
            f"{max(totals, default=0):,} parameters. rate: chosen of {_listed(self.study.rates)} on validation text by "
            f"short trainings with another seed. With the identity the symmetric and the gated form are the same."
        )
        return table

    def _gated_minus_symmetric(self) -> Table:
        pairs = [
            ((v.rank, v.activation), v, Variant("symmetric", v.rank, v.activation))
            for v in self.variants
            if v.form == "gated"
        ]
        table = self._differences("Gated minus symmetric, test perplexity", ["rank", "σ"], pairs)
        shared = [(self.test(v), self.test(other)) for _, v, other in pairs if self.test(other)]
        seeds = set.intersection(*({*a} & {*b} for a, b in shared)) if shared else set()
        if seeds:
            means = [sum(a[s] - b[s] for a, b in shared) / len(shared) for s in sorted(seeds)]
            one = PairedDifference.of_differences(means)
            table.add("all", "mean", one.mean, one.low, one.high, one.count, one.p, None)
        table.caption = "Below 0: breaking the symmetry helps. " + table.caption
        return table

    def _minus_mlp(self) -> Table:
        pairs = [
            ((_form(v), v.rank, v.activation), v, Variant("mlp", 0, v.activation)) for v in self.variants if v.rank
        ]
        return self._differences("Minus the MLP of the same σ, test perplexity", ["layer", "rank", "σ"], pairs)

    def _minus_rank_1(self) -> Table:
        pairs = [
            ((_form(v), v.rank, v.activation), v, Variant(v.form, 1, v.activation)) for v in self.variants if v.rank > 1
        ]
        return self._differences("Minus rank 1 of the same layer, test perplexity", ["layer", "rank", "σ"], pairs)

    def _differences(self, title: str, names: Sequence[str], pairs: Sequence[tuple[Any, Variant, Variant]]) -> Table:
        columns = [*names, "mean", "95 % from", "to", "seeds", "p", "p (Holm)"]
        formats = dict.fromkeys(columns[-6:-3], "+.3f") | dict.fromkeys(columns[-2:], ".2g")
        table = Table(title, columns, formats)
        found = []
        for name, variant, other in pairs:
            first, second = self.test(variant), self.test(other)
            if first.keys() & second.keys():
                found.append((name, PairedDifference.of(first, second)))
        adjusted = iter(holm([one.p for _, one in found if one.p is not None]))
        for name, one in found:
            corrected = None if one.p is None else next(adjusted)
            table.add(*name, one.mean, one.low, one.high, one.count, one.p, corrected)
        table.caption = f"Paired by seed; two-sided t-test; Holm's correction over the {len(found)} rows."
        return table

    def _symmetry(self) -> Table:
        columns = ["layer", "rank", "σ", "exchange gap", *(f"scaling gap, a = {a:g}" for a in FACTORS), "perplexity"]
        table = Table("Symmetry gaps of the trained layers on test text", [*columns, "q and k exchanged"])
        for variant in self.variants:
            own = [o for o in self.of(variant) if o.exchange is not None and o.scaling is not None]
            if own:
                table.add(
                    _form(variant),
                    variant.rank,
                    variant.activation,
                    spread([o.exchange for o in own], ".3f"),
                    *(spread([o.scaling[a] for o in own if o.scaling], ".3f") for a in FACTORS),
                    spread([o.plain for o in own], ".3f"),
                    spread([o.exchanged for o in own], ".3f"),
                )
        table.caption = (
            "Mean ± sample standard deviation over seeds. A gap is the root mean square of the change of the layer's "
            "output over that of the output. The last two columns are of the first part of the test text."
        )
        return table

    def _runs(self) -> Table:
        names = ["variant", "layer", "rank", "σ", "units", "seed", "learning rate", "validation", "test"]
        columns = [*names, "exchange gap", *(f"scaling gap {a:g}" for a in FACTORS), "perplexity", "exchanged"]
        formats = dict.fromkeys(columns[7:], ".3f") | {"learning rate": "g"}
        table = Table("Every run", columns, formats)
        for variant in self.variants:
            for o in self.of(variant):
                table.add(
                    variant.name,
                    variant.form,
                    variant.rank or None,
                    variant.activation,
                    self.study.hidden_dim(variant),
                    o.seed,
                    o.learning_rate,
                    o.validation,
                    o.test,
                    o.exchange,
                    *(None if o.scaling is None else o.scaling[a] for a in FACTORS),
                    o.plain,
                    o.exchanged,
                )
        return table

    # ---- plots ------------------------------------------------------------------------------------------------

    def save_figures(self, folder: Path) -> list[str]:
        """perplexity.png, differences.png and symmetry.png, with a CSV of each; remarks."""
        if not self.outcomes:
            return []
        return draw_all(
            [
                lambda: self._save_perplexity(folder),
                lambda: self._save_differences(folder),
                lambda: self._save_symmetry(folder),
            ]
        )

    def _save_perplexity(self, folder: Path) -> None:
        rows = [
            (split, v.form, v.rank, v.activation, *mean_and_std([getattr(o, split) for o in self.of(v)]))
            for split in ("validation", "test")
            for v in self.variants
        ]
        write_csv(folder / "perplexity.csv", ["split", "layer", "rank", "activation", "mean", "std"], rows)
        figure = plots.new_figure(2.9 * len(self._activations()) + 0.6, 5.6)
        axes = figure.subplots(2, len(self._activations()), squeeze=False, sharey="row", sharex=True)
        for line, split in zip(axes, ("validation", "test"), strict=True):
            for axis, activation in zip(line, self._activations(), strict=True):
                self._draw_perplexity(axis, activation, operator.attrgetter(split))
                axis.set_title(f"σ = {activation}" if split == "validation" else "", fontsize=9)
            line[0].set_ylabel(f"{split} perplexity")
        for axis in axes[-1]:
            axis.set_xlabel("rank r")
        figure.suptitle(f"Feed-forward layers of {self.study.parameters:,} parameters\n{self._title()}", fontsize=10)
        plots.save_figure(figure, folder / "perplexity.png")

    def _draw_perplexity(self, axis: Any, activation: str, value: Callable[[Outcome], float]) -> None:
        mlp = Variant("mlp", 0, activation)
        if mlp in self.variants:
            mean, std = _mean_and_bar([value(o) for o in self.of(mlp)])
            axis.axhline(mean, color=_COLOURS["mlp"], linewidth=1.2, linestyle="--", label="MLP")
            axis.axhspan(mean - std, mean + std, color=_COLOURS["mlp"], alpha=0.15, linewidth=0)
        for form, offset in (("symmetric", 0.97), ("gated", 1.03)):
            own = [v for v in self.variants if v.form == form and v.activation == activation]
            if not own:
                continue
            means, stds = zip(*(_mean_and_bar([value(o) for o in self.of(v)]) for v in own), strict=True)
            both = activation == "identity"
            axis.errorbar(
                [v.rank * (1 if both else offset) for v in own],
                means,
                stds,
                color="black" if both else _COLOURS[form],
                marker="o" if form == "symmetric" else "s",
                markersize=4,
                linewidth=1.2,
                capsize=2.5,
                label="symmetric = gated" if both else form,
            )
        self._rank_axis(axis)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8)

    def _save_differences(self, folder: Path) -> None:
        table = self._gated_minus_symmetric()
        rows = [row for row in table.rows if row[0] != "all"]
        if not rows:
            return
        write_csv(folder / "differences.csv", table.columns, rows)
        figure = plots.new_figure(6.0, 3.8)
        axis = figure.subplots()
        names = [a for a in self._activations() if any(row[1] == a for row in rows)]
        for number, activation in enumerate(names):
            own = [row for row in rows if row[1] == activation]
            means = [float(row[2]) for row in own]  # type: ignore[arg-type]
            halves = [0.0 if row[4] is None else float(row[4]) - float(row[2]) for row in own]  # type: ignore[arg-type]
            shift = 1 + 0.05 * (number - (len(names) - 1) / 2)
            places = [float(row[0]) * shift for row in own]  # type: ignore[arg-type]
            axis.errorbar(places, means, halves, marker="o", markersize=4, linewidth=1.2, capsize=2.5, label=activation)
        axis.axhline(0, color="black", linewidth=0.8)
        self._rank_axis(axis)
        axis.set_xlabel("rank r")
        axis.set_ylabel("gated − symmetric, test perplexity")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, title="σ", fontsize=8)
        figure.suptitle(f"Breaking the symmetry: below 0 it helps (bars: 95 % intervals)\n{self._title()}", fontsize=10)
        plots.save_figure(figure, folder / "differences.png")

    def _save_symmetry(self, folder: Path) -> None:
        measured = [v for v in self.variants if any(o.exchange is not None for o in self.of(v))]
        if not measured:
            return
        gaps: list[tuple[str, Callable[[Outcome], float | None]]] = [("exchange of q and k", lambda o: o.exchange)]
        gaps += [(f"scaling by {a:g}", functools.partial(_scaling_gap, a)) for a in FACTORS]
        rows = [
            (name, v.form, v.rank, v.activation, *mean_and_std([gap(o) for o in self.of(v)]))
            for name, gap in gaps
            for v in measured
        ]
        write_csv(folder / "symmetry.csv", ["gap", "layer", "rank", "activation", "mean", "std"], rows)
        figure = plots.new_figure(3.3 * len(gaps) + 0.4, 3.6)
        axes = figure.subplots(1, len(gaps), squeeze=False, sharey=True)[0]
        for axis, (name, _) in zip(axes, gaps, strict=True):
            own = [row for row in rows if row[0] == name]
            for form, style in (("symmetric", "--"), ("gated", "-")):
                for number, activation in enumerate(self._activations()):
                    line = [row for row in own if row[1] == form and row[3] == activation]
                    if line:
                        axis.errorbar(
                            [row[2] for row in line],
                            [row[4] for row in line],
                            [row[5] or 0 for row in line],
                            color=f"C{number}",
                            linestyle=style,
                            marker="o" if form == "symmetric" else "s",
                            markersize=4,
                            linewidth=1.2,
                            capsize=2.5,
                            label=f"{form}, {activation}",
                        )
            self._rank_axis(axis)
            axis.set_title(name, fontsize=9)
            axis.set_xlabel("rank r")
            axis.grid(alpha=0.25)
        axes[0].set_ylabel("gap (0: symmetric)")
        axes[-1].legend(frameon=False, fontsize=7)
        figure.suptitle(f"Symmetry gaps of the trained layers on test text\n{self._title()}", fontsize=10)
        plots.save_figure(figure, folder / "symmetry.png")

    def _activations(self) -> list[str]:
        return list(dict.fromkeys(v.activation for v in self.variants))

    def _rank_axis(self, axis: Any) -> None:
        ranks = sorted({v.rank for v in self.variants if v.rank})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ranks, [str(rank) for rank in ranks])
        axis.minorticks_off()

    def _title(self) -> str:
        study, seeds = self.study, {o.seed for o in self.outcomes}
        return (
            f"Tiny Shakespeare, softmax attention, context {study.context}, width {study.embed_dim}, "
            f"{study.steps} steps, {len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
        )


_COLOURS = {"mlp": "#8a8a8a", "symmetric": "#1f5fa8", "gated": "#d9622b"}


def _mean_and_bar(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, 0 for a single value."""
    mean, std = mean_and_std(values)
    return float(mean or 0), std or 0.0


def _scaling_gap(factor: float, outcome: Outcome) -> float | None:
    return None if outcome.scaling is None else outcome.scaling[factor]


def _form(variant: Variant) -> str:
    if variant.activation == "identity" and variant.rank:
        return "symmetric = gated"
    return "MLP" if variant.form == "mlp" else variant.form


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
