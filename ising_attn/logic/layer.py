"""`LogicLayer`: wiring × parametrisation, relaxed while training; `BooleanLayer`: what hardening makes of it."""

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor, nn

from ising_attn.logic.checks import check_bits, check_features, check_probabilities
from ising_attn.logic.functional import Combine, PickStraightThrough, apply_gates
from ising_attn.logic.gates import coefficients, normal_forms, tables_of
from ising_attn.logic.modes import Relaxed
from ising_attn.logic.parametrisation import make_parametrisation
from ising_attn.logic.wiring import FixedWiring, LearnableWiring, make_wiring


class LogicLayer(Relaxed):
    """Learnable gates of two inputs each: (…, in_features) → (…, out_features).

    A gate with truth table w gives w₀₀ + (w₁₀ − w₀₀)·a + (w₀₁ − w₀₀)·b + (w₁₁ − w₁₀ − w₀₁ + w₀₀)·ab, the probability
    of a 1 if a and b are independent bits. Cost: 3 multiply-adds and 2 gathers per gate and sample; kept for the
    backward pass: the input.

    Args:
        in_features: inputs, at least 2.
        out_features: gates.
        parametrisation: "light" (4 numbers a gate), "raw" (16) or "walsh" (4).
        mode: "soft", "hard", "gumbel-soft" or "gumbel-hard"; see `ising_attn.logic.modes`.
        temperature: of sigmoids and softmaxes; in the state dict.
        wiring: "random", "unique" or "learnable"; in the state dict.
        candidates: of each input, for learnable wiring.
        residual: initial probability of passing the first input on; None: random gates.
        noise: standard deviation of the noise on initial logits.
        generator: of initial values; None is torch's own.

    Raises:
        WiringError: wiring that cannot exist.
        InvalidLogicError: other options that do not fit.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        parametrisation: str = "light",
        mode: str = "soft",
        temperature: float = 1.0,
        wiring: str = "random",
        candidates: int | None = None,
        residual: float | None = 0.9,
        noise: float = 0.25,
        generator: torch.Generator | None = None,
    ):
        super().__init__(mode=mode, temperature=temperature)
        self.in_features, self.out_features = in_features, out_features
        self.wiring = make_wiring(wiring, in_features, out_features, candidates=candidates, generator=generator)
        self.gates = make_parametrisation(
            parametrisation, out_features, residual=residual, noise=noise, generator=generator
        )

    def forward(self, x: Float[Tensor, "*batch features"], *, check: bool = True) -> Float[Tensor, "*batch gates"]:
        """Relaxed outputs, which are bits in the hard modes.

        Args:
            x: probabilities, or bits in the hard modes.
            check: whether to look at the values of x, which costs a pass over it.

        Raises:
            InvalidLogicError: another number of features, values outside [0, 1], or other than bits in a hard mode.
        """
        check_features(x, self.in_features, "LogicLayer")
        if check:
            (check_bits if self.is_hard else check_probabilities)(x, "LogicLayer")
        samples = x.reshape(-1, self.in_features)
        forms = coefficients(self.truth_tables()).T.to(x.dtype).contiguous()
        if isinstance(self.wiring, LearnableWiring):
            picked, probabilities = self.wiring.choose(self.temperature, noise=self.is_noisy)
            a, b = (
                PickStraightThrough.apply(samples, picked[i], self.wiring.candidates[i], probabilities[i].to(x.dtype))
                for i in (0, 1)
            )
            out = Combine.apply(a, b, forms)
        else:
            out = apply_gates(samples, self.wiring.pairs(), forms)
        return out.view(*x.shape[:-1], self.out_features)

    def truth_tables(self) -> Float[Tensor, "gates 4"]:
        """Truth tables as this forward mode has them: probabilities, or bits."""
        return self.gates.truth_tables(self.temperature, hard=self.is_hard, noise=self.is_noisy)

    def harden(self) -> "BooleanLayer":
        """The Boolean layer that this one becomes: each gate and each input at its most probable."""
        return BooleanLayer(self.in_features, self.wiring.pairs(), self.gates.numbers())

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, mode={self.mode!r}"


class BooleanLayer(nn.Module):
    """Fixed gates of bits: (…, in_features) → (…, out_features), by index and bit operations alone.

    Args:
        in_features: inputs.
        index: (2, gates), the inputs a and b of every gate.
        numbers: (gates,), the gates, numbered as in `ising_attn.logic.gates`.
    """

    numbers: UInt8[Tensor, "gates"]

    def __init__(self, in_features: int, index: Int[Tensor, "2 gates"], numbers: UInt8[Tensor, "gates"]):
        super().__init__()
        tables_of(numbers)
        self.in_features, self.out_features = in_features, numbers.shape[0]
        self.wiring = FixedWiring(in_features, numbers.shape[0], index=index.detach().clone())
        self.register_buffer("numbers", numbers.detach().clone())

    def forward(self, x: Shaped[Tensor, "*batch features"]) -> Shaped[Tensor, "*batch gates"]:
        """Bits, in the dtype of x.

        Raises:
            InvalidLogicError: another number of features, or values other than 0 and 1.
        """
        check_features(x, self.in_features, "BooleanLayer")
        check_bits(x, "BooleanLayer")
        bits = x.bool()
        first, second = self.wiring.pairs()
        a, b = bits[..., first], bits[..., second]
        c, c_a, c_b, c_ab = normal_forms(self.numbers).bool().unbind(-1)
        return (c ^ (c_a & a) ^ (c_b & b) ^ (c_ab & a & b)).to(x.dtype)
