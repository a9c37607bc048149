"""The one bit order: bit k of a state index is spin k, and a bit of 0 means s_k = +1.

It is the order of Qiskit's state vectors (bit k is qubit k, |0⟩ is the Z eigenvalue +1).
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


def spin_table(
    num_spins: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Float[Tensor, "states n"]:
    """All 2^n spin configurations, row i holding the spins of state index i. Cost: n 2^n numbers."""
    index = torch.arange(2**num_spins, device=device)
    bits = (index[:, None] >> torch.arange(num_spins, device=device)) & 1
    return (1 - 2 * bits).to(dtype)


def spins_of_index(index: Int[Tensor, "*shape"], num_spins: int) -> Shaped[Tensor, "*shape n"]:
    """Spins (int8) of state indices."""
    bits = (index[..., None] >> torch.arange(num_spins, device=index.device)) & 1
    return (1 - 2 * bits).to(torch.int8)


def index_of_spins(spins: Shaped[Tensor, "*shape n"]) -> Int[Tensor, "*shape"]:
    """State indices (int64) of spin configurations; inverse of `spins_of_index`."""
    weights = 2 ** torch.arange(spins.shape[-1], device=spins.device)
    return ((spins < 0).to(torch.int64) * weights).sum(-1)
