"""A Hasse diagram beside its mask, as a picture (matplotlib)."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from ising_attn.lab.plots import new_figure, save_figure
from ising_attn.masks.order import Order, order_of
from ising_attn.masks.text import checked_names

MOST_DRAWN = 64
"""Classes up to which a Hasse diagram is drawn; beyond, the mask stands alone."""
_MOST_TICKS = 32
_ALLOWED, _REACHED, _NOTHING = "#1f5fa8", "#b9d0ea", "#ffffff"


def save_mask_drawing(
    path: str | Path, allowed: Bool[Tensor, "n n"], *, title: str = "", names: Sequence[str] | None = None
) -> None:
    """Write a picture: the Hasse diagram on the left, what is seen at the bottom; the mask on the right.

    In the mask dark cells are allowed and light ones are reached in more layers than one. A diagram of more than
    `MOST_DRAWN` classes is left out.

    Args:
        names: of the positions, for example `position_names(task)`; their numbers by default.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    order = order_of(allowed)
    names = checked_names(order, names)
    draws = order.num_classes <= MOST_DRAWN
    side = 4.6 + 0.04 * min(order.size, 60)
    height = side + 0.6 + (0.08 * max(map(len, names)) if order.size <= _MOST_TICKS else 0.0)
    if draws:
        places, lines = hasse_layout(order)
        width = min(14.0, 2.0 + 1.1 * float(np.ptp(places[:, 0]) + 1))
        figure = new_figure(side + width, height)
        left, right = figure.subplots(1, 2, width_ratios=[width, side])
        _draw_diagram(left, order, places, lines, names)
    else:
        figure = new_figure(side, height)
        right = figure.subplots()
    _draw_mask(right, allowed, order, names)
    if title:
        figure.suptitle(title, fontsize=10)
    save_figure(figure, Path(path))


def hasse_layout(order: Order) -> tuple[np.ndarray, list[np.ndarray]]:
    """Where to draw a Hasse diagram: (classes, 2) x and y of every class, and a polyline for each of `hasse_edges()`.

    y is the level. Lines over several levels get a place in each of them, as classes do, so that they pass beside
    these. A few sweeps up and down put everything at the mean of what it is joined to, which untangles most small
    diagrams (Sugiyama, Tagawa & Toda 1981).
    """
    levels = order.levels.tolist()
    joined: list[list[int]] = [[] for _ in levels]
    routes = []
    for upper, lower in order.hasse_edges():
        between = range(len(levels), len(levels) + levels[upper] - levels[lower] - 1)
        levels += range(levels[upper] - 1, levels[lower], -1)
        joined += [[] for _ in between]
        routes.append([upper, *between, lower])
        for above, below in itertools.pairwise(routes[-1]):
            joined[above].append(below)
            joined[below].append(above)
    rows = [[k for k, level in enumerate(levels) if level == y] for y in range(max(levels) + 1)]
    x = np.zeros(len(levels))
    for row in rows:
        x[row] = _spread(len(row))
    for sweep in range(12):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wanted = [float(np.mean(x[joined[k]])) if joined[k] else x[k] for k in row]
            ranked = [row[k] for k in np.argsort(wanted, kind="stable")]
            x[ranked] = _spread(len(row)) + np.mean(wanted)
    places = np.stack([x, np.array(levels, dtype=float)], axis=1)
    return places[: order.num_classes], [places[route] for route in routes]


def _spread(count: int) -> np.ndarray:
    return np.arange(count) - (count - 1) / 2


def _draw_diagram(axis: Any, order: Order, places: np.ndarray, lines: list[np.ndarray], names: Sequence[str]) -> None:
    for line in lines:
        axis.plot(*line.T, color="#8a8a8a", linewidth=0.9, zorder=1)
    for number, (x, y) in enumerate(places):
        members = order.members[number]
        label = "\n".join(names[p] for p in members[:4]) + (f"\n… {len(members)}" if len(members) > 4 else "")
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": _ALLOWED}
        axis.text(x, y, label, ha="center", va="center", fontsize=7, bbox=box, zorder=2)
    ends = np.concatenate([places, *lines])[:, 0]
    axis.set_xlim(ends.min() - 0.8, ends.max() + 0.8)
    axis.set_ylim(-0.6, places[:, 1].max() + 0.6)
    axis.set_axis_off()
    axis.set_title("Hasse diagram (what is seen stands lower)", fontsize=9)


def _draw_mask(axis: Any, allowed: Tensor, order: Order, names: Sequence[str]) -> None:
    from matplotlib.colors import ListedColormap

    shown = order.reach.cpu().numpy().astype(int)
    unit = np.eye(order.size, dtype=bool)
    shown[(allowed.cpu().numpy() | unit) & (shown > 0)] = 2
    axis.imshow(shown, cmap=ListedColormap([_NOTHING, _REACHED, _ALLOWED]), vmin=0, vmax=2, interpolation="nearest")
    axis.set_anchor("N")
    axis.set_xlabel("position that is seen")
    axis.set_ylabel("position that sees")
    if order.size <= _MOST_TICKS:
        axis.set_xticks(range(order.size), names, rotation=90, fontsize=7)
        axis.set_yticks(range(order.size), names, fontsize=7)
    more = "" if order.is_dense else f"; light: seen after up to {order.depth} layers"
    axis.set_title(f"mask, residuals included{more}", fontsize=9)
