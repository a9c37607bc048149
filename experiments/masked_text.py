r"""Tiny Shakespeare by tasks with masks: blocks at once, every character from both sides, or one after the other.

The mask, what every position holds and what it is asked for are those of a training task that is built from a partial
order (Li and Guo, Hasse Diagrams for Attention, arXiv 2606.09951). All tasks are about the same windows of --context
characters, and what is reported is of the same characters, from place --score-from of a window on. The whole text is
used: nine tenths to train, a twentieth to choose the weights, a twentieth to report.

    python experiments/masked_text.py --task=butterfly
    python experiments/masked_text.py --task=block-two-stream --block=2 --attention=softmax --seeds=0,1,2
    python experiments/masked_text.py --task=causal --sampler=dqa
    python experiments/masked_text.py --config=RUN/config.json --weights=RUN/checkpoints/best.safetensors --sample=500
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

from ising_attn import masks  # noqa: E402
from ising_attn.lab import figures  # noqa: E402
from ising_attn.lab.config import Flat, parse_settings  # noqa: E402
from ising_attn.lab.experiment import Experiment  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.masked_text_report import MaskedTextReport, report_on  # noqa: E402
from ising_attn.lab.masked_text_task import MaskedTextTask  # noqa: E402
from ising_attn.lab.model_settings import ModelSettings  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.seeds import run_experiment  # noqa: E402
from ising_attn.lab.text import Corpus, TextData  # noqa: E402
from ising_attn.lab.text_settings import SampledTextSettings  # noqa: E402
from ising_attn.lab.training import TrainingSettings  # noqa: E402
from models import AttentionConfig, FeedForwardConfig, TaskLM, TaskLMConfig  # noqa: E402
from models.task_lm import make_task  # noqa: E402
from samplers import InvalidOptionError, Sampler  # noqa: E402

_TRAINING = TrainingSettings(
    steps=3000,
    batch_size=64,
    learning_rate=1e-2,
    coupling_learning_rate=1e-2,
    weight_decay=0.01,
    warmup=100,
    schedule="cosine",
    eval_every=300,
    monitor="loss",
    monitor_mode="min",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTextSettings(SampledTextSettings):
    """Settings of the experiment on tasks with masks."""

    task: Literal["causal", "block-causal", "block-two-stream", "butterfly"] = "block-two-stream"
    """What is predicted from what: each character from those before it, a block at once (from the block before, or
    from masks at its places), or each character from all the others."""
    block: int = 4
    """Characters of a block, which divides --context; for the tasks of blocks."""
    content: Literal["token", "block"] = "token"
    """Whether the clean characters of --task=block-two-stream see those before them, or their whole block."""
    context: int = 12
    """Characters of a window."""
    score_from: int | None = None
    """First place of a window, from 0, whose characters are reported; by default that of the second block."""
    marginal_windows: int = 100
    """Windows of the test text on which the marginals of the samplers are compared."""
    prompt: str = "\nFirst Citizen:\n"
    """Text from which the sample goes on."""
    model: Flat[ModelSettings] = ModelSettings()
    training: Flat[TrainingSettings] = _TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(context=2, block=1, score_from=0)
        self.require_at_least(validation_characters=self.context, test_characters=self.context)
        if self.sample and self.task == "butterfly":
            raise InvalidOptionError(
                "--task=butterfly predicts from both sides and cannot go on with a text; no --sample"
            )

    @property
    def first_scored(self) -> int:
        return self.block if self.score_from is None else self.score_from

    def shortened(self) -> "MaskedTextSettings":
        """What --quick makes of them."""
        return self.shortened_to(20 * self.context, marginal_windows=min(self.marginal_windows, 10))


class MaskedTextExperiment(Experiment[MaskedTextSettings, MaskedTextReport]):
    """One seed of one task."""

    seed_columns: ClassVar = (
        ("test perplexity", "test_perplexity", ".3f"),
        ("through exact", "test_perplexity_exact", ".3f"),
        ("accuracy", "test_accuracy", ".1%"),
        ("bits/char", "test_bits_per_char", ".4f"),
        ("mean |Δ|", "marginal_mae", ".4f"),
        ("best step", "best_step", ".0f"),
        ("train seconds", "train_seconds", ".1f"),
    )
    task: MaskedTextTask

    def __init__(self, data: TextData, settings: MaskedTextSettings, device: torch.device):
        self.data = data
        if settings.sample:
            data.vocabulary.encode(settings.prompt)  # refuses a strange character before anything is trained
        self.config = _config(settings, data.vocabulary.characters)
        self.mask = make_task(self.config)
        labels = self.mask.label_numbers()
        task = MaskedTextTask(
            data,
            context=settings.context,
            batch_size=settings.training.batch_size,
            seed=settings.training.seed,
            device=device,
            validation_characters=settings.validation_characters,
            test_characters=settings.test_characters,
            label_tokens=labels[labels >= 0],
            score_from=settings.first_scored,
        )
        uses_sampler = settings.model.uses_sampler
        spins = int(self.mask.allowed.sum(-1).max())
        super().__init__(settings, self._make_model, task, uses_sampler=uses_sampler, context=spins, device=device)
        self.label = settings.sampler if uses_sampler else settings.model.attention
        self.title = f"{_spoken(settings)}, {settings.model.spoken(self.sampler_words)}, context {settings.context}"

    def _make_model(self, sampler: Sampler | None) -> TaskLM:
        return TaskLM(self.config, sampler=sampler)

    def evaluate_part(self) -> float:
        validation = self.task.split("validation")
        part = validation[: 64 * self.settings.context]
        self.task.masked_scores(self.model, part)
        return len(part) / len(validation)

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "task": self.settings.task,
            "block": self.config.predicted_at_once,
            "positions": self.mask.size,
            "largest_problem": int(self.mask.allowed.sum(-1).max()),
            "vocabulary": len(self.data.vocabulary),
        }

    def remarks(self) -> list[str]:
        facts = self.facts()
        return [
            f"{facts['positions']} positions for {self.settings.context} characters, of which one sees at most "
            f"{facts['largest_problem']}; no target can reach its own prediction (checked)"
        ]

    def report(self) -> MaskedTextReport:
        windows = self.settings.marginal_windows
        return report_on(self.model, self.task, label=self.label, seed=self.seed, marginal_windows=windows)

    def save_figures(self, run: RunFolder, report: MaskedTextReport) -> list[str]:
        window = self.task.windows(self.task.split("test"))[0].tokens[:1]
        names = masks.position_names(self.mask)
        folder, title = run.plots, self.title
        attention = f"Attention on the first test window\n{title}"
        return figures.draw_all(
            [
                lambda: figures.save_learning_curve(folder, run.metrics(), title, ["loss"]),
                lambda: figures.save_couplings(folder, self.model, window, title),
                lambda: figures.save_attention_example(
                    folder, figures.attention_maps(self.model, window, report, seed=self.seed), names, attention
                ),
                lambda: figures.save_marginals(folder, report, title),
                lambda: masks.save_mask_drawing(folder / "mask.png", self.mask.allowed, title=title, names=names),
            ]
        )

    def finish(self, run: RunFolder) -> list[str]:
        """The sample, also as sample.txt."""
        how = f"after {self.settings.prompt!r}, {self.config.predicted_at_once} at once"
        return self.settings.write_sample(self.model, self.data.vocabulary, run, seed=self.seed, how=how)


def _config(settings: MaskedTextSettings, characters: str) -> TaskLMConfig:
    model = settings.model
    return TaskLMConfig(
        vocabulary=len(characters),
        characters=characters,
        context=settings.context,
        task=settings.task,
        block=settings.block,
        content=settings.content,
        attention=AttentionConfig(**model.attention_options()),
        **model.decoder_options(),
        feed_forward=FeedForwardConfig(**model.feed_forward_options()),
    )


def _spoken(settings: MaskedTextSettings) -> str:
    block = "" if settings.task in ("causal", "butterfly") else f" in blocks of {settings.block}"
    return f"{settings.task}{block}"


def main() -> None:
    settings = parse_settings(MaskedTextSettings, prog="masked-text", description=__doc__ or "")
    settings = settings.shortened() if settings.quick else settings
    data = TextData.tuned(Corpus.read(settings.data).text)
    run_experiment(functools.partial(MaskedTextExperiment, data), settings, name="masked-text")


if __name__ == "__main__":
    sys.exit(run_main(main))
