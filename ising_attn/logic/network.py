"""`LogicNetwork`: logic layers and a head; `BooleanNetwork`: the circuit that hardening makes of it."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ising_attn.logic.checks import check_bits, check_features, check_probabilities
from ising_attn.logic.errors import InvalidLogicError
from ising_attn.logic.heads import GroupSum, LinearHead
from ising_attn.logic.layer import BooleanLayer, LogicLayer
from ising_attn.logic.modes import set_mode, set_temperature

if TYPE_CHECKING:
    from ising_attn.logic.circuit import Circuit
    from ising_attn.logic.packed import PackedNetwork

Head = GroupSum | LinearHead


class LogicNetwork(nn.Module):
    """Logic layers one after another, then a head: (…, in_features) → (…, classes).

    Args:
        in_features: inputs.
        widths: gates of each layer.
        head: a `GroupSum` or `LinearHead` of the last width; None: the outputs are bits.
        options: keywords of every `LogicLayer`.

    Raises:
        InvalidLogicError: no layer, or a head of another width.
    """

    def __init__(self, in_features: int, widths: Sequence[int], *, head: Head | None = None, **options: Any):
        super().__init__()
        if not widths:
            raise InvalidLogicError("widths is empty; a logic network needs the number of gates of at least one layer")
        sizes = [in_features, *widths]
        self.layers = nn.ModuleList(LogicLayer(i, o, **options) for i, o in zip(sizes[:-1], sizes[1:], strict=True))
        self.head = check_head(head, sizes[-1])
        self.in_features, self.out_features = in_features, sizes[-1]

    def logic_layers(self) -> list[LogicLayer]:
        """The layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, LogicLayer)]

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Logits, or bits where there is no head. Only what enters the network is checked."""
        bits = self.bits(x)
        return bits if self.head is None else self.head(bits)

    def bits(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch gates"]:
        """The outputs of the last layer."""
        check_features(x, self.in_features, "LogicNetwork")
        (check_bits if self.logic_layers()[0].is_hard else check_probabilities)(x, "LogicNetwork")
        for layer in self.logic_layers():
            x = layer(x, check=False)
        return x

    def set_mode(self, mode: str) -> None:
        """Set the forward mode of all layers."""
        set_mode(self, mode)

    def set_temperature(self, temperature: float) -> None:
        """Set the temperature of all layers."""
        set_temperature(self, temperature)

    def harden(self) -> "BooleanNetwork":
        """The Boolean network that this one becomes; later training leaves it as it is."""
        return BooleanNetwork([layer.harden() for layer in self.logic_layers()], copy.deepcopy(self.head))

    def packed(self) -> "PackedNetwork":
        """The hardened network, 64 samples a word."""
        return self.harden().packed()


class BooleanNetwork(nn.Module):
    """Boolean layers and a head.

    Args:
        layers: each of as many inputs as the one before has gates.
        head: of the last layer's bits, or None.
    """

    def __init__(self, layers: Sequence[BooleanLayer], head: Head | None = None):
        super().__init__()
        if not layers:
            raise InvalidLogicError("a Boolean network needs at least one layer")
        for before, after in zip(layers[:-1], layers[1:], strict=True):
            if before.out_features != after.in_features:
                raise InvalidLogicError(f"{before.out_features} gates feed a layer of {after.in_features} inputs")
        self.layers = nn.ModuleList(layers)
        self.head = check_head(head, layers[-1].out_features)
        self.in_features, self.out_features = layers[0].in_features, layers[-1].out_features

    def boolean_layers(self) -> list[BooleanLayer]:
        """The layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, BooleanLayer)]

    def forward(self, x: Shaped[Tensor, "*batch features"]) -> Shaped[Tensor, "*batch classes"]:
        """Logits, or bits in the dtype of x where there is no head.

        Raises:
            InvalidLogicError: another number of features, or values other than 0 and 1.
        """
        bits = self.bits(x)
        return bits.to(x.dtype) if self.head is None else self.head(bits.bool())

    def bits(self, x: Shaped[Tensor, "*batch features"]) -> Shaped[Tensor, "*batch gates"]:
        """The outputs of the last layer, bool."""
        check_features(x, self.in_features, "BooleanNetwork")
        check_bits(x, "BooleanNetwork")
        x = x.bool()
        for layer in self.boolean_layers():
            x = layer(x)
        return x

    def circuit(self) -> "Circuit":
        """The gates as data, for export."""
        from ising_attn.logic.circuit import Circuit

        return Circuit.of(self)

    def packed(self) -> "PackedNetwork":
        """The same network, 64 samples a word."""
        from ising_attn.logic.packed import PackedNetwork

        return PackedNetwork(self)


def check_head(head: Head | None, width: int) -> Head | None:
    """Refuse a head of another width."""
    if head is not None and head.in_features != width:
        raise InvalidLogicError(f"the head takes {head.in_features} features, the last layer has {width} gates")
    return head
