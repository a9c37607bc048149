"""The figure of the Boolean ladder: soft and hard perplexity of every rung, published ones beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ising_attn.lab.figures import write_csv
from ising_attn.lab.plots import new_figure, save_figure

_COLOURS = {"soft": "#1f5fa8", "hard": "#d9622b", "hard, calibrated": "#2f8f4e"}


def save_ladder(
    folder: Path,
    name: str,
    rungs: Sequence[tuple[str, Mapping[str, dict[int, float]]]],
    published: Mapping[str, tuple[float | None, float | None]],
    title: str,
) -> None:
    """One line per rung, its seeds as dots on a logarithmic axis, published (logged) values as open diamonds.

    Args:
        rungs: (label, values by seed of soft, hard and hard calibrated).
        published: (soft, hard) by label.
    """
    rows: list[tuple[str, str, int | None, float]] = [
        (label, kind, seed, value)
        for label, kinds in rungs
        for kind, found in kinds.items()
        for seed, value in found.items()
    ]
    for label, pair in published.items():
        rows += [
            (label, f"logged {kind}", None, v) for kind, v in zip(("soft", "hard"), pair, strict=True) if v is not None
        ]
    write_csv(folder / f"{name}.csv", ["rung", "kind", "seed", "perplexity"], rows)
    figure = new_figure(8.0, 0.42 * len(rungs) + 1.6)
    axis = figure.subplots()
    offsets = {"soft": -0.14, "hard": 0.14, "hard, calibrated": 0.28}
    labelled: set[str] = set()
    for place, (label, kinds) in enumerate(rungs):
        for kind, found in kinds.items():
            if not found:
                continue
            one = None if kind in labelled else kind
            labelled.add(kind)
            height = place + offsets[kind]
            axis.plot(list(found.values()), [height] * len(found), "o", color=_COLOURS[kind], label=one, markersize=5)
        for kind, value in zip(("soft", "hard"), published.get(label, (None, None)), strict=True):
            if value is not None:
                one = None if "logged" in labelled else "logged in the repository"
                labelled.add("logged")
                height = place + offsets[kind]
                axis.plot([value], [height], "D", mfc="none", mec=_COLOURS[kind], label=one, markersize=6)
    axis.set_yticks(range(len(rungs)), [label for label, _ in rungs])
    axis.invert_yaxis()
    axis.set_xscale("log")
    _plain_ticks(axis)
    axis.set_xlabel("perplexity (logarithmic; a dot is a seed)")
    axis.grid(alpha=0.25, which="both")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(title, fontsize=10)
    save_figure(figure, folder / f"{name}.png")


def _plain_ticks(axis) -> None:
    """Numbers as they are, at 1, 2 and 5 of each decade, and closer where the axis spans less than one."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_xlim()
    steps = (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    axis.xaxis.set_major_locator(LogLocator(subs=steps))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
