"""Symmetries of bilinear feed-forward layers, and how far a trained one is from them.

A unit's score xᵀ Q Kᵀ x does not change when Q and K change places (the transposed form has the same values), nor under
Q → aQ, K → K/a. A symmetric layer keeps both, whatever σ is. A gated layer keeps the exchange where σ(s)t = σ(t)s, that
is for linear σ alone, and the scaling where σ(as) = aσ(s): ReLU keeps it for a > 0, GELU and SiLU do not
(Breslow, arXiv 2606.22172). A gap is 0 where a layer keeps the symmetry, and of order 1 where it does not.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ising_attn.bilinear import LowRankBilinear
from samplers.errors import InvalidOptionError

M = TypeVar("M", bound=nn.Module)

FACTORS = (0.5, 2.0)


@dataclass(frozen=True)
class SymmetryGaps:
    """√( Σ|f′(x) − f(x)|² / Σ|f(x) − c|² ) over inputs x, for f′ the changed layer and c the bias of the values.

    Args:
        exchange: f′ has queries and keys in each other's place.
        scaling: by factor a: f′ has queries times a and keys divided by a.
    """

    exchange: float
    scaling: Mapping[float, float]


def exchanged(module: M) -> M:
    """A copy in which every `LowRankBilinear` has its queries and keys in each other's place."""
    return _changed(module, _exchange)


def rescaled(module: M, factor: float) -> M:
    """A copy in which every `LowRankBilinear` has its queries times `factor` and its keys divided by it.

    Raises:
        InvalidOptionError: a factor that is 0 or not finite.
    """
    if factor == 0 or not math.isfinite(factor):
        raise InvalidOptionError(
            f"factor={factor!r}; queries are multiplied and keys divided by it: give a finite one, not 0"
        )
    return _changed(module, lambda layer: _rescale(layer, factor))


@torch.no_grad()
def symmetry_gaps(
    layer: LowRankBilinear, x: Float[Tensor, "*batch dim"], *, factors: Sequence[float] = FACTORS
) -> SymmetryGaps:
    """The gaps of one layer on inputs x, such as those it meets in a trained model.

    Raises:
        InvalidOptionError: a factor that is 0 or not finite, or no inputs.
    """
    if not x.numel():
        raise InvalidOptionError(f"symmetry gaps are means over inputs, and x has none (shape {tuple(x.shape)})")
    plain = layer(x)

    def gap(other: LowRankBilinear) -> float:
        difference = float((other(x) - plain).double().norm())
        scale = float((plain if layer.value.bias is None else plain - layer.value.bias).double().norm())
        return difference / scale if scale else (math.inf if difference else 0.0)

    return SymmetryGaps(gap(exchanged(layer)), {factor: gap(rescaled(layer, factor)) for factor in factors})


@torch.no_grad()
def symmetry_gaps_in(model: nn.Module, *inputs: Any, factors: Sequence[float] = FACTORS) -> dict[str, SymmetryGaps]:
    """The gaps of every `LowRankBilinear` of a model by name, each on what it meets in model(*inputs).

    In training mode dropout is part of that; call `eval()` first.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, LowRankBilinear)}
    met: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, arguments: met[name].append(arguments[0].flatten(0, -2))

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: symmetry_gaps(layer, torch.cat(met[name]), factors=factors) for name, layer in layers.items()}


def _changed(module: M, change: Callable[[LowRankBilinear], None]) -> M:
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for part in changed.modules():
            if isinstance(part, LowRankBilinear):
                change(part)
    return changed


def _exchange(layer: LowRankBilinear) -> None:
    layer.query, layer.key = layer.key, layer.query


def _rescale(layer: LowRankBilinear, factor: float) -> None:
    for query, key in zip(layer.query.parameters(), layer.key.parameters(), strict=True):
        query.mul_(factor)
        key.div_(factor)
