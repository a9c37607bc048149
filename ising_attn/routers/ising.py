"""`RouterAttention`: a Boolean router that is an Ising model, so that any sampler can run it."""

from jaxtyping import Bool, Float
from torch import Tensor

from ising_attn.attention import normalised_over_allowed
from ising_attn.boltzmann import BoltzmannAttention
from ising_attn.marginal_weights import marginal_weights
from ising_attn.routers.router import Router
from samplers import Sampler


class RouterAttention(Router, BoltzmannAttention):
    """A router whose decisions are the spins of one Ising model per query, at temperature τ.

        soft:  α_ij = (1 + ⟨s_j⟩_i) / 2  with  p_i(s) ∝ exp((Σ_j h_ij s_j + Σ_{j<k} J_jk s_j s_k) / τ)
        hard:  α_ij = 1 where the ground state of the same problem with fields h − θ has s_j = +1, else 0
        out_i = W_o Σ_j α_ij v_j / Σ_k α_ik

    As τ → 0 the marginals become the ground state, so cooling is a path from soft to hard. With J = 0 the soft router
    is sigmoid attention, tanh(h/τ), and the hard one sign(h): the router of HBA, whose article trains tanh(logit/τ).
    At τ = 1 the soft router is `BoltzmannAttention`. The cost is the sampler's; hard and straight-through routing need
    its `ground_state`, which the mean-field family has not, and which 'exact' finds among all 2^n states ('band' for
    couplings of short range is much faster). It is exact where `sampler.capabilities.exact` is true.

    Args:
        sampler, mode, couplings, width, rank, coupling_std: see `BoltzmannAttention`.
        temperature, threshold, routing: see `Router`.
        Others: see `Attention`.

    Raises:
        InvalidOptionError: an option or combination that does not exist.
        NotSupportedError: hard routing through a sampler without ground states.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        context: int,
        *,
        sampler: str | Sampler = "exact",
        mode: str = "h+J",
        couplings: str = "free",
        width: int | None = None,
        rank: int | None = None,
        coupling_std: float | None = None,
        temperature: float = 1.0,
        threshold: float = 0.0,
        routing: str = "soft",
        bias: str = "none",
        bias_init: float = 0.0,
        dropout: float = 0.0,
        projection_bias: bool = True,
    ):
        super().__init__(
            embed_dim,
            num_heads,
            context,
            sampler=sampler,
            mode=mode,
            couplings=couplings,
            width=width,
            rank=rank,
            coupling_std=coupling_std,
            temperature=temperature,
            threshold=threshold,
            routing=routing,
            bias=bias,
            bias_init=bias_init,
            dropout=dropout,
            projection_bias=projection_bias,
        )

    @property
    def beta(self) -> float:
        """1/τ, the inverse temperature of the problems."""
        return 1 / self.tau

    def _soft_weights(self, fields: Tensor, allowed: Tensor) -> Tensor:
        return marginal_weights(self.sampler, self._problem(fields, allowed))

    def _chosen(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return (1 + self.sampler.magnetization(self._problem(fields, allowed))) / 2

    def _decided(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return (self.sampler.ground_state(self._problem(fields, allowed)) > 0).to(fields.dtype)

    def _mixed(
        self, chosen: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return normalised_over_allowed(chosen, allowed)
