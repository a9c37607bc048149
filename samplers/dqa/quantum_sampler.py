"""`QuantumMCMCSampler`: Boltzmann draws by quantum-enhanced Markov chains, simulated."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from samplers.base import Capabilities, Sampler
from samplers.dqa.primitive import as_engine
from samplers.dqa.quantum_mcmc import MAX_SPINS, QuantumProposal, quantum_chains
from samplers.errors import InvalidOptionError
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.states import spins_of_index
from samplers.supports import SupportPart, SupportSplit


class QuantumMCMCSampler(Sampler):
    """Every read is the end of a chain of its own, after `num_steps` proposals from a draw of the fields' law (J = 0).

    Proposals are quantum evolutions of the chain's state, accepted by Metropolis' rule (Layden et al. 2023; see
    `samplers.dqa.quantum_mcmc`). Reads are independent; their law tends to the Boltzmann law at β as steps grow, so it
    is not exact, and strong problems need more steps: look at `last_info["acceptance"]`. Masked problems run at
    their own size. The gradient is the covariance of the reads.

    Cost: min(reads, 2ⁿ) · steps · 3 to 25 layers · n · 2ⁿ, for n ≤ 16. This simulates a quantum computer: to get
    Boltzmann draws fast, use 'exact' or 'gibbs'.
    """

    name: ClassVar[str] = "quantum-mcmc"
    splits_masks: ClassVar[bool] = True

    num_reads: int = option(default=256, help="chains per problem", minimum=1)
    num_steps: int = option(default=50, help="proposals of each chain", minimum=0)
    gamma_low: float = option(
        default=0.25, help="least share γ of the mixer in the Hamiltonian", minimum=0.0, maximum=1.0
    )
    gamma_high: float = option(default=0.6, help="largest share γ of the mixer", minimum=0.0, maximum=1.0)
    time_low: float = option(default=2.0, help="shortest evolution", minimum=0.0)
    time_high: float = option(default=20.0, help="longest evolution", minimum=0.0)
    trotter_step: float = option(
        default=0.8, help="longest Trotter step; a coarse one costs acceptance only", minimum=0.01
    )
    engine: Any = option(
        default="statevector",
        help="what runs the proposals: a name, a Qiskit SamplerV2, or an object with the methods of AerEngine",
        choices=("statevector", "aer"),
    )
    memory_limit: float = option(default=1.0, help="GiB that simulated states may take at once", minimum=0.0)
    gradient: Literal["covariance", "straight-through", "none"] = option(
        default="covariance",
        help="how magnetizations are differentiated",
        choices=("covariance", "straight-through", "none"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outer_engine: Any = None if isinstance(self.engine, str) else as_engine(self.engine)
        if self._outer_engine is not None and not callable(getattr(self._outer_engine, "draw_at", None)):
            raise InvalidOptionError(
                f"engine is of type {type(self.engine).__name__}; it must be 'statevector', 'aer', a Qiskit SamplerV2 "
                "or an object with `draw_at` like samplers.dqa.aer.AerEngine"
            )
        self._proposal = QuantumProposal(
            (self.gamma_low, self.gamma_high), (self.time_low, self.time_high), self.trotter_step
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            exact=False,
            boltzmann=True,
            gradient=self.gradient,
            can_ground_state=True,
            max_spins=MAX_SPINS,
            devices=("cpu", "cuda"),
        )

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        split = SupportSplit(problem)
        weights = problem.fields.new_ones(*problem.batch_shape, num_reads)
        if split.parts:
            spins = split.merge([self._part(part, num_reads, key) for part in split.parts], fill=-1)
        else:
            shape = (*problem.batch_shape, num_reads, problem.num_spins)
            spins = torch.full(shape, -1, dtype=torch.int8, device=problem.device)
        return Samples(spins, weights, problem.energy(spins), dict(self.last_info))

    def _part(self, part: SupportPart, num_reads: int, key: int) -> Tensor:
        """Spins (g, q, reads, k) of the queries that share a support."""
        run = quantum_chains(
            part.problem,
            num_chains=num_reads,
            num_steps=self.num_steps,
            key=key,
            proposal=self._proposal,
            memory_limit=self.memory_limit,
            engine=self._engine(),
        )
        # Moves that were refused are what slows a chain down: the worst problem says whether steps suffice.
        lowest = float(torch.nan_to_num(run.acceptance * run.moved, nan=0.0).min())
        self.last_info["acceptance"] = min(lowest, self.last_info.get("acceptance", 1.0))
        self.last_info["layers"] = max(run.layers, self.last_info.get("layers", 0))
        spins = spins_of_index(run.index, part.problem.num_spins)
        return spins.reshape(*part.problem.batch_shape, num_reads, part.problem.num_spins)

    def _engine(self) -> Any:
        """The engine of circuits, or None for the state vector."""
        if self._outer_engine is None and self.engine == "aer":
            from samplers.dqa.aer import AerEngine

            self._outer_engine = AerEngine()
        return self._outer_engine
