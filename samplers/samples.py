"""`Samples`: spin configurations with weights, energies and their provenance, and the moments of them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from samplers.errors import NotSupportedError


@dataclass(frozen=True)
class Samples:
    """Reads of a batch of Ising problems.

    Args:
        spins: (*batch, reads, n) int8 in {−1, +1}; −1 where a spin is not allowed.
        weights: (*batch, reads) ≥ 0; how often (or how strongly) a row counts. A row of weight 0 is padding.
        energies: (*batch, reads), recomputed by us from the problem (never taken from a backend).
        info: what made them: sampler, options, seed, target β, every scale that was applied, wall time.
    """

    spins: Int8[Tensor, "*batch reads n"]
    weights: Float[Tensor, "*batch reads"]
    energies: Float[Tensor, "*batch reads"]
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def num_reads(self) -> int:
        return self.spins.shape[-2]

    def _normalised(self) -> Float[Tensor, "*batch reads"]:
        return self.weights / self.weights.sum(-1, keepdim=True)

    def magnetization(self) -> Float[Tensor, "*batch n"]:
        """⟨s_j⟩ = Σ_r w_r s_rj / Σ_r w_r."""
        mean = (self._normalised().unsqueeze(-2) @ self.spins.to(self.weights.dtype)).squeeze(-2)
        # A sum of rounded weights may pass 1 by an ulp.
        return mean.clamp(-1, 1)

    def correlations(self) -> Float[Tensor, "*batch n n"]:
        """⟨s_j s_k⟩ = Σ_r w_r s_rj s_rk / Σ_r w_r; 1 on the diagonal."""
        spins = self.spins.to(self.weights.dtype)
        return spins.mT @ (spins * self._normalised().unsqueeze(-1))

    def mean_energy(self) -> Float[Tensor, "*batch"]:
        return (self._normalised() * self.energies).sum(-1)

    def effective_sample_size(self) -> Float[Tensor, "*batch"]:
        """Kish's (Σw)² / Σw² of the weights.

        Occurrence counts (info["weights"] = "counts") are repeats of a row: they give Σw. Correlation between
        successive reads of a chain is not seen here; see `samplers.diagnostics` for that.
        """
        if self.info.get("weights") == "counts":
            return self.weights.sum(-1)
        return self.weights.sum(-1) ** 2 / (self.weights**2).sum(-1)

    def standard_error(self) -> Float[Tensor, "*batch n"]:
        """One-sigma error bar of `magnetization` for independent reads: √((1 − m²) / (N − 1))."""
        size = self.effective_sample_size().unsqueeze(-1)
        if bool((size <= 1).any()):
            raise NotSupportedError("an error bar needs at least 2 effective reads; raise num_reads")
        return torch.sqrt((1 - self.magnetization() ** 2).clamp_min(0) / (size - 1))
