"""`LoopedLogicLM`: one block of logic gates applied again and again; with only bits in the loop, or as was coded."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ising_attn.logic import LogicNetwork
from ising_attn.logic.wiring import FixedWiring
from models.logic_config import LoopedLogicLMConfig
from models.logic_lm import look_back
from models.logic_windows import check_tokens, one_hot_window, one_hot_windows, recent_pairs
from models.pretrained import Pretrained


class LoopedLogicLM(Pretrained, nn.Module):
    """A state is read from the window, goes `iterations` times through the same block, and is read by a head.

        bits:      s ← encoder(window);  s ← block(s, window), again and again;  logits = head(s)
        as-coded:  s ← σ(linear(mean of the one-hot codes));  s ← σ(linear(block(s)));  logits = head(s)

    In the form "bits" each gate of the block has bit i of the state as its first input and starts by passing it on, so
    that before training the loop leaves the state alone; the second input is another bit of the state or one of the
    window. Every value that goes round is a bit, in training too where the mode is hard.

    The form "as-coded" is LoopedDLGN of karumaru-kakikukekodoumei/boolean-attention: it has no order of characters,
    and what goes round is a float, which the hard gates have never met in training: each compares its value of the
    relaxed formula with ½. (Its wiring is fixed here; there it is learned among all inputs.)

    Args:
        config: form, sizes and gates.
    """

    Config: ClassVar[type[LoopedLogicLMConfig]] = LoopedLogicLMConfig

    def __init__(self, config: LoopedLogicLMConfig):
        super().__init__()
        self.config = config
        self.max_length = config.context
        self.dropout = nn.Dropout(config.dropout)
        if config.form == "bits":
            self._make_bits(config)
        else:
            self._make_as_coded(config)

    def _make_bits(self, config: LoopedLogicLMConfig) -> None:
        features = config.context * config.vocabulary
        reach = float("inf") if config.reach is None else config.reach
        self.encoder: nn.Module = LogicNetwork(features, [config.state], **config.gate_options())
        look_back(self.encoder, config.vocabulary, config.context, reach)
        self.block = LogicNetwork(config.state + features, config.widths, **config.gate_options())
        first = self.block.logic_layers()[0]
        pairs = _loop_pairs(config, first.out_features, reach)
        first.wiring = FixedWiring(first.in_features, first.out_features, index=pairs)
        self.head: nn.Module = config.make_head(config.state)

    def _make_as_coded(self, config: LoopedLogicLMConfig) -> None:
        reading = nn.Linear(config.vocabulary, config.state)
        self.block = LogicNetwork(config.state, config.widths, **config.gate_options())
        self.feedback = nn.Linear(config.widths[-1], config.state)
        with torch.no_grad():
            for linear in (reading, self.feedback):
                linear.weight.mul_(config.gain)
        self.encoder = reading
        head = nn.Linear(config.state, config.vocabulary)
        self.head = nn.utils.parametrizations.spectral_norm(head)

    def forward(self, tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch t classes"]:
        """Logits of the next character at every position.

        Raises:
            InvalidProblemError: T of 0, or beyond the context.
        """
        config = self.config
        if config.form == "bits":
            return self._looped_bits(one_hot_windows(tokens, config.vocabulary, config.context))
        return self._looped_floats(_means_so_far(tokens, config.vocabulary, config.context))

    def next_logits(self, tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch classes"]:
        """Logits at the last position alone."""
        config = self.config
        if config.form == "bits":
            return self._looped_bits(one_hot_window(tokens, config.vocabulary, config.context))
        return self._looped_floats(_means_so_far(tokens, config.vocabulary, config.context)[:, -1])

    def _looped_bits(self, window: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        state = self.encoder(window)
        for _ in range(self.config.iterations):
            state = self.block(torch.cat([state, window], -1))
        return self.head(self.dropout(state))

    def _looped_floats(self, mean: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch classes"]:
        state = torch.sigmoid(self.encoder(mean))
        for _ in range(self.config.iterations):
            state = torch.sigmoid(self.feedback(self._gates(state)))
        return self.head(self.dropout(state))

    def _gates(self, state: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch gates"]:
        for layer in self.block.logic_layers():
            state = layer(state, check=False)
            if layer.is_hard:
                state = (state > 0.5).to(state.dtype)
        return state


def _loop_pairs(config: LoopedLogicLMConfig, gates: int, reach: float) -> Int[Tensor, "2 gates"]:
    """First inputs: the bits of the state in turn. Second ones: half of them another bit of it, half of the window."""
    own = torch.arange(gates) % config.state
    other = (own + torch.randint(1, config.state, (gates,))) % config.state
    window = config.state + recent_pairs(config.vocabulary, config.context, gates, reach=reach)[0]
    return torch.stack([own, torch.where(torch.rand(gates) < 0.5, other, window)])


def _means_so_far(tokens: Tensor, vocabulary: int, context: int) -> Float[Tensor, "batch t vocabulary"]:
    check_tokens(tokens, context)
    codes = one_hot(tokens, vocabulary).to(torch.get_default_dtype())
    count = torch.arange(1, tokens.shape[1] + 1, device=tokens.device, dtype=codes.dtype)
    return codes.cumsum(1) / count[:, None]
