"""`ArticleRouter`: the router of hierarchical Boolean attention as its article describes it, with its faults mended."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ising_attn.attention import softmax_over_allowed
from ising_attn.routers.router import Router


class ArticleRouter(Router):
    """Bilinear logits of unit spectral norm, and a softmax over router signs.

        logit_ij = q_iᵀ W k_j / √d  with  W = V / ‖V‖₂ of each head
        soft:  r_ij = tanh(logit_ij / τ);  hard:  r_ij = sign(logit_ij − θ), sign(0) = +1
        w_ij = softmax_j(r_ij / τ) over the allowed keys;  out_i = W_o Σ_j w_ij v_j

    A key that is not chosen keeps the weight e^(−2/τ) of one that is. The code that the article prints masks the logits
    with −∞ before tanh or sign, which turns into −1 and lets every query see the future, and normalises a layer that it
    never calls; here the mask comes last, and the norm is that of the matrix that is used.

    Source: the article of karumaru-kakikukekodoumei/boolean-attention.
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
            embed_dim, num_heads, context, temperature=temperature, threshold=threshold, routing=routing, **options
        )
        size = embed_dim // num_heads
        # Near the identity, whose logits are those of softmax attention.
        self.router = nn.Parameter(torch.eye(size) + 0.1 * torch.randn(num_heads, size, size))

    def router_matrix(self) -> Float[Tensor, "heads size size"]:
        """W of every head: the largest singular value is 1."""
        wide = self.router.to(torch.promote_types(self.router.dtype, torch.float32))
        norm = torch.linalg.matrix_norm(wide, ord=2, keepdim=True)
        return wide / norm.clamp_min(torch.finfo(wide.dtype).tiny)

    def fields(
        self, x: Float[Tensor, "batch queries dim"], keys: Float[Tensor, "batch keys dim"] | None = None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """q_iᵀ W k_j / √d + bias, in float32 or better."""
        query, key = self._queries_and_keys(x, keys)
        with torch.autocast(x.device.type, enabled=False):
            matrix = self.router_matrix()
            wide = torch.promote_types(x.dtype, matrix.dtype)
            scores = query.to(wide) @ matrix.to(wide) @ key.to(wide).mT * query.shape[-1] ** -0.5
        return self._biased(scores)

    def _chosen(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return (1 + torch.tanh(fields / self.tau)) / 2

    def _decided(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return (fields >= 0).to(fields.dtype)

    def _mixed(
        self, chosen: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return softmax_over_allowed((2 * chosen - 1) / self.tau, allowed)
