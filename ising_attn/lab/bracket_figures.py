"""The plots of a bracket run, each beside a CSV of what it shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ising_attn.lab import figures
from ising_attn.lab.bracket_report import BracketReport
from ising_attn.lab.bracket_task import BracketTask
from ising_attn.lab.brackets import IGNORE, VOCABULARY, BracketBatch, is_bracket


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
    first = task.split("test").tokens[:1].to(task.device)
    return figures.draw_all(
        [
            lambda: figures.save_learning_curve(folder, metrics, title, ["loss", "accuracy"]),
            lambda: figures.save_couplings(folder, model, first, title),
            lambda: _attention_example(folder, model, task, report, title, seed),
            lambda: figures.save_marginals(folder, report, title),
        ]
    )


def _attention_example(
    folder: Path, model: nn.Module, task: BracketTask, report: BracketReport, title: str, seed: int
) -> None:
    """One test sequence: attention of the last layer through the run's sampler, and through exact."""
    index = most_nested(task.split("test"))
    example = task.split("test")[index : index + 1]
    maps = figures.attention_maps(model, example.tokens.to(task.device), report, seed=seed)
    tokens = [VOCABULARY[token] for token in example.tokens[0].tolist()]
    matches = {query: key for query, key in enumerate(example.targets[0].tolist()) if key != IGNORE}
    figures.save_attention_example(folder, maps, tokens, f"Attention on test sequence {index}\n{title}", matches)


def most_nested(sequences: BracketBatch) -> int:
    """Index of the sequence with the deepest closing bracket; of several, the one with most fillers, then the first."""
    deepest = sequences.depths.amax(1)
    fillers = (~is_bracket(sequences.tokens)).sum(1)
    return int((deepest * (sequences.tokens.shape[1] + 1) + fillers).argmax())
