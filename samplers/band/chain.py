"""`Chain`: a grouped problem as the transfer matrix sees it, one spin after the other with its w predecessors."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from samplers.errors import InvalidProblemError, ProblemTooLargeError
from samplers.problem import IsingProblem

MAX_WIDTH = 12


@dataclass(frozen=True)
class Chain:
    """Energies of n spins in a row; −βE(s) = Σ_t s_t (fields_t + Σ_{d=1…w} band_{t,d−1} s_{t−d}).

    Args:
        fields: (G, Q, n) βh. Where spins are absent, the pull of their −1 on the others is taken back here, so that
            an absent spin held at −1 changes nothing, log Z included.
        band: (G, n, w) βJ_{t,t−d} at [t, d−1], 0 where t < d; shared by the Q queries of a group.
        absent: (G, Q, n), True where a spin is held at −1; None where there is none.
    """

    fields: Float[Tensor, "groups queries n"]
    band: Float[Tensor, "groups n width"]
    absent: Bool[Tensor, "groups queries n"] | None

    @property
    def width(self) -> int:
        return self.band.shape[-1]

    @property
    def num_spins(self) -> int:
        return self.band.shape[-2]

    def double(self) -> "Chain":
        return Chain(self.fields.double(), self.band.double(), self.absent)

    def __getitem__(self, queries: slice) -> "Chain":
        """A part of the queries of every group."""
        return Chain(self.fields[:, queries], self.band, None if self.absent is None else self.absent[:, queries])


def chain_of(inner: IsingProblem, width: int) -> Chain:
    """The chain of a grouped problem (fields (G, Q, n)) whose couplings reach at most `width` spins; differentiable."""
    band, fields = band_of(inner, width), inner.beta * inner.fields
    if inner.allowed is None or bool(inner.allowed.all()):
        return Chain(fields, band, None)
    return Chain(compensated(fields, band, ~inner.allowed), band, ~inner.allowed)


def band_of(inner: IsingProblem, width: int) -> Float[Tensor, "groups n width"]:
    """βJ_{t,t−d} at [t, d−1]. The gradient of J is symmetric, and zero beyond the band."""
    groups, n = inner.fields.shape[0], inner.num_spins
    j = inner.couplings.expand(groups, 1, n, n).reshape(groups, n * n)
    below, above = _places(n, width, j.device)
    # Both triangles, so that each carries half of the derivative.
    both = j.index_select(1, below) + j.index_select(1, above)
    return (both * (inner.beta / 2)).view(groups, n, width)


@lru_cache(maxsize=32)
def _places(n: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where J_{t,t−d} and J_{t−d,t} lie in a flat J, in the order of a band; for t < d it is J_00, which is 0."""
    # What is kept must be fit for training, whoever asks first.
    with torch.inference_mode(False):
        t = torch.arange(n, device=device)[:, None]
        before = t - torch.arange(1, width + 1, device=device)
        below, above = t * n + before, before * n + t
        return torch.where(before < 0, 0, below).flatten(), torch.where(before < 0, 0, above).flatten()


def compensated(
    fields: Float[Tensor, "groups queries n"],
    band: Float[Tensor, "groups n width"],
    absent: Bool[Tensor, "groups queries n"],
) -> Float[Tensor, "groups queries n"]:
    """Fields with J_jk added for every absent k; an absent j counts only k < j, which makes its own weight 1."""
    n, gone = fields.shape[-1], absent.to(fields.dtype)
    fields = torch.where(absent, 0.0, fields)
    for d in range(1, min(band.shape[-1], n - 1) + 1):
        pair = band[:, None, d:, d - 1]
        back = torch.nn.functional.pad(pair * gone[..., : n - d], (d, 0))
        ahead = torch.nn.functional.pad(pair * gone[..., d:] * (1 - gone[..., : n - d]), (0, d))
        fields = fields + back + ahead
    return fields


def width_of(problem: IsingProblem, width: int | None) -> int:
    """How many predecessors a spin is coupled to: `width`, or the farthest reach of any coupling (0 for none).

    Raises:
        ProblemTooLargeError: the couplings reach farther than `MAX_WIDTH` spins.
        InvalidProblemError: they reach farther than `width`; or none is given, and all are 0 and want gradients.
    """
    if not problem.has_couplings:
        return 0
    n = problem.num_spins
    if n == 1:
        return 0
    if width is not None and not bool(problem.couplings.triu(width + 1).any()):
        return min(width, n - 1)
    reach, value = _reach(problem.couplings.detach())
    if width is not None:
        raise InvalidProblemError(
            f"couplings reach {reach} spins far (the largest there is {value:.3g}) and width={width}; "
            "give a larger width, or none to have it found, or set the couplings beyond it to 0"
        )
    if reach > MAX_WIDTH:
        raise ProblemTooLargeError(
            f"couplings reach {reach} spins far, which needs tables of 2^{reach} states; band allows a reach of "
            f"{MAX_WIDTH}; use get_sampler('gibbs'), or 'exact' up to 24 spins"
        )
    if reach == 0 and problem.couplings.requires_grad and torch.is_grad_enabled():
        raise InvalidProblemError(
            "all couplings are 0 and are to get gradients, so how far they may reach cannot be found from them; "
            "give it: get_sampler('band', width=4), or --sampler.width=4 on the command line"
        )
    return reach


def _reach(couplings: Tensor) -> tuple[int, float]:
    """The largest |j − k| of a coupling that is not zero, and the largest size of couplings at that distance."""
    n = couplings.shape[-1]
    size = couplings.abs().reshape(-1, n, n).amax(0)
    where = size.nonzero()
    reach = int((where[:, 0] - where[:, 1]).abs().max()) if len(where) else 0
    return reach, float(size.diagonal(reach).max())
