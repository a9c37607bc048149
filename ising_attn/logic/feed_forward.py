"""`LogicFeedForward`: a logic gate network in the feed-forward slot of a decoder."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ising_attn.logic.encoding import BitEncoder
from ising_attn.logic.errors import InvalidLogicError
from ising_attn.logic.heads import HEADS, GroupSum, LinearHead
from ising_attn.logic.modes import set_mode
from ising_attn.logic.network import LogicNetwork
from samplers.errors import did_you_mean


class LogicFeedForward(nn.Module):
    """Threshold codes of the features, `depth` logic layers, and a head back to floats: (*batch, D) → (*batch, D).

    The input is expected to be normalised (norm="pre"); thresholds are learned. Floats enter the gates through the
    codes alone, and gates see bits alone in the hard modes.

    Args:
        embed_dim: D.
        hidden_dim: gates of each layer; a multiple of D for the head "group-sum".
        depth: logic layers.
        bits: threshold codes per feature.
        head: "linear" (D·hidden_dim weights) or "group-sum" (none).
        parametrisation, mode, wiring, temperature: as in `LogicLayer`.

    Raises:
        InvalidLogicError: sizes or options that do not fit.
        WiringError: wiring that cannot exist.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        depth: int = 2,
        bits: int = 2,
        head: str = "linear",
        parametrisation: str = "light",
        mode: str = "soft",
        wiring: str = "random",
        temperature: float = 1.0,
    ):
        super().__init__()
        if not isinstance(depth, int) or depth < 1:
            raise InvalidLogicError(f"depth={depth!r}; it must be an integer of at least 1")
        if head not in HEADS:
            raise InvalidLogicError(
                f"head={head!r}; it must be one of {', '.join(map(repr, HEADS))}{did_you_mean(str(head), HEADS)}"
            )
        self.encoder = BitEncoder(embed_dim, bits=bits, mode=mode, temperature=temperature)
        self.network = LogicNetwork(
            self.encoder.out_features,
            [hidden_dim] * depth,
            head=LinearHead(hidden_dim, embed_dim)
            if head == "linear"
            else GroupSum(hidden_dim, embed_dim, centred=True),
            parametrisation=parametrisation,
            mode=mode,
            wiring=wiring,
            temperature=temperature,
        )

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """What the slot adds to the residual stream."""
        return self.network(self.encoder(x))

    def harden(self) -> nn.Sequential:
        """Codes by thresholds, and a Boolean network of them; later training leaves it as it is."""
        encoder = copy.deepcopy(self.encoder)
        set_mode(encoder, "hard")
        return nn.Sequential(encoder, self.network.harden()).requires_grad_(False)

    def gate_counts(self) -> torch.Tensor:
        """How often each of the 16 gates would stand in the hardened network."""
        numbers = torch.cat([layer.gates.numbers() for layer in self.network.logic_layers()])
        return numbers.bincount(minlength=16)
