"""`GateAngles`: `Layers` applied to problems, as one rotation angle per gate.

Gate-level engines (Aer, Qiskit primitives) run these angles, and the parameter-shift rule moves them one by one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.errors import InvalidProblemError

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GateAngles:
    """Rotation angles of a batch of anneals: RZ and RX per layer and spin, RZZ per layer and pair of `pairs`.

    Layer l turns every spin by RZ, every pair by RZZ (all diagonal, so their order is free), then every spin by RX.
    """

    rz: Float[Tensor, "problems layers n"]
    rzz: Float[Tensor, "problems layers pairs"]
    rx: Float[Tensor, "problems layers n"]
    pairs: Pairs

    @property
    def num_problems(self) -> int:
        return self.rz.shape[0]

    @property
    def num_spins(self) -> int:
        return self.rz.shape[-1]

    @property
    def depth(self) -> int:
        return self.rz.shape[1]

    def flat(self) -> Float[Tensor, "problems gates"]:
        """Every angle of a problem in one row: all RZ, then all RZZ, then all RX, each layer by layer."""
        return torch.cat([part.flatten(1) for part in (self.rz, self.rzz, self.rx)], dim=1)

    def with_flat(self, rows: Float[Tensor, "rows gates"]) -> "GateAngles":
        """Angles of the same shape of anneal from rows in the order of `flat`."""
        n, depth, pairs = self.num_spins, self.depth, len(self.pairs)
        rz, rzz, rx = rows.split([depth * n, depth * pairs, depth * n], dim=1)
        count = len(rows)
        return GateAngles(
            rz.reshape(count, depth, n), rzz.reshape(count, depth, pairs), rx.reshape(count, depth, n), self.pairs
        )


def all_pairs(num_spins: int) -> Pairs:
    """Every pair j < k."""
    return tuple((j, k) for j in range(num_spins) for k in range(j + 1, num_spins))


def coupled_pairs(couplings: Float[Tensor, "*batch n n"] | None) -> Pairs:
    """The pairs j < k whose coupling is not zero in at least one problem: the others need no gate."""
    if couplings is None:
        return ()
    used = (couplings.detach().flatten(0, -3) != 0).any(0) if couplings.ndim > 2 else couplings.detach() != 0
    return tuple((int(j), int(k)) for j, k in torch.triu(used | used.mT, diagonal=1).nonzero().tolist())


def gate_angles(
    fields: Float[Tensor, "groups queries n"],
    couplings: Float[Tensor, "cgroups 1 n n"] | None,
    layers: Layers,
    *,
    pairs: Pairs | None = None,
) -> GateAngles:
    """RZ(−2 f_l h_j), RZZ(−2 c_l J_jk), RX(−2 x_l) for all groups·queries problems, in float64; differentiable.

    A pair's angle is taken from (J_jk + J_kj)/2, so each entry of the full matrix gets half of its derivative.

    Args:
        fields: h.
        couplings: J shared by the queries of a group, or by all groups; None for none.
        layers: the angles of the anneal.
        pairs: which pairs get a gate; by default those with a coupling that is not zero.

    Raises:
        InvalidProblemError: an angle is NaN or infinite (a simulator would answer with NaN probabilities).
    """
    groups, queries, n = fields.shape
    problems, depth = groups * queries, layers.depth
    fields = fields.to(torch.float64)
    if pairs is None:
        pairs = coupled_pairs(couplings)
    f, c, x = (part.to(fields) for part in (layers.fields, layers.couplings, layers.mixer))
    rz = -2 * f[:, None] * fields.reshape(problems, 1, n)
    if couplings is None or not pairs:
        rzz = fields.new_zeros(problems, depth, len(pairs))
    else:
        left, right = torch.tensor(pairs, device=fields.device).unbind(-1)
        J = couplings.to(fields)
        strengths = (J[..., left, right] + J[..., right, left]) / 2
        strengths = strengths.expand(groups, queries, len(pairs)).reshape(problems, 1, len(pairs))
        rzz = -2 * c[:, None] * strengths
    rx = (-2 * x[:, None]).expand(problems, depth, n)
    angles = GateAngles(rz, rzz, rx, pairs)
    _check_finite(angles)
    return angles


def _check_finite(angles: GateAngles) -> None:
    for name, part in (("RZ", angles.rz), ("RZZ", angles.rzz), ("RX", angles.rx)):
        bad = int((~torch.isfinite(part)).sum())
        if bad:
            raise InvalidProblemError(
                f"{bad} of {part.numel()} {name} angles are NaN or infinite; "
                "check the fields, the couplings and the layers of the schedule"
            )
