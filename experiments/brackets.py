"""Bracket matching by Ising attention: train through any sampler, then compare samplers on the same weights.

A one-layer model reads well-nested brackets among fillers and points from every `)` to its `(`, the task of
Boltzmann attention (Kim and Park, arXiv 2606.12478, section 4.3). By default the attention weights are marginals of
a simulated diabatic quantum anneal, and the gradient goes through the anneal.

    python experiments/brackets.py --sampler=dqa
    python experiments/brackets.py --sampler=exact --context=12 --ffn=none --seeds=0,1,2
    python experiments/brackets.py --attention=softmax
    python experiments/brackets.py --sampler=annealing --weights=runs/…/checkpoints/best.safetensors
"""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

from ising_attn.lab.bracket_figures import save_figures  # noqa: E402
from ising_attn.lab.bracket_report import BracketReport, report_on  # noqa: E402
from ising_attn.lab.bracket_task import BracketTask  # noqa: E402
from ising_attn.lab.brackets import BracketData, BracketLaw, Matching, vocabulary  # noqa: E402
from ising_attn.lab.config import Flat, parse_settings  # noqa: E402
from ising_attn.lab.experiment import Experiment, ExperimentSettings  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.model_settings import ModelSettings  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.seeds import run_experiment  # noqa: E402
from ising_attn.lab.training import TrainingSettings  # noqa: E402
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig, FeedForwardConfig  # noqa: E402


@dataclasses.dataclass(frozen=True, kw_only=True)
class BracketModelSettings(ModelSettings):
    """The model; sizes are the paper's but for the heads."""

    embed_dim: int = 32
    """Width of the model."""
    heads: int = 2
    """Attention heads, each with its own J. The paper has 1, which needs several times as many steps."""
    ffn_dim: int = 64
    """Hidden width of the feed-forward slot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The sequences; see ising_attn/lab/brackets.py for their law."""

    context: int = 8
    """Sequence length T, at least 2."""
    filler_share: float = 0.25
    """Expected share of filler tokens, 0 to 0.95."""
    bracket_types: int = 1
    """Types of brackets, 1 to 4; the paper has 1."""
    matching: Matching = "nested"
    """A bracket closes the latest one that is still open, or, crossing, the earliest; the paper's are nested."""
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
            BracketLaw(self.context, self.filler_share, self.bracket_types, self.matching),
            validation_size=self.validation_size,
            test_size=self.test_size,
            train_size=self.train_size,
            seed=self.data_seed,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BracketSettings(ExperimentSettings):
    """Settings of the bracket experiment."""

    sampler: str = "dqa"
    """Sampler of the attention's marginals; its own options are listed below as --sampler.NAME."""
    marginal_sequences: int = 250
    """Test sequences on which the marginals of the samplers are compared."""
    aer_sequences: int = 32
    """Test sequences that also run as circuits on Qiskit Aer (with --sampler=dqa); 0 for none."""
    model: Flat[BracketModelSettings] = BracketModelSettings()
    data: Flat[DataSettings] = DataSettings()
    training: Flat[TrainingSettings] = TrainingSettings(
        steps=400,
        batch_size=128,
        learning_rate=1e-2,
        coupling_learning_rate=1e-2,
        angle_learning_rate=1e-3,
        weight_decay=0.5,
        warmup=20,
        schedule="cosine",
        eval_every=25,
        monitor="loss",
        monitor_mode="min",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(marginal_sequences=1, aer_sequences=0)

    def shortened(self) -> "BracketSettings":
        """What --quick makes of them."""
        training, data = self.training, self.data
        return dataclasses.replace(
            self,
            training=dataclasses.replace(training, steps=min(training.steps, 20), eval_every=10),
            rate_steps=min(self.rate_steps, 10),
            data=dataclasses.replace(
                data, validation_size=min(data.validation_size, 50), test_size=min(data.test_size, 100)
            ),
            marginal_sequences=min(self.marginal_sequences, 20),
            aer_sequences=min(self.aer_sequences, 2),
        )


class BracketExperiment(Experiment[BracketSettings, BracketReport]):
    """One seed of the bracket matcher."""

    seed_columns: ClassVar = (
        ("test accuracy", "test_accuracy", ".2%"),
        ("through exact", "test_accuracy_exact", ".2%"),
        ("on Aer", "aer_test_accuracy", ".2%"),
        ("mean |Δ|", "marginal_mae", ".4f"),
        ("best step", "best_step", ".0f"),
        ("train seconds", "train_seconds", ".1f"),
    )
    task: BracketTask

    def __init__(self, settings: BracketSettings, device: torch.device):
        model, training, context = settings.model, settings.training, settings.data.context
        config = BracketMatcherConfig(
            context=context,
            vocabulary=len(vocabulary(settings.data.bracket_types)),
            attention=AttentionConfig(**model.attention_options()),
            feed_forward=FeedForwardConfig(**model.feed_forward_options()),
            **model.decoder_options(),
        )
        super().__init__(
            settings,
            lambda sampler: BracketMatcher(config, sampler=sampler),
            BracketTask(settings.data.make(), batch_size=training.batch_size, seed=training.seed, device=device),
            uses_sampler=model.uses_sampler,
            context=context,
            device=device,
        )
        self.label = settings.sampler if model.uses_sampler else model.attention
        self.title = f"{model.spoken(self.sampler_words)}, context {context}"

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "data_remark": self.task.data.remark()}

    def remarks(self) -> list[str]:
        remark = self.task.data.remark()
        return [] if remark is None else [remark]

    def evaluate_part(self) -> float:
        validation = self.task.split("validation")
        part = validation[:64]
        self.task.scores(self.model, part)
        return len(part) / len(validation)

    def report(self) -> BracketReport:
        return report_on(
            self.model,
            self.task,
            label=self.label,
            seed=self.seed,
            marginal_sequences=self.settings.marginal_sequences,
            aer_sequences=self.settings.aer_sequences,
        )

    def save_figures(self, run: RunFolder, report: BracketReport) -> list[str]:
        return save_figures(run.plots, run.metrics(), self.model, self.task, report, title=self.title, seed=self.seed)


def main() -> None:
    settings = parse_settings(BracketSettings, prog="brackets", description=__doc__ or "")
    run_experiment(BracketExperiment, settings.shortened() if settings.quick else settings, name="brackets")


if __name__ == "__main__":
    sys.exit(run_main(main))
