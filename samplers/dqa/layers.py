"""`Layers`: the angles of a Trotterised anneal. Both engines run exactly these layers.

From the uniform superposition, layer l applies
    exp(+i Σ_j f_l h_j Z_j + i Σ_{j<k} c_l J_jk Z_j Z_k)   then   exp(+i x_l Σ_j X_j),
that is, with E(Z) = −h·Z − ½ ZᵀJZ, one first-order Trotter step of H = −A Σ X + B E(Z) has
f_l = c_l = B dt and x_l = A dt. Qiskit: RZ(−2 f_l h_j), RZZ(−2 c_l J_jk), RX(−2 x_l).
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Layers:
    """Field, coupling and mixer angles of P layers, each (P,) float64. β and calibration are already in them."""

    fields: Float[Tensor, "layers"]
    couplings: Float[Tensor, "layers"]
    mixer: Float[Tensor, "layers"]

    @property
    def depth(self) -> int:
        return self.mixer.shape[0]
