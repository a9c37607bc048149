"""`ScalarRouter`: the router of hierarchical Boolean attention as its repository codes it."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ising_attn.attention import normalised_over_allowed
from ising_attn.baselines import independent_weights
from ising_attn.routers.router import Router


class ScalarRouter(Router):
    """One scalar query and one scalar key per head: the logits q_i k_j are of rank 1.

        soft:  α_ij = σ(q_i k_j / τ);  hard:  α_ij = 1 where q_i k_j ≥ θ, else 0;  out_i = W_o Σ_j α_ij v_j / Σ_k α_ik

    A token is sent by the sign of its scalar: what a head can say is which of two groups reads which. The soft router
    is the marginal of one free spin per key, ⟨s⟩ = tanh(q_i k_j / 2τ).

    Source: karumaru-kakikukekodoumei/boolean-attention, src/hba_charlm.py (which has no straight-through routing).
    Arguments: see `Router` and `Attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        context: int,
        *,
        temperature: float = 1.0,
        threshold: float = 0.0,
        routing: str = "soft",
        **options: Any,
    ):
        super().__init__(
            embed_dim,
            num_heads,
            context,
            temperature=temperature,
            threshold=threshold,
            routing=routing,
            scores=False,
            **options,
        )
        biased = self.value.bias is not None
        self.query_scalar = nn.Linear(embed_dim, num_heads, bias=biased)
        self.key_scalar = nn.Linear(embed_dim, num_heads, bias=biased)

    def fields(
        self, x: Float[Tensor, "batch queries dim"], keys: Float[Tensor, "batch keys dim"] | None = None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """q_i k_j + bias, in float32 or better."""
        wide = torch.promote_types(x.dtype, torch.float32)
        query = self.query_scalar(x).mT.to(wide)
        key = self.key_scalar(x if keys is None else keys).mT.to(wide)
        return query.unsqueeze(-1) * key.unsqueeze(-2) + super().fields(x, keys)

    def _soft_weights(self, fields: Tensor, allowed: Tensor) -> Tensor:
        return independent_weights(fields, allowed, beta=0.5 / self.tau)

    def _chosen(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return torch.sigmoid(fields / self.tau)

    def _decided(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return (fields >= 0).to(fields.dtype)

    def _mixed(
        self, chosen: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return normalised_over_allowed(chosen, allowed)
