"""Figures of a run: learning curve, couplings, one example's attention, marginals against marginals.

Every function takes plain arrays and writes one PNG; matplotlib is imported when a figure is made, without pyplot
and so without global state.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from samplers.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d9622b", "#8a8a8a"
_MOST_TICK_LABELS = 32
DOTS_PER_INCH = 150


def save_learning_curve(
    path: Path, curves: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]], title: str
) -> None:
    """One panel per quantity, one line per part: curves["loss"]["validation"] = (steps, values)."""
    figure = new_figure(max(4.6 * len(curves), 6.0), 3.6)
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (quantity, lines) in zip(axes, curves.items(), strict=True):
        for (name, (steps, values)), colour in zip(lines.items(), (_GREY, _BLUE, _ORANGE), strict=False):
            marker = "o" if len(steps) <= 40 and not name.startswith("train") else None
            axis.plot(steps, values, color=colour, label=name, linewidth=1.4, marker=marker, markersize=3)
        axis.set_xlabel("training step")
        axis.set_ylabel(quantity)
        if quantity == "loss":
            _log_scale_where_wide(axis, [value for _, values in lines.values() for value in values])
        if quantity == "accuracy":
            axis.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
            axis.set_ylim(top=1.02)
        _whole_ticks(axis)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def save_coupling_map(path: Path, couplings: Float[np.ndarray, "heads n n"], title: str) -> None:
    """J of every head on one zero-centred colour scale; the diagonal, which does not exist, is grey."""
    heads, n, _ = couplings.shape
    figure = new_figure(4.2 * heads + 0.9, 4.0)
    axes = figure.subplots(1, heads, squeeze=False)[0]
    limit = float(np.abs(couplings).max()) or 1.0
    for head, axis in enumerate(axes):
        shown = np.ma.masked_array(couplings[head], mask=np.eye(n, dtype=bool))
        image = axis.imshow(shown, cmap=_diverging(), vmin=-limit, vmax=limit)
        axis.set_facecolor("#dddddd")
        axis.set_xlabel("key position k")
        axis.set_ylabel("key position j")
        if heads > 1:
            axis.set_title(f"head {head}", fontsize=9)
        _position_ticks(axis, n)
    figure.colorbar(image, ax=list(axes), label="coupling $J_{jk}$ (above 0: attended together)", shrink=0.85)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def coupling_by_distance(
    couplings: Float[np.ndarray, "heads n n"],
) -> list[tuple[int, int, int, float, float, float]]:
    """Rows (head, distance |j − k|, pairs, mean, lowest, highest) of J."""
    rows = []
    for head, matrix in enumerate(couplings):
        for distance in range(1, matrix.shape[0]):
            values = np.diagonal(matrix, distance)
            rows.append((head, distance, len(values), values.mean(), values.min(), values.max()))
    return [(h, d, c, float(m), float(lo), float(hi)) for h, d, c, m, lo, hi in rows]


def save_coupling_by_distance(path: Path, couplings: Float[np.ndarray, "heads n n"], title: str) -> None:
    """Every J_jk as a dot over its distance, and the mean of each distance as a line per head."""
    figure = new_figure(5.4, 3.6)
    axis = figure.subplots()
    rows = coupling_by_distance(couplings)
    for head, matrix in enumerate(couplings):
        colour = f"C{head}" if len(couplings) > 1 else _BLUE
        j, k = np.triu_indices(matrix.shape[0], 1)
        pair = "one pair" if head == 0 else None
        axis.plot(k - j, matrix[j, k], ".", color=colour, alpha=0.35, markersize=6, label=pair)
        own = [r for r in rows if r[0] == head]
        label = f"mean, head {head}" if len(couplings) > 1 else "mean"
        axis.plot([r[1] for r in own], [r[3] for r in own], "-o", color=colour, markersize=4, label=label)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xlabel("distance |j − k| of two keys")
    axis.set_ylabel("coupling $J_{jk}$")
    _whole_ticks(axis)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def save_attention_example(
    path: Path,
    weights: Mapping[str, Float[np.ndarray, "n n"]],
    tokens: Sequence[str],
    matches: Mapping[int, int],
    title: str,
) -> None:
    """Attention of every query (row) to every key (column), one panel per name; `matches` maps `)` to its `(`.

    True matches are framed in orange; the upper triangle, which a causal model does not see, is left grey.
    """
    n = len(tokens)
    size, columns = min(0.34 * n + 2.2, 7), min(len(weights), 2)
    rows = -(-len(weights) // columns)
    figure = new_figure(size * columns + 0.8, size * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    axes = panels[: len(weights)]
    for empty in panels[len(weights) :]:
        empty.set_axis_off()
    hidden = np.triu(np.ones((n, n), dtype=bool), 1)
    for axis, (name, matrix) in zip(axes, weights.items(), strict=True):
        image = axis.imshow(np.ma.masked_array(matrix, mask=hidden), cmap="Blues", vmin=0, vmax=1)
        axis.set_facecolor("#dddddd")
        for query, key in matches.items():
            axis.add_patch(_frame(key, query))
        _position_ticks(axis, n, tokens)
        axis.set_xlabel("key (attended to)")
        axis.set_ylabel("query (attends)")
        axis.set_title(name, fontsize=9)
    figure.colorbar(image, ax=list(axes), label="attention weight (a row sums to 1)", shrink=0.85)
    legend = "\norange frame: the ( that the query's ) closes" if matches else ""
    figure.suptitle(title + legend, fontsize=10)
    save_figure(figure, path)


def save_marginal_scatter(
    path: Path,
    exact: NDArray[np.floating],
    others: Mapping[str, NDArray[np.floating]],
    title: str,
    *,
    reference: str = "exact",
) -> None:
    """⟨s⟩ of other samplers over the exact ⟨s⟩ of the same problems, with the identity line and the mean error."""
    columns = min(len(others), 4)
    rows = -(-len(others) // columns)
    figure = new_figure(4.3 * columns, 4.3 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    axes = panels[: len(others)]
    for empty in panels[len(others) :]:
        empty.set_axis_off()
    for axis, (name, values) in zip(axes, others.items(), strict=True):
        error = np.abs(values - exact)
        axis.plot([-1, 1], [-1, 1], color="black", linewidth=0.8, label="identity")
        axis.plot(exact, values, ".", color=_BLUE, alpha=_opacity(exact.size), markersize=4, rasterized=True)
        text = f"{exact.size} spins\nmean |error| {error.mean():.4f}\nlargest {error.max():.4f}"
        axis.text(0.04, 0.96, text, transform=axis.transAxes, va="top", fontsize=8)
        axis.set_xlim(-1.04, 1.04)
        axis.set_ylim(-1.04, 1.04)
        axis.set_aspect("equal")
        axis.set_xlabel(f"{reference} ⟨s⟩")
        axis.set_ylabel(f"⟨s⟩ by {name}")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, loc="lower right", fontsize=8)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of that many inches.

    Raises:
        MissingDependencyError: matplotlib is absent.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plots", "drawing plots") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for title in figure.texts:
        if title.get_text() and title.get_text() == figure.get_suptitle():
            _wrap(title, 0.94 * figure.bbox.width)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _wrap(title: Any, width: float) -> None:
    """Break the lines of a title that is wider than that many pixels, which its figure would cut off."""
    lines, taken = title.get_text().splitlines(), title.get_window_extent().width
    if taken > width:
        letters = int(max(map(len, lines)) * width / taken)
        broken = (textwrap.wrap(line, letters, break_on_hyphens=False) or [""] for line in lines)
        title.set_text("\n".join(part for parts in broken for part in parts))


def _diverging() -> Any:
    import matplotlib

    return matplotlib.colormaps["RdBu_r"]


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=_ORANGE, linewidth=2, clip_on=False)


def _position_ticks(axis: Any, n: int, tokens: Sequence[str] | None = None) -> None:
    if n > _MOST_TICK_LABELS:
        return
    labels = [str(i) for i in range(n)] if tokens is None else list(tokens)
    axis.set_xticks(range(n), labels)
    axis.set_yticks(range(n), labels if tokens is None else [f"{i}  {t}" for i, t in enumerate(tokens)])
    if n > 16:
        axis.tick_params(labelsize=7)


def _whole_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _log_scale_where_wide(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers, where positive values span more than a factor of 5."""
    from matplotlib.ticker import LogFormatter

    if min(values) > 0 and max(values) > 5 * min(values):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))


def _opacity(count: int) -> float:
    return float(np.clip(2000 / max(count, 1), 0.05, 0.6))
