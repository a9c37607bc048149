"""One transpilation per circuit shape: a cache of parameterised circuits, ready to be bound many times."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from samplers.dqa.angles import GateAngles, Pairs
from samplers.dqa.circuits import anneal_circuit, parameter_names
from samplers.errors import ProblemTooLargeError

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

# A causal batch has one shape per prefix length, so at least as many as the most spins of a state vector.
MAX_SHAPES = 64


@dataclass(frozen=True)
class CompiledAnneal:
    """A transpiled circuit with its measurements.

    Args:
        circuit: the transpiled circuit.
        columns: for every parameter of `circuit`, in its order, its column in `GateAngles.flat`. The transpiler
            may drop parameters that no measurement can see.
        qubits: the physical qubit that is measured as spin k, for every k.
    """

    circuit: "QuantumCircuit"
    columns: NDArray[np.int64]
    qubits: tuple[int, ...]

    def values(self, angles: GateAngles) -> NDArray[np.float64]:
        """Parameter values (problems, parameters) in the order of `circuit.parameters`."""
        return angles.flat().detach().cpu().numpy()[:, self.columns]

    def with_probabilities(self) -> "CompiledAnneal":
        """The same circuit with its measurements replaced by Aer's `save_probabilities`, in spin order."""
        import qiskit_aer  # noqa: F401  (adds `save_probabilities` to circuits)

        saved = self.circuit.copy_empty_like()
        for instruction in self.circuit.data:
            if instruction.operation.name not in ("measure", "barrier"):
                saved.append(instruction)
        saved.save_probabilities(list(self.qubits))
        return CompiledAnneal(saved, self.columns, self.qubits)


class AnnealCompiler:
    """Transpiles each shape (spins, layers, pairs) once for one target, and remembers the latest shapes.

    Args:
        backend: a Qiskit `BackendV2` whose gates and connections are to be kept to; None for all-to-all RZZ.
        optimization_level: of Qiskit's transpiler, 0 to 3.
    """

    def __init__(self, backend: Any = None, *, optimization_level: int = 1):
        self.backend = backend
        self.optimization_level = optimization_level
        self.count = 0
        self._shapes: OrderedDict[tuple[int, int, Pairs], CompiledAnneal] = OrderedDict()

    def __call__(self, angles: GateAngles) -> CompiledAnneal:
        shape = (angles.num_spins, angles.depth, angles.pairs)
        if shape not in self._shapes:
            self._shapes[shape] = self._compile(*shape)
            self.count += 1
            if len(self._shapes) > MAX_SHAPES:
                self._shapes.popitem(last=False)
        self._shapes.move_to_end(shape)
        return self._shapes[shape]

    def _compile(self, num_spins: int, depth: int, pairs: Pairs) -> CompiledAnneal:
        circuit = anneal_circuit(num_spins, depth, pairs=pairs)
        if self.backend is not None:
            circuit = self._for_backend(circuit)
        # Probabilities do not see it, and Aer cannot bind a parameterised one at run time.
        circuit.global_phase = 0
        column = {name: i for i, name in enumerate(parameter_names(num_spins, depth, pairs))}
        columns = np.array([column[p.name] for p in circuit.parameters], dtype=np.int64)
        measured = {
            circuit.find_bit(i.clbits[0]).index: circuit.find_bit(i.qubits[0]).index
            for i in circuit.data
            if i.operation.name == "measure"
        }
        return CompiledAnneal(circuit, columns, tuple(measured[k] for k in range(num_spins)))

    def _for_backend(self, circuit: "QuantumCircuit") -> "QuantumCircuit":
        from qiskit import transpile

        available = self.backend.num_qubits
        if available is not None and circuit.num_qubits > available:
            raise ProblemTooLargeError(
                f"{circuit.num_qubits} spins were given; the backend {self.backend.name!r} has {available} qubits"
            )
        return transpile(circuit, self.backend, optimization_level=self.optimization_level, seed_transpiler=0)
