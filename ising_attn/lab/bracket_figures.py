"""The plots of a bracket run, each beside a CSV of what it shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of, use_sampler
from ising_attn.lab import plots
from ising_attn.lab.bracket_report import BracketReport
from ising_attn.lab.bracket_task import BracketTask
from ising_attn.lab.brackets import IGNORE, VOCABULARY, BracketBatch
from ising_attn.lab.files import write_bytes
from ising_attn.lab.tables import csv_text
from samplers import MissingDependencyError
from samplers.streams import derive_key


def save_figures(
    folder: Path,
    metrics: Sequence[Mapping[str, Any]],
    model: nn.Module,
    task: BracketTask,
    report: BracketReport,
    *,
    title: str,
    seed: int,
) -> list[str]:
    """Write every plot that the run has something for, and its numbers as CSV.

    Args:
        folder: where to.
        metrics: rows of metrics.jsonl; none leaves out the learning curve.
        title: what was trained, at the top of each plot.
        seed: of samplers.

    Returns:
        Remarks: one line where matplotlib is absent (the CSV files are written all the same).
    """
    figures = [
        lambda: _learning_curve(folder, metrics, title),
        lambda: _couplings(folder, model, task, title),
        lambda: _attention_example(folder, model, task, report, title, seed),
        lambda: _marginals(folder, report, title),
    ]
    remarks: list[str] = []
    for draw in figures:
        try:
            draw()
        except MissingDependencyError as error:
            remarks = [f"no plots, only their CSV files: {error}"]
    return remarks


def _learning_curve(folder: Path, metrics: Sequence[Mapping[str, Any]], title: str) -> None:
    rows = [row for row in metrics if "validation_loss" in row]
    if not rows:
        return
    names = ["step", "loss", "validation_loss", "accuracy", "validation_accuracy"]
    _write_csv(folder / "learning_curve.csv", names, [[row[name] for name in names] for row in rows])
    steps = [row["step"] for row in rows]
    curves = {
        quantity: {
            "training": (steps, [row[quantity] for row in rows]),
            "validation": (steps, [row[f"validation_{quantity}"] for row in rows]),
        }
        for quantity in ("loss", "accuracy")
    }
    plots.save_learning_curve(folder / "learning_curve.png", curves, f"Learning curve: {title}")


def _couplings(folder: Path, model: nn.Module, task: BracketTask, title: str) -> None:
    """J of each layer, as its problems have it."""
    if not samplers_of(model):
        return
    with torch.no_grad():
        problems = model.problems(task.split("test").tokens[:1].to(task.device))  # type: ignore[operator]
    for layer, problem in enumerate(problems):
        if not problem.has_couplings:
            continue
        j = problem.couplings.double().cpu().numpy().reshape(-1, problem.num_spins, problem.num_spins)
        stem, where = ("couplings", "") if len(problems) == 1 else (f"couplings_layer_{layer}", f", layer {layer}")
        cells = [(h, a, b, j[h, a, b]) for h in range(len(j)) for a in range(j.shape[1]) for b in range(a)]
        _write_csv(folder / f"{stem}.csv", ["head", "j", "k", "J"], cells)
        names = ["head", "distance", "pairs", "mean", "lowest", "highest"]
        _write_csv(folder / f"{stem}_by_distance.csv", names, plots.coupling_by_distance(j))
        plots.save_coupling_map(folder / f"{stem}.png", j, f"Learned couplings{where}\n{title}")
        plots.save_coupling_by_distance(
            folder / f"{stem}_by_distance.png", j, f"Learned couplings by distance{where}\n{title}"
        )


def _attention_example(
    folder: Path, model: nn.Module, task: BracketTask, report: BracketReport, title: str, seed: int
) -> None:
    """One test sequence: attention of the last layer through the run's sampler, and through exact."""
    index = most_nested(task.split("test"))
    example = task.split("test")[index : index + 1]
    maps = _named_maps(report.chosen.label, _weights(model, example.tokens.to(task.device), None, seed))
    if report.exact not in (None, report.chosen):
        maps |= _named_maps("exact", _weights(model, example.tokens.to(task.device), "exact", seed))
    tokens = [VOCABULARY[token] for token in example.tokens[0].tolist()]
    matches = {query: key for query, key in enumerate(example.targets[0].tolist()) if key != IGNORE}
    cells = [
        (name, query, tokens[query], key, tokens[key], weights[query, key], int(matches.get(query) == key))
        for name, weights in maps.items()
        for query in range(len(tokens))
        for key in range(query + 1)
    ]
    names = ["attention", "query", "query_token", "key", "key_token", "weight", "is_match"]
    _write_csv(folder / "attention_example.csv", names, cells)
    plots.save_attention_example(
        folder / "attention_example.png", maps, tokens, matches, f"Attention on test sequence {index}\n{title}"
    )


def most_nested(sequences: BracketBatch) -> int:
    """Index of the sequence with the deepest closing bracket; of several, the one with most fillers, then the first."""
    deepest = sequences.depths.amax(1)
    fillers = (sequences.tokens > 1).sum(1)
    return int((deepest * (sequences.tokens.shape[1] + 1) + fillers).argmax())


def _weights(model: nn.Module, tokens: Tensor, sampler: str | None, seed: int) -> Float[np.ndarray, "heads t t"]:
    own = samplers_of(model)
    with torch.no_grad():
        if not own:
            return _last(model(tokens, need_weights=True))
        with use_sampler(model, sampler or own[0]) as used, used.seeded(derive_key(seed, -5)):
            return _last(model(tokens, need_weights=True))


def _last(output: tuple[Tensor, list[Tensor]]) -> Float[np.ndarray, "heads t t"]:
    return output[1][-1][0].double().cpu().numpy()


def _named_maps(name: str, weights: Float[np.ndarray, "heads t t"]) -> dict[str, Float[np.ndarray, "t t"]]:
    if len(weights) == 1:
        return {name: weights[0]}
    return {f"{name}, head {head}": matrix for head, matrix in enumerate(weights)}


def _marginals(folder: Path, report: BracketReport, title: str) -> None:
    if report.exact in (None, report.chosen):
        return
    exact, own = report.exact.magnetizations, report.chosen.magnetizations
    if exact is None or own is None:
        return
    _write_csv(folder / "marginals.csv", ["exact", report.chosen.label], np.column_stack([exact, own]).tolist())
    plots.save_marginal_scatter(
        folder / "marginals.png", exact, {report.chosen.label: own}, f"Spin marginals of the trained model\n{title}"
    )


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    write_bytes(path, csv_text(columns, rows).encode())
