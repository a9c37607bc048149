"""How coarse the Trotter steps of an anneal are for given problems.

Flipping spin j turns a layer's phase by twice φ_j = f|h_j| + c Σ_k |J_jk|. With φ = max_j φ_j and mixer angle x,
one step of one spin is off by at most ½‖[φZ, xX]‖ = φx (first order), or, splitting the mixer in halves,
‖[φZ,[φZ,xX]]‖/12 + ‖[xX,[xX,φZ]]‖/24 = φx(φ/3 + x/6) in operator norm (Childs et al. 2021, prop. 9, 10).
The sum over layers bounds the error of that spin's state vector from splitting; real errors partly cancel.
"""

import torch
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.problem import IsingProblem


def largest_phases(problem: IsingProblem, layers: Layers) -> Tensor:
    """φ of every layer, the largest over spins and problems; (P,) float64, detached."""
    fields = problem.fields.detach().double().abs()
    if not problem.has_couplings:
        worst = fields.amax()
        return layers.fields.detach().abs().to(worst.device) * worst
    strength = problem.couplings.detach().double().abs()
    if problem.allowed is not None:
        allowed = problem.allowed.to(strength.dtype).expand(fields.shape)
        pull = (strength @ allowed.unsqueeze(-1)).squeeze(-1) * allowed
    else:
        pull = strength.sum(-1)
    f, c = (row.detach().abs().to(fields.device) for row in (layers.fields, layers.couplings))
    # Layers of an anneal keep one ratio c : f, so the worst spin is the same in each; in general this bounds it.
    ratio = torch.where(f > 0, c / f.clamp_min(1e-300), torch.zeros_like(c))
    if bool((ratio == ratio[0]).all()):
        return f * (fields + ratio[0] * pull).amax()
    return torch.stack([(a * fields + b * pull).amax() for a, b in zip(f, c, strict=True)])


def splitting_error(problem: IsingProblem, layers: Layers, order: int) -> float:
    """The bound of the module's docstring, summed over layers."""
    phase = largest_phases(problem, layers)
    mixer = layers.mixer.detach().abs().to(phase.device)
    step = phase * mixer if order == 1 else phase * mixer * (phase / 3 + mixer / 6)
    return float(step.sum())
