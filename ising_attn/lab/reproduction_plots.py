"""Figures of the reproduction: what was measured over T, gains over softmax, couplings, accuracy by nesting depth."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ising_attn.lab.paired import PairedDifference
from ising_attn.lab.plots import new_figure, save_figure
from ising_attn.lab.published import Published
from ising_attn.lab.tables import mean_and_std

Series = Mapping[int, Sequence[float]]
"""The seeds' values at each T."""

# Colours that stay apart in the common kinds of colour blindness (Okabe and Ito).
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#7A5195", "#B3A125",
           "#444444")  # fmt: skip
MARKERS = "osD^vP*XhdH<>"


def save_lines(
    path: Path,
    ours: Mapping[str, Series],
    title: str,
    *,
    quantity: str,
    over: str,
    published: Mapping[str, Mapping[int, Published]] | None = None,
    note: str = "",
) -> None:
    """One line per variant with the standard deviation over seeds; published ones dotted in the same colour.

    Points of one place stand side by side, so that bars do not hide each other; bars of an accuracy end at 100 %.

    Args:
        ours: values by seed at each place of each variant.
        over: what the places are: T, nesting depth, the length of windows.
    """
    known = published or {}
    figure = new_figure(7.2, 4.6)
    axis = figure.subplots()
    all_places, most = sorted({k for series in ours.values() for k in series}), math.inf
    if quantity.startswith("accuracy"):
        most = 1.0
    step = 0.25 * min(np.diff(all_places), default=1) / max(len(ours), 1)
    for index, ((name, series), colour, marker) in enumerate(
        zip(ours.items(), _cycle(COLOURS), _cycle(MARKERS), strict=False)
    ):
        shift = (index - (len(ours) - 1) / 2) * step
        places = sorted(series)
        means, stds = _means(series, places)
        bars = [stds, [max(0.0, min(std, most - mean)) for mean, std in zip(means, stds, strict=True)]]
        axis.errorbar([k + shift for k in places], means, yerr=bars, color=colour, marker=marker, markersize=4.5,
                      linewidth=1.2, elinewidth=1, capsize=2, label=name)  # fmt: skip
        if theirs := known.get(name):
            shown = sorted(theirs)
            axis.plot(shown, [theirs[t].value for t in shown], color=colour, linestyle=":", linewidth=1.2, alpha=0.8)
    if any(known.values()):
        axis.plot([], [], color="grey", linestyle=":", label="published")
    axis.set_xlabel(over)
    axis.set_ylabel(quantity)
    _context_ticks(axis, set(all_places))
    if most == 1:
        _percent(axis)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8, ncols=2 if len(ours) > 5 else 1)
    figure.suptitle(title, fontsize=10)
    _footnote(figure, note)
    save_figure(figure, path)


def save_gains_over_context(
    path: Path,
    gains: Mapping[str, Mapping[int, PairedDifference]],
    published: Mapping[str, Mapping[int, float]],
    title: str,
    *,
    quantity: str,
    note: str = "",
) -> None:
    """Paired gain over softmax at each T with its 95 % interval; side by side so that bars do not hide each other.

    The axis is that of our numbers, so that published ones far off are not shown.
    """
    figure = new_figure(7.2, 4.4)
    axis = figure.subplots()
    contexts = sorted({t for own in gains.values() for t in own})
    step = min(np.diff(contexts), default=1) * 0.6 / max(len(gains), 1)
    for index, ((name, own), colour, marker) in enumerate(
        zip(gains.items(), _cycle(COLOURS[1:]), _cycle(MARKERS), strict=False)
    ):
        shift = (index - (len(gains) - 1) / 2) * step
        shown = sorted(own)
        means = [own[t].mean for t in shown]
        half = [0.0 if own[t].low is None else own[t].mean - (own[t].low or 0.0) for t in shown]
        axis.errorbar([t + shift for t in shown], means, yerr=half, color=colour, marker=marker, markersize=4.5,
                      linestyle="none", capsize=2.5, label=name)  # fmt: skip
        if known := published.get(name):
            places = sorted(known)
            axis.plot([t + shift for t in places], [known[t] for t in places], color=colour, linestyle="none",
                      marker="_", markersize=11, markeredgewidth=1.6, alpha=0.75)  # fmt: skip
    if any(published.values()):
        axis.plot([], [], color="grey", linestyle="none", marker="_", markersize=11, label="published (means)")
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlabel("context T")
    axis.set_ylabel(f"{quantity} (above 0: better)")
    _context_ticks(axis, set(contexts))
    ends = [end for own in gains.values() for g in own.values() for end in (g.mean, g.low, g.high) if end is not None]
    margin = 0.25 * (max(*ends, 0.0) - min(*ends, 0.0))
    axis.set_ylim(min(*ends, 0.0) - margin, max(*ends, 0.0) + margin)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8, ncols=2 if len(gains) > 4 else 1)
    figure.suptitle(title, fontsize=10)
    _footnote(figure, note)
    save_figure(figure, path)


def save_gain_list(
    path: Path, gains: Mapping[str, PairedDifference], title: str, *, quantity: str, note: str = ""
) -> None:
    """One line per variant: its gain over a baseline with the 95 % interval, for many variants at one T."""
    figure = new_figure(7.2, 1.4 + 0.34 * len(gains))
    axis = figure.subplots()
    for place, gain in enumerate(gains.values()):
        colour = COLOURS[1] if gain.low is not None and (gain.low > 0 or (gain.high or 0) < 0) else COLOURS[7]
        half = 0.0 if gain.low is None else gain.mean - gain.low
        axis.errorbar([gain.mean], [place], xerr=[half], color=colour, marker="o", markersize=5, capsize=3)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(gains)), [f"{name} ({g.count})" for name, g in gains.items()], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(quantity)
    axis.grid(alpha=0.25)
    figure.suptitle(title, fontsize=10)
    _footnote(figure, note)
    save_figure(figure, path)


def save_mean_couplings(path: Path, couplings: Float[np.ndarray, "seeds n n"], title: str, *, note: str = "") -> None:
    """J averaged over seeds as a map, and by distance with every seed's own mean beside it."""
    seeds, n, _ = couplings.shape
    figure = new_figure(9.6, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    mean = couplings.mean(0)
    limit = float(np.abs(mean).max()) or 1.0
    image = left.imshow(np.ma.masked_array(mean, mask=np.triu(np.ones((n, n), dtype=bool))), cmap="RdBu_r",
                        vmin=-limit, vmax=limit)  # fmt: skip
    left.set_facecolor("#eeeeee")
    _whole_ticks(left)
    left.set_xlabel("key position k")
    left.set_ylabel("key position j")
    left.set_title(f"mean of {seeds} seed{'' if seeds == 1 else 's'}", fontsize=9)
    figure.colorbar(image, ax=left, label="coupling $J_{jk}$ (above 0: attended together)", shrink=0.85)
    distances = np.arange(1, n)
    each = np.array([[np.diagonal(j, d).mean() for d in distances] for j in couplings])
    for row in each:
        right.plot(distances, row, color=COLOURS[6], linewidth=0.8, alpha=0.7)
    spread = each.std(0, ddof=1) if seeds > 1 else np.zeros(n - 1)
    right.errorbar(distances, each.mean(0), yerr=spread, color=COLOURS[1], marker="o", markersize=4, capsize=2.5,
                   label="mean ± std over seeds")  # fmt: skip
    right.plot([], [], color=COLOURS[6], label="one seed")
    right.axhline(0, color="black", linewidth=0.8)
    right.set_xlabel("distance |j − k| of two keys")
    right.set_ylabel("mean coupling")
    right.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    _footnote(figure, note)
    save_figure(figure, path)


def _means(series: Series, places: Sequence[int]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation at each place; 0 for the deviation of a single value."""
    pairs = [mean_and_std(list(series[place])) for place in places]
    return [np.nan if mean is None else mean for mean, _ in pairs], [std or 0.0 for _, std in pairs]


def _cycle(items: Sequence[Any]) -> list[Any]:
    """Enough of them for any number of lines."""
    return [*items] * 4


def _context_ticks(axis: Any, contexts: set[int]) -> None:
    shown = sorted(contexts)
    if shown and max(shown) > 8 * max(min(shown), 1):
        axis.set_xscale("log", base=2)
        axis.minorticks_off()
    axis.set_xticks(shown, [str(t) for t in shown])


def _whole_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(MaxNLocator(integer=True))


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.yaxis.set_major_formatter(PercentFormatter(1.0))


def _footnote(figure: Any, note: str) -> None:
    if note:
        figure.supxlabel(note, fontsize=7, color="#555555", x=0.01, ha="left")
