"""Plots of the study of gated MLPs, each with a CSV of what it shows."""

import functools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ising_attn.lab import plots
from ising_attn.lab.figures import draw_all, write_csv
from ising_attn.lab.gated_mlp_report import Outcome, Report, scaling_gap
from ising_attn.lab.gated_mlp_rows import Variant
from ising_attn.lab.tables import mean_and_std
from ising_attn.symmetry import FACTORS

_COLOURS = {"mlp": "#8a8a8a", "symmetric": "#1f5fa8", "gated": "#d9622b"}


def save_figures(report: Report, folder: Path) -> list[str]:
    """perplexity.png, differences.png and symmetry.png, with a CSV of each; remarks."""
    if not report.outcomes:
        return []
    return draw_all(
        [
            lambda: _save_perplexity(report, folder),
            lambda: _save_differences(report, folder),
            lambda: _save_symmetry(report, folder),
        ]
    )


def _save_perplexity(report: Report, folder: Path) -> None:
    rows = [
        (split, v.form, v.rank, v.activation, *mean_and_std([getattr(o, split) for o in report.of(v)]))
        for split in ("validation", "test")
        for v in report.variants
    ]
    write_csv(folder / "perplexity.csv", ["split", "layer", "rank", "activation", "mean", "std"], rows)
    figure = plots.new_figure(max(2.9 * len(_activations(report)) + 0.6, 7.0), 5.6)
    axes = figure.subplots(2, len(_activations(report)), squeeze=False, sharey="row", sharex=True)
    for line, split in zip(axes, ("validation", "test"), strict=True):
        for axis, activation in zip(line, _activations(report), strict=True):
            _draw_perplexity(report, axis, activation, operator.attrgetter(split))
            if split == "validation":
                axis.set_title(f"σ = {activation}", fontsize=9)
                axis.legend(frameon=False, fontsize=8)
        line[0].set_ylabel(f"{split} perplexity")
    for axis in axes[-1]:
        axis.set_xlabel("rank r")
    figure.suptitle(f"Feed-forward layers of {report.study.parameters:,} parameters\n{report.title()}", fontsize=10)
    plots.save_figure(figure, folder / "perplexity.png")


def _draw_perplexity(report: Report, axis: Any, activation: str, value: Callable[[Outcome], float]) -> None:
    mlp = Variant("mlp", 0, activation)
    if mlp in report.variants:
        mean, std = _mean_and_bar([value(o) for o in report.of(mlp)])
        axis.axhline(mean, color=_COLOURS["mlp"], linewidth=1.2, linestyle="--", label="MLP")
        axis.axhspan(mean - std, mean + std, color=_COLOURS["mlp"], alpha=0.15, linewidth=0)
    for form, offset in (("symmetric", 0.97), ("gated", 1.03)):
        own = [v for v in report.variants if v.form == form and v.activation == activation]
        if not own:
            continue
        means, stds = zip(*(_mean_and_bar([value(o) for o in report.of(v)]) for v in own), strict=True)
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
            label="bilinear" if both else form,
        )
    _rank_axis(report, axis)
    axis.grid(alpha=0.25)


def _save_differences(report: Report, folder: Path) -> None:
    table = report.gated_minus_symmetric()
    rows = [row for row in table.rows if row[0] != "all"]
    if not rows:
        return
    write_csv(folder / "differences.csv", table.columns, rows)
    figure = plots.new_figure(6.0, 3.8)
    axis = figure.subplots()
    names = [a for a in _activations(report) if any(row[1] == a for row in rows)]
    for number, activation in enumerate(names):
        own = [row for row in rows if row[1] == activation]
        means = [float(row[2]) for row in own]  # type: ignore[arg-type]
        halves = [0.0 if row[4] is None else float(row[4]) - float(row[2]) for row in own]  # type: ignore[arg-type]
        shift = 1 + 0.05 * (number - (len(names) - 1) / 2)
        places = [float(row[0]) * shift for row in own]  # type: ignore[arg-type]
        axis.errorbar(places, means, halves, marker="o", markersize=4, linewidth=1.2, capsize=2.5, label=activation)
    axis.axhline(0, color="black", linewidth=0.8)
    _rank_axis(report, axis)
    axis.set_xlabel("rank r")
    axis.set_ylabel("gated − symmetric, test perplexity")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, title="σ", fontsize=8)
    figure.suptitle(f"Breaking the symmetry: below 0 it helps (bars: 95 % intervals)\n{report.title()}", fontsize=10)
    plots.save_figure(figure, folder / "differences.png")


def _save_symmetry(report: Report, folder: Path) -> None:
    measured = [v for v in report.variants if any(o.exchange is not None for o in report.of(v))]
    if not measured:
        return
    gaps: list[tuple[str, Callable[[Outcome], float | None]]] = [("exchange of q and k", lambda o: o.exchange)]
    gaps += [(f"scaling by {a:g}", functools.partial(scaling_gap, a)) for a in FACTORS]
    rows = [
        (name, v.form, v.rank, v.activation, *mean_and_std([gap(o) for o in report.of(v)]))
        for name, gap in gaps
        for v in measured
    ]
    write_csv(folder / "symmetry.csv", ["gap", "layer", "rank", "activation", "mean", "std"], rows)
    figure = plots.new_figure(3.3 * len(gaps) + 0.4, 3.6)
    axes = figure.subplots(1, len(gaps), squeeze=False, sharey=True)[0]
    for axis, (name, _) in zip(axes, gaps, strict=True):
        own = [row for row in rows if row[0] == name]
        symmetric = {row[2]: max(r[4] or 0 for r in own if r[1:3] == row[1:3]) for row in own if row[1] == "symmetric"}
        axis.plot([*symmetric], [*symmetric.values()], "o--", color="black", markersize=4, label="symmetric, any σ")
        for number, activation in enumerate(_activations(report)):
            line = [row for row in own if row[1] == "gated" and row[3] == activation]
            if line:
                shift = 1 + 0.04 * (number - 2)
                axis.errorbar(
                    [row[2] * shift for row in line],
                    [row[4] for row in line],
                    [row[5] or 0 for row in line],
                    color=f"C{number}",
                    marker="s",
                    markersize=4,
                    linewidth=1.2,
                    capsize=2.5,
                    label=f"gated, {activation}",
                )
        _rank_axis(report, axis)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("rank r")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("gap (0: symmetric)")
    axes[-1].legend(frameon=False, fontsize=7)
    figure.suptitle(f"Symmetry gaps of the trained layers on test text\n{report.title()}", fontsize=10)
    plots.save_figure(figure, folder / "symmetry.png")


def _activations(report: Report) -> list[str]:
    return list(dict.fromkeys(v.activation for v in report.variants))


def _rank_axis(report: Report, axis: Any) -> None:
    ranks = sorted({v.rank for v in report.variants if v.rank})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ranks, [str(rank) for rank in ranks])
    axis.minorticks_off()


def _mean_and_bar(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, 0 for a single value."""
    mean, std = mean_and_std(values)
    return float(mean or 0), std or 0.0
