"""Model configurations: frozen dataclasses that go to JSON and back, and models made from them.

A checkpoint stores `model.config.to_dict()`; `model_from_config` makes that model again and refuses what it does
not know. The sampler is no part of a configuration: the same weights run with any.
"""

import dataclasses
from typing import Any, ClassVar, TypeVar

from torch import nn

from ising_attn import Attention, Sampler, make_attention, make_feed_forward
from samplers.errors import InvalidOptionError, did_you_mean

C = TypeVar("C", bound="Config")
D = TypeVar("D", bound="DecoderConfig")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all configurations."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[C], values: dict[str, Any]) -> C:
        """The inverse of `to_dict`.

        Raises:
            InvalidOptionError: a key that the configuration does not have.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidOptionError(
                    f"{cls.__name__} has no field {name!r}{did_you_mean(str(name), known)}; its fields are "
                    f"{', '.join(known)}"
                )
        return cls(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """What the attention slot holds; None leaves an option at the kind's own default.

    Options that the kind does not have must be left at None.
    """

    kind: str = "boltzmann"
    mode: str | None = None
    couplings: str | None = None
    width: int | None = None
    rank: int | None = None
    coupling_std: float | None = None
    beta: float | None = None
    learn_beta: bool | None = None
    bias: str | None = None
    bias_init: float | None = None
    projection_bias: bool | None = None
    temperature: float | None = None
    threshold: float | None = None
    routing: str | None = None

    def stored(self) -> dict[str, Any]:
        """`to_dict` without what only routers have, where that is not given: configurations older than them agree."""
        routed = ("temperature", "threshold", "routing")
        return {name: value for name, value in self.to_dict().items() if value is not None or name not in routed}

    def build(
        self, embed_dim: int, num_heads: int, context: int, *, sampler: str | Sampler | None, dropout: float
    ) -> Attention:
        """The layer."""
        given = {k: v for k, v in self.to_dict().items() if v is not None and k != "kind"}
        return make_attention(self.kind, embed_dim, num_heads, context, sampler=sampler, dropout=dropout, **given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    """What the feed-forward slot holds; None leaves an option at the kind's own default.

    Options that the kind does not have must be left at None. The kind "none" is no such slot: attention is the only
    computation.
    """

    kind: str = "mlp"
    hidden_dim: int = 0
    rank: int | None = None
    activation: str | None = None
    bias: bool | None = None
    depth: int | None = None
    bits: int | None = None
    parametrisation: str | None = None
    mode: str | None = None

    @classmethod
    def of(cls, value: "FeedForwardConfig | int") -> "FeedForwardConfig":
        """A number is the hidden width of a GELU MLP, and 0 is no slot; a configuration is itself."""
        if isinstance(value, FeedForwardConfig):
            return value
        return cls(hidden_dim=value) if value else cls(kind="none")

    def shortest(self) -> dict[str, Any] | int:
        """What `of` makes this from (or its dict), as short as possible: one spelling for one layer."""
        if self.kind == "none":
            return 0
        if self == FeedForwardConfig(hidden_dim=self.hidden_dim):
            return self.hidden_dim
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def build(self, embed_dim: int) -> nn.Module | None:
        """The layer; None for the kind "none"."""
        given = {k: v for k, v in self.to_dict().items() if v is not None and k not in ("kind", "hidden_dim")}
        if self.kind != "none":
            return make_feed_forward(self.kind, embed_dim, self.hidden_dim, **given)
        if given:
            raise InvalidOptionError(f"there is no feed-forward slot to have {', '.join(given)}; leave it at None")
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """A stack of decoder blocks over token and position embeddings.

    Args:
        vocabulary: number of tokens.
        context: longest sequence.
        embed_dim, num_heads, num_layers: sizes.
        feed_forward: the feed-forward slot; a number is the hidden width of a GELU MLP, and 0 is no such slot:
            attention is the only computation.
        norm: "pre" (with a norm before the head), "post" or "none".
        positions: "learned" per position, "sinusoidal" (no parameters, any length) or "none".
        dropout: on embeddings, weights and residual paths.
        attention: the attention slot.
    """

    model: ClassVar[str] = ""
    vocabulary: int
    context: int
    embed_dim: int
    num_heads: int = 1
    num_layers: int = 1
    feed_forward: FeedForwardConfig | int
    norm: str = "pre"
    positions: str = "learned"
    dropout: float = 0.0
    attention: AttentionConfig = AttentionConfig()

    @property
    def num_positions(self) -> int:
        """Positions that attention sees at most: one for each token, unless a model says otherwise."""
        return self.context

    def to_dict(self) -> dict[str, Any]:
        feed_forward = FeedForwardConfig.of(self.feed_forward).shortest()
        slots = {"attention": self.attention.stored(), "feed_forward": feed_forward}
        return {"model": self.model, **super().to_dict(), **slots}

    @classmethod
    def from_dict(cls: type[D], values: dict[str, Any]) -> D:
        values = dict(values)
        name = values.pop("model", cls.model)
        if name != cls.model:
            raise InvalidOptionError(f"the configuration is of the model {name!r}, not of {cls.model!r}")
        if isinstance(values.get("attention"), dict):
            values["attention"] = AttentionConfig.from_dict(values["attention"])
        if isinstance(values.get("feed_forward"), dict):
            values["feed_forward"] = FeedForwardConfig.from_dict(values["feed_forward"])
        return super().from_dict(values)


def require_characters(characters: str | None, vocabulary: int) -> None:
    """Refuse a `characters` that is not one different character of text for every token."""
    if characters is None:
        return
    if len(set(characters)) != vocabulary:
        raise InvalidOptionError(
            f"characters has {len(set(characters))} different characters and vocabulary={vocabulary!r}"
        )
    lone = next((c for c in characters if "\ud800" <= c <= "\udfff"), None)
    if lone is not None:
        raise InvalidOptionError(
            f"characters has {lone!a}, half of a surrogate pair, which no file of text holds; decode the text as UTF-8"
        )
