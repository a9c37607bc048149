r"""One Boolean language model on Tiny Shakespeare, soft and hard: routers, logic gates, loops of them, distillation.

What is trained is chosen by --model: a decoder, whose attention may be a Boolean router and whose feed-forward slot may
be logic gates; HBA, the same with a head of unit spectral norm; a flat network of logic gates; or one block of gates in
a loop. By default (--protocol=tuned) it learns from the whole text at all positions; --protocol=repository is that of
boolean-attention: the first 80,000 characters, the last position of each window, and the tenth that is reported also
chooses the weights. `python experiments/boolean_ladder.py` runs the whole ladder.

    python experiments/boolean_lm.py --attention=router --routing=straight-through --sampler=band \
        --couplings=band --coupling-width=4
    python experiments/boolean_lm.py --attention=router --sampler=gibbs --ffn=logic
    python experiments/boolean_lm.py --model=logic --widths=4096,4096
    python experiments/boolean_lm.py --model=hba --attention=scalar-router --calibrate \
        --teacher=RUN/checkpoints/best.safetensors
"""

import dataclasses
import functools
import os
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "samplers").is_dir() and (_ROOT / "pyproject.toml").is_file():
    sys.path.insert(0, str(_ROOT))
# Read by torch's thread pool on import: threads that spin while they wait slow everything on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from ising_attn.boltzmann import samplers_of  # noqa: E402
from ising_attn.lab import figures  # noqa: E402
from ising_attn.lab.boolean_figures import save_attention_maps  # noqa: E402
from ising_attn.lab.boolean_report import BooleanReport, report_on  # noqa: E402
from ising_attn.lab.calibration import Calibration, calibrate  # noqa: E402
from ising_attn.lab.checkpoints import Checkpoint, save_checkpoint  # noqa: E402
from ising_attn.lab.config import Flat, parse_settings  # noqa: E402
from ising_attn.lab.distillation import DistillationSettings, DistilledTask, load_teacher  # noqa: E402
from ising_attn.lab.experiment import Experiment  # noqa: E402
from ising_attn.lab.last_position import LastPositionTask  # noqa: E402
from ising_attn.lab.logic_settings import LogicSettings  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.model_settings import ModelSettings  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.seeds import run_experiment  # noqa: E402
from ising_attn.lab.stored_samplers import stored_samplers  # noqa: E402
from ising_attn.lab.text import Corpus, TextData  # noqa: E402
from ising_attn.lab.text_settings import TextDataSettings  # noqa: E402
from ising_attn.lab.text_task import TextTask  # noqa: E402
from ising_attn.lab.training import Task, TrainingSettings, evaluate  # noqa: E402
from ising_attn.lab.wrapped_task import EntropyTask  # noqa: E402
from models import (  # noqa: E402
    HBA,
    AttentionConfig,
    CharLM,
    CharLMConfig,
    FeedForwardConfig,
    HBAConfig,
    LogicLM,
    LogicLMConfig,
    LoopedLogicLM,
    LoopedLogicLMConfig,
    model_from_config,
)
from samplers import InvalidOptionError, Sampler  # noqa: E402

_TRAINING = TrainingSettings(
    steps=4000,
    batch_size=128,
    learning_rate=3e-3,
    coupling_learning_rate=1e-2,
    weight_decay=0.01,
    warmup=100,
    schedule="cosine",
    eval_every=400,
    monitor="loss",
    monitor_mode="min",
)
_MODEL = ModelSettings(heads=2, layers=2, ffn_dim=256)
_DECODERS = ("decoder", "hba")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BooleanSettings(TextDataSettings):
    """Settings of one Boolean language model."""

    model: Literal["decoder", "hba", "logic", "looped"] = "decoder"
    """A decoder (see --attention, --ffn), HBA, a flat network of logic gates, or a loop of gates (see --widths)."""
    protocol: Literal["tuned", "repository"] = "tuned"
    """The whole text at all positions, or 80,000 characters at the last position of each window."""
    loss_at: Literal["all", "last"] | None = None
    """Positions that are trained on with --protocol=repository, whose evaluation is at the last one: last (as there, by
    default) or all, which says 16 times as much for the same work."""
    context: int = 16
    """Characters of a window, T."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Position embeddings of a decoder."""
    entropy_weight: float = 0.0
    """Reward for undecided routers in training, per nat of a choice."""
    calibrate: bool = False
    """After training, choose the threshold of hard routers on validation data."""
    decoder: Flat[ModelSettings] = _MODEL
    logic: Flat[LogicSettings] = LogicSettings()
    distillation: Flat[DistillationSettings] = DistillationSettings()
    training: Flat[TrainingSettings] = _TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(context=1, validation_characters=2, test_characters=2, entropy_weight=0)
        if self.loss_at == "last" and self.protocol != "repository":
            raise InvalidOptionError("--loss-at=last is for --protocol=repository; our own trains at all positions")
        routed = self.model in _DECODERS and self.decoder.is_router
        if (self.entropy_weight or self.calibrate) and not routed:
            raise InvalidOptionError("--entropy-weight and --calibrate are for routers; use --attention=router")

    @property
    def uses_sampler(self) -> bool:
        return self.model in _DECODERS and self.decoder.uses_sampler

    def shortened(self) -> "BooleanSettings":
        """What --quick makes of them."""
        batch = min(self.training.batch_size, 16)
        training = dataclasses.replace(
            self.training, steps=min(self.training.steps, 20), eval_every=10, batch_size=batch
        )
        return self.shortened_to(20 * self.context + 1, training=training)


class BooleanExperiment(Experiment[BooleanSettings, BooleanReport]):
    """One seed of one model."""

    seed_columns: ClassVar = (
        ("soft perplexity", "test_perplexity_soft", ".3f"),
        ("hard perplexity", "test_perplexity_hard", ".3f"),
        ("hard, calibrated", "test_perplexity_calibrated", ".3f"),
        ("hard against soft", "gap", "+.1%"),
        ("threshold", "threshold", ".2f"),
        ("temperature", "temperature", ".3f"),
        ("best step", "best_step", ".0f"),
        ("train seconds", "train_seconds", ".1f"),
    )

    def __init__(self, data: TextData, settings: BooleanSettings, device: torch.device):
        self.data = data
        windows: dict[str, Any] = {
            "context": settings.context,
            "batch_size": settings.training.batch_size,
            "seed": settings.training.seed,
            "device": device,
            "validation_characters": settings.validation_characters,
            "test_characters": settings.test_characters,
        }
        if settings.protocol == "repository":
            self.text: TextTask = LastPositionTask(data, dense=settings.loss_at == "all", **windows)
        else:
            self.text = TextTask(data, **windows)
        super().__init__(
            settings,
            functools.partial(make_model, settings, data.vocabulary.characters),
            self._task(settings, device),
            uses_sampler=settings.uses_sampler,
            context=settings.context,
            device=device,
        )
        taught = ", distilled" if settings.distillation.has_teacher else ""
        self.title = f"{_spoken(settings, self.sampler_words)}{taught}, context {settings.context}, {settings.protocol}"
        self.calibration: Calibration | None = None

    def _task(self, settings: BooleanSettings, device: torch.device) -> Task:
        """The text, with a teacher and an entropy where they are asked for."""
        task: Task = self.text
        if settings.distillation.has_teacher:
            teacher = load_teacher(
                settings.distillation.checkpoint(settings.out, settings.training.seed),
                model_from_config,
                characters=self.data.vocabulary.characters,
                context=settings.context,
            )
            task = DistilledTask(self.text, teacher.to(device), settings.distillation)
        return EntropyTask(task, settings.entropy_weight) if settings.entropy_weight else task

    def evaluate_part(self) -> float:
        validation = self.text.split("validation")
        part = validation[: 64 * self.settings.context + 1]
        self.text.scores(self.model, part)
        return (len(part) - 1) / (len(validation) - 1)

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "model": self.settings.model,
            "protocol": self.settings.protocol,
            "vocabulary": len(self.data.vocabulary),
            "selected_on_test": self.data.selects_on_test,
        }

    def train(self, run: RunFolder | None, *, resume: bool) -> dict[str, Any]:
        """Train, then calibrate; the calibrated weights are kept as checkpoints/calibrated.safetensors."""
        numbers = super().train(run, resume=resume)
        if self.settings.calibrate and run is not None:
            self.calibration = calibrate(self.model, self._validation_loss, "threshold")
            weights = Checkpoint(
                model=self.model.state_dict(), model_config=self.model_config, samplers=stored_samplers(self.model)
            )
            save_checkpoint(run.checkpoints / "calibrated.safetensors", weights)
        return numbers

    def _validation_loss(self) -> float:
        return evaluate(self.model, self.text, "validation", samplers=samplers_of(self.model), seed=self.seed)["loss"]

    def report(self) -> BooleanReport:
        return report_on(self.model, self.text, seed=self.seed, calibration=self.calibration)

    def save_figures(self, run: RunFolder, report: BooleanReport) -> list[str]:
        window = self.text.windows(self.text.split("test"))[0].tokens[:1].to(self.text.device)
        characters = [_VISIBLE.get(c, c) for c in self.data.vocabulary.decode(window[0])]
        return figures.draw_all(
            [
                lambda: figures.save_learning_curve(run.plots, run.metrics(), self.title, ["loss"]),
                lambda: save_attention_maps(run.plots, self.model, window, characters, self.title, seed=self.seed),
            ]
        )


_VISIBLE = {"\n": "\\n", "\t": "\\t", "\r": "\\r", " ": "␣"}


def make_model(settings: BooleanSettings, characters: str, sampler: Sampler | None) -> nn.Module:
    """The model of --model for a vocabulary."""
    size: dict[str, Any] = {"vocabulary": len(characters), "characters": characters, "context": settings.context}
    if settings.model == "logic":
        return LogicLM(LogicLMConfig(**size, **settings.logic.flat_options()))
    if settings.model == "looped":
        return LoopedLogicLM(LoopedLogicLMConfig(**size, **settings.logic.looped_options()))
    decoder = settings.decoder
    slots = {
        **decoder.decoder_options(),
        "positions": settings.positions,
        "attention": AttentionConfig(**decoder.attention_options()),
        "feed_forward": FeedForwardConfig(**decoder.feed_forward_options()),
    }
    if settings.model == "hba":
        return HBA(HBAConfig(**size, **slots), sampler=sampler)
    return CharLM(CharLMConfig(**size, **slots), sampler=sampler)


def _spoken(settings: BooleanSettings, sampler: str) -> str:
    if settings.model in _DECODERS:
        name = "HBA: " if settings.model == "hba" else ""
        return f"{name}{settings.decoder.spoken(sampler)}"
    return settings.logic.spoken(settings.model)


def main() -> None:
    settings = parse_settings(BooleanSettings, prog="boolean-lm", description=__doc__ or "")
    settings = settings.shortened() if settings.quick else settings
    corpus = Corpus.read(settings.data)
    data = TextData.repository(corpus.text) if settings.protocol == "repository" else TextData.tuned(corpus.text)
    run_experiment(functools.partial(BooleanExperiment, data), settings, name="boolean-lm")


if __name__ == "__main__":
    sys.exit(run_main(main))
