"""`BandSampler`: exact Boltzmann marginals, draws and ground states where couplings reach only a few spins far."""

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.band import draws, scan
from samplers.band.chain import Chain, band_of, chain_of, width_of
from samplers.base import Capabilities, Sampler
from samplers.compiled import has_kernels
from samplers.options import option
from samplers.problem import GroupedProblem, IsingProblem
from samplers.samples import Samples
from samplers.supports import graph_of

# Fields of all problems that correlations solve at once.
_MOST_FIELDS = 2**22


class BandSampler(Sampler):
    """Exact ⟨s⟩, log Z, correlations, ground states and independent draws of chains, whatever their length.

    J_jk may differ from 0 only for |j − k| ≤ w ≤ 12. A transfer matrix is applied in place, spin by spin, forwards
    and backwards: about 4 · n · 2^w multiply-adds per problem for all marginals, and some 4 times that for gradients,
    which are exact. Memory: 2^w numbers per problem and w spins. A problem costs only as many spins as lie between its
    first and its last allowed one, so a causal mask halves the work; other masks cost nothing.

    `width=None` takes the range that the couplings have in this call, and J gets no gradient beyond it: while
    couplings that may still be 0 are trained, give the width.

    Raises:
        ProblemTooLargeError: couplings that reach farther than 12 spins.
        InvalidProblemError: couplings that reach farther than `width`, or are all 0 and want gradients without one.
    """

    name = "band"
    width: int | None = option(default=None, help="how far couplings reach; none: found from J", minimum=1, maximum=12)
    memory_limit: float = option(default=1.0, help="GiB for messages of draws and ground states", minimum=0.01)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            exact=True,
            boltzmann=True,
            gradient="exact",
            can_ground_state=True,
            can_log_partition=True,
            devices=("cpu", "cuda"),
        )

    def pair_correlations(self, problem: IsingProblem) -> Float[Tensor, "*batch n width"]:
        """⟨s_t s_{t−d}⟩ at [t, d−1] for the pairs within the band; 0 where t < d. Differentiable.

        With ⟨s_t⟩ it gives the joint law of a pair, P(a, b) = (1 + a⟨s_t⟩ + b⟨s_{t−d}⟩ + ab⟨s_t s_{t−d}⟩) / 4. A spin
        that is not allowed counts as −1. Cost: a few passes over n · 2^w numbers per problem, in float64.
        """
        width = max(1, width_of(problem, self.width))
        tail = (problem.num_spins, width)
        return self._run("pair_correlations", problem, None, self._pairs, tail=tail, masked=None)

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        width = width_of(problem, self.width)
        if width == 0:
            return torch.tanh(problem.beta * problem.fields) + graph_of(problem)
        grouped = problem.grouped()
        return grouped.restore(_sums(grouped.problem, width, log_z=False))

    def _log_partition(self, problem: IsingProblem, key: int) -> Tensor:
        width = width_of(problem, self.width)
        if width == 0:
            x = problem.beta * problem.fields.abs()
            each = torch.nn.functional.softplus(-2 * x) + x
            allowed = torch.ones_like(each, dtype=torch.bool) if problem.allowed is None else problem.allowed
            return torch.where(allowed, each, 0.0).sum(-1) + graph_of(problem)
        grouped = problem.grouped()
        return grouped.restore(_sums(grouped.problem, width, log_z=True))

    def _pairs(self, problem: IsingProblem, key: int) -> Tensor:
        grouped, chain = self._chain(problem)
        return grouped.restore(scan.pair_correlations(chain))

    def _correlations(self, problem: IsingProblem, key: int) -> Tensor:
        """⟨s_j s_k⟩ = P(s_j = 1) ⟨s_k⟩_{s_j = 1} − P(s_j = −1) ⟨s_k⟩_{s_j = −1}: two more problems per spin."""
        n, size = problem.num_spins, problem.num_problems * problem.num_spins
        m = self._magnetization(problem, key)
        rows, step = [], max(1, _MOST_FIELDS // (2 * size))
        for first in range(0, n, step):
            spins = torch.arange(first, min(first + step, n), device=problem.device)
            rows.append(self._conditional(problem, spins, m, key))
        result = torch.cat(rows, -2)
        eye = torch.eye(n, dtype=torch.bool, device=problem.device)
        return ((result + result.mT) / 2).masked_fill(eye, 1.0)

    def _conditional(self, problem: IsingProblem, spins: Tensor, m: Tensor, key: int) -> Tensor:
        """⟨s_j s_k⟩ (*batch, spins, n) for the spins j, from the marginals given that s_j is +1 or −1."""
        held = torch.nn.functional.one_hot(spins, problem.num_spins).bool()
        strong = _certain(problem)
        signed = []
        for sign in (1.0, -1.0):
            lead = (len(spins), *[1] * len(problem.batch_shape), problem.num_spins)
            fields = torch.where(held.reshape(lead), sign * strong, problem.fields)
            copies = problem._rebuilt(fields=fields, streams=None)
            signed.append(self._magnetization(copies, key).movedim(0, -2))
        up = (1 + m[..., spins].unsqueeze(-1)) / 2
        return up * signed[0] - (1 - up) * signed[1]

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        grouped, chain = self._chain(problem)
        spins = draws.draw(chain, grouped.problem.streams, num_reads, key, self._limit_bytes)
        spins = grouped.restore(spins)
        energies = problem.energy(spins)
        return Samples(spins, torch.ones_like(energies), energies, {"independent": True})

    def _ground_state(self, problem: IsingProblem, key: int) -> Tensor:
        grouped, chain = self._chain(problem)
        return grouped.restore(draws.ground_states(chain, self._limit_bytes))

    def _chain(self, problem: IsingProblem) -> tuple[GroupedProblem, Chain]:
        """In float64, with a width of at least 1."""
        grouped = problem.grouped()
        width = max(1, width_of(problem, self.width))
        return grouped, chain_of(grouped.problem.to(dtype=torch.float64), width)

    @property
    def _limit_bytes(self) -> int:
        return int(self.memory_limit * 2**30)


def _sums(inner: IsingProblem, width: int, *, log_z: bool) -> Tensor:
    """⟨s⟩ (G, Q, n), or log Z (G, Q): compiled, in the narrowest dtype that holds the messages, or in log space."""
    if has_kernels(inner.device):
        from samplers.band import fused

        band = band_of(inner, width)
        for dtype in (band.dtype, torch.float64):
            room = fused.room(band, dtype)
            if room >= fused.LEAST_ROOM:
                return fused.fused_sums(inner, band.to(dtype), room, log_z=log_z).to(inner.dtype)
    return scan.sums(chain_of(inner.to(dtype=torch.float64), width))[log_z].to(inner.dtype)


def _certain(problem: IsingProblem) -> float:
    """A field that outweighs all couplings of a spin by e^100 and more: it holds the spin for certain."""
    pull = float(problem.couplings.detach().abs().sum(-1).max())
    return 200 / problem.beta + 2 * pull
