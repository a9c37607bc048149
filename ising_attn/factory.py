"""`make_attention`: an attention layer by name, with the options of its kind."""

import inspect
from typing import Any

from ising_attn.attention import Attention
from ising_attn.baselines import SigmoidAttention, SoftmaxAttention
from ising_attn.boltzmann import BoltzmannAttention
from ising_attn.routers import ArticleRouter, RouterAttention, ScalarRouter
from samplers.base import Sampler
from samplers.errors import InvalidOptionError, did_you_mean

ATTENTION_KINDS: dict[str, type[Attention]] = {
    "softmax": SoftmaxAttention,
    "sigmoid": SigmoidAttention,
    "boltzmann": BoltzmannAttention,
    "router": RouterAttention,
    "article-router": ArticleRouter,
    "scalar-router": ScalarRouter,
}


def attention_options(kind: str) -> list[str]:
    """The keyword options that `make_attention(kind, …)` takes, besides `sampler`."""
    own = inspect.signature(_class_of(kind).__init__).parameters.values()
    inherited = inspect.signature(Attention.__init__).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in own)
    names = [p.name for p in (*own, *(inherited if takes_all else ())) if p.kind is p.KEYWORD_ONLY]
    return [name for name in dict.fromkeys(names) if name not in ("sampler", "scores")]


def make_attention(
    kind: str, embed_dim: int, num_heads: int, context: int, *, sampler: str | Sampler | None = None, **options: Any
) -> Attention:
    """An attention layer by name: one of `ATTENTION_KINDS`.

    Args:
        kind: the name.
        embed_dim, num_heads, context: as in `Attention`.
        sampler: for the kinds that use one ("exact" where None); the others leave it alone, so that one
            command line serves a table of kinds.
        options: what `attention_options(kind)` lists.

    Raises:
        InvalidOptionError: an unknown kind, or an option that the kind does not have.
    """
    layer = _class_of(kind)
    known = attention_options(kind)
    for name in options:
        if name not in known:
            raise InvalidOptionError(
                f"{kind!r} attention has no option {name!r}{did_you_mean(name, known)}; its options are "
                f"{', '.join(known)}"
            )
    if sampler is not None and "sampler" in inspect.signature(layer.__init__).parameters:
        options["sampler"] = sampler
    return layer(embed_dim, num_heads, context, **options)


def _class_of(kind: str) -> type[Attention]:
    if kind not in ATTENTION_KINDS:
        raise InvalidOptionError(
            f"no attention is named {kind!r}{did_you_mean(str(kind), ATTENTION_KINDS)}; "
            f"known: {', '.join(ATTENTION_KINDS)}"
        )
    return ATTENTION_KINDS[kind]
