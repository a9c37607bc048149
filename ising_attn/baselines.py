"""Softmax and sigmoid attention: the two limits of Ising attention that need no sampler."""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from ising_attn.attention import Attention, softmax_over_allowed


class SoftmaxAttention(Attention):
    """w_ij ∝ exp(h_ij): exactly one key is up. Arguments: see `Attention`."""

    def _weights(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return softmax_over_allowed(fields, allowed)


class SigmoidAttention(Attention):
    """w_ij ∝ α_ij = σ(2h_ij): independent keys, that is Boltzmann attention at J = 0 in closed form.

    With `bias="scalar"` the sum of α is learnable. Arguments: see `Attention`.
    """

    def _weights(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return independent_weights(fields, allowed)


def independent_weights(
    fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."], *, beta: float = 1.0
) -> Float[Tensor, "batch heads queries keys"]:
    """σ(2βh) normalised over the allowed keys, in log space: right to rounding however negative all fields are."""
    return softmax_over_allowed(logsigmoid(2 * beta * fields), allowed)
