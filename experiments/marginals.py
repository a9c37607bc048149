"""Spin marginals of any set of samplers on the same Ising problems, against exact ones.

Problems are random (Gaussian fields and couplings), read from a file, or those inside a trained bracket model. For
every sampler: errors of ⟨s⟩ and of pairs, distance between the laws, effective temperature, gradient, time.

    python experiments/marginals.py --samplers=exact,annealing,dqa,tap --spins=12 --fields=1 --couplings=0.3
    python experiments/marginals.py --samplers=gibbs:num_sweeps=64,dqa:num_layers=8,dqa:shots=1000 --curves
    python experiments/marginals.py --problems-file=model.npz --samplers=exact,bethe
    python experiments/marginals.py --trained=runs/brackets-…  --samplers=exact,dqa,gibbs
"""

import ast
import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402
from rich.console import Console  # noqa: E402

from ising_attn.lab.brackets import BracketData, BracketLaw  # noqa: E402
from ising_attn.lab.checkpoints import load_checkpoint, load_weights  # noqa: E402
from ising_attn.lab.config import RunSettings, parse_settings, settings_to_dict  # noqa: E402
from ising_attn.lab.gradient_report import gradient_errors, gradient_table  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.marginal_curves import (  # noqa: E402
    CurvePoint,
    SamplerSpec,
    cost_curves,
    coupling_curves,
    curve_table,
)
from ising_attn.lab.marginal_plots import (  # noqa: E402
    save_cost_curves,
    save_coupling_curves,
    save_scatters,
    save_time_curves,
)
from ising_attn.lab.marginal_report import Measurement, Reference, measure, reference_for, tables_of  # noqa: E402
from ising_attn.lab.problem_sources import load_problems, random_problems, recorded_problems  # noqa: E402
from ising_attn.lab.progress import work_progress  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.tables import Table, write_tables  # noqa: E402
from models import model_from_config  # noqa: E402
from samplers import (  # noqa: E402
    InvalidOptionError,
    IsingAttnError,
    IsingProblem,
    MissingDependencyError,
    get_sampler,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginalSettings(RunSettings):
    """Settings of the comparison."""

    samplers: tuple[str, ...] = ("exact", "gibbs", "annealing", "dqa", "mean-field", "tap", "bethe")
    """Samplers to compare; options follow a colon: dqa:num_layers=8:shots=1000."""
    spins: int = 12
    """Spins of a random problem."""
    problems: int = 64
    """How many random problems."""
    fields: float = 1.0
    """Standard deviation of the random fields h."""
    couplings: float = 0.3
    """Standard deviation of the random couplings J."""
    width: int | None = None
    """Only random couplings with |j − k| up to this; None couples all pairs."""
    shared_couplings: bool = False
    """One J for all random problems, as in attention; else each has its own."""
    beta: float = 1.0
    """Inverse temperature of the law that is asked for."""
    problems_file: Path | None = None
    """File of problems instead: .npz with h and J, dimod's .coo text or .json."""
    trained: Path | None = None
    """Run folder (or checkpoint) of a trained bracket model: compare on its own problems."""
    sequences: int = 32
    """Sequences that are put through the trained model."""
    curves: bool = False
    """Also error against reads, sweeps, layers, shots and time, and against the coupling scale."""
    gradients: bool = False
    """Also bias and spread of every declared gradient, anneals by each way of differentiating them."""
    gradient_seeds: int = 16
    """Seeds over which they are taken."""
    curve_seconds: float = 3.0
    """A cost curve ends at the first call that takes longer."""
    seed: int = 0
    """Seed of the problems and of every sampler."""

    def __post_init__(self) -> None:
        for name, low in (
            ("spins", 1),
            ("problems", 1),
            ("sequences", 1),
            ("gradient_seeds", 1),
            ("fields", 0),
            ("couplings", 0),
        ):
            if not getattr(self, name) >= low:
                raise InvalidOptionError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least {low}"
                )
        if self.problems_file is not None and self.trained is not None:
            raise InvalidOptionError("--problems-file and --trained both give problems; choose one")
        if not self.samplers:
            raise InvalidOptionError("--samplers is empty; give at least one name, e.g. --samplers=exact,gibbs")
        if self.width is not None and self.width < 1:
            raise InvalidOptionError(f"--width is {self.width}; it must be at least 1")

    def specs(self) -> list[SamplerSpec]:
        return [_spec(text) for text in dict.fromkeys(self.samplers)]

    def random(self, couplings: float) -> IsingProblem:
        return random_problems(
            self.problems,
            self.spins,
            fields=self.fields,
            couplings=couplings,
            beta=self.beta,
            seed=self.seed,
            own_couplings=not self.shared_couplings,
            width=self.width,
        )

    def problem(self) -> tuple[IsingProblem, str]:
        """The problems, and what they are in one line."""
        if self.problems_file is not None:
            problem = load_problems(self.problems_file, beta=self.beta)
            return (
                problem,
                f"{problem.num_problems} problems of {problem.num_spins} spins from {self.problems_file.name}",
            )
        if self.trained is not None:
            problem = _trained_problem(self.trained, self.sequences, self.seed)
            return problem, f"{problem.num_problems} queries of a trained model, up to {problem.num_spins} spins"
        return self.random(self.couplings), self.family(f"{self.couplings:g}")

    def family(self, couplings: str) -> str:
        """The random family in one line."""
        return f"{self.problems} problems, n = {self.spins}, h ~ N(0, {self.fields:g}²), J ~ N(0, {couplings}²)"


def main() -> None:
    settings = parse_settings(MarginalSettings, prog="marginals", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    specs = settings.specs()
    for spec in specs:
        spec.make()
    problem, what = settings.problem()
    console.print(f"{what}, β = {problem.beta:g}")
    with RunFolder.create(
        settings.out, config=settings_to_dict(settings), name="marginals", resume=settings.resume
    ) as run:
        reference = reference_for(problem, width=settings.width, seed=settings.seed)
        measurements, notes = _measure_all(specs, problem, reference, settings.seed)
        tables: dict[str, Table] = tables_of(measurements, reference, what)
        cost, by_coupling = _curves(settings, specs, problem, reference)
        if cost:
            tables["cost"] = curve_table(cost, "Error against cost")
        if by_coupling:
            tables["coupling_scale"] = curve_table(by_coupling, "Error against the coupling scale")
        if settings.gradients:
            errors, left_out = gradient_errors(
                specs, problem, reference.direction, seeds=settings.gradient_seeds, seed=settings.seed
            )
            tables["gradients"] = gradient_table(errors, settings.gradient_seeds)
            notes += left_out
        write_tables(run.path, tables)
        notes += _plots(run.plots, measurements, reference, problem, what, cost)
        _coupling_plot(run.plots, by_coupling, settings.family("$\\sigma_J$"))
        run.write_summary({"problems": what, "reference": reference.name, "samplers": _plain(measurements)})
        for name in ("errors", "laws", "costs", "gradients"):
            if name not in tables:
                continue
            console.print()
            console.print(tables[name].rich(), soft_wrap=False)
        for note in notes:
            console.print(f"note: {note}")
        console.print("\nRun folder with tables (Markdown, CSV), plots and summary.json:")
        console.print(str(run.path), soft_wrap=True)


def _measure_all(
    specs: list[SamplerSpec], problem: IsingProblem, reference: Reference, seed: int
) -> tuple[list[Measurement], list[str]]:
    measurements, notes = [], []
    with work_progress("samplers", len(specs)) as advance:
        for spec in specs:
            try:
                one = measure(spec.make(), problem, reference, label=spec.label, seed=seed)
            except IsingAttnError as error:
                notes.append(f"{spec.label} is left out: {error}")
            else:
                measurements.append(one)
                if one.remark:
                    notes.append(f"{spec.label}: {one.remark}")
            advance(spec.label)
    if not measurements:
        raise InvalidOptionError("no sampler could take these problems: " + "; ".join(notes))
    return measurements, notes


def _curves(
    settings: MarginalSettings, specs: list[SamplerSpec], problem: IsingProblem, reference: Reference
) -> tuple[list[CurvePoint], list[CurvePoint]]:
    if not settings.curves:
        return [], []
    cost: list[CurvePoint] = []
    with work_progress("error against cost", None) as advance:
        for point in cost_curves(specs, problem, reference, seed=settings.seed, budget=settings.curve_seconds):
            cost.append(point)
            advance(f"{point.label} {point.knob}={point.value:g}")
    if settings.problems_file is not None or settings.trained is not None:
        return cost, []
    scales = [settings.couplings * factor for factor in (0.25, 0.5, 1, 1.5, 2, 3)]
    by_coupling: list[CurvePoint] = []
    with work_progress("error against the coupling scale", len(scales) * len(specs)) as advance:
        for point in coupling_curves(specs, scales, settings.random, seed=settings.seed, width=settings.width):
            by_coupling.append(point)
            advance(f"{point.label} σ_J={point.value:g}")
    return cost, by_coupling


def _plots(
    folder: Path,
    measurements: list[Measurement],
    reference: Reference,
    problem: IsingProblem,
    what: str,
    cost: list[CurvePoint],
) -> list[str]:
    try:
        save_scatters(folder / "scatter.png", measurements, reference, problem, what)
        if cost:
            save_cost_curves(folder / "error_by_option.png", cost, what)
            save_time_curves(folder / "error_by_time.png", cost, what)
    except MissingDependencyError as error:
        return [f"no plots: {error}"]
    return []


def _coupling_plot(folder: Path, points: list[CurvePoint], what: str) -> None:
    with contextlib.suppress(MissingDependencyError):  # said once already
        if points:
            save_coupling_curves(folder / "error_by_coupling_scale.png", points, what)


def _plain(measurements: list[Measurement]) -> list[dict[str, Any]]:
    names = [f.name for f in dataclasses.fields(Measurement) if f.name != "magnetization"]
    return [{name: getattr(one, name) for name in names} for one in measurements]


def _spec(text: str) -> SamplerSpec:
    name, *words = text.split(":")
    options = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidOptionError(f"{word!r} in --samplers={text} is no option; write NAME:option=value")
        try:
            options[key.replace("-", "_")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key.replace("-", "_")] = value
    get_sampler(name, **options)  # refuses what does not exist before anything is computed
    return SamplerSpec(text, name, options)


def _trained_problem(path: Path, sequences: int, seed: int) -> IsingProblem:
    """The problems of the first layer of a trained bracket model on fresh sequences."""
    source = path if path.is_file() else path / "checkpoints" / "best.safetensors"
    config = load_checkpoint(source).model_config
    model = model_from_config(config, sampler="exact")
    load_weights(source, model, model_config=config)
    if config.get("model") != "bracket-matcher":
        raise InvalidOptionError(f"{source} holds a {config.get('model')!r} model; --trained takes bracket models")
    model.eval()
    data = BracketData(BracketLaw(config["context"]), validation_size=1, test_size=1, seed=seed)
    tokens = data.train_batch(sequences, seed=seed, step=0).tokens
    found = recorded_problems(model, torch.as_tensor(tokens))
    if not found:
        raise InvalidOptionError(f"{source} has no layer with a sampler (softmax or sigmoid attention)")
    return found[0]


if __name__ == "__main__":
    sys.exit(run_main(main))
