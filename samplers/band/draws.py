"""Independent draws and ground states of a chain, from its last spins back to its first.

The law of the last w spins is the last message; given spins t−w+1 … t, spin t − w is +1 with odds
    F_{t−1}(s_{t−w} = +1, …) e^{s_t (…+J_{t,t−w})} : F_{t−1}(s_{t−w} = −1, …) e^{s_t (…−J_{t,t−w})}.
A ground state is found alike, with maxima for sums.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from samplers.band.chain import Chain
from samplers.band.scan import log_messages, pulls
from samplers.states import spin_table
from samplers.streams import uniforms_like

# Log weights closer than this (relative) count as tied.
_TIE = 1e-12


def draw(chain: Chain, streams: Int[Tensor, "groups queries"], num_reads: int, key: int, limit_bytes: int) -> Tensor:
    """Spins (G, Q, reads, n) int8, independent and from the exact law. One uniform number per spin at most."""
    n, parts = chain.num_spins, []
    for some in _query_blocks(chain, limit_bytes):
        part, own = chain[some], streams[:, some]
        messages, _ = log_messages(part)
        law = _by_age(messages[-1], part).softmax(-1).cumsum(-1)
        first = uniforms_like(law, key, own, num_reads, n - 1)
        index = torch.searchsorted(law, first * law[..., -1:], right=True).clamp_max(law.shape[-1] - 1)

        def choose(t: int, odds: Tensor, own: Tensor = own) -> Tensor:
            return uniforms_like(odds, key, own, num_reads, t) < torch.sigmoid(odds)

        parts.append(_traced_back(part, messages, index, choose))
    return torch.cat(parts, 1)


def ground_states(chain: Chain, limit_bytes: int) -> Tensor:
    """Spins (G, Q, n) int8 of lowest energy; of tied states the one of lowest index (the last spins up first)."""
    parts = []
    for some in _query_blocks(chain, limit_bytes):
        part = chain[some]
        messages, offset = log_messages(part, torch.maximum)
        slack = _TIE * offset.abs().clamp_min(1.0).unsqueeze(-1)
        index = (_by_age(messages[-1], part) >= -slack).to(torch.uint8).argmax(-1, keepdim=True)

        def choose(t: int, odds: Tensor, slack: Tensor = slack) -> Tensor:
            return odds >= -slack

        parts.append(_traced_back(part, messages, index, choose).squeeze(-2))
    return torch.cat(parts, 1)


def _query_blocks(chain: Chain, limit_bytes: int) -> list[slice]:
    """Blocks of queries whose messages fit into the memory limit."""
    groups, queries, n = chain.fields.shape
    step = max(1, limit_bytes // (8 * n * groups << chain.width))
    return [slice(q, q + step) for q in range(0, queries, step)]


def _by_age(message: Tensor, chain: Chain) -> Tensor:
    """The last message with its states in the order of their spins: the last spin at the highest bit."""
    n, w = chain.num_spins, chain.width
    if n <= w:
        return message
    table = (1 - spin_table(w, dtype=torch.float64, device=message.device)).to(torch.int64) // 2
    spins = torch.arange(n - w, n, device=message.device)
    return message[..., (table << (spins % w)).sum(-1)]


def _traced_back(chain: Chain, messages: list[Tensor], index: Tensor, choose) -> Tensor:
    """Spins (G, Q, reads, n): the last ones as `index` (G, Q, reads) says, the others by choose(t, log odds of +1)."""
    n, w = chain.num_spins, chain.width
    last = min(n, w)
    spins = torch.empty(*index.shape, n, dtype=torch.int8, device=index.device)
    # `state` holds the bits of spins t−w+1 … t at j mod w.
    state = torch.zeros_like(index)
    for k in range(last):
        bit = (index >> k) & 1
        spins[..., n - last + k] = 1 - 2 * bit
        state |= bit << ((n - last + k) % w)
    for t in range(n - 1, w - 1, -1):
        place = t % w
        sign = 1 - 2 * ((state >> place) & 1)
        up = state & ~(1 << place)
        down = up | (1 << place)
        before, pull = messages[t - 1], pulls(chain, t).expand(-1, index.shape[1], -1)
        odds = before.gather(-1, up) - before.gather(-1, down)
        odds = odds + sign * (pull.gather(-1, up) - pull.gather(-1, down))
        chosen = choose(t - w, odds)
        spins[..., t - w] = torch.where(chosen, 1, -1)
        state = torch.where(chosen, up, down)
    return spins
