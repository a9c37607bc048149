"""`BitEncoder`: from floats to bits by learnable thresholds."""

import statistics

import torch
from jaxtyping import Float
from torch import Tensor

from ising_attn.logic.checks import check_features
from ising_attn.logic.errors import InvalidLogicError
from ising_attn.logic.modes import Relaxed


class BitEncoder(Relaxed):
    """bit_fk = [x_f > θ_fk], relaxed to σ((x_f − θ_fk)/T): (…, features) → (…, features · bits).

    The bits of one feature stand together (a thermometer code). In the hard modes the gradient is that of the sigmoid.

    Args:
        in_features: features.
        bits: thresholds per feature, which start at quantiles of N(0, 1): inputs should be normalised.
        mode, temperature: as in `LogicLayer`.
    """

    def __init__(self, in_features: int, *, bits: int = 1, mode: str = "soft", temperature: float = 1.0):
        super().__init__(mode=mode, temperature=temperature)
        if in_features < 1 or bits < 1:
            raise InvalidLogicError(f"in_features={in_features!r}, bits={bits!r}; both must be at least 1")
        self.in_features, self.bits, self.out_features = in_features, bits, in_features * bits
        quantiles = [statistics.NormalDist().inv_cdf((k + 1) / (bits + 1)) for k in range(bits)]
        self.thresholds = torch.nn.Parameter(torch.tensor(quantiles).repeat(in_features, 1))

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch codes"]:
        """Bits or their probabilities."""
        check_features(x, self.in_features, "BitEncoder")
        return self.relaxed_bits(x[..., None] - self.thresholds).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.in_features}, bits={self.bits}, mode={self.mode!r}"
