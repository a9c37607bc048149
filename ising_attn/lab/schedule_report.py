"""How far the marginals of anneal schedules are from exact ones, by number of layers and of spins."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ising_attn.lab.plots import new_figure, save_figure
from ising_attn.lab.tables import Table
from samplers import IsingProblem
from samplers.dqa import AngleSchedule, Layers
from samplers.dqa.learning import Family, circuit_magnetization, exact_magnetization

# Test problems are drawn from seeds that no fit reaches.
_TEST_SEEDS = 2**41


@dataclass(frozen=True)
class Candidate:
    """One schedule with one number of layers.

    Args:
        label: what it is called; schedules of one label and several depths are one line of the plot.
        schedule: what runs at β = 1, calibration done: the same layers for every problem, or angles that follow its
            scale.
    """

    label: str
    schedule: Layers | AngleSchedule

    @property
    def depth(self) -> int:
        return (self.schedule.angles if isinstance(self.schedule, AngleSchedule) else self.schedule).depth


@dataclass(frozen=True)
class ScheduleError:
    """Mean over problems and spins of |⟨s⟩_circuit − ⟨s⟩_exact|, for one schedule at one size.

    Args:
        error: the mean.
        standard_error: of that mean, over problems.
        worst: the mean over spins of the worst problem.
    """

    label: str
    depth: int
    num_spins: int
    error: float
    standard_error: float
    worst: float


@dataclass(frozen=True)
class HeldOutProblems:
    """Problems of one size and their exact marginals (problems, n)."""

    problem: IsingProblem
    exact: Float[Tensor, "problems one n"]

    @classmethod
    def draw(
        cls, family: Family, num_spins: int, count: int, seed: int, device: torch.device | str = "cpu"
    ) -> "HeldOutProblems":
        """Problems of the family that no fit has seen."""
        problem = family.problems(num_spins, count, _TEST_SEEDS + seed).to(device=device)
        return cls(problem, exact_magnetization(problem))

    @torch.no_grad()
    def error_of(self, candidate: Candidate) -> ScheduleError:
        """Cost: depth · n · 2^n per problem."""
        found = circuit_magnetization(candidate.schedule, self.problem)
        each = (found - self.exact).abs().mean((-2, -1))
        spread = float(each.std()) / len(each) ** 0.5 if len(each) > 1 else float("nan")
        own = float(each.mean()), spread, float(each.max())
        return ScheduleError(candidate.label, candidate.depth, self.problem.num_spins, *own)


def error_table(errors: Sequence[ScheduleError], title: str, caption: str = "") -> Table:
    """A row for each schedule and depth, a column for each size."""
    sizes = sorted({one.num_spins for one in errors})
    columns = [f"n = {n}" for n in sizes]
    table = Table(title, ["schedule", "layers", *columns], dict.fromkeys(columns, ".4f"), caption)
    found = {(one.depth, one.label, one.num_spins): one.error for one in errors}
    labels = list(dict.fromkeys(one.label for one in errors))
    for depth in sorted({one.depth for one in errors}):
        for label in labels:
            row = [found.get((depth, label, n)) for n in sizes]
            if any(cell is not None for cell in row):
                table.add(label, depth, *row)
    return table


def long_table(errors: Sequence[ScheduleError]) -> Table:
    """Every number: one row for each schedule, depth and size."""
    table = Table("Every number", ["schedule", "layers", "spins", "error", "standard error", "worst problem"])
    table.formats = dict.fromkeys(table.columns[3:], ".5f")
    for one in errors:
        table.add(one.label, one.depth, one.num_spins, one.error, one.standard_error, one.worst)
    return table


def save_error_curves(path: Path, errors: Sequence[ScheduleError], title: str) -> None:
    """Error over the number of layers, one panel for each size, one line for each label, bars of one standard error."""
    sizes = sorted({one.num_spins for one in errors})
    labels = list(dict.fromkeys(one.label for one in errors))
    figure = new_figure(max(6.4, 3.4 * len(sizes) + 0.6), 3.9)
    axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    depths = sorted({one.depth for one in errors})
    for axis, n in zip(axes, sizes, strict=True):
        for number, label in enumerate(labels):
            line = sorted((e for e in errors if (e.label, e.num_spins) == (label, n)), key=lambda e: e.depth)
            axis.errorbar(
                [e.depth for e in line], [e.error for e in line], yerr=[e.standard_error for e in line],
                marker="o", markersize=4, linewidth=1.4, capsize=2, color=f"C{number}", label=label,
            )  # fmt: skip
        axis.set_title(f"n = {n}", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(depths, [str(d) for d in depths])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("layers")
        axis.grid(alpha=0.25, which="both")
    axes[0].set_ylabel("mean |⟨s⟩ − exact|")
    axes[-1].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)
