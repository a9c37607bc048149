"""The border to dimod: our problems as binary quadratic models, its sample sets as our spins, and back.

dimod writes p ∝ exp(−βE) with E(s) = Σ_i h_i s_i + Σ_{i<j} J_ij s_i s_j + offset, so its biases are the negatives
of our fields and couplings. The sign is turned in this file and nowhere else.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import dimod
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplers.errors import IsingAttnError
from samplers.problem import IsingProblem
from samplers.streams import stream_keys
from samplers.supports import SupportPart

Biases = NDArray[np.float64]


class SampleSetError(IsingAttnError, RuntimeError):
    """A dimod sampler returned something that is no answer to the problem it was given."""


class DimodBiases(NamedTuple):
    """Biases in dimod's sign: `linear` (g, q, k); `quadratic` (g, k, k), each pair once, above the diagonal."""

    linear: Biases
    quadratic: Biases


def dimod_biases(problem: IsingProblem, scale: float = 1.0) -> DimodBiases:
    """The biases, times `scale`, of a grouped problem without mask: fields (g, q, k), couplings (g or 1, 1, k, k)."""
    linear = _numpy(problem.fields)
    groups, k = linear.shape[0], problem.num_spins
    full = _numpy(problem.couplings).reshape(-1, k, k)
    quadratic = np.broadcast_to(np.triu(full, 1), (groups, k, k))
    # Adding 0 turns −0.0 into 0.0.
    return DimodBiases(-scale * linear + 0.0, -scale * quadratic + 0.0)


def bqms(linear: Biases, quadratic: Biases) -> Iterator["dimod.BinaryQuadraticModel"]:
    """One SPIN model with the variables 0…k−1 per row of `linear` (q, k); every variable is in it, also at h = 0.

    The couplings are entered once and copied: 4 µs per model of 16 spins, against 16 µs from arrays.
    """
    template = dimod.BinaryQuadraticModel(np.zeros(linear.shape[-1]), quadratic, "SPIN")
    for row in linear:
        bqm = template.copy()
        bqm.add_linear_from_array(row)
        yield bqm


def rows_of_sampleset(sampleset: "dimod.SampleSet", num_spins: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Spins (rows, k) in the order 0…k−1 and the occurrences (rows,) of a sample set, which may be aggregated.

    Raises:
        SampleSetError: it has no rows, lacks a variable, or holds values that are no spins.
    """
    values, counts = sampleset.record.sample, sampleset.record.num_occurrences
    labels = list(sampleset.variables)
    if labels != list(range(num_spins)):
        missing = [v for v in range(num_spins) if v not in labels]
        if missing:
            raise SampleSetError(
                f"the dimod sampler returned no values for {len(missing)} of {num_spins} variables, e.g. {missing[0]!r}"
            )
        column = {label: position for position, label in enumerate(labels)}
        values = values[:, [column[v] for v in range(num_spins)]]
    if sampleset.vartype is dimod.BINARY:
        values = 2 * values.astype(np.int8) - 1
    if not len(values) or counts.sum() <= 0:
        raise SampleSetError("the dimod sampler returned no rows; a problem needs at least one read")
    if not (np.abs(values) == 1).all():
        raise SampleSetError("the dimod sampler returned values other than −1 and +1")
    return values.astype(np.int8, copy=False), counts.astype(np.int64, copy=False)


def problem_of_bqm(
    bqm: "dimod.BinaryQuadraticModel", beta: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[IsingProblem, list[Any], float]:
    """A model (SPIN or BINARY) of n ≥ 1 variables as a problem of one row, its labels in order, and its offset.

    The model's energy of s is `problem.energy(s) + offset`.
    """
    spin: Any = bqm if bqm.vartype is dimod.SPIN else bqm.change_vartype(dimod.SPIN, inplace=False)
    labels = list(spin.variables)
    linear, (rows, columns, values), offset = spin.to_numpy_vectors(variable_order=labels)
    couplings = np.zeros((len(labels), len(labels)))
    couplings[rows, columns] = -values
    couplings += couplings.T
    fields = torch.from_numpy(-linear.astype(np.float64)).to(dtype)
    return IsingProblem(fields, torch.from_numpy(couplings).to(dtype), beta=beta), labels, float(offset)


def problem_seeds(key: int, part: SupportPart) -> NDArray[np.int64]:
    """One hashed seed in [1, 2^31) per problem (g, q): what dimod samplers take, and never a small one by habit."""
    seeds = stream_keys(key, part.problem.streams) >> np.uint64(33)
    return np.maximum(seeds.astype(np.int64), 1)


def _numpy(values: Tensor) -> Biases:
    return values.detach().to(device="cpu", dtype=torch.float64).numpy()
