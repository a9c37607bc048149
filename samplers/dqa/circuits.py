"""Qiskit circuits of the anneal: parameterised, bound, exported and drawn.

Qubit k is spin k, bit k of the register "spins" is its measurement, and 0 means s_k = +1: the order of
samplers/states.py. Only H, RZ, RZZ and RX are used. Every gate has a parameter of its own, called rz_l_j,
rzz_l_j_k and rx_l_j for layer l, so that parameters can be found by name after any transpilation.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.dqa.angles import GateAngles, Pairs, all_pairs, gate_angles
from samplers.dqa.layers import Layers
from samplers.errors import InvalidOptionError, MissingDependencyError

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

REGISTER = "spins"


def parameter_names(num_spins: int, depth: int, pairs: Pairs) -> list[str]:
    """Names of the parameters in the order of `GateAngles.flat`."""
    rz = [f"rz_{layer}_{j}" for layer in range(depth) for j in range(num_spins)]
    rzz = [f"rzz_{layer}_{j}_{k}" for layer in range(depth) for j, k in pairs]
    rx = [f"rx_{layer}_{j}" for layer in range(depth) for j in range(num_spins)]
    return rz + rzz + rx


def anneal_circuit(num_spins: int, depth: int, *, pairs: Pairs | None = None, measure: bool = True) -> "QuantumCircuit":
    """The anneal of `depth` layers with free angles.

    Args:
        num_spins: n, at least 1.
        depth: number of layers.
        pairs: which pairs get an RZZ gate; by default all j < k.
        measure: measure every qubit at the end, into the classical register "spins".

    Cost: depth · (2n + pairs) gates.
    """
    from qiskit import ClassicalRegister, QuantumCircuit, QuantumRegister
    from qiskit.circuit import Parameter

    if num_spins < 1 or depth < 0:
        raise InvalidOptionError(f"num_spins={num_spins}, depth={depth}; it takes at least 1 spin and 0 layers")
    pairs = all_pairs(num_spins) if pairs is None else pairs
    circuit = QuantumCircuit(QuantumRegister(num_spins, "q"), name=f"anneal_{num_spins}x{depth}")
    circuit.h(range(num_spins))
    for layer in range(depth):
        for j in range(num_spins):
            circuit.rz(Parameter(f"rz_{layer}_{j}"), j)
        for j, k in pairs:
            circuit.rzz(Parameter(f"rzz_{layer}_{j}_{k}"), j, k)
        for j in range(num_spins):
            circuit.rx(Parameter(f"rx_{layer}_{j}"), j)
    if measure:
        circuit.add_register(ClassicalRegister(num_spins, REGISTER))
        circuit.measure(range(num_spins), range(num_spins))
    return circuit


def bind(circuit: "QuantumCircuit", angles: GateAngles, problem: int = 0) -> "QuantumCircuit":
    """`circuit` with the angles of one problem filled in, by name: parameters that it lost are passed over."""
    names = parameter_names(angles.num_spins, angles.depth, angles.pairs)
    values = dict(zip(names, angles.flat()[problem].tolist(), strict=True))
    return circuit.assign_parameters({p: values[p.name] for p in circuit.parameters})


def problem_circuit(
    fields: Float[Tensor, "n"], couplings: Float[Tensor, "n n"] | None, layers: Layers, *, measure: bool = True
) -> "QuantumCircuit":
    """The bound circuit of one problem: what to export, to draw or to send to a device by hand."""
    lifted = None if couplings is None else couplings.detach()[None, None]
    angles = gate_angles(fields.detach()[None, None], lifted, layers)
    return bind(anneal_circuit(angles.num_spins, angles.depth, pairs=angles.pairs, measure=measure), angles)


def to_openqasm3(circuit: "QuantumCircuit") -> str:
    """OpenQASM 3 text; free angles become `input float[64]` of the same names."""
    from qiskit import qasm3

    return qasm3.dumps(circuit)


def save_qpy(circuit: "QuantumCircuit", path: str | Path) -> Path:
    """Write Qiskit's binary format, parameters included."""
    from qiskit import qpy

    path = Path(path)
    with path.open("wb") as file:
        qpy.dump(circuit, file)
    return path


def load_qpy(path: str | Path) -> "QuantumCircuit":
    """Read one circuit written by `save_qpy`.

    Raises:
        InvalidOptionError: the file is absent, or is not QPY.
    """
    from qiskit import qpy
    from qiskit.exceptions import QiskitError

    path = Path(path)
    if not path.is_file():
        raise InvalidOptionError(f"there is no circuit file {str(path)!r}")
    try:
        with path.open("rb") as file:
            circuits = qpy.load(file)
    except (QiskitError, EOFError, ValueError, OSError, LookupError, struct.error) as error:
        raise InvalidOptionError(f"{str(path)!r} is not a QPY file ({type(error).__name__})") from error
    return circuits[0]


def draw_circuit(circuit: "QuantumCircuit", *, output: str = "text", **options: Any) -> Any:
    """A drawing: text, or a matplotlib figure (output="mpl", extra "plots"); `options` go to Qiskit's drawer."""
    if output == "mpl":
        from qiskit.exceptions import MissingOptionalLibraryError

        try:
            return circuit.draw("mpl", **options)
        except MissingOptionalLibraryError as error:
            # Its own message names pip packages; ours names the extra.
            raise MissingDependencyError("matplotlib or pylatexenc", "plots", "drawing a circuit") from error
    if output != "text":
        raise InvalidOptionError(f"output={output!r}; a circuit is drawn as 'text' or 'mpl'")
    return circuit.draw("text", **options)


def index_from_hex(memory: list[str]) -> Tensor:
    """State indices (shots,) int64 of Qiskit's hexadecimal shots: bit k of the number is classical bit k."""
    return torch.tensor([int(shot, 16) for shot in memory], dtype=torch.int64)
