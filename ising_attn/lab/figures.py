"""The plots that every trained model has, each beside a CSV of what it shows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of, use_sampler
from ising_attn.lab import plots
from ising_attn.lab.files import write_bytes
from ising_attn.lab.inference import Comparison
from ising_attn.lab.tables import csv_text
from samplers import MissingDependencyError
from samplers.streams import derive_key


def draw_all(figures: Iterable[Callable[[], None]]) -> list[str]:
    """Call each; remarks: one line where matplotlib is absent (the CSV files are written all the same)."""
    remarks: list[str] = []
    for draw in figures:
        try:
            draw()
        except MissingDependencyError as error:
            remarks = [f"no plots, only their CSV files: {error}"]
    return remarks


def save_learning_curve(
    folder: Path, metrics: Sequence[Mapping[str, Any]], title: str, quantities: Sequence[str]
) -> None:
    """Training and validation values over the steps, without fits that have a label; nothing where there are no rows.

    Training values are means over the steps since the last evaluation; validation values are of that step's weights.

    Args:
        metrics: rows of metrics.jsonl, with `quantity` and `validation_quantity` for every quantity.
    """
    rows = [row for row in metrics if "validation_loss" in row and not row.get("label")]
    if not rows:
        return
    names = ["step", *(name for q in quantities for name in (q, f"validation_{q}"))]
    write_csv(folder / "learning_curve.csv", names, [[row[name] for name in names] for row in rows])
    steps = [row["step"] for row in rows]
    curves = {
        quantity: {
            "training, mean since the last evaluation": (steps, [row[quantity] for row in rows]),
            "validation": (steps, [row[f"validation_{quantity}"] for row in rows]),
        }
        for quantity in quantities
    }
    plots.save_learning_curve(folder / "learning_curve.png", curves, f"Learning curve\n{title}")


def save_couplings(folder: Path, model: nn.Module, tokens: Tensor, title: str) -> None:
    """J of each layer as its problems have it, as a map and by distance; nothing where there is none.

    Args:
        model: with `problems(tokens)`, see `models.Decoder`.
        tokens: (1, T), T as long as J should be.
    """
    if not samplers_of(model):
        return
    with torch.no_grad():
        problems = model.problems(tokens)  # type: ignore[operator]
    for layer, problem in enumerate(problems):
        if not problem.has_couplings:
            continue
        j = problem.couplings.double().cpu().numpy().reshape(-1, problem.num_spins, problem.num_spins)
        stem, where = ("couplings", "") if len(problems) == 1 else (f"couplings_layer_{layer}", f", layer {layer}")
        cells = [(h, a, b, j[h, a, b]) for h in range(len(j)) for a in range(j.shape[1]) for b in range(a)]
        write_csv(folder / f"{stem}.csv", ["head", "j", "k", "J"], cells)
        names = ["head", "distance", "pairs", "mean", "lowest", "highest"]
        write_csv(folder / f"{stem}_by_distance.csv", names, plots.coupling_by_distance(j))
        plots.save_coupling_map(folder / f"{stem}.png", j, f"Learned couplings{where}\n{title}")
        plots.save_coupling_by_distance(
            folder / f"{stem}_by_distance.png", j, f"Learned couplings by distance{where}\n{title}"
        )


def save_attention_example(
    folder: Path,
    maps: Mapping[str, Float[np.ndarray, "t t"]],
    tokens: Sequence[str],
    title: str,
    matches: Mapping[int, int] | None = None,
) -> None:
    """Attention maps of one sequence; `matches` maps a query to the key that is right, where there is one."""
    right = dict(matches or {})
    cells = [
        (name, query, tokens[query], key, tokens[key], weights[query, key], int(right.get(query) == key))
        for name, weights in maps.items()
        for query in range(len(tokens))
        for key in range(query + 1)
    ]
    names = ["attention", "query", "query_token", "key", "key_token", "weight", "is_match"]
    if not right:
        names, cells = names[:-1], [cell[:-1] for cell in cells]  # type: ignore[misc]
    write_csv(folder / "attention_example.csv", names, cells)
    plots.save_attention_example(folder / "attention_example.png", maps, tokens, right, title)


def attention_maps(
    model: nn.Module, tokens: Tensor, report: Comparison, *, seed: int
) -> dict[str, Float[np.ndarray, "t t"]]:
    """Weights of the last layer for one sequence (1, T), through the run's sampler and through exact, by head."""
    maps = _named_maps(report.chosen.label, _weights(model, tokens, None, seed))
    if report.exact not in (None, report.chosen):
        maps |= _named_maps("exact", _weights(model, tokens, "exact", seed))
    return maps


def save_marginals(folder: Path, report: Comparison, title: str) -> None:
    """Magnetizations of the run's sampler over the exact ones; nothing where there are none or they are the same."""
    if report.exact in (None, report.chosen):
        return
    exact, own = report.exact.magnetizations, report.chosen.magnetizations
    if exact is None or own is None:
        return
    write_csv(folder / "marginals.csv", ["exact", report.chosen.label], np.column_stack([exact, own]).tolist())
    plots.save_marginal_scatter(
        folder / "marginals.png", exact, {report.chosen.label: own}, f"Spin marginals of the trained model\n{title}"
    )


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    write_bytes(path, csv_text(columns, rows).encode())


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
