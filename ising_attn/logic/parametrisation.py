"""How the gate of each neuron is parameterised: 16 logits (raw), 4 truth-table logits (light) or 4 Walsh coefficients.

Every form gives truth tables (gates, 4) with entries in [0, 1]; a layer turns them into the 4 coefficients of a
multilinear form, so that all three cost the same per sample.

Residual initialisation: each neuron passes its first input on with probability `residual`, which keeps gradients of
deep networks from vanishing (arXiv 2411.04732); noise makes neurons differ, which raw ones otherwise would not.
"""

import abc
import math

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ising_attn.logic.errors import InvalidLogicError
from ising_attn.logic.gates import GATES, A, numbers_of, truth_tables
from ising_attn.logic.modes import relaxed_bits, relaxed_choice
from samplers.errors import did_you_mean


class Parametrisation(nn.Module, abc.ABC):
    """Learnable gates of one layer.

    Args:
        gates: how many.
        residual: probability that a neuron passes its first input on, in (0, 1); None: logits are N(0, 1) alone.
        noise: standard deviation of what is added to the logits.
        generator: of the initial values; None is torch's own.
    """

    logits: nn.Parameter

    def __init__(
        self, gates: int, *, residual: float | None, noise: float, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        _check_start(residual, noise)
        # Drawn on the CPU, so that a seed means one start on every device.
        start = torch.randn(gates, self._width(), generator=generator, device="cpu")
        if residual is not None:
            start = noise * start + torch.tensor(self._pass_through(residual), device="cpu")
        self.logits = nn.Parameter(start.to(torch.get_default_device()))

    @classmethod
    @abc.abstractmethod
    def _width(cls) -> int:
        """Numbers per gate."""

    @classmethod
    @abc.abstractmethod
    def _pass_through(cls, probability: float) -> list[float]:
        """Logits of a neuron that gives its first input with this probability."""

    @abc.abstractmethod
    def truth_tables(
        self, temperature: Float[Tensor, ""] | float, *, hard: bool, noise: bool
    ) -> Float[Tensor, "gates 4"]:
        """Truth tables with entries in [0, 1], of bits where `hard`."""

    def numbers(self) -> UInt8[Tensor, "gates"]:
        """The gates after hardening."""
        with torch.no_grad():
            return numbers_of(self.truth_tables(1.0, hard=True, noise=False))


class RawGates(Parametrisation):
    """A softmax over all 16 gates (arXiv 2210.08277): w = Σ_g softmax(l/T)_g · table_g."""

    @classmethod
    def _width(cls) -> int:
        return len(GATES)

    @classmethod
    def _pass_through(cls, probability: float) -> list[float]:
        return [math.log(15 * probability / (1 - probability)) if gate.number == A else 0.0 for gate in GATES]

    def truth_tables(
        self, temperature: Float[Tensor, ""] | float, *, hard: bool, noise: bool
    ) -> Float[Tensor, "gates 4"]:
        choice = relaxed_choice(self.logits, temperature, hard=hard, noise=noise)
        return choice @ truth_tables(dtype=choice.dtype, device=choice.device)


class LightGates(Parametrisation):
    """A sigmoid per truth-table entry (arXiv 2510.03250): w = σ(l/T), 4 numbers a gate."""

    @classmethod
    def _width(cls) -> int:
        return 4

    @classmethod
    def _pass_through(cls, probability: float) -> list[float]:
        size = math.log(probability / (1 - probability))
        return [-size, -size, size, size]

    def truth_tables(
        self, temperature: Float[Tensor, ""] | float, *, hard: bool, noise: bool
    ) -> Float[Tensor, "gates 4"]:
        return relaxed_bits(self.logits, temperature, hard=hard, noise=noise)


class WalshGates(Parametrisation):
    """Walsh coefficients ω of the truth-table logits: l(a, b) = ω₀ + ω_a A + ω_b B + ω_ab AB with A, B = 2a−1, 2b−1.

    A rotation of `LightGates`, in which "depends on a" is one number. WARP (arXiv 2510.15655) applies the sigmoid to
    the expansion at relaxed inputs; here it is applied to the four entries, which is the same on bits and keeps the
    layer multilinear.
    """

    @classmethod
    def _width(cls) -> int:
        return 4

    @classmethod
    def _pass_through(cls, probability: float) -> list[float]:
        return [0.0, math.log(probability / (1 - probability)), 0.0, 0.0]

    def truth_tables(
        self, temperature: Float[Tensor, ""] | float, *, hard: bool, noise: bool
    ) -> Float[Tensor, "gates 4"]:
        hadamard = self.logits.new_tensor(_HADAMARD)
        return relaxed_bits(self.logits @ hadamard, temperature, hard=hard, noise=noise)


# Rows: the coefficients of 1, A, B, AB; columns: (a, b) = 00, 01, 10, 11.
_HADAMARD = [[1, 1, 1, 1], [-1, -1, 1, 1], [-1, 1, -1, 1], [1, -1, -1, 1]]

PARAMETRISATIONS: dict[str, type[Parametrisation]] = {"light": LightGates, "raw": RawGates, "walsh": WalshGates}


def make_parametrisation(
    kind: str, gates: int, *, residual: float | None, noise: float, generator: torch.Generator | None = None
) -> Parametrisation:
    """A parametrisation by name: "light", "raw" or "walsh".

    Raises:
        InvalidLogicError: an unknown name, a residual outside (0, 1), a negative noise.
    """
    if kind not in PARAMETRISATIONS:
        raise InvalidLogicError(
            f"parametrisation={kind!r}; it must be one of {', '.join(map(repr, PARAMETRISATIONS))}"
            f"{did_you_mean(str(kind), PARAMETRISATIONS)}"
        )
    return PARAMETRISATIONS[kind](gates, residual=residual, noise=noise, generator=generator)


def _check_start(residual: float | None, noise: float) -> None:
    if residual is not None and not 0 < residual < 1:
        raise InvalidLogicError(
            f"residual={residual!r}; it must be a probability between 0 and 1, both excluded, or None"
        )
    if not 0 <= noise < math.inf:
        raise InvalidLogicError(f"noise={noise!r}; it must be a finite number of at least 0")
