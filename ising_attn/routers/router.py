"""`Router`: what every Boolean router shares: temperature, threshold, and how soft or hard a whole model runs."""

import abc
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ising_attn.attention import Attention
from samplers.errors import InvalidOptionError, did_you_mean

ROUTINGS = ("soft", "straight-through", "hard")


@dataclass(frozen=True)
class Routing:
    """What one router did with one batch; see `recorded_routing`.

    Args:
        chosen: probability with which each query uses each key, (batch, H, T, T); 0 or 1 from a hard router, 0 where
            a key is not allowed.
        allowed: bool, broadcastable to it.
    """

    chosen: Float[Tensor, "batch heads queries keys"]
    allowed: Bool[Tensor, "..."]

    def entropy(self) -> Float[Tensor, ""]:
        """Mean nats of one choice, over the allowed keys: log 2 where nothing is decided, 0 for a hard router."""
        own = self.chosen[self.allowed.expand(self.chosen.shape)]
        # Where a choice is all but made, x log x has the gradient of a logarithm of 0.
        inside = own.clamp(1e-6, 1 - 1e-6)
        each = -(inside * inside.log() + (1 - inside) * (1 - inside).log())
        return torch.where(inside == own, each, 0.0).mean()

    def share_up(self) -> float:
        """Mean probability that an allowed key is used."""
        return self.chosen[self.allowed.expand(self.chosen.shape)].mean().item()


class Router(Attention):
    """Attention that decides for every key whether it is used, with one temperature τ and one threshold θ.

    `routing` says how: "soft" weights come from probabilities at τ; "hard" ones from decisions; "straight-through" are
    the hard ones with the gradient of the soft ones. It is no part of the weights, as a sampler is none. τ and θ are:
    they are buffers of the state dict, so that a checkpoint is always evaluated at the temperature it was saved with.
    θ is subtracted from the fields of hard decisions alone. Where a query decides for no key at all, its weights are
    those of the mean of its allowed keys. The mask is applied after the decision: a key that is not allowed has weight
    0, whatever is decided.

    Args:
        temperature: τ.
        threshold: θ.
        routing: "soft", "straight-through" or "hard"; `layer.routing = …` changes it later.
        Others: see the subclass and `Attention`.

    Raises:
        InvalidOptionError: an unknown routing, a temperature that is not above 0.
    """

    temperature: Tensor
    threshold: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        context: int,
        *,
        temperature: float = 1.0,
        threshold: float = 0.0,
        routing: str = "soft",
        **options: Any,
    ):
        super().__init__(embed_dim, num_heads, context, **options)
        # float64, so that a temperature comes back from a checkpoint as it was set.
        self.register_buffer("temperature", torch.tensor(check_temperature(temperature), dtype=torch.float64))
        self.register_buffer("threshold", torch.tensor(check_threshold(threshold), dtype=torch.float64))
        self._recorders: list[list[Routing]] = []
        self.routing = routing

    @property
    def routing(self) -> str:
        """How the weights are made: "soft", "straight-through" or "hard"."""
        return self._routing

    @routing.setter
    def routing(self, routing: str) -> None:
        if routing not in ROUTINGS:
            known = ", ".join(map(repr, ROUTINGS))
            raise InvalidOptionError(f"routing={routing!r}; it must be one of {known}{did_you_mean(routing, ROUTINGS)}")
        self._routing = routing

    @property
    def tau(self) -> float:
        """The temperature as a number."""
        return float(self.temperature)

    def set_temperature(self, temperature: float) -> None:
        """Set τ.

        Raises:
            InvalidOptionError: not a finite number above 0.
        """
        self.temperature.fill_(check_temperature(temperature))

    def set_threshold(self, threshold: float) -> None:
        """Set θ, which hard decisions subtract from the fields."""
        self.threshold.fill_(check_threshold(threshold))

    def _weights(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        # Neither temperatures, which are read as numbers, nor samplers are torch graphs.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._routed)(fields, allowed)
        with torch.autocast(fields.device.type, enabled=False):
            return self._routed(fields, allowed)

    def _routed(self, fields: Tensor, allowed: Tensor) -> Tensor:
        if self.routing == "soft":
            weights = self._soft_weights(fields, allowed)
        else:
            with torch.no_grad():
                weights = self._mixed(self._decided(fields - self.threshold.to(fields.dtype), allowed), allowed)
            if self.routing == "straight-through" and torch.is_grad_enabled():
                soft = self._soft_weights(fields, allowed)
                weights = weights + (soft - soft.detach())
        for kept in self._recorders:
            kept.append(Routing(self._choices(fields, allowed), allowed))
        return weights

    def _choices(self, fields: Tensor, allowed: Tensor) -> Tensor:
        """Probabilities, or decisions where the routing is "hard", of the allowed keys."""
        hard = self.routing == "hard"
        chosen = (
            self._decided(fields - self.threshold.to(fields.dtype), allowed) if hard else self._chosen(fields, allowed)
        )
        return torch.where(allowed, chosen, 0.0)

    @abc.abstractmethod
    def _chosen(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Probability at the temperature that each key is used."""

    @abc.abstractmethod
    def _decided(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """1 for each key that is used, 0 for the others."""

    @abc.abstractmethod
    def _mixed(
        self, chosen: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Normalised weights from choices in [0, 1]."""

    def _soft_weights(self, fields: Tensor, allowed: Tensor) -> Tensor:
        return self._mixed(self._chosen(fields, allowed), allowed)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, check in (("temperature", check_temperature), ("threshold", check_threshold)):
            stored = state_dict.get(f"{prefix}{name}")
            if stored is not None:
                if stored.numel() != 1 or stored.is_complex():
                    raise InvalidOptionError(
                        f"{prefix}{name} has shape {tuple(stored.shape)} and type {stored.dtype}; it is one real number"
                    )
                check(float(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, routing={self.routing!r}, temperature={self.tau:g}"


def routers_of(model: nn.Module) -> list[Router]:
    """The routers of `model`, in the order of its layers."""
    return [module for module in model.modules() if isinstance(module, Router)]


def set_routing(model: nn.Module, routing: str) -> None:
    """Let every router of `model` run "soft", "straight-through" or "hard" from now on.

    Raises:
        InvalidOptionError: an unknown routing, or a model without routers.
    """
    for router in _some_routers(model):
        router.routing = routing


@contextlib.contextmanager
def use_routing(model: nn.Module, routing: str) -> Iterator[None]:
    """Within the block every router of `model` runs so; afterwards as before.

    Raises:
        InvalidOptionError: an unknown routing, or a model without routers.
    """
    before = [(router, router.routing) for router in _some_routers(model)]
    try:
        set_routing(model, routing)
        yield
    finally:
        for router, own in before:
            router.routing = own


def set_temperature(model: nn.Module, temperature: float) -> None:
    """Set τ of every router of `model`.

    Raises:
        InvalidOptionError: not a finite number above 0, or a model without routers.
    """
    for router in _some_routers(model):
        router.set_temperature(temperature)


def set_threshold(model: nn.Module, threshold: float) -> None:
    """Set θ of every router of `model`, which its hard decisions subtract from the fields.

    Raises:
        InvalidOptionError: not a finite number, or a model without routers.
    """
    for router in _some_routers(model):
        router.set_threshold(threshold)


@contextlib.contextmanager
def recorded_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Within the block, what each router chooses in each forward pass is appended to the list that is given.

    Choices keep their graph, so that a loss may contain them. A router with couplings asks its sampler once more.

    Raises:
        InvalidOptionError: a model without routers.
    """
    routers, kept = _some_routers(model), []  # type: ignore[var-annotated]
    for router in routers:
        router._recorders.append(kept)
    try:
        yield kept
    finally:
        for router in routers:
            router._recorders = [one for one in router._recorders if one is not kept]


def _some_routers(model: nn.Module) -> list[Router]:
    found = routers_of(model)
    if not found:
        raise InvalidOptionError(f"{type(model).__name__} has no router; use 'router' attention")
    return found


def check_temperature(value: float) -> float:
    """Refuse a temperature that is not a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise InvalidOptionError(f"temperature={value!r}; it must be a finite number above 0")
    return float(value)


def check_threshold(value: float) -> float:
    """Refuse a threshold that is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidOptionError(f"threshold={value!r}; it must be a finite number")
    return float(value)
