"""Bracket matching by Ising attention: train through any sampler, then compare samplers on the same weights.

A one-layer model reads well-nested brackets among fillers and points from every `)` to its `(`, the task of
Boltzmann attention (Kim and Park, arXiv 2606.12478, section 4.3). By default the attention weights are marginals of
a simulated diabatic quantum anneal, and the gradient goes through the anneal.

    python experiments/brackets.py --sampler=dqa
    python experiments/brackets.py --sampler=exact --context=12 --no-ffn --seeds=0,1,2
    python experiments/brackets.py --attention=softmax
    python experiments/brackets.py --sampler=annealing --weights=runs/…/checkpoints/best.safetensors
"""

import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402

from ising_attn import coupling_parameters, samplers_of  # noqa: E402
from ising_attn.lab.bracket_figures import save_figures  # noqa: E402
from ising_attn.lab.bracket_report import BracketReport, mean_summary, report_on, seeds_table  # noqa: E402
from ising_attn.lab.bracket_task import BracketTask  # noqa: E402
from ising_attn.lab.brackets import BracketData, BracketLaw  # noqa: E402
from ising_attn.lab.checkpoints import load_weights  # noqa: E402
from ising_attn.lab.config import Flat, SamplerSettings, parse_settings, settings_to_dict  # noqa: E402
from ising_attn.lab.device import resolve_device  # noqa: E402
from ising_attn.lab.errors import TrainingInterrupted  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.progress import training_progress  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.tables import write_tables  # noqa: E402
from ising_attn.lab.training import Trainer, TrainingSettings  # noqa: E402
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig  # noqa: E402
from samplers import InvalidOptionError, NotSupportedError, ProblemTooLargeError, Sampler  # noqa: E402
from samplers.streams import derive_key  # noqa: E402

_SLOW_SECONDS = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model; sizes are the paper's but for the heads."""

    attention: Literal["boltzmann", "softmax", "sigmoid"] = "boltzmann"
    """Kind of attention; softmax and sigmoid use no sampler."""
    mode: Literal["h+J", "h", "J", "K", "h+K", "J+K", "h+J+K"] = "h+J"
    """Terms of the Boltzmann energy: fields h, couplings J, three-body K."""
    couplings: Literal["free", "distance"] = "free"
    """J per pair of positions, or by distance alone."""
    score_bias: Literal["none", "scalar", "distance", "position"] = "none"
    """Learnable bias of the fields."""
    embed_dim: int = 32
    """Width of the model."""
    heads: int = 2
    """Attention heads, each with its own J. The paper has 1, which needs several times as many steps."""
    layers: int = 1
    """Decoder blocks."""
    ffn: bool = True
    """Feed-forward slot after attention; --no-ffn leaves attention as the only computation."""
    ffn_dim: int = 64
    """Hidden width of the feed-forward slot."""

    def config(self, context: int) -> BracketMatcherConfig:
        boltzmann = self.attention == "boltzmann"
        return BracketMatcherConfig(
            context=context,
            embed_dim=self.embed_dim,
            num_heads=self.heads,
            num_layers=self.layers,
            feed_forward=self.ffn_dim if self.ffn else 0,
            attention=AttentionConfig(
                kind=self.attention,
                bias=self.score_bias,
                mode=self.mode if boltzmann else None,
                couplings=self.couplings if boltzmann else None,
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The sequences; see ising_attn/lab/brackets.py for their law."""

    context: int = 8
    """Sequence length T, at least 2."""
    filler_share: float = 0.25
    """Expected share of filler tokens, 0 to 0.95."""
    train_size: int | None = None
    """Sequences in a fixed training set; None draws fresh ones at every step."""
    validation_size: int = 500
    """Sequences for early stopping and the choice of the best weights."""
    test_size: int = 2000
    """Sequences for the final numbers."""
    data_seed: int = 0
    """Seed of the held-out sets (and of a fixed training set), the same for all --seeds."""

    def make(self) -> BracketData:
        return BracketData(
            BracketLaw(self.context, self.filler_share),
            validation_size=self.validation_size,
            test_size=self.test_size,
            train_size=self.train_size,
            seed=self.data_seed,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BracketSettings(SamplerSettings):
    """Settings of the bracket experiment."""

    sampler: str = "dqa"
    """Sampler of the attention's marginals; its own options are listed below as --sampler.NAME."""
    seeds: tuple[int, ...] = ()
    """Train once for each of these seeds (--seeds=0,1,2), each in its own folder; by default once, with --seed."""
    weights: Path | None = None
    """Checkpoint to evaluate through the sampler instead of training."""
    marginal_sequences: int = 250
    """Test sequences on which the marginals of the samplers are compared."""
    aer_sequences: int = 32
    """Test sequences that also run as circuits on Qiskit Aer (with --sampler=dqa); 0 for none."""
    quick: bool = False
    """A run of seconds that shows whether everything works; its numbers mean nothing."""
    model: Flat[ModelSettings] = ModelSettings()
    data: Flat[DataSettings] = DataSettings()
    training: Flat[TrainingSettings] = TrainingSettings(
        steps=400,
        batch_size=128,
        learning_rate=1e-2,
        coupling_learning_rate=1e-2,
        weight_decay=0.5,
        warmup=20,
        schedule="cosine",
        eval_every=50,
        monitor="loss",
        monitor_mode="min",
        target=0.03,
    )

    def __post_init__(self) -> None:
        for name, low in (("marginal_sequences", 1), ("aer_sequences", 0)):
            if getattr(self, name) < low:
                raise InvalidOptionError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least {low}"
                )
        if self.weights is not None and (self.resume or len(self.seeds) > 1):
            raise InvalidOptionError("--weights evaluates one checkpoint; leave out --resume and several --seeds")

    def all_seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.seeds)) or (self.training.seed,)

    def for_seed(self, seed: int) -> "BracketSettings":
        """The same settings for this one seed."""
        return dataclasses.replace(self, seeds=(), training=dataclasses.replace(self.training, seed=seed))

    def shortened(self) -> "BracketSettings":
        """What --quick makes of them."""
        training, data = self.training, self.data
        return dataclasses.replace(
            self,
            training=dataclasses.replace(training, steps=min(training.steps, 20), eval_every=10),
            data=dataclasses.replace(
                data, validation_size=min(data.validation_size, 50), test_size=min(data.test_size, 100)
            ),
            marginal_sequences=min(self.marginal_sequences, 20),
            aer_sequences=min(self.aer_sequences, 2),
        )


class Experiment:
    """One seed: the model, its task and its trainer."""

    def __init__(self, settings: BracketSettings, device: torch.device):
        self.settings, training = settings, settings.training
        self.config = settings.model.config(settings.data.context)
        sampler = None
        if settings.model.attention == "boltzmann":
            sampler = settings.make_sampler(seed=training.seed)
            _check_sampler(sampler, settings.data.context)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_key(training.seed, -4))
            self.model = BracketMatcher(self.config, sampler=sampler).to(device)
        self.task = BracketTask(settings.data.make(), batch_size=training.batch_size, seed=training.seed, device=device)
        self.label = settings.sampler if sampler is not None else settings.model.attention

    def title(self) -> str:
        """What is trained, in one line."""
        model = self.settings.model
        how = f"Boltzmann attention {model.mode} through {self.label}"
        how = how if model.attention == "boltzmann" else f"{model.attention} attention"
        return f"{how}, context {self.settings.data.context}, {'' if model.ffn else 'no '}FFN"

    def facts(self) -> dict[str, Any]:
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "data_remark": self.task.data.remark(),
        }

    def seconds_needed(self) -> tuple[float, float]:
        """Seconds of one training step and of one evaluation, measured on this machine; nothing is changed by it."""
        batch, validation = self.task.batch(0), self.task.split("validation")
        part = validation[: min(64, len(validation))]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            for sampler in samplers_of(self.model):
                stack.enter_context(sampler.seeded(0))
            for _ in range(2):  # the first one also compiles kernels
                started = time.perf_counter()
                self.task.loss(self.model, batch)[0].backward()
                step = time.perf_counter() - started
                self.task.scores(self.model, part)
                evaluation = (time.perf_counter() - started - step) * len(validation) / len(part)
        self.model.zero_grad()
        return step, evaluation

    def train(self, run: RunFolder, *, resume: bool) -> dict[str, Any]:
        trainer = Trainer(
            self.model,
            self.task,
            self.settings.training,
            run,
            model_config=self.config.to_dict(),
            coupling_parameters=coupling_parameters(self.model),
            samplers=samplers_of(self.model),
        )
        with training_progress(f"seed {self.settings.training.seed}") as progress:
            result = trainer.fit(progress, resume=resume)
        return {
            "train_seconds": result.seconds,
            "steps": result.steps,
            "best_step": result.best_step,
            "validation_accuracy": result.best_metrics["accuracy"],
        }

    def report(self) -> BracketReport:
        return report_on(
            self.model,
            self.task,
            label=self.label,
            seed=self.settings.training.seed,
            marginal_sequences=self.settings.marginal_sequences,
            aer_sequences=self.settings.aer_sequences,
        )


def main() -> None:
    settings = parse_settings(BracketSettings, prog="brackets", description=__doc__ or "")
    settings = settings.shortened() if settings.quick else settings
    device, seeds = resolve_device(settings.device), settings.all_seeds()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    with _warnings_as_notes():
        first = Experiment(settings.for_seed(seeds[0]), device)
        if settings.weights is not None:
            load_weights(settings.weights, first.model, model_config=first.config.to_dict())
        _announce(console, first, device)
        config = settings_to_dict(settings)
        with RunFolder.create(
            settings.out, config=config, name="brackets", resume=settings.resume, device=device
        ) as run:
            if len(seeds) == 1:
                _run_seed(first, run, console, resume=settings.resume)
            else:
                _run_seeds(settings, run, console, device)
            console.print(f"\nRun folder with settings, metrics, checkpoints, plots and {_FILES}:")
            console.print(str(run.path))


_FILES = "table.md, summary.json"


def _run_seed(
    experiment: Experiment, run: RunFolder, console: Console, *, resume: bool, all_tables: bool = True
) -> dict[str, Any]:
    """Train (or take the given weights), evaluate, write everything; the summary."""
    training = {} if experiment.settings.weights is not None else experiment.train(run, resume=resume)
    report = experiment.report()
    seed, tables = experiment.settings.training.seed, report.tables()
    notes = save_figures(
        run.plots, run.metrics(), experiment.model, experiment.task, report, title=experiment.title(), seed=seed
    )
    write_tables(run.path, tables)
    summary = {"seed": seed, "train_seconds": None, **training, **report.summary(), **experiment.facts()}
    run.write_summary(summary)
    for table in tables.values() if all_tables else [tables["by_sampler"]]:
        console.print()
        console.print(table.rich(), soft_wrap=False)
    difference = report.engine_difference()
    if difference is not None:
        console.print(
            f"Circuits on Aer against the state vector: largest difference {difference.largest:.1e} over "
            f"{difference.count} marginals."
        )
    for note in (*report.notes, *notes):
        console.print(f"note: {note}")
    return summary


def _run_seeds(settings: BracketSettings, run: RunFolder, console: Console, device: torch.device) -> None:
    """Every seed in a run folder of its own, seed-K, and their mean and spread in this one."""
    summaries = {}
    for seed in settings.all_seeds():
        own, path = settings.for_seed(seed), run.path / f"seed-{seed}"
        resume = (path / "config.json").exists()
        with RunFolder.create(path, config=settings_to_dict(own), resume=resume, device=device) as child:
            try:
                summaries[seed] = _run_seed(Experiment(own, device), child, console, resume=resume, all_tables=False)
            except TrainingInterrupted as stop:
                raise TrainingInterrupted(str(stop).replace(str(child.path), str(run.path))) from None
    table = seeds_table(summaries)
    write_tables(run.path, {"seeds": table})
    run.write_summary(mean_summary(summaries))
    console.print()
    console.print(table.rich(), soft_wrap=False)


def _announce(console: Console, experiment: Experiment, device: torch.device) -> None:
    """What will run, on what, and for about how long; refuses here what would fail later."""
    settings = experiment.settings
    facts = experiment.facts()
    console.print(f"{experiment.title()}: {facts['parameters']} parameters, {device}")
    if facts["data_remark"] is not None:
        console.print(f"note: {facts['data_remark']}")
    step, evaluation = experiment.seconds_needed()
    if settings.weights is not None:
        return
    training = settings.training
    needed = training.steps * step + training.steps / training.eval_every * evaluation
    console.print(
        f"at most {training.steps} steps of {1000 * step:.0f} ms, {training.steps // training.eval_every} evaluations "
        f"of {evaluation:.1f} s: about {_spoken(needed)} of training per seed"
    )
    if needed > _SLOW_SECONDS:
        console.print(
            "note: to make it shorter, lower --steps, --batch-size, --validation-size or the sampler's own options, "
            "raise --eval-every, or train with --sampler=exact and evaluate the result with --weights"
        )


def _check_sampler(sampler: Sampler, context: int) -> None:
    able = sampler.capabilities
    if able.max_spins is not None and context > able.max_spins:
        raise ProblemTooLargeError(
            f"--context={context} needs {context} spins; the sampler {sampler.name!r} takes at most {able.max_spins}; "
            "use a shorter --context, or --sampler=annealing"
        )
    if able.gradient == "none":
        raise NotSupportedError(f"the sampler {sampler.name!r} has no gradient with these options; choose another")


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Warnings in one line on stderr, without the source line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        sys.stderr.write(f"note: {message}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


if __name__ == "__main__":
    sys.exit(run_main(main))
