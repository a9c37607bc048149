r"""Tiny Shakespeare by Ising attention: a character language model trained through any sampler.

A small causal decoder predicts the next character, the first task of Boltzmann attention (Kim and Park, arXiv
2606.12478, section 4.2). By default (--protocol=tuned) it learns from the whole text, which is split for training,
for the choice of the weights and for the report; --protocol=paper repeats the paper's setting, where the first
100,000 characters are used and the tenth that is reported also chooses the weights.

    python experiments/tiny_shakespeare.py --context=12
    python experiments/tiny_shakespeare.py --protocol=paper --attention=softmax --seeds=0,1,2
    python experiments/tiny_shakespeare.py --sampler=dqa --data=input.txt
    python experiments/tiny_shakespeare.py --config=RUN/config.json --weights=RUN/checkpoints/best.safetensors \
        --sample=500
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

from ising_attn.lab import figures  # noqa: E402
from ising_attn.lab.config import Flat, parse_settings  # noqa: E402
from ising_attn.lab.experiment import Experiment  # noqa: E402
from ising_attn.lab.main import run_main  # noqa: E402
from ising_attn.lab.model_settings import ModelSettings  # noqa: E402
from ising_attn.lab.published import Published, text_perplexity  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.seeds import run_experiment  # noqa: E402
from ising_attn.lab.text import Corpus, TextData  # noqa: E402
from ising_attn.lab.text_report import TextReport, report_on  # noqa: E402
from ising_attn.lab.text_settings import SampledTextSettings  # noqa: E402
from ising_attn.lab.text_task import TextTask  # noqa: E402
from ising_attn.lab.training import TrainingSettings  # noqa: E402
from models import AttentionConfig, CharLM, CharLMConfig, FeedForwardConfig  # noqa: E402
from samplers import InvalidOptionError, Sampler  # noqa: E402

_TUNED = TrainingSettings(
    steps=8000,
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
# What the paper states. It names neither the batch size nor the length and number of its "evaluation epochs": here
# one is 500 steps of 64 windows, a third of a pass over all windows of the training text.
_PAPER = TrainingSettings(
    steps=40000,
    batch_size=64,
    learning_rate=1e-3,
    coupling_learning_rate=3e-5,
    weight_decay=0.01,
    clip=1.0,
    eval_every=500,
    patience=20,
    monitor="loss",
    monitor_mode="min",
)
_PAPER_MODEL = ModelSettings(embed_dim=64, heads=1, layers=1, ffn_dim=128, dropout=0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSettings(SampledTextSettings):
    """Settings of the Tiny Shakespeare experiment."""

    protocol: Literal["tuned", "paper"] = "tuned"
    """Splits, and the defaults of training and dropout: the whole text with our own, or the paper's."""
    context: int = 8
    """Characters of a window, T."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Embeddings of positions: one for each of the context, or sinusoids or none, which any length can have."""
    other_contexts: tuple[int, ...] = ()
    """Evaluate the trained model also on windows of these lengths (--other-contexts=16,32)."""
    model: Flat[ModelSettings] = ModelSettings()
    training: Flat[TrainingSettings] = _TUNED

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(context=1, validation_characters=2, test_characters=2)
        if any(context < 1 for context in self.other_contexts):
            raise InvalidOptionError(f"--other-contexts has {min(self.other_contexts)}; each must be at least 1")

    def shortened(self) -> "TextSettings":
        """What --quick makes of them."""
        return self.shortened_to(20 * self.context + 1, marginal_windows=min(self.marginal_windows, 10))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperSettings(TextSettings):
    """Settings of the Tiny Shakespeare experiment with the paper's defaults."""

    protocol: Literal["tuned", "paper"] = "paper"
    """Splits, and the defaults of training and dropout: the whole text with our own, or the paper's."""
    model: Flat[ModelSettings] = _PAPER_MODEL
    training: Flat[TrainingSettings] = _PAPER


class TextExperiment(Experiment[TextSettings, TextReport]):
    """One seed of the language model."""

    seed_columns: ClassVar = (
        ("test perplexity", "test_perplexity", ".3f"),
        ("through exact", "test_perplexity_exact", ".3f"),
        ("bits/char", "test_bits_per_char", ".4f"),
        ("mean |Δ|", "marginal_mae", ".4f"),
        ("published", "published_perplexity", ".3f"),
        ("best step", "best_step", ".0f"),
        ("train seconds", "train_seconds", ".1f"),
    )
    task: TextTask

    def __init__(self, corpus: Corpus, data: TextData, settings: TextSettings, device: torch.device):
        self.corpus, self.data = corpus, data
        data.vocabulary.encode(settings.prompt)  # refuses a strange character before anything is trained
        task = TextTask(
            data,
            context=settings.context,
            batch_size=settings.training.batch_size,
            seed=settings.training.seed,
            device=device,
            validation_characters=settings.validation_characters,
            test_characters=settings.test_characters,
        )
        uses_sampler, context = settings.model.uses_sampler, settings.context
        longest = max(context, *settings.other_contexts, 0)
        super().__init__(settings, self._make_model, task, uses_sampler=uses_sampler, context=longest, device=device)
        self._check_other_contexts()
        self.label = settings.sampler if uses_sampler else settings.model.attention
        self.title = f"{settings.model.spoken(self.sampler_words)}, context {context}, {settings.protocol} protocol"

    def _check_other_contexts(self) -> None:
        longest = max(self.settings.other_contexts, default=0)
        limit: int | None = getattr(self.model, "max_length", None)
        if limit is not None and longest > limit:
            raise InvalidOptionError(
                f"--other-contexts has {longest} and this model takes at most {limit}; for any length use "
                "--positions=none or sinusoidal, no --score-bias by position, and --couplings=distance where there "
                "are couplings"
            )
        if (left := len(self.data.test[: self.settings.test_characters])) <= longest:
            raise InvalidOptionError(f"--other-contexts has {longest} and the test text only {left} characters")

    def _make_model(self, sampler: Sampler | None) -> CharLM:
        settings, vocabulary = self.settings, self.data.vocabulary
        config = CharLMConfig(
            vocabulary=len(vocabulary),
            characters=vocabulary.characters,
            context=settings.context,
            positions=settings.positions,
            attention=AttentionConfig(**settings.model.attention_options()),
            feed_forward=FeedForwardConfig(**settings.model.feed_forward_options()),
            **settings.model.decoder_options(),
        )
        return CharLM(config, sampler=sampler)

    def evaluate_part(self) -> float:
        validation = self.task.split("validation")
        part = validation[: 64 * self.settings.context + 1]
        self.task.scores(self.model, part)
        return (len(part) - 1) / (len(validation) - 1)

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "protocol": self.settings.protocol,
            "vocabulary": len(self.data.vocabulary),
            "train_characters": len(self.data.train),
            "selected_on_test": self.data.selects_on_test,
            "corpus": {"file": Path(self.corpus.source).name, "sha256": self.corpus.sha256},
        }

    def remarks(self) -> list[str]:
        train, validation, test = self.data.train, self.task.split("validation"), self.task.split("test")
        sizes = f"{len(self.data.vocabulary)} different characters; {len(train)} to train on"
        if self.data.selects_on_test:
            notes = [f"{sizes}; the {len(test)} that are reported also choose the weights, as in the paper"]
        else:
            notes = [f"{sizes}, {len(validation)} to choose the weights, {len(test)} to report"]
        model = self.settings.model
        if model.uses_sampler and model.mode == "J" and model.score_bias == "none":
            notes.append("without fields or a bias every ⟨s⟩ is 0 by symmetry: --mode=J averages uniformly")
        return notes

    def report(self) -> TextReport:
        return report_on(
            self.model,
            self.task,
            label=self.label,
            seed=self.seed,
            marginal_windows=self.settings.marginal_windows,
            other_contexts=self.settings.other_contexts,
            published=self.published(),
        )

    def published(self) -> Published | None:
        """The paper's number, where this run is the paper's setting."""
        model, settings = self.settings.model, self.settings
        same_model = (
            settings.positions == "learned"
            and dataclasses.replace(model, attention="boltzmann", mode="h+J") == _PAPER_MODEL
        )
        whole = settings.test_characters is None and not settings.quick
        if not (settings.protocol == "paper" and same_model and whole and self.corpus.is_tiny_shakespeare):
            return None
        variant = model.mode if model.uses_sampler else model.attention
        return text_perplexity(variant, settings.context, sampler=settings.sampler)

    def save_figures(self, run: RunFolder, report: TextReport) -> list[str]:
        window = self.task.windows(self.task.split("test"))[0].tokens[:1].to(self.task.device)
        characters = [_VISIBLE.get(c, c) for c in self.data.vocabulary.decode(window[0])]
        folder, title, seed = run.plots, self.title, self.seed
        attention = f"Attention on the first test window\n{title}"
        return figures.draw_all(
            [
                lambda: figures.save_learning_curve(folder, run.metrics(), title, ["loss"]),
                lambda: figures.save_couplings(folder, self.model, window, title),
                lambda: figures.save_attention_example(
                    folder, figures.attention_maps(self.model, window, report, seed=seed), characters, attention
                ),
                lambda: figures.save_marginals(folder, report, title),
            ]
        )

    def finish(self, run: RunFolder) -> list[str]:
        """The sample, also as sample.txt."""
        how = f"after {self.settings.prompt!r}"
        return self.settings.write_sample(self.model, self.data.vocabulary, run, seed=self.seed, how=how)


_VISIBLE = {"\n": "\\n", "\t": "\\t", "\r": "\\r", " ": "␣"}


def read_settings() -> TextSettings:
    """The settings of the command line, over the defaults of its protocol."""
    about = {"prog": "tiny-shakespeare", "description": __doc__ or ""}
    given = sys.argv[1:]
    first = parse_settings(TextSettings, [a for a in given if a not in ("-h", "--help")], **about)
    settings = parse_settings(PaperSettings if first.protocol == "paper" else TextSettings, given, **about)
    return settings.shortened() if settings.quick else settings


def main() -> None:
    settings = read_settings()
    corpus = Corpus.read(settings.data)
    data = TextData.paper(corpus.text) if settings.protocol == "paper" else TextData.tuned(corpus.text)
    run_experiment(functools.partial(TextExperiment, corpus, data), settings, name="tiny-shakespeare")


if __name__ == "__main__":
    sys.exit(run_main(main))
