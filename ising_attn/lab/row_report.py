"""What the runs of a `RowFile` came to: a table with differences to each row's baseline, every run, and a plot."""

from collections.abc import Mapping
from pathlib import Path

from ising_attn.lab.paired import PairedDifference, holm
from ising_attn.lab.row_file import Measure, RowFile
from ising_attn.lab.sweep_results import Runs, finished_runs, provenance, runs_table, values
from ising_attn.lab.tables import Table, spread


class RowReport:
    """The finished runs of a sweep.

    Args:
        file: which rows there are.
        out: the folder of the sweep.
    """

    def __init__(self, file: RowFile, out: Path):
        self.file = file
        self.results: dict[str, Runs] = finished_runs(out, {row: file.arguments(row) for row in file.rows})

    def tables(self) -> dict[str, Table]:
        """By row with paired tests, and every run."""
        runs = runs_table(self.results, [m.key for m in self.file.measures])
        return {"results": self._results(), **self._differences(), "runs": runs}

    def value(self, row: str, measure: Measure) -> dict[int, float]:
        """A number of every run of a row by seed."""
        return values(self.results.get(row, {}), measure.key)

    def differences(self, measure: Measure) -> dict[str, PairedDifference]:
        """Of every row with a baseline: row − baseline, paired by seed."""
        found = {}
        for row in self.results:
            base = self.file.baseline_of(row)
            own, other = self.value(row, measure), self.value(base, measure) if base else {}
            if own.keys() & other.keys():
                found[row] = PairedDifference.of(own, other)
        return found

    def _results(self) -> Table:
        table = Table(self.file.title, ["row", "seeds", *(m.name for m in self.file.measures)])
        for row, runs in self.results.items():
            shown = [spread(list(self.value(row, m).values()), m.format) for m in self.file.measures]
            table.add(row, len(runs), *shown)
        made = provenance(run for runs in self.results.values() for run in runs.values())
        table.caption = f"Mean ± sample standard deviation over seeds. {made}"
        return table

    def _differences(self) -> Mapping[str, Table]:
        found = {}
        for measure in self.file.measures:
            differences = self.differences(measure)
            if not differences:
                continue
            columns = ["row", "against", "pairs", "difference", "95 % interval", "p", "Holm", "ranks"]
            formats = {"difference": measure.difference_format} | dict.fromkeys(columns[5:], ".2g")
            table = Table(f"{self.file.title}: difference in {measure.name}", columns, formats)
            tested = {row: d.p for row, d in differences.items() if d.p is not None}
            adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
            for row, d in differences.items():
                interval = None if d.low is None or d.high is None else _interval(d.low, d.high, measure)
                against = self.file.baseline_of(row)
                table.add(row, against, d.count, d.mean, interval, d.p, adjusted.get(row), d.signed_rank_p)
            table.caption = (
                f"Paired over seeds; {measure.better} is better. p: two-sided t-test; Holm: corrected for the rows of "
                "this table; ranks: p of Wilcoxon's signed ranks."
            )
            found[f"difference_{measure.key}"] = table
        return found


def _interval(low: float, high: float, measure: Measure) -> str:
    return f"{format(low, measure.difference_format)} to {format(high, measure.difference_format)}"


def save_plot(report: RowReport, measure: Measure, path: Path) -> None:
    """Every row's seeds, mean and 95 % interval of the mean.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    from ising_attn.lab.plots import new_figure, save_figure

    rows = {row: list(report.value(row, measure).values()) for row in report.results}
    rows = {row: numbers for row, numbers in rows.items() if numbers}
    figure = new_figure(7.2, 1.3 + 0.34 * len(rows))
    axis = figure.subplots()
    for place, numbers in enumerate(rows.values()):
        axis.plot(numbers, [place] * len(numbers), "o", color="tab:gray", markersize=4, alpha=0.5)
        mean = PairedDifference.of_differences(numbers)
        half = 0.0 if mean.low is None else mean.mean - mean.low
        axis.errorbar([mean.mean], [place], xerr=[half], color="tab:blue", marker="D", markersize=5, capsize=3)
    axis.set_yticks(range(len(rows)), [f"{row} ({len(n)})" for row, n in rows.items()], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(f"{measure.name} ({measure.better} is better); mean, 95 % interval, seeds")
    axis.grid(alpha=0.25)
    figure.suptitle(report.file.title, fontsize=10)
    save_figure(figure, path)
