"""`AerEngine`: the anneal run on Qiskit Aer, exactly or by shots, with or without noise.

One transpilation per circuit shape; the problems of a batch are bound to it at run time, in calls of bounded
size. Every result is counted and checked, since Aer has reported success for experiments that it left out
(Qiskit/qiskit-aer#2391).
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from samplers.dqa.angles import GateAngles, gate_angles
from samplers.dqa.circuits import index_from_hex
from samplers.dqa.compilation import AnnealCompiler, CompiledAnneal
from samplers.dqa.layers import Layers
from samplers.dqa.noise import as_noise
from samplers.errors import (
    EngineError,
    InvalidOptionError,
    MissingDependencyError,
    NotSupportedError,
    ProblemTooLargeError,
    did_you_mean,
)
from samplers.streams import derive_key, uniforms

METHODS = ("automatic", "statevector", "density_matrix", "matrix_product_state", "tensor_network")
PRECISIONS = ("double", "single")
# Exact probabilities are 2^n float64 for every problem; a density matrix holds 4^n complex numbers.
MAX_SPINS = {"statevector": 24, "matrix_product_state": 24, "tensor_network": 24, "density_matrix": 12}
# State indices are int64.
MAX_SPINS_SHOTS = 62
_BYTES_PER_CALL = 2**28
_LOG2_SMALL = 16


class AerEngine:
    """Anneals on `AerSimulator`.

    Args:
        method: "automatic", "statevector", "density_matrix", "matrix_product_state" (for couplings of short
            range), or "tensor_network" (GPU only). With noise, exact probabilities are always taken from a
            density matrix: any other method would average over random trajectories.
        device: "CPU" or "GPU"; a GPU needs the package qiskit-aer-gpu in the place of qiskit-aer.
        precision: "double" or "single".
        noise: what `samplers.dqa.noise.as_noise` takes; None for none.
        threads: most threads of a call; by default as many as torch uses.
        max_experiments: most problems bound in one call of Aer.

    Raises:
        MissingDependencyError: qiskit-aer is not installed.
        InvalidOptionError: an unknown value, or a GPU that this Aer cannot use.
    """

    exact = True

    def __init__(
        self,
        *,
        method: str = "automatic",
        device: str = "CPU",
        precision: str = "double",
        noise: Any = None,
        threads: int | None = None,
        max_experiments: int = 512,
    ):
        try:
            import qiskit_aer
        except ImportError as error:
            raise MissingDependencyError("qiskit-aer", "aer", "the Aer engine of the sampler 'dqa'") from error
        device = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU"}.get(device.lower(), device)
        for name, value, choices in (
            ("method", method, METHODS),
            ("device", device, ("CPU", "GPU")),
            ("precision", precision, PRECISIONS),
        ):
            if value not in choices:
                raise InvalidOptionError(
                    f"AerEngine: {name}={value!r}; it must be one of {', '.join(map(repr, choices))}"
                    f"{did_you_mean(str(value), choices)}"
                )
        if max_experiments < 1 or (threads is not None and threads < 1):
            raise InvalidOptionError(
                f"AerEngine: max_experiments={max_experiments}, threads={threads}; each must be at least 1"
            )
        _check_device(qiskit_aer.AerSimulator().available_devices(), method, device)
        self.method, self.device, self.precision = method, device, precision
        self.noise = as_noise(noise)
        self.threads, self.max_experiments = threads, max_experiments
        self._compiler = AnnealCompiler(None if self.noise is None else self.noise.backend)
        self._simulators: dict[str, Any] = {}

    @property
    def exact_method(self) -> str:
        """The Aer method behind `probabilities`."""
        if self.noise is not None:
            return "density_matrix"
        return "statevector" if self.method == "automatic" else self.method

    @property
    def transpilations(self) -> int:
        """How many circuit shapes were transpiled so far."""
        return self._compiler.count

    def info(self) -> dict[str, Any]:
        """What runs, for provenance."""
        import qiskit
        import qiskit_aer

        return {
            "engine": "aer",
            "method": self.method,
            "exact_method": self.exact_method,
            "device": self.device,
            "precision": self.precision,
            "noise": None if self.noise is None else self.noise.description,
            "qiskit": qiskit.__version__,
            "qiskit_aer": qiskit_aer.__version__,
        }

    # ---- problems and layers ----------------------------------------------------------------------------------

    def probabilities(
        self,
        fields: Float[Tensor, "groups queries n"],
        couplings: Float[Tensor, "cgroups 1 n n"] | None,
        layers: Layers,
    ) -> Float[Tensor, "groups queries states"]:
        """Output probability of every state index, float64, without sampling error; readout errors included.

        Raises:
            ProblemTooLargeError: more spins than the method takes.
            InvalidProblemError: angles that are not finite.
            EngineError: Aer answered with fewer or other results than were asked for.
        """
        groups, queries, n = fields.shape
        angles = gate_angles(fields.detach(), None if couplings is None else couplings.detach(), layers)
        return self.probabilities_at(angles).reshape(groups, queries, 2**n).to(fields.device)

    def draw(
        self,
        fields: Float[Tensor, "groups queries n"],
        couplings: Float[Tensor, "cgroups 1 n n"] | None,
        layers: Layers,
        shots: int,
        seed: int | Int[Tensor, "groups queries"],
    ) -> Int[Tensor, "groups queries shots"]:
        """State indices (int64) of `shots` measurements of every problem.

        Args:
            seed: one integer for the whole batch: problem p gets its p-th stream, however calls are batched. Or
                one integer for every problem: then its draws depend on nothing else in the batch. Small problems
                are then drawn from their exact probabilities, larger ones take one call of Aer each.
        """
        groups, queries, _ = fields.shape
        angles = gate_angles(fields.detach(), None if couplings is None else couplings.detach(), layers)
        flat = seed if isinstance(seed, int) else seed.flatten()
        return self.draw_at(angles, shots, flat).reshape(groups, queries, shots).to(fields.device)

    # ---- gate angles ------------------------------------------------------------------------------------------

    def probabilities_at(self, angles: GateAngles) -> Float[Tensor, "problems states"]:
        """`probabilities` for angles given gate by gate."""
        n, method = angles.num_spins, self.exact_method
        if n > MAX_SPINS[method]:
            raise ProblemTooLargeError(
                f"{n} spins were given; exact probabilities by {method!r} take at most {MAX_SPINS[method]}; "
                "give shots= or use get_sampler('gibbs')"
            )
        compiled = self._compiler(angles).with_probabilities()
        values = compiled.values(angles)
        rows = np.empty((angles.num_problems, 2**n))
        for start, stop in self._calls(len(values), values.shape[1], 2**n):
            for i, result in enumerate(self._run(compiled, values[start:stop], method)):
                rows[start + i] = _checked(result.data.probabilities, 2**n, self.precision)
        return torch.from_numpy(self._misread(rows, compiled.qubits))

    def draw_at(
        self, angles: GateAngles, shots: int, seed: int | Int[Tensor, "problems"]
    ) -> Int[Tensor, "problems shots"]:
        """`draw` for angles given gate by gate."""
        if shots < 1:
            raise InvalidOptionError(f"shots={shots}; it must be at least 1")
        if angles.num_spins > MAX_SPINS_SHOTS:
            raise ProblemTooLargeError(
                f"{angles.num_spins} spins were given; shots take at most {MAX_SPINS_SHOTS}; use get_sampler('gibbs')"
            )
        if not isinstance(seed, int) and self._is_small(angles.num_spins):
            return _inverse_cdf(self.probabilities_at(angles), seed, shots)
        compiled = self._compiler(angles)
        values = compiled.values(angles)
        drawn = torch.empty(len(values), shots, dtype=torch.int64)
        own = not isinstance(seed, int)
        for start, stop in self._calls(len(values), values.shape[1], shots, one_by_one=own):
            stream = _aer_seed(seed, start) if isinstance(seed, int) else _aer_seed(int(seed[start]), 0)
            results = self._run(compiled, values[start:stop], self.method, shots=shots, seed=stream)
            for i, result in enumerate(results):
                drawn[start + i] = _checked_shots(result.data.memory, shots)
        return drawn

    # ---- one call of Aer --------------------------------------------------------------------------------------

    def _calls(
        self, problems: int, inputs: int, outputs: int, *, one_by_one: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Ranges of problems that go into one call: bounded in number and in memory."""
        fitting = _BYTES_PER_CALL // (64 * max(inputs, 1) + 64 * outputs)
        size = 1 if one_by_one else max(1, min(self.max_experiments, fitting))
        for start in range(0, problems, size):
            yield start, min(start + size, problems)

    def _is_small(self, num_spins: int) -> bool:
        """Whether exact probabilities cost no more than a call of Aer with shots."""
        size = 2 * num_spins if self.exact_method == "density_matrix" else num_spins
        return size <= _LOG2_SMALL and num_spins <= MAX_SPINS[self.exact_method]

    def _run(
        self, compiled: CompiledAnneal, values: NDArray[np.float64], method: str, *, shots: int = 1, seed: int = 0
    ) -> list[Any]:
        """The experiments of one call, one per row of `values`; raises unless all are there and succeeded."""
        circuit = compiled.circuit
        binds = {p: column.tolist() for p, column in zip(circuit.parameters, values.T, strict=True)}
        measured = any(i.operation.name == "measure" for i in reversed(circuit.data))
        threads = torch.get_num_threads() if self.threads is None else self.threads
        options: dict[str, Any] = {
            "shots": shots,
            "seed_simulator": seed,
            "max_parallel_threads": threads,
            "memory": measured,
        }
        experiments = len(values)
        if binds:
            options["parameter_binds"] = [binds]
            circuits: Any = circuit
        else:
            circuits = [circuit] * experiments
        result = self._simulator(method).run(circuits, **options).result()
        if len(result.results) != experiments or not all(r.success for r in result.results):
            failed = next((r.status for r in result.results if not r.success), result.status)
            raise EngineError(
                f"Qiskit Aer answered {sum(r.success for r in result.results)} of {experiments} experiments: {failed}"
            )
        return result.results

    def _simulator(self, method: str) -> Any:
        if method not in self._simulators:
            from qiskit_aer import AerSimulator

            self._simulators[method] = AerSimulator(
                method=method,
                device=self.device,
                precision=self.precision,
                noise_model=None if self.noise is None else self.noise.model,
                runtime_parameter_bind_enable=True,
            )
        return self._simulators[method]

    def _misread(self, rows: NDArray[np.float64], qubits: tuple[int, ...]) -> NDArray[np.float64]:
        """Readout errors, which Aer applies to measurements alone: one 2 × 2 product per spin."""
        if self.noise is None:
            return rows
        for spin, qubit in enumerate(qubits):
            table = self.noise.confusion(qubit)
            if table is not None:
                # Bit k of the index is axis −1−k of the binary cube.
                split = rows.reshape(len(rows), -1, 2, 2**spin)
                rows = np.einsum("pabc,bd->padc", split, table).reshape(len(rows), -1)
        return rows


def _check_device(available: tuple[str, ...], method: str, device: str) -> None:
    if device == "GPU" and "GPU" not in available:
        raise InvalidOptionError(
            "AerEngine: device='GPU' was asked for, and this Qiskit Aer has none; replace qiskit-aer by "
            "'ising-attn[aer-gpu]' on a machine with a CUDA GPU, or use device='CPU'"
        )
    if method == "tensor_network" and device != "GPU":
        raise InvalidOptionError("AerEngine: method='tensor_network' runs on device='GPU' only")
    if method == "matrix_product_state" and device == "GPU":
        raise NotSupportedError("AerEngine: method='matrix_product_state' runs on device='CPU' only")


def _aer_seed(seed: int, first: int) -> int:
    """A seed for a call that starts at problem `first`: Aer itself adds 2113 for every further experiment."""
    return derive_key(seed) % 2**62 + 2113 * first


def _inverse_cdf(
    probabilities: Float[Tensor, "problems states"], seeds: Int[Tensor, "problems"], shots: int
) -> Int[Tensor, "problems shots"]:
    cumulative = probabilities.cumsum(-1)
    uniform = torch.from_numpy(uniforms(0, seeds, shots)) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, uniform, right=True).clamp_max(cumulative.shape[-1] - 1)


def _checked(probabilities: Any, states: int, precision: str) -> NDArray[np.float64]:
    row = np.asarray(probabilities, dtype=np.float64)
    tolerance = 1e-9 if precision == "double" else 1e-3
    if row.shape != (states,) or not math.isclose(row.sum(), 1.0, abs_tol=tolerance):
        raise EngineError(
            f"Qiskit Aer gave {row.size} probabilities of sum {row.sum():.6g}; expected {states} of sum 1"
        )
    return row


def _checked_shots(memory: list[str], shots: int) -> Tensor:
    if len(memory) != shots:
        raise EngineError(f"Qiskit Aer gave {len(memory)} shots; {shots} were asked for")
    return index_from_hex(memory)
