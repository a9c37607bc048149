"""The study of gated MLPs: which feed-forward layers are compared, at which width, and the commands that train them."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from ising_attn.bilinear import ACTIVATIONS
from ising_attn.feed_forward import feed_forward_parameters, hidden_dim_for_parameters
from ising_attn.lab.sweep import Job
from samplers.errors import InvalidOptionError, did_you_mean

FORMS = ("mlp", "symmetric", "gated")
CHOSEN = "CHOSEN"
"""Stands for a learning rate that is not chosen yet."""
_EXPERIMENT = "tiny-shakespeare"
_TUNING_SEED = 1000


@dataclasses.dataclass(frozen=True, order=True)
class Variant:
    """One feed-forward layer.

    Args:
        form: "mlp", "symmetric" or "gated".
        rank: of the bilinear form; 0 for an MLP.
        activation: σ. With the identity the symmetric and the gated form are one function, named "symmetric" here.
    """

    form: str
    rank: int
    activation: str

    @property
    def name(self) -> str:
        return f"{self.form}-{f'r{self.rank}-' if self.rank else ''}{self.activation}"

    @property
    def options(self) -> dict[str, Any]:
        """Of `make_feed_forward`."""
        return {"activation": self.activation, **({"rank": self.rank} if self.rank else {})}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared, and how each variant is trained."""

    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Ranks of the bilinear forms."""
    activations: tuple[str, ...] = ("identity", "relu", "gelu", "silu")
    """Non-linearities."""
    parameters: int = 21_070
    """Parameters of every feed-forward layer, as nearly as whole units allow; the default is met within 0.3 %."""
    embed_dim: int = 64
    """Width of the model."""
    context: int = 16
    """Characters of a window."""
    layers: int = 1
    """Decoder blocks."""
    steps: int = 1500
    """Training steps."""
    batch_size: int = 64
    """Windows of a step."""
    learning_rates: tuple[float, ...] = (0.01, 0.02, 0.04, 0.08)
    """Learning rates; each variant takes the best of them on validation data."""
    rate_steps: int = 400
    """Steps with each of them."""
    validation_characters: int = 20_001
    """Characters that choose the rate and the weights."""

    def __post_init__(self) -> None:
        for name in ("ranks", "activations", "learning_rates"):
            if not getattr(self, name):
                raise InvalidOptionError(f"--{name.replace('_', '-')} is empty; give at least one")
        for rank in self.ranks:
            if not 1 <= rank <= self.embed_dim:
                raise InvalidOptionError(
                    f"--ranks has {rank}; a bilinear form has a rank from 1 to --embed-dim={self.embed_dim}"
                )
        for name in self.activations:
            if name not in ACTIVATIONS:
                raise InvalidOptionError(
                    f"--activations has {name!r}{did_you_mean(name, ACTIVATIONS)}; known: {', '.join(ACTIVATIONS)}"
                )
        for rate in self.learning_rates:
            if not (rate > 0 and math.isfinite(rate)):
                raise InvalidOptionError(f"--learning-rates has {rate}; each must be finite and above 0")
        for name in ("embed_dim", "context", "layers", "steps", "batch_size", "rate_steps"):
            if getattr(self, name) < 1:
                raise InvalidOptionError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1")

    def shortened(self) -> "Study":
        """What --quick makes of it."""
        return dataclasses.replace(
            self,
            ranks=self.ranks[:2],
            activations=("gelu",) if "gelu" in self.activations else self.activations[:1],
            learning_rates=self.learning_rates[:2],
            steps=min(self.steps, 20),
            rate_steps=min(self.rate_steps, 10),
            validation_characters=min(self.validation_characters, 2001),
        )

    def variants(self) -> list[Variant]:
        """MLPs, then both forms by rank; the identity has only one of them."""
        names = tuple(dict.fromkeys(self.activations))
        found = [Variant("mlp", 0, activation) for activation in names]
        for rank in dict.fromkeys(self.ranks):
            found += [Variant("symmetric", rank, activation) for activation in names]
            found += [Variant("gated", rank, activation) for activation in names if activation != "identity"]
        return found

    def hidden_dim(self, variant: Variant) -> int:
        """Units of the layer whose parameters come nearest to `parameters`."""
        return _hidden_dim(variant, self.embed_dim, self.parameters)

    def layer_parameters(self, variant: Variant) -> int:
        """Parameters of that layer."""
        return feed_forward_parameters(variant.form, self.embed_dim, self.hidden_dim(variant), **variant.options)

    def tuning_job(self, variant: Variant) -> Job:
        """The short trainings that choose the learning rate, with a seed that is not reported."""
        flags = (
            *self._flags(variant),
            f"--learning-rates={','.join(map(str, self.learning_rates))}",
            f"--rate-steps={self.rate_steps}",
            "--steps=1",
            f"--eval-every={self.rate_steps}",
            f"--test-characters={self.context + 1}",
        )
        return Job(
            row=f"rate-{variant.name}",
            seed=_TUNING_SEED,
            experiment=_EXPERIMENT,
            arguments=flags,
            seconds=self._seconds(self.rate_steps * len(self.learning_rates)),
        )

    def job(self, variant: Variant, seed: int, rate: float | None) -> Job:
        """One training that is reported; a rate of None is not chosen yet."""
        flags = (
            *self._flags(variant),
            f"--learning-rate={CHOSEN if rate is None else rate}",
            f"--steps={self.steps}",
            f"--eval-every={max(1, self.steps // 4)}",
        )
        return Job(
            row=variant.name, seed=seed, experiment=_EXPERIMENT, arguments=flags, seconds=self._seconds(self.steps)
        )

    def chosen_rate(self, summary: Mapping[str, Any]) -> float:
        """The learning rate that the summary of a tuning job names."""
        return float(summary["learning_rates"]["chosen"])

    def _flags(self, variant: Variant) -> tuple[str, ...]:
        return (
            "--attention=softmax",
            f"--context={self.context}",
            f"--embed-dim={self.embed_dim}",
            f"--layers={self.layers}",
            f"--ffn={variant.form}",
            f"--ffn-dim={self.hidden_dim(variant)}",
            f"--ffn-activation={variant.activation}",
            *((f"--ffn-rank={variant.rank}",) if variant.rank else ()),
            f"--batch-size={self.batch_size}",
            f"--validation-characters={self.validation_characters}",
            "--warmup=50",
            "--schedule=cosine",
            "--weight-decay=0.01",
            "--clip=1.0",
            "--dropout=0.0",
            "--no-plots",
        )

    def _seconds(self, steps: int) -> float:
        """About, on one core, as measured for the defaults."""
        work = self.batch_size * self.context / 1024 * self.layers * (self.parameters / 21_070 + 0.5) / 1.5
        return 4.5 + 0.009 * steps * work


@functools.cache
def _hidden_dim(variant: Variant, embed_dim: int, parameters: int) -> int:
    return hidden_dim_for_parameters(variant.form, embed_dim, parameters, **variant.options)
