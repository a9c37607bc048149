"""Tables of the study of gated MLPs: perplexities, paired tests, symmetry gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
_LEVEL = 0.05


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
            "best": self._best(),
            "gated_minus_symmetric": self.gated_minus_symmetric(),
            "minus_mlp": self._minus_mlp(),
            "minus_rank_1": self._minus_rank_1(),
            "symmetry": self._symmetry(),
            "runs": self._runs(),
        }

    def summary(self) -> dict[str, Any]:
        """The answer in numbers: how many comparisons of gated with symmetric are decided, and their mean."""
        rows = self.gated_minus_symmetric().rows
        own, overall = [row for row in rows if row[0] != "all"], [row for row in rows if row[0] == "all"]
        decided = [float(row[2] or 0) for row in own if isinstance(row[-1], float) and row[-1] < _LEVEL]
        names = ("mean", "low", "high", "seeds", "p")
        return {
            "runs": len(self.outcomes),
            "seeds": sorted({o.seed for o in self.outcomes}),
            "comparisons": len(own),
            "gated_better": sum(mean < 0 for mean in decided),
            "gated_worse": sum(mean > 0 for mean in decided),
            "gated_minus_symmetric": dict(zip(names, overall[0][2:7], strict=True)) if overall else None,
        }

    def remarks(self) -> list[str]:
        """The answer in sentences."""
        found = self.summary()
        if not found["comparisons"]:
            return []
        lines = [
            f"gated against symmetric at equal rank and activation: of {found['comparisons']} comparisons "
            f"{found['gated_better']} have gated better at the {_LEVEL:.0%} level (Holm), {found['gated_worse']} worse"
        ]
        overall = found["gated_minus_symmetric"]
        if overall is not None and overall["low"] is not None:
            lines.append(
                f"mean over all of them: {overall['mean']:+.3f} in perplexity, 95 % interval {overall['low']:+.3f} to "
                f"{overall['high']:+.3f}"
            )
        return lines

    # ---- tables -----------------------------------------------------------------------------------------------

    def _results(self) -> Table:
        columns = ["layer", "rank", "σ", "units", "params", "rate", "valid.", "test"]
        formats = {"params": ",", "rate": "g", "valid.": ".3f"}
        table = Table("Perplexity by feed-forward layer, at equal parameters", columns, formats)
        for variant in self.variants:
            own = self.of(variant)
            table.add(
                _form(variant),
                variant.rank or None,
                variant.activation,
                self.study.hidden_dim(variant),
                self.study.layer_parameters(variant),
                own[0].learning_rate,
                mean_and_std([o.validation for o in own])[0],
                spread([o.test for o in own], ".3f"),
            )
        totals = {o.parameters for o in self.outcomes}
        table.caption = (
            f"Mean ± sample standard deviation over {self._spoken_seeds()}. params: of the layer; whole models have "
            f"{min(totals, default=0):,} to {max(totals, default=0):,}. rate: chosen of "
            f"{_listed(self.study.learning_rates)} on validation text by short trainings with another seed. bilinear: "
            "with the identity the symmetric and the gated form are the same."
        )
        return table

    def _best(self) -> Table:
        """One variant of each form, chosen by its mean validation perplexity."""
        columns = ["layer", "rank", "σ", "test", "− MLP", "from", "to", "p"]
        formats = dict.fromkeys(columns[4:7], "+.3f") | {"p": ".2g"}
        table = Table("The best of each form by validation text", columns, formats)
        chosen: dict[str, Variant] = {}
        for variant in self.variants:
            if _form(variant) not in chosen or self._validation(variant) < self._validation(chosen[_form(variant)]):
                chosen[_form(variant)] = variant
        for form, variant in chosen.items():
            own = [o.test for o in self.of(variant)]
            cells: list[float | None] = [None] * 4
            mlp = chosen.get("MLP", variant)
            if mlp != variant and self.test(mlp).keys() & self.test(variant).keys():
                one = PairedDifference.of(self.test(variant), self.test(mlp))
                cells = [one.mean, one.low, one.high, one.p]
            table.add(form, variant.rank or None, variant.activation, spread(own, ".3f"), *cells)
        table.caption = (
            "Test perplexity, and its difference to the best MLP, paired by seed, with a 95 % interval. Forms of "
            "several ranks had more variants to choose from than the MLP."
        )
        return table

    def _validation(self, variant: Variant) -> float:
        return sum(o.validation for o in self.of(variant)) / len(self.of(variant))

    def gated_minus_symmetric(self) -> Table:
        """By rank and activation, and the mean over all of them in the last row."""
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
        columns = ["layer", "rank", "σ", "exchange", *(f"a = {a:g}" for a in FACTORS), "plain", "exchanged"]
        table = Table("Symmetry gaps of the trained layers on test text", columns, dict.fromkeys(columns[3:], ".3f"))
        for variant in self.variants:
            own = [o for o in self.of(variant) if o.exchange is not None and o.scaling is not None]
            if own:
                table.add(
                    _form(variant),
                    variant.rank,
                    variant.activation,
                    mean_and_std([o.exchange for o in own])[0],
                    *(mean_and_std([scaling_gap(a, o) for o in own])[0] for a in FACTORS),
                    mean_and_std([o.plain for o in own])[0],
                    mean_and_std([o.exchanged for o in own])[0],
                )
        table.caption = (
            f"Means over {self._spoken_seeds()}. A gap is the root mean square of the change of the layer's output "
            "over that of the output: under the exchange of queries and keys, and under queries times a and keys over "
            "a. The last two columns are of the first part of the test text, with the trained weights and with queries "
            "and keys exchanged."
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

    def title(self) -> str:
        """What was trained, in one line."""
        study = self.study
        return (
            f"Tiny Shakespeare, softmax attention, context {study.context}, width {study.embed_dim}, "
            f"{study.steps} steps, {self._spoken_seeds()}"
        )

    def _spoken_seeds(self) -> str:
        counts = {len(self.of(variant)) for variant in self.variants} or {0}
        one = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        return f"{one} seed{'' if one == '1' else 's'}"


def scaling_gap(factor: float, outcome: Outcome) -> float | None:
    """None for an MLP."""
    return None if outcome.scaling is None else outcome.scaling[factor]


def _form(variant: Variant) -> str:
    if variant.activation == "identity" and variant.rank:
        return "bilinear"
    return "MLP" if variant.form == "mlp" else variant.form


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
