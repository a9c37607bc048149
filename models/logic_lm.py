"""`LogicLM`: a differentiable logic gate network as a character language model."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from ising_attn.logic import BooleanNetwork, LogicNetwork
from ising_attn.logic.wiring import FixedWiring
from models.logic_config import LogicLMConfig
from models.logic_windows import one_hot_window, one_hot_windows, recent_pairs
from models.pretrained import Pretrained


class LogicLM(Pretrained, nn.Module):
    """One-hot codes of the last `context` characters → layers of gates → a head of logits.

    The flat DLGN of karumaru-kakikukekodoumei/boolean-attention (src/dlgn.py), with fixed wiring that looks at recent
    characters more than at old ones, truth-table gates that start by passing their first input on, and gates that are
    hard in the forward pass of training as well, so that nothing is lost when they are hardened.

    Args:
        config: sizes and gates.

    Raises:
        InvalidOptionError: sizes or options that do not fit together.
    """

    Config: ClassVar[type[LogicLMConfig]] = LogicLMConfig

    def __init__(self, config: LogicLMConfig):
        super().__init__()
        self.config = config
        features = config.context * config.vocabulary
        self.network = LogicNetwork(features, config.widths, **config.gate_options())
        if config.reach is not None:
            look_back(self.network, config.vocabulary, config.context, config.reach)
        self.dropout = nn.Dropout(config.dropout)
        self.head = config.make_head(config.widths[-1])
        self.max_length = config.context

    def forward(self, tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch t classes"]:
        """Logits of the next character at every position: T networks per sequence, one for each window.

        Raises:
            InvalidProblemError: T of 0, or beyond the context.
        """
        return self._logits(one_hot_windows(tokens, self.config.vocabulary, self.config.context))

    def next_logits(self, tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch classes"]:
        """Logits at the last position alone."""
        return self._logits(one_hot_window(tokens, self.config.vocabulary, self.config.context))

    def harden(self) -> BooleanNetwork:
        """The Boolean network from a window's one-hot bits to logits, ready to be packed and exported."""
        hard = self.network.harden()
        return BooleanNetwork(hard.boolean_layers(), self.head)

    def _logits(self, bits: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        return self.head(self.dropout(self.network(bits)))


def look_back(network: LogicNetwork, vocabulary: int, context: int, reach: float) -> None:
    """Wire the first layer of a network to recent characters; see `recent_pairs`."""
    first = network.logic_layers()[0]
    pairs = recent_pairs(vocabulary, context, first.out_features, reach=reach)
    first.wiring = FixedWiring(first.in_features, first.out_features, index=pairs)
