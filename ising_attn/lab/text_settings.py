"""Settings that experiments on a text share: where it is, how much of it is evaluated, and what is generated."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ising_attn.lab.experiment import ExperimentSettings
from ising_attn.lab.runs import RunFolder
from ising_attn.lab.text import Vocabulary
from ising_attn.lab.text_sample import sample_text
from samplers.errors import InvalidOptionError

Self = TypeVar("Self", bound="TextDataSettings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataSettings(ExperimentSettings):
    """Settings of an experiment on a text."""

    data: Path | None = None
    """Text file; by default the one that ISING_ATTN_TINY_SHAKESPEARE names, or a download to the user's cache."""
    validation_characters: int | None = None
    """Use only the first so many characters of the validation text; None uses all."""
    test_characters: int | None = None
    """Use only the first so many characters of the test text; None uses all."""

    def shortened_to(self: Self, few: int, **changes: Any) -> Self:
        """For --quick: a few steps, and so many characters to evaluate on."""
        training = dataclasses.replace(self.training, steps=min(self.training.steps, 20), eval_every=10)
        return dataclasses.replace(
            self,
            **{"training": training, **changes},
            rate_steps=min(self.rate_steps, 10),
            validation_characters=min(self.validation_characters or few, few),
            test_characters=min(self.test_characters or few, few),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledTextSettings(TextDataSettings):
    """Settings of an experiment that can go on with a text, and compares marginals on it."""

    marginal_windows: int = 250
    """Windows of the test text on which the marginals of the samplers are compared."""
    sample: int = 0
    """Characters to generate with the trained weights; 0 for none."""
    prompt: str = "\n"
    """Text from which the sample goes on."""
    temperature: float = 1.0
    """Divides the logits of the sample; 0 takes the likeliest character."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(marginal_windows=1, sample=0, temperature=0)
        if not self.prompt:
            raise InvalidOptionError("--prompt is empty; give at least one character")

    def write_sample(
        self, model: nn.Module, vocabulary: Vocabulary, run: RunFolder, *, seed: int, how: str
    ) -> list[str]:
        """The sample, also as sample.txt; lines to print.

        Args:
            how: of the sample, for its heading.
        """
        if not self.sample:
            return []
        drawn = sample_text(model, vocabulary.encode(self.prompt), self.sample, temperature=self.temperature, seed=seed)
        text = vocabulary.decode(drawn)
        (run.path / "sample.txt").write_text(text, encoding="utf-8")
        return ["", f"{self.sample} characters {how}, also in sample.txt:", text]
