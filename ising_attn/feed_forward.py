"""`make_feed_forward`: a feed-forward layer by name, with the options of its kind, and its size in parameters."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ising_attn.bilinear import MLP, FullBilinear, LowRankBilinear
from ising_attn.logic import LogicFeedForward
from samplers.errors import InvalidOptionError, did_you_mean

_symmetric = functools.partial(LowRankBilinear, place="outside")
_gated = functools.partial(LowRankBilinear, place="factor")

FEED_FORWARD_KINDS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "symmetric": _symmetric,
    "gated": _gated,
    "full-bilinear": FullBilinear,
    # The gated MLPs of Shazeer, arXiv 2002.05202, by his names.
    "glu": functools.partial(_gated, rank=1, activation="sigmoid"),
    "bilinear": functools.partial(_gated, rank=1, activation="identity"),
    "reglu": functools.partial(_gated, rank=1, activation="relu"),
    "geglu": functools.partial(_gated, rank=1, activation="gelu"),
    "swiglu": functools.partial(_gated, rank=1, activation="silu"),
    "logic": LogicFeedForward,
}
"""Called as kind(embed_dim, hidden_dim, **options); a layer maps (*batch, D) to (*batch, D), each row by itself."""


def feed_forward_options(kind: str) -> list[str]:
    """The keyword options that `make_feed_forward(kind, …)` takes."""
    layer = _layer_of(kind)
    fixed = layer.keywords if isinstance(layer, functools.partial) else {}
    found = inspect.signature(layer).parameters.values()
    return [p.name for p in found if p.kind is p.KEYWORD_ONLY and p.name not in fixed]


def make_feed_forward(kind: str, embed_dim: int, hidden_dim: int, **options: Any) -> nn.Module:
    """A feed-forward layer by name, a key of `FEED_FORWARD_KINDS`.

    Args:
        kind: the name.
        embed_dim: width D of input and output.
        hidden_dim: number of hidden units.
        options: what `feed_forward_options(kind)` lists.

    Raises:
        InvalidOptionError: an unknown kind, an option that the kind does not have, or a value out of range.
    """
    layer = _layer_of(kind)
    known = feed_forward_options(kind)
    for name in options:
        if name not in known:
            raise InvalidOptionError(
                f"the feed-forward layer {kind!r} has no option {name!r}{did_you_mean(name, known)}; its options are "
                f"{', '.join(known)}"
            )
    return layer(embed_dim, hidden_dim, **options)


def feed_forward_parameters(kind: str, embed_dim: int, hidden_dim: int, **options: Any) -> int:
    """How many parameters `make_feed_forward` with these arguments has; nothing is allocated."""
    with torch.device("meta"):
        layer = make_feed_forward(kind, embed_dim, hidden_dim, **options)
    return sum(parameter.numel() for parameter in layer.parameters())


def hidden_dim_for_parameters(kind: str, embed_dim: int, parameters: int, **options: Any) -> int:
    """The number of hidden units whose layer comes nearest to a number of parameters, for kinds that grow by units.

    Raises:
        InvalidOptionError: not even one unit comes near: the layer of one has more than twice the parameters.
    """
    one, two = (feed_forward_parameters(kind, embed_dim, units, **options) for units in (1, 2))
    units = max(1, round((parameters - one) / (two - one)) + 1)
    if one > 2 * parameters:
        raise InvalidOptionError(
            f"{parameters} parameters are too few for a {kind!r} feed-forward layer of width {embed_dim}: one hidden "
            f"unit takes {one}; allow more parameters, or choose a lower rank or width"
        )
    return units


def _layer_of(kind: str) -> Callable[..., nn.Module]:
    if kind not in FEED_FORWARD_KINDS:
        raise InvalidOptionError(
            f"no feed-forward layer is named {kind!r}{did_you_mean(str(kind), FEED_FORWARD_KINDS)}; "
            f"known: {', '.join(FEED_FORWARD_KINDS)}"
        )
    return FEED_FORWARD_KINDS[kind]
