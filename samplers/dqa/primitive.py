"""`PrimitiveEngine`: the anneal run by any Qiskit `SamplerV2`, so that a real device can be passed in."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from samplers.dqa.angles import GateAngles, gate_angles
from samplers.dqa.circuits import REGISTER
from samplers.dqa.compilation import AnnealCompiler
from samplers.dqa.layers import Layers
from samplers.errors import EngineError, InvalidOptionError, NotSupportedError, ProblemTooLargeError

MAX_SPINS = 62


class PrimitiveEngine:
    """Anneals sent to a sampler primitive: `StatevectorSampler`, Aer's or IBM Runtime's `SamplerV2`, ….

    The batch of problems is one parameter sweep of one transpiled circuit (a "pub"). A primitive gives shots
    only, and its randomness is its own: `seed` of a call is not passed on. A primitive made with an integer seed
    starts every call from it, so that successive calls repeat the same random numbers (`StatevectorSampler` even
    gives them to every problem): seed it by a numpy `Generator` where it takes one, or not at all.

    Args:
        sampler: an object with the `run(pubs, shots=…)` of `qiskit.primitives.BaseSamplerV2`.
        backend: the `BackendV2` to transpile for. None takes the sampler's own where it has one (its attribute
            or method `backend`), and otherwise sends H, RZ, RZZ and RX as they are.
        optimization_level: of Qiskit's transpiler, 0 to 3.
        max_experiments: most problems in one pub.

    Raises:
        InvalidOptionError: `sampler` is not a SamplerV2.
    """

    exact = False

    def __init__(self, sampler: Any, *, backend: Any = None, optimization_level: int = 1, max_experiments: int = 512):
        if not is_sampler_primitive(sampler):
            raise InvalidOptionError(
                f"PrimitiveEngine takes a Qiskit SamplerV2 (BaseSamplerV2), got {type(sampler).__name__}; "
                "for a backend, wrap it: qiskit.primitives.BackendSamplerV2(backend=…)"
            )
        if max_experiments < 1:
            raise InvalidOptionError(f"PrimitiveEngine: max_experiments={max_experiments}; it must be at least 1")
        self.sampler = sampler
        self.backend = _backend_of(sampler) if backend is None else backend
        self.max_experiments = max_experiments
        self._compiler = AnnealCompiler(self.backend, optimization_level=optimization_level)

    @property
    def transpilations(self) -> int:
        """How many circuit shapes were transpiled so far."""
        return self._compiler.count

    @property
    def fixed_seed(self) -> int | None:
        """The integer from which the primitive starts every call, where it has one."""
        options = getattr(self.sampler, "options", None)
        found = (getattr(self.sampler, "seed", None), getattr(options, "seed_simulator", None))
        return next((seed for seed in found if isinstance(seed, int)), None)

    def info(self) -> dict[str, Any]:
        """What runs, for provenance."""
        import qiskit

        kind = type(self.sampler)
        return {
            "engine": "primitive",
            "primitive": f"{kind.__module__}.{kind.__qualname__}",
            "backend": None if self.backend is None else str(self.backend.name),
            "fixed_seed": self.fixed_seed,
            "qiskit": qiskit.__version__,
        }

    def probabilities(
        self,
        fields: Float[Tensor, "groups queries n"],
        couplings: Float[Tensor, "cgroups 1 n n"] | None,
        layers: Layers,
    ) -> Float[Tensor, "groups queries states"]:
        """Refused: a primitive gives shots."""
        raise NotSupportedError("a Qiskit SamplerV2 gives shots and no probabilities; set shots=")

    def draw(
        self,
        fields: Float[Tensor, "groups queries n"],
        couplings: Float[Tensor, "cgroups 1 n n"] | None,
        layers: Layers,
        shots: int,
        seed: int | Int[Tensor, "groups queries"] = 0,
    ) -> Int[Tensor, "groups queries shots"]:
        """State indices (int64) of `shots` measurements of every problem.

        Raises:
            InvalidProblemError: angles that are not finite.
            EngineError: the primitive answered with other numbers of results or shots than were asked for.
        """
        groups, queries, _ = fields.shape
        angles = gate_angles(fields.detach(), None if couplings is None else couplings.detach(), layers)
        return self.draw_at(angles, shots, 0).reshape(groups, queries, shots).to(fields.device)

    def draw_at(
        self, angles: GateAngles, shots: int, seed: int | Int[Tensor, "problems"] = 0
    ) -> Int[Tensor, "problems shots"]:
        """`draw` for angles given gate by gate."""
        if shots < 1:
            raise InvalidOptionError(f"shots={shots}; it must be at least 1")
        if angles.num_spins > MAX_SPINS:
            raise ProblemTooLargeError(f"{angles.num_spins} spins were given; shots take at most {MAX_SPINS}")
        compiled = self._compiler(angles)
        names = tuple(p.name for p in compiled.circuit.parameters)
        values = compiled.values(angles)
        drawn = torch.empty(len(values), shots, dtype=torch.int64)
        for start in range(0, len(values), self.max_experiments):
            part = values[start : start + self.max_experiments]
            # Without parameters a pub has no sweep axis, so each problem is a pub of its own.
            pubs: list[Any] = [(compiled.circuit, {names: part})] if names else [(compiled.circuit,)] * len(part)
            results = list(self.sampler.run(pubs, shots=shots).result())
            if len(results) != len(pubs):
                raise EngineError(f"the primitive answered {len(results)} of {len(pubs)} pubs")
            bits = [np.asarray(result.data[REGISTER].array) for result in results]
            rows = _indices(np.concatenate([b.reshape(-1, *b.shape[-2:]) for b in bits]))
            if rows.shape != (len(part), shots):
                raise EngineError(
                    f"the primitive answered {rows.shape[0]} problems of {rows.shape[1]} shots; "
                    f"{len(part)} of {shots} were asked for"
                )
            drawn[start : start + len(part)] = torch.from_numpy(rows)
        return drawn


def is_sampler_primitive(value: Any) -> bool:
    """Whether `value` is a Qiskit SamplerV2."""
    from qiskit.primitives import BaseSamplerV2

    return isinstance(value, BaseSamplerV2)


def as_engine(value: Any) -> Any:
    """What may be passed as an engine object: a SamplerV2 becomes a `PrimitiveEngine`, an engine stays itself."""
    return PrimitiveEngine(value) if not hasattr(value, "draw") and is_sampler_primitive(value) else value


def _backend_of(sampler: Any) -> Any:
    """The backend a primitive names as its own, if that is a `BackendV2` with a coupling map or a gate set."""
    from qiskit.providers import BackendV2

    found = getattr(sampler, "backend", None)
    if callable(found) and not isinstance(found, BackendV2):
        found = found()
    return found if isinstance(found, BackendV2) else None


def _indices(packed: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Qiskit's `BitArray` bytes (problems, shots, bytes), highest byte first, as numbers: bit k is clbit k."""
    index = np.zeros(packed.shape[:-1], dtype=np.int64)
    for byte in range(packed.shape[-1]):
        index = (index << 8) | packed[..., byte].astype(np.int64)
    return index
