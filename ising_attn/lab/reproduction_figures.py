"""The figures of the reproduction from its finished runs, each beside a CSV of what it shows."""

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ising_attn.couplings import FreeCouplings
from ising_attn.lab import reproduction_plots as plots
from ising_attn.lab.checkpoints import load_checkpoint
from ising_attn.lab.figures import draw_all, write_csv
from ising_attn.lab.paired import PairedDifference
from ising_attn.lab.reproduction_report import Measured, gain, heading
from ising_attn.lab.reproduction_rows import SOFTMAX
from ising_attn.lab.sweep_results import FinishedRun, provenance

_COUPLINGS = "blocks.0.attention.couplings.values"
_QUANTITIES = {"perplexity": "perplexity", "accuracy": "accuracy at closing brackets"}
_GAINS = {"perplexity": "perplexity below softmax", "accuracy": "percentage points above softmax"}
_UNITS = {"perplexity": 1.0, "accuracy": 100.0}
_WITHOUT_FIELDS = ("J", "K", "J+K")
_THREE_BODY = ("K", "h+K", "J+K", "h+J+K")


def save_all(folder: Path, results: Sequence[Measured], command: str) -> list[str]:
    """Every figure that the runs have something for; remarks.

    Args:
        folder: where to.
        command: what makes them, for the line at the foot of each.
    """
    draw: list[Callable[[], None]] = []
    for part in dict.fromkeys(m.row.part for m in results):
        for group in dict.fromkeys(m.row.group for m in results if m.row.part == part):
            own = [m for m in results if (m.row.part, m.row.group) == (part, group)]
            draw += _of_group(folder, own[0].table, own, command)
    return draw_all(draw)


def _of_group(folder: Path, stem: str, own: list[Measured], command: str) -> list[Callable[[], None]]:
    figures: list[Callable[[], None]] = []
    part, contexts = own[0].row.part, {m.row.context for m in own}
    if part != "length-transfer" and len(contexts) > 1:
        pairs = [m for m in own if m.row.variant not in _THREE_BODY]
        figures += [
            lambda: over_context(folder / f"{stem}.png", pairs, command),
            lambda: gains_over_context(folder / f"{stem}-gains.png", own, command),
        ]
        if len(pairs) < len(own):
            shown = [m for m in own if m.row.variant in (SOFTMAX, "h+J", *_THREE_BODY)]
            figures.append(lambda: over_context(folder / f"{stem}-three-body.png", shown, command))
    if part in ("brackets-tuned", "recipe", "settings", "samplers"):
        figures.append(lambda: gain_list(folder / f"{stem}-gains.png", own, command))
    if part == "length-transfer":
        figures.append(lambda: other_contexts(folder / f"{stem}.png", own, command))
    if part in ("text-paper", "brackets"):
        figures.append(lambda: couplings(folder / f"{stem}-couplings.png", own, command))
    if part in ("brackets", "brackets-tuned", "recipe"):
        figures.append(lambda: depths(folder / f"{stem}-depth.png", own, command))
    return figures


def over_context(path: Path, own: Sequence[Measured], command: str) -> None:
    """What was measured over T, the published numbers beside it."""
    measure = own[0].row.measure
    series: dict[str, dict[int, list[float]]] = {}
    published: dict[str, dict] = {}
    for m in own:
        series.setdefault(m.row.variant, {})[m.row.context] = list(m.values.values())
        if m.row.published is not None:
            published.setdefault(m.row.variant, {})[m.row.context] = m.row.published
    rows = [
        (m.row.variant, m.row.context, seed, value, m.row.published.value if m.row.published else None)
        for m in own
        for seed, value in m.values.items()
    ]
    write_csv(path.with_suffix(".csv"), ["variant", "T", "seed", measure, "published"], rows)
    title = f"{heading(own[0].row)}\nmean ± standard deviation over seeds"
    what = _QUANTITIES[measure]
    plots.save_lines(
        path, series, title, quantity=what, over="context T", published=published, note=_note(own, command)
    )


def softmax_gains(own: Sequence[Measured]) -> dict[str, dict[int, PairedDifference]]:
    """The gain of every variant over softmax at each T where both have seeds in common."""
    baseline = {m.row.context: m for m in own if m.row.variant == SOFTMAX}
    found: dict[str, dict[int, PairedDifference]] = {}
    for m in own:
        second = baseline.get(m.row.context)
        if m.row.variant != SOFTMAX and second is not None and m.values.keys() & second.values.keys():
            found.setdefault(m.row.variant, {})[m.row.context] = gain(m, second)
    return found


def gains_over_context(path: Path, own: Sequence[Measured], command: str) -> None:
    """Paired gains over softmax over T of what has fields, and those between the published means."""
    measure = own[0].row.measure
    gains = {name: found for name, found in softmax_gains(own).items() if name not in _WITHOUT_FIELDS}
    if not gains:
        return
    means = {(m.row.variant, m.row.context): m.row.published.value for m in own if m.row.published is not None}
    sign = -1 if measure == "perplexity" else _UNITS[measure]
    published = {
        variant: {t: sign * (means[variant, t] - means[SOFTMAX, t]) for t in places if (variant, t) in means}
        for variant, places in gains.items()
    }
    _write_gains(path, [(variant, t, g) for variant, places in gains.items() for t, g in places.items()])
    title = f"{heading(own[0].row)}: gain over softmax\npaired over seeds, with 95 % intervals"
    shown = {name: {t: _in_units(g, measure) for t, g in places.items()} for name, places in gains.items()}
    plots.save_gains_over_context(
        path, shown, published, title, quantity=_GAINS[measure], note=_note(own, command)
    )  # fmt: skip


def gain_list(path: Path, own: Sequence[Measured], command: str) -> None:
    """Gains over softmax of every variant at one T, largest first."""
    found = softmax_gains(own)
    context = own[0].row.context
    gains = {name: places[context] for name, places in found.items() if context in places}
    if not gains:
        return
    ordered = dict(sorted(gains.items(), key=lambda item: -item[1].mean))
    _write_gains(path, [(variant, context, g) for variant, g in ordered.items()])
    title = (
        f"{heading(own[0].row)}, T = {context}: gain over softmax\n"
        "paired over seeds (how many); 95 % intervals, blue where 0 is outside"
    )
    measure = own[0].row.measure
    shown = {name: _in_units(g, measure) for name, g in ordered.items()}
    plots.save_gain_list(path, shown, title, quantity=_GAINS[measure], note=_note(own, command))


def _in_units(gain: PairedDifference, measure: str) -> PairedDifference:
    """Accuracies in percentage points."""
    unit = _UNITS[measure]
    low, high = (None if end is None else unit * end for end in (gain.low, gain.high))
    return dataclasses.replace(gain, mean=unit * gain.mean, low=low, high=high)


def _write_gains(path: Path, gains: Sequence[tuple[str, int, PairedDifference]]) -> None:
    columns = ["variant", "T", "seeds", "gain", "low", "high", "p_t", "p_ranks"]
    rows = [(v, t, g.count, g.mean, g.low, g.high, g.p, g.signed_rank_p) for v, t, g in gains]
    write_csv(path.with_suffix(".csv"), columns, rows)


def couplings(path: Path, own: Sequence[Measured], command: str) -> None:
    """J of h+J at its largest T with more than one seed (else the largest), averaged over seeds."""
    candidates = [m for m in own if m.row.variant == "h+J"]
    if not candidates:
        return
    chosen = max(candidates, key=lambda m: (len(m.runs) > 1, m.row.context))
    matrices = np.stack([trained_couplings(run, chosen.row.context) for run in chosen.runs.values()])
    cells = [
        (seed, j, k, matrices[index, j, k])
        for index, seed in enumerate(chosen.runs)
        for j in range(chosen.row.context)
        for k in range(j)
    ]
    write_csv(path.with_suffix(".csv"), ["seed", "j", "k", "J"], cells)
    title = f"{heading(chosen.row)}: learned couplings of h+J, T = {chosen.row.context}"
    plots.save_mean_couplings(path, matrices, title, note=_note([chosen], command))


def trained_couplings(run: FinishedRun, context: int) -> Float[np.ndarray, "n n"]:
    """J of a one-layer, one-head model with free couplings, from its best checkpoint."""
    checkpoint = load_checkpoint(run.folder / "checkpoints" / "best.safetensors")
    module = FreeCouplings(1, context)
    module.load_state_dict({"values": checkpoint.model[_COUPLINGS]})
    matrix: Float[np.ndarray, "n n"] = module(context)[0].detach().double().numpy()
    return matrix


def depths(path: Path, own: Sequence[Measured], command: str) -> None:
    """Accuracy at each nesting depth at the largest T, through each model's own sampler."""
    context = max(m.row.context for m in own)
    series: dict[str, dict[int, list[float]]] = {}
    rows: list[tuple[str, int, int, int, float]] = []
    shown = [m for m in own if m.row.context == context]
    for m in shown:
        for seed, run in m.runs.items():
            for depth, closings, accuracy in by_depth(run):
                series.setdefault(m.row.variant, {}).setdefault(depth, []).append(accuracy)
                rows.append((m.row.variant, seed, depth, closings, accuracy))
    write_csv(path.with_suffix(".csv"), ["variant", "seed", "depth", "closings", "accuracy"], rows)
    title = f"{heading(own[0].row)}, T = {context}: accuracy by nesting depth\nmean ± standard deviation over seeds"
    plots.save_lines(
        path, series, title, quantity="accuracy at closing brackets", over="nesting depth (1 is outermost)",
        note=_note(shown, command),
    )  # fmt: skip


def by_depth(run: FinishedRun) -> list[tuple[int, int, float]]:
    """(depth, closings, accuracy through the run's own sampler) from the run's table."""
    with (run.folder / "by_depth.csv").open(newline="", encoding="utf-8") as file:
        return [(int(row[0]), int(row[1]), float(row[2])) for row in list(csv.reader(file))[1:]]


def other_contexts(path: Path, own: Sequence[Measured], command: str) -> None:
    """Perplexity of each model on windows of other lengths than it was trained on."""
    series = {
        f"{m.row.variant}, trained at {m.row.context}": {t: list(v.values()) for t, v in m.other_contexts().items()}
        for m in own
    }
    rows = [
        (m.row.variant, m.row.context, t, seed, value)
        for m in own
        for t, found in m.other_contexts().items()
        for seed, value in found.items()
    ]
    write_csv(path.with_suffix(".csv"), ["variant", "trained_at", "T", "seed", "perplexity"], rows)
    title = f"{heading(own[0].row)}, evaluated at others\nmean ± standard deviation over seeds"
    plots.save_lines(path, series, title, quantity="perplexity", over="length of the windows", note=_note(own, command))


def _note(own: Sequence[Measured], command: str) -> str:
    return f"{provenance((run for m in own for run in m.runs.values()), short=True)} {command}"
