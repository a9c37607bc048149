"""Noise of simulated hardware: depolarising, readout and T1/T2 errors per gate, or those of a Qiskit backend.

`as_noise` turns what a user passes as `noise=` into a `Noise`. Errors follow the gates: a qubit that waits
while others work does not decay.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplers.errors import InvalidOptionError, MissingDependencyError, NotSupportedError, did_you_mean

GATES = ("h", "rz", "rx", "rzz")
# Typical superconducting durations in nanoseconds; RZ is a change of frame and takes no time.
GATE_TIMES = {"h": 35.0, "rz": 0.0, "rx": 35.0, "rzz": 300.0}


@dataclass(frozen=True)
class Noise:
    """A Qiskit Aer noise model.

    Args:
        model: `qiskit_aer.noise.NoiseModel`.
        description: what it is, for a run's provenance.
        backend: the `BackendV2` whose gates and connections circuits are transpiled to; None for our own gates.
    """

    model: Any
    description: str
    backend: Any = None
    _confusion: dict[int | None, NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False)

    def confusion(self, qubit: int) -> NDArray[np.float64] | None:
        """P(read column | is row) of a physical qubit, 2 × 2; None where it is read without error.

        Raises:
            NotSupportedError: readout errors that are correlated between qubits.
        """
        if not self._confusion:
            self._confusion.update(_readout_tables(self.model))
        table = self._confusion.get(qubit, self._confusion.get(None))
        return None if table is None or np.array_equal(table, np.eye(2)) else table


def gate_noise(
    *,
    depolarizing: float | Mapping[str, float] | None = None,
    readout: float | Sequence[float] | None = None,
    t1: float | None = None,
    t2: float | None = None,
    gate_times: Mapping[str, float] | None = None,
) -> Noise:
    """Errors attached to the gates h, rz, rx, rzz and to the measurement.

    Args:
        depolarizing: λ of ρ → (1 − λ)ρ + λ I/2^k after a k-qubit gate: one number for every gate but rz (which
            hardware does without a pulse), or a mapping from gate names.
        readout: probability of reading the wrong bit, or a pair: P(read −1 | is +1), P(read +1 | is −1).
        t1, t2: relaxation and dephasing times in nanoseconds, t2 ≤ 2·t1; one alone stands for itself: t1 alone
            takes t2 = 2·t1 (no further dephasing), t2 alone takes t1 = ∞.
        gate_times: nanoseconds of each gate, over those of `GATE_TIMES`.

    Raises:
        InvalidOptionError: numbers out of range, unknown gate names, or no error at all.
    """
    rates = _depolarizing_rates(depolarizing)
    errors = {gate: _gate_error(gate, rates.get(gate, 0.0), t1, t2, gate_times) for gate in GATES}
    flips = _readout_flips(readout)
    noise, _ = _aer_noise()
    model = noise.NoiseModel(basis_gates=list(GATES))
    for gate, error in errors.items():
        if error is not None:
            model.add_all_qubit_quantum_error(error, gate)
    if any(flips):
        up, down = flips
        model.add_all_qubit_readout_error(noise.ReadoutError([[1 - up, up], [down, 1 - down]]))
    if model.is_ideal():
        raise InvalidOptionError(
            "this noise does nothing; give at least one of depolarizing, readout, t1 and t2, or noise=None"
        )
    given = {"depolarizing": rates or None, "readout": flips if any(flips) else None, "t1": t1, "t2": t2}
    if t1 is not None or t2 is not None:
        given["gate_times"] = {**GATE_TIMES, **(gate_times or {})}
    spoken = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    return Noise(model, f"per gate: {spoken}")


def backend_noise(backend: Any) -> Noise:
    """The errors that a `BackendV2` (a device or a fake one) reports for itself; circuits keep to its gates."""
    noise, error_type = _aer_noise()
    spoken = f"backend {backend.name} ({backend.num_qubits} qubits)"
    relaxes = bool(backend.target.qubit_properties)
    try:
        with warnings.catch_warnings():
            if not relaxes:  # said in the description instead
                warnings.filterwarnings("ignore", message=".*has no QubitProperties", category=UserWarning)
            model = noise.NoiseModel.from_backend(backend, thermal_relaxation=relaxes)
    except error_type as error:
        raise InvalidOptionError(f"noise: the {spoken} reports no usable noise: {error}") from error
    if model.is_ideal():
        raise InvalidOptionError(f"noise: the {spoken} reports no errors; use noise=None")
    return Noise(model, spoken if relaxes else f"{spoken} without T1/T2", backend)


def as_noise(value: Any) -> Noise | None:
    """What may be passed as `noise=`: None, a `Noise`, Aer's `NoiseModel`, a `BackendV2`, the arguments of
    `gate_noise` as a mapping, or as text: "depolarizing=0.001, readout=0.02" or JSON."""
    if value is None or isinstance(value, Noise):
        return value
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        known = ("depolarizing", "readout", "t1", "t2", "gate_times")
        for name in value:
            if name not in known:
                raise InvalidOptionError(f"noise has no part {name!r}{did_you_mean(name, known)}; it has {known}")
        return gate_noise(**value)
    noise, _ = _aer_noise()
    if isinstance(value, noise.NoiseModel):
        return _own_gates_only(value)
    from qiskit.providers import BackendV2

    if isinstance(value, BackendV2):
        return backend_noise(value)
    raise InvalidOptionError(
        f"noise is {type(value).__name__}; it takes None, the arguments of gate_noise (a mapping or text such as "
        "'depolarizing=0.001, readout=0.02'), a qiskit_aer NoiseModel or a Qiskit BackendV2"
    )


def _own_gates_only(model: Any) -> Noise:
    """A user's NoiseModel, unless it speaks of gates that an anneal has not: those errors would never act."""
    foreign = sorted(set(model.noise_instructions) - {*GATES, "measure"})
    if foreign:
        raise InvalidOptionError(
            f"this NoiseModel has errors on {', '.join(foreign)}, and the anneal runs {', '.join(GATES)}; attach "
            "errors to those, or pass the backend itself, so that the circuit keeps to its gates"
        )
    if model.is_ideal():
        raise InvalidOptionError("this NoiseModel has no errors; use noise=None")
    return Noise(model, f"NoiseModel on {', '.join(sorted(model.noise_instructions))}")


def _aer_noise() -> tuple[Any, type[Exception]]:
    try:
        from qiskit_aer import noise
        from qiskit_aer.noise.noiseerror import NoiseError
    except ImportError as error:
        raise MissingDependencyError("qiskit-aer", "aer", "a noise model") from error
    return noise, NoiseError


def _depolarizing_rates(given: float | Mapping[str, float] | None) -> dict[str, float]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for gate in given:
            if gate not in GATES:
                raise InvalidOptionError(
                    f"depolarizing names the gate {gate!r}{did_you_mean(gate, GATES)}; use {GATES}"
                )
        rates = dict(given)
    else:
        rates = {gate: given for gate in GATES if gate != "rz"}
    for gate, rate in rates.items():
        _check_range(f"depolarizing of {gate}", rate, 0.0, 1.0)
    return rates


def _readout_flips(given: float | Sequence[float] | None) -> tuple[float, float]:
    if given is None:
        return (0.0, 0.0)
    flips = tuple(given) if isinstance(given, Sequence) else (given, given)
    if len(flips) != 2:
        raise InvalidOptionError(f"readout={given!r}; it is one probability, or two: of reading +1 and −1 wrong")
    for flip in flips:
        _check_range("readout", flip, 0.0, 1.0)
    return (float(flips[0]), float(flips[1]))


def _gate_error(
    gate: str, rate: float, t1: float | None, t2: float | None, gate_times: Mapping[str, float] | None
) -> Any:
    """The quantum error of one gate, or None where it has none."""
    noise, _ = _aer_noise()
    width = 2 if gate == "rzz" else 1
    error = noise.depolarizing_error(rate, width) if rate > 0 else None
    if t1 is None and t2 is None:
        return error
    times = {**GATE_TIMES, **(gate_times or {})}
    for name, value in (("t1", t1), ("t2", t2)):
        if value is not None:
            _check_range(name, value, 0.0, math.inf, open_low=True)
    for name, value in times.items():
        if name not in GATES:
            raise InvalidOptionError(f"gate_times names the gate {name!r}{did_you_mean(name, GATES)}; use {GATES}")
        _check_range(f"gate_times of {name}", value, 0.0, math.inf)
    relax = math.inf if t1 is None else t1
    dephase = 2 * relax if t2 is None else t2
    if dephase > 2 * relax:
        raise InvalidOptionError(f"t2={t2:g} is more than twice t1={t1:g}, which no qubit can have")
    if times[gate] == 0:
        return error
    decay = noise.thermal_relaxation_error(relax, dephase, times[gate])
    decay = decay.tensor(decay) if width == 2 else decay
    return decay if error is None else error.compose(decay)


def _check_range(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high or value != value:
        raise InvalidOptionError(f"noise: {name}={value!r}; it must be a number between {low:g} and {high:g}")
    if open_low and value == low:
        raise InvalidOptionError(f"noise: {name}={value!r}; it must be more than {low:g}")


def _parsed(text: str) -> Mapping[str, Any]:
    stripped = text.strip()
    try:
        if stripped.startswith("{"):
            return json.loads(stripped)
        pairs = [part.split("=") for part in stripped.split(",")]
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        raise InvalidOptionError(
            f"noise={text!r} cannot be read; write it as 'depolarizing=0.001, readout=0.02' or as JSON"
        ) from error


def _readout_tables(model: Any) -> dict[int | None, NDArray[np.float64]]:
    tables: dict[int | None, NDArray[np.float64]] = {None: np.eye(2)}
    for error in model.to_dict()["errors"]:
        if error["type"] != "roerror":
            continue
        table = np.asarray(error["probabilities"], dtype=np.float64)
        groups = error.get("gate_qubits") or [(None,)]
        if table.shape != (2, 2) or any(len(group) != 1 for group in groups):
            raise NotSupportedError(
                "exact probabilities take readout errors of single qubits only; give shots= to sample this model"
            )
        tables.update({group[0]: table for group in groups})
    return tables
