"""Sums over all states of a chain in float64 log space, in plain torch: the readable twin of the compiled kernels.

The message after spin t is a table over the states of the last w spins. The bit of spin j sits at j mod w, so adding
spin t replaces one bit of the state in place (that of spin t − w, which is summed out):

    F_t(…, s_t) = logΣ_{s_{t−w}} [ F_{t−1}(…, s_{t−w}) + s_t (a_t + Σ_d J_{t,t−d} s_{t−d}) ]

and backwards likewise. With `maximum` for logΣ the same scan finds ground states. Works on any device and for
couplings and fields of any size; differentiable by autograd, as often as wanted.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from samplers.band.chain import Chain
from samplers.states import spin_table

Join = Callable[[Tensor, Tensor], Tensor]

# Log weight of a state that does not exist; an infinity would make gradients NaN.
_NEVER = -1e30


def log_messages(chain: Chain, join: Join = torch.logaddexp) -> tuple[list[Tensor], Tensor]:
    """F_t (G, Q, 2^min(t+1, w)) for every t, each with maximum 0, and the sum (G, Q) of what was taken off."""
    message = chain.fields.new_zeros(*chain.fields.shape[:2], 1)
    messages, offset = [], message.squeeze(-1)
    for t in range(chain.num_spins):
        message = _forward(chain, message, t, join)
        peak = message.detach().amax(-1, keepdim=True)
        message, offset = message - peak, offset + peak.squeeze(-1)
        messages.append(message)
    return messages, offset


def sums(chain: Chain) -> tuple[Tensor, Tensor]:
    """⟨s⟩ (G, Q, n) and log Z (G, Q)."""
    n, w = chain.num_spins, chain.width
    messages, offset = log_messages(chain)
    log_z = offset + torch.logsumexp(messages[-1], -1)
    later, means = torch.zeros_like(messages[-1]), []
    for t in range(n - 1, -1, -1):
        # One table of w spins gives all of them; the last one may overlap.
        # One table gives all of its spins; they lie at the bits 0 … t mod w.
        if t == n - 1 or t % w == w - 1:
            law = torch.softmax(messages[t] + later, -1)
            mean = law @ spin_table(min(w, t + 1), dtype=law.dtype, device=law.device)
            means.append(mean[..., : t % w + 1])
        later = _backward(chain, later, t)
        later = later - later.detach().amax(-1, keepdim=True)
    return torch.cat(means[::-1], -1), log_z


def pair_correlations(chain: Chain) -> Tensor:
    """⟨s_t s_{t−d}⟩ (G, Q, n, w) at [t, d−1]; 0 where t < d."""
    n, w = chain.num_spins, chain.width
    messages, _ = log_messages(chain)
    later, rows = torch.zeros_like(messages[-1]), []
    for t in range(n - 1, -1, -1):
        before = messages[t - 1] if t else chain.fields.new_zeros(*chain.fields.shape[:2], 1)
        law = torch.softmax(torch.stack(_weighed(chain, later, t, before), -1).flatten(-2), -1).unflatten(-1, (-1, 2))
        # E[s_t; state before]: pairs with all predecessors are one product.
        known = min(t, w)
        signed = law[..., 0] - law[..., 1]
        pairs = signed @ spin_table(known, dtype=law.dtype, device=law.device) if known else signed[..., :0]
        pairs = pairs[..., [(t - d) % w for d in range(1, known + 1)]]
        rows.append(torch.nn.functional.pad(pairs, (0, w - known)))
        later = _backward(chain, later, t)
        later = later - later.detach().amax(-1, keepdim=True)
    return torch.stack(rows[::-1], -2)


def pulls(chain: Chain, t: int) -> Tensor:
    """Σ_d J_{t,t−d} s_{t−d} for every state of the spins before t: (G, 1, 2^min(t, w)), bits at j mod w."""
    out = chain.band.new_zeros(len(chain.band), 1)
    for bit in range(min(t, chain.width)):
        d = (t - 1 - bit) % chain.width + 1
        pair = chain.band[:, t, d - 1 : d]
        out = torch.cat([out + pair, out - pair], -1)
    return out.unsqueeze(1)


def _forward(chain: Chain, message: Tensor, t: int, join: Join) -> Tensor:
    pull, a = pulls(chain, t), chain.fields[..., t : t + 1]
    up, down = message + pull + a, message - pull - a
    if t >= chain.width:
        up, down = (join(x[..., 0, :], x[..., 1, :]) for x in (_by_bit(up, chain, t), _by_bit(down, chain, t)))
    if chain.absent is not None:
        gone = chain.absent[..., t].reshape(*up.shape[:2], *[1] * (up.ndim - 2))
        up = torch.where(gone, _NEVER, up)
    return torch.stack([up, down], -2).flatten(2)


def _weighed(chain: Chain, later: Tensor, t: int, before: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Log weights (G, Q, states before t) of s_t = +1 and −1 with everything after, and `before` added."""
    pull, a = pulls(chain, t), chain.fields[..., t : t + 1]
    if t >= chain.width:
        # Either state of spin t − w, whose bit spin t takes over, goes on to the same states.
        table = _by_bit(later, chain, t)
        plus, minus = (table[..., k : k + 1, :].expand_as(table).flatten(2) for k in (0, 1))
    else:
        plus, minus = later.chunk(2, -1)
    up, down = plus + pull + a, minus - pull - a
    if chain.absent is not None:
        up = torch.where(chain.absent[..., t : t + 1], _NEVER, up)
    return up + before, down + before


def _backward(chain: Chain, later: Tensor, t: int) -> Tensor:
    return torch.logaddexp(*_weighed(chain, later, t))


def _by_bit(table: Tensor, chain: Chain, t: int) -> Tensor:
    """(…, 2^w) as (…, states of higher bits, bit of spin t, states of lower bits)."""
    return table.unflatten(-1, (-1, 2, 1 << (t % chain.width)))
