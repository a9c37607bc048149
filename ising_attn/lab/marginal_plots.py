"""Figures of a comparison of samplers: scatter against the reference, error over cost, error over coupling scale."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ising_attn.lab.marginal_curves import ROUNDING, CurvePoint
from ising_attn.lab.marginal_report import Measurement, Reference
from ising_attn.lab.plots import new_figure, save_figure, save_marginal_scatter
from samplers import IsingProblem

_AXES = {
    "num_reads": "reads",
    "num_chains": "chains",
    "num_sweeps": "sweeps",
    "num_layers": "layers of the anneal",
    "shots": "shots",
    "max_iterations": "iterations",
}


def save_scatters(
    path: Path, measurements: Sequence[Measurement], reference: Reference, problem: IsingProblem, title: str
) -> None:
    """⟨s⟩ of every sampler over the reference's, one panel each, at most four in a row."""
    allowed = problem.expanded_allowed()

    def flat(values) -> np.ndarray:
        return (values.flatten() if allowed is None else values[allowed]).double().cpu().numpy()

    # A panel of the reference against itself shows nothing.
    shown = [one for one in measurements if one.largest > ROUNDING] or list(measurements)
    others = {one.label: flat(one.magnetization) for one in shown}
    save_marginal_scatter(path, flat(reference.magnetization), others, title, reference=reference.name)


def save_cost_curves(path: Path, points: Sequence[CurvePoint], title: str) -> None:
    """RMSE over each option that buys accuracy, one panel per option; the noise floor 1/√reads where it applies."""
    points = _with_curves(points)
    knobs = list(dict.fromkeys(point.knob for point in points))
    figure = new_figure(4.4 * len(knobs), 3.7)
    labels = list(dict.fromkeys(point.label for point in points))
    for axis, knob in zip(figure.subplots(1, len(knobs), squeeze=False)[0], knobs, strict=True):
        for label in (own for own in labels if any(p.label == own and p.knob == knob for p in points)):
            line = [p for p in points if p.label == label and p.knob == knob]
            colour = f"C{labels.index(label)}"
            axis.plot([p.value for p in line], [p.rmse for p in line], "-o", color=colour, markersize=4,
                      label=label)  # fmt: skip
        if knob in ("num_reads", "num_chains", "shots"):
            x = np.array(sorted({p.value for p in points if p.knob == knob}))
            axis.plot(x, x**-0.5, ":", color="black", linewidth=1, label=f"1/√{_AXES[knob]} (free spin)")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_yscale("log")
        axis.set_xlabel(_AXES[knob])
        axis.set_ylabel("RMSE of ⟨s⟩")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def save_time_curves(path: Path, points: Sequence[CurvePoint], title: str) -> None:
    """RMSE over the seconds of one call, every option's points on one pair of axes."""
    points = _with_curves(points)
    figure = new_figure(5.6, 4.0)
    axis = figure.subplots()
    lines = list(dict.fromkeys((p.label, p.knob) for p in points))
    for number, (label, knob) in enumerate(lines):
        own = [p for p in points if (p.label, p.knob) == (label, knob)]
        axis.plot([1e3 * p.seconds for p in own], [p.rmse for p in own], "-o", markersize=4,
                  color=f"C{number}", label=f"{label}, by {_AXES[knob]}")  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("milliseconds of one call, all problems")
    axis.set_ylabel("RMSE of ⟨s⟩")
    axis.grid(alpha=0.25, which="both")
    axis.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def save_coupling_curves(path: Path, points: Sequence[CurvePoint], title: str) -> None:
    """RMSE over the scale of the couplings, a line per sampler that is not exact."""
    points = [p for p in points if p.rmse > ROUNDING]
    figure = new_figure(5.6, 4.0)
    axis = figure.subplots()
    for label in dict.fromkeys(p.label for p in points):
        own = [p for p in points if p.label == label]
        axis.plot([p.value for p in own], [p.rmse for p in own], "-o", markersize=4, label=label)
    axis.set_yscale("log")
    axis.set_xlabel("coupling scale $\\sigma_J$")
    axis.set_ylabel("RMSE of ⟨s⟩")
    axis.grid(alpha=0.25, which="both")
    axis.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def _with_curves(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Points of options that were tried at two values or more, without those whose error is rounding."""
    kept = [p for p in points if p.rmse > ROUNDING]
    return [p for p in kept if sum((p.label, p.knob) == (q.label, q.knob) for q in kept) > 1]
