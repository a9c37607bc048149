"""`ScaleDependence`: layer angles that follow the size of a problem and the strength of its couplings and fields.

With n spins, and r and q the root mean squares over spins of the norm of a row of βJ and of βh, let
    u = tanh(½ log((1 + r²)/(1 + r₀²))),   v = tanh(log(n/n₀)),   y = tanh(½ log((1 + q²)/(1 + q₀²))).
Every angle a of a layer becomes a · exp(w_u u + w_v v), with weights of its own; the field angles of a problem gain one
more factor exp(w_y y). All are smooth, also at J = 0, and bounded: far outside of the family they were fitted on they
settle. u and v belong to a coupling matrix, y to a problem, so that queries that share J share a circuit.

Gradients go through the factors: those of a circuit in h and J are the whole derivative, not that at fixed angles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.errors import InvalidOptionError
from samplers.problem import IsingProblem

_KINDS = ("fields", "couplings", "mixer")
_FEATURES = ("row_norm", "num_spins")


@dataclass(frozen=True)
class ScaleDependence:
    """How angles follow the scale; see the module for the formula.

    Args:
        row_norm, field, num_spins: r₀, q₀ and n₀, the scale at which the angles are as they stand.
        weights: w_u and w_v of the field, coupling and mixer angle of every layer.
        field_weight: w_y, a scalar.
    """

    row_norm: float
    field: float
    num_spins: float
    weights: Float[Tensor, "2 3 layers"]
    field_weight: Float[Tensor, ""]

    @classmethod
    def constant(cls, depth: int, *, row_norm: float, field: float, num_spins: float) -> "ScaleDependence":
        """All weights 0: where a fit begins."""
        weights = torch.zeros(2, 3, depth, dtype=torch.float64)
        return cls(row_norm, field, num_spins, weights, torch.zeros((), dtype=torch.float64))

    def layers(self, base: Layers, couplings: Float[Tensor, "n n"] | None, num_spins: int, beta: float = 1.0) -> Layers:
        """`base` for problems of `num_spins` spins that share a coupling matrix at β; differentiable in all of it."""
        rows = torch.zeros((), dtype=torch.float64, device=base.mixer.device)
        if couplings is not None:
            rows = (beta * couplings.double()).square().sum().to(base.mixer.device) / num_spins
        u = _relative(rows, self.row_norm)
        v = torch.tanh(torch.log(torch.tensor(num_spins / self.num_spins, dtype=torch.float64)))
        weights = self.weights.to(base.mixer.device)
        f, c, x = torch.exp(weights[0] * u + weights[1] * v.to(u))
        return Layers(base.fields * f, base.couplings * c, base.mixer * x)

    def field_factor(self, fields: Float[Tensor, "*batch n"], beta: float = 1.0) -> Float[Tensor, "*batch 1"]:
        """exp(w_y y) of every problem, float64; it multiplies the fields as well as their angles could be."""
        strength = (beta * fields.double()).square().mean(-1, keepdim=True)
        return torch.exp(self.field_weight.to(fields.device) * _relative(strength, self.field))

    def pieces(self, part: IsingProblem, base: Layers) -> Iterator[tuple[IsingProblem, Layers]]:
        """The groups of a problem without mask that have a circuit of their own, in order, each with its layers.

        Args:
            part: fields (g, q, n), couplings (g, 1, n, n) or shared by all groups.
            base: the angles before scaling, β not yet in them; it is in the layers that come out.
        """
        couplings, n, beta = part._couplings, part.num_spins, part.beta
        if couplings is None or couplings.shape[0] == 1:
            shared = None if couplings is None else couplings[0, 0]
            yield part, _at(beta, self.layers(base, shared, n, beta))
            return
        for g in range(part.batch_shape[0]):
            own, streams = slice(g, g + 1), part.streams[g : g + 1]
            piece = part._rebuilt(fields=part.fields[own], couplings=couplings[own], streams=streams)
            yield piece, _at(beta, self.layers(base, couplings[g, 0], n, beta))

    def to_json(self) -> dict[str, Any]:
        table = {
            feature: {kind: [float(v) for v in row.detach()] for kind, row in zip(_KINDS, rows, strict=True)}
            for feature, rows in zip(_FEATURES, self.weights, strict=True)
        }
        at = {"row_norm": self.row_norm, "field": self.field, "num_spins": self.num_spins}
        return {"at": at, "weights": table, "field_weight": float(self.field_weight.detach())}

    @classmethod
    def from_json(cls, data: Any, depth: int, where: str) -> "ScaleDependence":
        """Read what `to_json` gave; every number is checked.

        Raises:
            InvalidOptionError: an entry that is missing, is no finite number, or is not there once per layer.
        """
        at, table = (_entry(data, key, dict, where) for key in ("at", "weights"))
        r, q, n = (_number(_entry(at, key, object, where), f"{where}: scale: at: {key}") for key in _AT)
        rows = [
            _row(_entry(_entry(table, feature, dict, where), kind, list, where), depth, f"{where}: {feature}: {kind}")
            for feature in _FEATURES
            for kind in _KINDS
        ]
        weights = torch.tensor(rows, dtype=torch.float64).reshape(len(_FEATURES), len(_KINDS), depth)
        own = _number(_entry(data, "field_weight", object, where), f"{where}: scale: field_weight")
        return cls(r, q, n, weights, torch.tensor(own, dtype=torch.float64))

    def __post_init__(self) -> None:
        if min(self.row_norm, self.field) < 0 or not self.num_spins > 0:
            raise InvalidOptionError(
                f"the scale is that of row norm {self.row_norm}, field {self.field} and {self.num_spins} spins; "
                "these must be at least 0, at least 0 and above 0"
            )
        if self.weights.ndim != 3 or self.weights.shape[:2] != (len(_FEATURES), len(_KINDS)):
            raise InvalidOptionError(f"scale weights have shape {tuple(self.weights.shape)}; it must be (2, 3, layers)")
        finite = bool(torch.isfinite(self.weights.detach()).all()) and bool(torch.isfinite(self.field_weight.detach()))
        if not finite:
            raise InvalidOptionError("scale weights hold NaN or infinite numbers; all must be finite")


_AT = ("row_norm", "field", "num_spins")


def _relative(squared: Tensor, reference: float) -> Tensor:
    """tanh(½ log((1 + x²)/(1 + x₀²))) from x²."""
    level = torch.tensor(reference, dtype=torch.float64).square().to(squared.device)
    return torch.tanh((squared.log1p() - level.log1p()) / 2)


def _at(beta: float, layers: Layers) -> Layers:
    return Layers(layers.fields * beta, layers.couplings * beta, layers.mixer)


def _entry(data: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(data, dict) or key not in data or not isinstance(data[key], kind):
        raise InvalidOptionError(f"{where}: 'scale' needs {key!r}" + ("" if kind is object else f", a {kind.__name__}"))
    return data[key]


def _number(value: Any, what: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
        raise InvalidOptionError(f"{what} is {value!r}; it must be a finite number")
    return float(value)


def _row(values: list[Any], depth: int, what: str) -> list[float]:
    if len(values) != depth:
        raise InvalidOptionError(f"{what} has {len(values)} numbers; the schedule has {depth} layers")
    return [_number(value, what) for value in values]
