"""Laws of the parts of a masked problem, put among all of its states and spins."""

import torch
from torch import Tensor

from samplers.problem import IsingProblem
from samplers.states import spin_table
from samplers.supports import SupportPart


def in_all_states(part: SupportPart, law: Tensor, num_spins: int) -> Tensor:
    """A law over a part's own states among all 2^n, with −1 (bit 1) at the spins that are not in it."""
    own = torch.arange(law.shape[-1], device=law.device)
    bits = (own.unsqueeze(-1) >> torch.arange(len(part.spins), device=law.device)) & 1
    absent = 2**num_spins - 1 - int((2**part.spins).sum())
    index = absent + (bits * 2**part.spins).sum(-1)
    return law.new_zeros(*law.shape[:-1], 2**num_spins).index_copy(-1, index, law)


def pair_moments(part: SupportPart, law: Tensor, problem: IsingProblem) -> Tensor:
    """⟨s_j s_k⟩ of a part, (g, q, n, n), 1 where a spin is not in it."""
    table = spin_table(part.problem.num_spins, device=law.device)
    own = torch.einsum("gqs,sj,sk->gqjk", law, table, table).to(problem.dtype)
    full = own.new_ones(*own.shape[:2], problem.num_spins, problem.num_spins)
    rows = full.index_select(-2, part.spins).index_copy(-1, part.spins, own)
    return full.index_copy(-2, part.spins, rows)
