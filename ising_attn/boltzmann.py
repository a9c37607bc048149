"""`BoltzmannAttention`: attention weights are the spin marginals of an Ising model, from any sampler.

    p_i(s) ∝ exp(β(Σ_j h_ij s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l)),  s_j ∈ {−1, +1}
    α_ij = (1 + ⟨s_j⟩_i) / 2,   out_i = W_o Σ_j α_ij v_j / Σ_k α_ik

Kim and Park, Boltzmann Attention, arXiv 2606.12478, sections 3.1, 3.2 and appendix C.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ising_attn.attention import Attention
from ising_attn.batch_rows import problem_streams
from ising_attn.couplings import make_couplings, make_triples
from ising_attn.marginal_weights import marginal_weights
from samplers import InvalidOptionError, IsingProblem, Sampler, get_sampler
from samplers.errors import did_you_mean

MODES = ("h+J", "h", "J", "K", "h+K", "J+K", "h+J+K")


class BoltzmannAttention(Attention):
    """Multi-head attention whose weights are Ising marginals (formula at the top of this module).

    One J (and K) per head is shared by the batch and by all queries; a key that is not allowed is no spin at
    all. The cost is the sampler's, for batch·H·T problems of up to T spins that share H couplings.

    With mode "J", or with "J+K" and no K, there is no field and flipping all spins changes nothing: every ⟨s⟩ is
    0 and every weight is 1/(number of allowed keys), whatever J is, with gradient 0 for J. A
    `bias="position"` breaks that symmetry without queries and keys. K alone breaks it too, being odd.

    Works under torch.compile with a graph break at the sampler (fullgraph=True does not), and under autocast.

    Args:
        sampler: a registered name or a `Sampler`; `layer.sampler = …` swaps it later.
        mode: which terms there are. Without "h" there are no queries and keys; the bias stays.
        couplings: "free", "distance", "band" or "low-rank" (whose K is free); see `ising_attn.couplings`. By distance,
            with a bias that has no positions, the layer takes any length.
        width, rank: sizes of banded, by-distance and low-rank couplings.
        coupling_std: standard deviation of the initial J and K. None: 0 with "h" (starts at sigmoid attention), and
            0.1 without, since J = K = h = 0 is a saddle that no gradient leaves. The paper does not say.
        beta: inverse temperature β.
        learn_beta: make β a parameter of each head, kept positive by its logarithm.
        Others: see `Attention`.

    Raises:
        InvalidOptionError: an option or combination that does not exist.
        UnknownSamplerError: no such sampler.
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
        beta: float = 1.0,
        learn_beta: bool = False,
        bias: str = "none",
        bias_init: float = 0.0,
        dropout: float = 0.0,
        projection_bias: bool = True,
    ):
        terms = _terms(mode)
        super().__init__(
            embed_dim,
            num_heads,
            context,
            bias=bias,
            bias_init=bias_init,
            dropout=dropout,
            projection_bias=projection_bias,
            scores="h" in terms,
        )
        if "J" in terms and couplings == "none":
            raise InvalidOptionError(f"mode={mode!r} has couplings and couplings='none' has not; drop J from the mode")
        if not (math.isfinite(beta) and beta > 0):
            raise InvalidOptionError(f"beta={beta!r}; it must be a finite number above 0")
        std = coupling_std if coupling_std is not None else 0.0 if "h" in terms else 0.1
        made = make_couplings(couplings, num_heads, context, width=width, rank=rank, std=std)
        self.mode = mode
        self.couplings = made if "J" in terms else None
        triples = make_triples(couplings, num_heads, context, width=width, std=std) if "K" in terms else None
        self.triples = triples
        self._beta = float(beta)
        self.log_beta = nn.Parameter(torch.full((num_heads,), math.log(beta))) if learn_beta else None
        limits = [part.max_length for part in (self.bias, self.couplings, self.triples) if part is not None]
        self.max_length = min((limit for limit in limits if limit is not None), default=None)
        self.sampler = sampler

    @property
    def beta(self) -> float:
        """β of the problems; where `learn_beta` trains one for each head, its initial value."""
        return self._beta

    @property
    def sampler(self) -> Sampler:
        """What supplies ⟨s⟩; set it to a name or a `Sampler`."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: str | Sampler) -> None:
        self._sampler = as_sampler(sampler)

    def problem(self, x: Float[Tensor, "batch t dim"], allowed: Bool[Tensor, "..."] | None = None) -> IsingProblem:
        """The problem that `forward(x, allowed)` hands to the sampler: fields (batch, H, T, T), J (H, 1, T, T)."""
        allowed = self._checked(x, allowed)
        return self._problem(self.fields(x), allowed)

    def _problem(self, fields: Tensor, allowed: Tensor) -> IsingProblem:
        with torch.autocast(fields.device.type, enabled=False):
            couplings, triples = (
                None if part is None else part(fields.shape[-1]).to(fields.dtype).unsqueeze(1)
                for part in (self.couplings, self.triples)
            )
            streams = problem_streams(fields.shape[:-1])
            if self.log_beta is None:
                return IsingProblem(
                    fields, couplings, triples=triples, allowed=allowed, beta=self.beta, streams=streams
                )
            beta = self.log_beta.to(fields.dtype).exp()
            return IsingProblem(
                fields * beta.view(-1, 1, 1),
                None if couplings is None else couplings * beta.view(-1, 1, 1, 1),
                triples=None if triples is None else triples * beta.view(-1, 1, 1, 1, 1),
                allowed=allowed,
                streams=streams,
            )

    def _weights(
        self, fields: Float[Tensor, "batch heads queries keys"], allowed: Bool[Tensor, "..."]
    ) -> Float[Tensor, "batch heads queries keys"]:
        # Samplers are no torch graphs: compiled kernels, timers, simulators. (As a decorator, `disable` would load
        # torch's compiler on import, which takes seconds.)
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._sampled_weights)(fields, allowed)
        return self._sampled_weights(fields, allowed)

    def _sampled_weights(self, fields: Tensor, allowed: Tensor) -> Tensor:
        problem = self._problem(fields, allowed)
        with torch.autocast(fields.device.type, enabled=False):
            return marginal_weights(self.sampler, problem)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}, sampler={self.sampler.name or type(self.sampler).__name__}"


def as_sampler(sampler: str | Sampler) -> Sampler:
    """A `Sampler` as it is, or a new one by name with its default options."""
    if isinstance(sampler, str):
        return get_sampler(sampler)
    if isinstance(sampler, Sampler):
        return sampler
    raise InvalidOptionError(
        f"sampler is a {type(sampler).__name__}; give a name such as 'exact', or a samplers.Sampler object "
        "(for a dimod sampler: get_sampler('dimod', sampler=…))"
    )


def samplers_of(model: nn.Module) -> list[Sampler]:
    """The samplers that `model` uses, each once, in the order of its layers."""
    return list({id(sampler): sampler for _, sampler in _sampled(model)}.values())


def layers_with(model: nn.Module, sampler: Sampler) -> list[str]:
    """The names of the layers of `model` that use this very sampler."""
    return [name for name, module in model.named_modules() if getattr(module, "sampler", None) is sampler]


def set_sampler(model: nn.Module, sampler: str | Sampler) -> Sampler:
    """Let every layer of `model` that has a sampler use this one, from now on.

    Raises:
        InvalidOptionError: no layer of the model uses a sampler.
    """
    held, new = _sampled(model), as_sampler(sampler)
    if not held:
        raise InvalidOptionError(f"{type(model).__name__} has no layer with a sampler; use 'boltzmann' attention")
    for layer, _ in held:
        layer.sampler = new
    return new


@contextlib.contextmanager
def use_sampler(model: nn.Module, sampler: str | Sampler) -> Iterator[Sampler]:
    """Within the block every layer of `model` that has a sampler uses this one; afterwards its own again.

    Example:
        with use_sampler(model, "exact"):
            exact_logits = model(tokens)

    Raises:
        InvalidOptionError: no layer of the model uses a sampler.
    """
    before = _sampled(model)
    try:
        yield set_sampler(model, sampler)
    finally:
        for layer, old in before:
            layer.sampler = old


def _sampled(model: nn.Module) -> list[tuple[Any, Sampler]]:
    held = [(module, getattr(module, "sampler", None)) for module in model.modules()]
    return [(module, sampler) for module, sampler in held if isinstance(sampler, Sampler)]


def _terms(mode: str) -> set[str]:
    if mode not in MODES:
        raise InvalidOptionError(
            f"mode={mode!r}; it must be one of {', '.join(map(repr, MODES))}{did_you_mean(str(mode), MODES)}"
        )
    return set(mode.split("+"))
