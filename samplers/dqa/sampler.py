"""`DQASampler`: marginals and draws from a simulated diabatic quantum anneal."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from samplers.base import Capabilities, Gradient, Sampler
from samplers.dqa import calibration
from samplers.dqa.laws import in_all_states, pair_moments
from samplers.dqa.layers import Layers
from samplers.dqa.parameter_shift import shifted_magnetization
from samplers.dqa.primitive import as_engine
from samplers.dqa.reweighting import reweighted
from samplers.dqa.scaling import ScaleDependence
from samplers.dqa.schedules import AngleSchedule, AnnealSchedule, Schedule, as_schedule
from samplers.dqa.statevector import MAX_SPINS, StateVectorEngine
from samplers.dqa.step_error import largest_phases, splitting_error
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError, ProblemTooLargeError
from samplers.estimators import straight_through
from samplers.options import option
from samplers.problem import IsingProblem
from samplers.samples import Samples
from samplers.states import spin_table, spins_of_index
from samplers.streams import stream_keys, uniforms_like
from samplers.supports import SupportSplit, graph_of

# A splitting error of this size can move a marginal by as much as the anneal's own bias.
_COARSE = 0.5


class CoarseScheduleWarning(UserWarning):
    """The Trotter steps of an anneal are too long for the problem's fields and couplings."""


class DQASampler(Sampler):
    """Quantum anneal from the uniform superposition, Trotterised into layers and simulated.

    ⟨s⟩ is that of the circuit's output, which is only approximately Boltzmann: to first order in the energy its
    temperature is the schedule's (`samplers.dqa.calibration`), beyond it is biased, the more so the larger
    β|h| and β|J|. β of the problem multiplies the phase angles. Masked problems run at their own size.
    By default the layers are learned ones (`samplers.dqa.learning`), fitted to h ~ N(0, 2²), J ~ N(0, 0.5²).

    The gradient is that of the circuit ("adjoint", state vector only; "parameter-shift", other engines, from
    shots as well, at two circuits per gate and problem), the J = 0 derivative
    ("straight-through", Kim and Park 2026), or the Boltzmann rule applied to the circuit's law ("covariance",
    a surrogate: the law is not Boltzmann). "auto" is adjoint on the state vector with `shots=None`, else
    straight-through. With `shots`, adjoint differentiates the circuit while values carry shot noise.

    correction="importance" weighs draws (`shots`, or `num_reads`) by exp(−βE) over the simulated law: averages tend
    to the Boltzmann law's, and covariance is then its gradient (`samplers.dqa.reweighting`).

    Cost: layers · n · 2^n per problem. Not exact. Errors: `InvalidOptionError` for options,
    `ProblemTooLargeError` past 20 spins or the memory limit.
    """

    name = "dqa"
    splits_masks = True
    engine: Any = option(
        default="statevector",
        help="what runs the layers: a name, a Qiskit SamplerV2, or an object with the methods of AerEngine",
        choices=("statevector", "aer"),
    )
    schedule: Any = option(
        default=None,
        help="name, path of a JSON file, or object; default: learned-strong if it has that many layers, else ramp",
    )
    num_layers: int | None = option(
        default=None,
        help="layers: Trotter steps of an anneal, depth of a learned schedule; default: its own",
        minimum=1,
    )
    calibrate: bool | None = option(
        default=None, help="divide fields and couplings by their β_k; default: as the schedule"
    )
    shots: int | None = option(default=None, help="measurements per problem; default: exact probabilities", minimum=1)
    num_reads: int = option(default=1000, help="draws of `sample` and `ground_state` when shots is not set", minimum=1)
    gradient: str = option(
        default="auto",
        help="how marginals are differentiated",
        choices=("auto", "adjoint", "parameter-shift", "straight-through", "covariance", "none"),
    )
    correction: str = option(
        default="none",
        help="importance: weigh draws by exp(−βE)/p, p being the simulated law, so that averages become Boltzmann's",
        choices=("none", "importance"),
    )
    precision: str = option(
        default="auto", help="of the simulation; auto follows the problem's dtype", choices=("auto", "single", "double")
    )
    memory_limit: float = option(default=1.0, help="GiB that simulated states may take at once", minimum=0.0)
    device: str = option(
        default="CPU", help="of the engine 'aer'; the state vector follows the problem", choices=("CPU", "GPU")
    )
    method: str = option(default="automatic", help="simulation method of the engine 'aer'")
    noise: Any = option(default=None, help="noise of the engine 'aer': what samplers.dqa.noise.as_noise takes")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._schedule = as_schedule(self.schedule, self.num_layers)
        self._own_state = isinstance(self.engine, str) and self.engine == "statevector"
        self._outer_engine: Any = None if isinstance(self.engine, str) else as_engine(self.engine)
        self._check_engine()
        self._schedule.layers(self.num_layers)
        self._warned = False
        self._base_layers: Layers | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            exact=False,
            boltzmann=self.correction == "importance",
            gradient=self._resolved_gradient(),
            can_ground_state=True,
            max_spins=MAX_SPINS if self._own_state else None,
            devices=("cpu", "cuda") if self._own_state else ("cpu",),
        )

    @property
    def description(self) -> str:
        depth = self.layers().depth
        return f"dqa ({self._schedule.name}, {depth} {'layer' if depth == 1 else 'layers'})"

    def layers(self, beta: float = 1.0) -> Layers:
        """The layers that run for problems at β: the schedule, calibrated if so asked, phases times β.

        Where the schedule depends on a problem's scale they are those at its reference; see `layers_for`.
        """
        layers = self._base_layers
        if layers is None:
            layers = self._schedule.layers(self.num_layers)
            if self._schedule.calibrate if self.calibrate is None else self.calibrate:
                layers = calibration.calibrated(layers)
            # Angles that are trained change between calls.
            trained = any(t.requires_grad for t in (layers.fields, layers.couplings, layers.mixer))
            self._base_layers = None if trained else layers
        return Layers(layers.fields * beta, layers.couplings * beta, layers.mixer)

    @property
    def follows_scale(self) -> bool:
        """Whether the angles depend on the problem: `layers_for` then differs from `layers`."""
        return _scale_of(self._schedule) is not None

    def layers_for(self, problem: IsingProblem) -> Layers:
        """The layers that run for one problem, fields (n,) without mask: what its circuit is built from.

        Raises:
            InvalidProblemError: a batch of problems, or a mask.
        """
        if problem.batch_shape or problem.allowed is not None:
            raise InvalidProblemError(
                f"layers_for takes one problem without a mask; this has the batch shape {problem.batch_shape}"
                + ("" if problem.allowed is None else " and a mask")
            )
        scale = _scale_of(self._schedule)
        if scale is None:
            return self.layers(problem.beta)
        ((_, layers),) = scale.pieces(problem.grouped().problem, self.layers())
        factor = scale.field_factor(problem.fields, problem.beta).squeeze(-1)
        return Layers(layers.fields * factor, layers.couplings, layers.mixer)

    def probabilities(self, problem: IsingProblem) -> Float[Tensor, "*batch states"]:
        """The law of the circuit's output over all 2^n states, float64; forbidden spins are −1. Differentiable
        where the gradient is "adjoint".

        Raises:
            NotSupportedError: an engine that only has shots.
            ProblemTooLargeError: too many spins for a law over all of them, allowed or not.
        """
        self._check(problem)
        if problem.num_spins > MAX_SPINS:
            raise ProblemTooLargeError(
                f"a law over {problem.num_spins} spins has 2^{problem.num_spins} states; at most {MAX_SPINS} spins; "
                "ask for magnetizations or draws, or leave out the spins that are not allowed"
            )
        states = 2**problem.num_spins
        if problem.num_problems == 0:
            return problem.fields.new_zeros(*problem.batch_shape, states, dtype=torch.float64)
        layers, split = self._prepared(problem), SupportSplit(problem)
        if not split.parts:
            law = problem.fields.new_zeros(*problem.batch_shape, states, dtype=torch.float64)
            law[..., -1] = 1.0
            return law
        laws = self._each(split, layers, self._law)
        rows = [in_all_states(part, law, problem.num_spins) for part, law in zip(split.parts, laws, strict=True)]
        nothing = torch.zeros(states, dtype=torch.float64, device=problem.device)
        nothing[-1] = 1.0
        law = split.merge(rows, fill=0.0, spin_axis=False)
        return torch.where(law.sum(-1, keepdim=True) > 0, law, nothing)

    # ---- the contract -----------------------------------------------------------------------------------------

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        if self.correction == "importance":
            return super()._magnetization(problem, key)
        layers, gradient = self._prepared(problem), self._resolved_gradient()
        split = SupportSplit(problem)
        if not split.parts:
            return graph_of(problem) - torch.ones_like(problem.fields)
        if gradient == "covariance":
            parts = self._each(split, layers, self._covariance_part, key)
        elif gradient == "adjoint":
            parts = self._each(split, layers, self._adjoint_part, key)
        elif gradient == "parameter-shift":
            parts = self._each(split, layers, self._shifted_part, key)
        else:
            with torch.no_grad():
                parts = self._each(split, layers, self._value_part, key)
        values = split.merge([part.to(problem.dtype) for part in parts], fill=-1.0)
        return straight_through(problem, values) if gradient == "straight-through" else values

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        layers = self._prepared(problem)
        split = SupportSplit(problem)
        ones = problem.fields.new_ones(*problem.batch_shape, num_reads)
        if not split.parts:
            spins = torch.full((*ones.shape, problem.num_spins), -1, dtype=torch.int8, device=problem.device)
        else:
            parts = self._each(split, layers, self._draws, num_reads, key)
            spins = split.merge(parts, fill=-1)
        draws = Samples(spins, ones, problem.energy(spins), dict(self.last_info))
        return reweighted(problem, draws, self.probabilities(problem)) if self.correction == "importance" else draws

    def _correlations(self, problem: IsingProblem, key: int) -> Tensor:
        if self.shots is not None or self.correction == "importance":
            return super()._correlations(problem, key)
        layers, split = self._prepared(problem), SupportSplit(problem)
        full = problem.fields.new_ones(*problem.batch_shape, problem.num_spins, problem.num_spins)
        if not split.parts:
            return full
        laws = self._each(split, layers, self._law)
        rows = [pair_moments(part, law, problem) for part, law in zip(split.parts, laws, strict=True)]
        return split.merge(rows, fill=1.0, spin_axis=False)

    def _default_reads(self) -> int:
        return self.num_reads if self.shots is None else self.shots

    # ---- parts without masks: fields (g, q, k) ------------------------------------------------------------------

    def _each(self, split: SupportSplit, layers: Layers, function: Callable[..., Tensor], *rest: Any) -> list[Tensor]:
        """function(problem, layers, *rest) for every part; group by group where these have circuits of their own."""
        scale = _scale_of(self._schedule)
        if scale is None:
            return [function(part.problem, layers, *rest) for part in split.parts]
        base = self.layers()
        pieces = ([function(*piece, *rest) for piece in scale.pieces(part.problem, base)] for part in split.parts)
        return [rows[0] if len(rows) == 1 else torch.cat(rows) for rows in pieces]

    def _fields(self, part: IsingProblem) -> Tensor:
        """The fields that enter the circuit."""
        scale = _scale_of(self._schedule)
        return part.fields if scale is None else part.fields * scale.field_factor(part.fields, part.beta)

    def _adjoint_part(self, part: IsingProblem, layers: Layers, key: int) -> Tensor:
        exact = self._state_vector(part).magnetization(self._fields(part), part._couplings, layers)
        if self.shots is None:
            return exact
        with torch.no_grad():
            noisy = self._value_part(part, layers, key)
        return noisy + (exact - exact.detach())

    def _shifted_part(self, part: IsingProblem, layers: Layers, key: int) -> Tensor:
        seeds = _problem_seeds(part, key)
        fields, couplings = self._fields(part), part._couplings
        return shifted_magnetization(self._engine(), fields, couplings, layers, shots=self.shots, seed=seeds)

    def _value_part(self, part: IsingProblem, layers: Layers, key: int) -> Tensor:
        if self.shots is not None:
            return self._draws(part, layers, self.shots, key).double().mean(-2)
        if self._own_state:
            return self._state_vector(part).magnetization(self._fields(part), part._couplings, layers)
        return self._law(part, layers) @ spin_table(part.num_spins, device=part.device)

    def _covariance_part(self, part: IsingProblem, layers: Layers, key: int) -> Tensor:
        """Σ w s with w ∝ p e^{−β(E − E detached)}: the value is that of p, the gradient β Cov under p."""
        table = spin_table(part.num_spins, dtype=torch.float64, device=part.device)
        score = -part.beta * part.to(torch.float64).energy(table.expand(*part.batch_shape, *table.shape))
        with torch.no_grad():
            law = self._law(part, layers) if self.shots is None else self._shares(part, layers, self.shots, key)
        if self.shots is not None:
            # R − 1 in the denominator makes the covariance of R draws unbiased.
            score = score * (self.shots / (self.shots - 1))
        tilted = law * torch.exp(score - score.detach())
        return (tilted / tilted.sum(-1, keepdim=True)) @ table

    def _shares(self, part: IsingProblem, layers: Layers, shots: int, key: int) -> Tensor:
        """How often each state was drawn, divided by the shots, (g, q, 2^k)."""
        index = self._indices(part, layers, shots, key)
        counts = torch.zeros(*part.batch_shape, 2**part.num_spins, dtype=torch.float64, device=part.device)
        return counts.scatter_add_(-1, index, torch.ones_like(index, dtype=torch.float64)) / shots

    def _draws(self, part: IsingProblem, layers: Layers, num_reads: int, key: int) -> Tensor:
        """Spins (g, q, reads, k) int8."""
        return spins_of_index(self._indices(part, layers, num_reads, key), part.num_spins)

    @torch.no_grad()
    def _indices(self, part: IsingProblem, layers: Layers, num_reads: int, key: int) -> Tensor:
        """State indices (g, q, reads): measured by an outer engine that is given shots, else by inverse CDF."""
        if not self._own_state and (self.shots is not None or not self._engine().exact):
            seeds = _problem_seeds(part, key)
            return self._engine().draw(self._fields(part), part._couplings, layers, num_reads, seeds).to(part.device)
        cumulative = self._law(part, layers).cumsum(-1)
        uniform = uniforms_like(cumulative, key, part.streams, num_reads) * cumulative[..., -1:]
        return torch.searchsorted(cumulative, uniform, right=True).clamp_max(cumulative.shape[-1] - 1)

    def _law(self, part: IsingProblem, layers: Layers) -> Tensor:
        if self._own_state:
            return self._state_vector(part).probabilities(self._fields(part), part._couplings, layers)
        if not self._engine().exact:
            raise NotSupportedError(f"{self._spoken()}: this engine measures and has no probabilities; set shots")
        return self._engine().probabilities(self._fields(part), part._couplings, layers)

    def _state_vector(self, part: IsingProblem) -> StateVectorEngine:
        precision = self.precision
        if precision == "auto":
            precision = "double" if part.dtype == torch.float64 else "single"
        return StateVectorEngine(precision, self.memory_limit)

    def _engine(self) -> Any:
        if self._outer_engine is None:
            from samplers.dqa.aer import AerEngine

            precision = "double" if self.precision == "auto" else self.precision
            self._outer_engine = AerEngine(
                method=self.method, device=self.device, precision=precision, noise=self.noise
            )
        return self._outer_engine

    # ---- before a run --------------------------------------------------------------------------------------------

    def _check_engine(self) -> None:
        outer = self._outer_engine
        if outer is not None and not callable(getattr(outer, "draw", None)):
            raise InvalidOptionError(
                f"engine is of type {type(outer).__name__}; it must be 'statevector', 'aer', a Qiskit SamplerV2 or an "
                "object with `draw` (and `probabilities`) like samplers.dqa.aer.AerEngine"
            )
        if self.gradient == "adjoint" and not self._own_state:
            raise InvalidOptionError(
                "gradient='adjoint' differentiates the state vector, which only engine='statevector' has; "
                "use gradient='parameter-shift' or 'straight-through' with this engine"
            )
        if self.gradient == "parameter-shift" and self._own_state:
            raise InvalidOptionError(
                "gradient='parameter-shift' needs an engine that runs circuits gate by gate; use engine='aer', or "
                "gradient='adjoint', which is the same gradient on the state vector"
            )
        if self.gradient == "covariance" and self.shots is not None and self.shots < 2:
            raise InvalidOptionError(f"a covariance gradient needs at least 2 shots, got shots={self.shots}")
        if self.correction == "importance" and self.gradient in ("adjoint", "parameter-shift"):
            raise InvalidOptionError(
                f"gradient={self.gradient!r} is that of the anneal and correction='importance' gives averages of the "
                "Boltzmann law; use gradient='covariance'"
            )
        if self.correction == "importance" and outer is not None and not outer.exact:
            raise InvalidOptionError("correction='importance' needs an engine whose output probabilities are known")
        if outer is not None and not outer.exact and self.shots is None:
            raise InvalidOptionError("this engine measures and has no exact probabilities; give shots=, e.g. 1000")

    def _resolved_gradient(self) -> Gradient:
        if self.gradient == "auto" and self.correction == "importance":
            return "covariance"
        if self.gradient == "auto":
            return "adjoint" if self._own_state and self.shots is None else "straight-through"
        return self.gradient  # type: ignore[return-value]

    def _prepared(self, problem: IsingProblem) -> Layers:
        layers = self.layers(problem.beta)
        beta_fields, beta_couplings = calibration.layer_betas(layers)
        self.last_info |= {
            "engine": self.engine if isinstance(self.engine, str) else type(self.engine).__name__,
            "engine_info": {} if self._own_state else getattr(self._engine(), "info", dict)(),
            "schedule": self._schedule.name,
            "num_layers": layers.depth,
            "beta_fields_first_order": float(beta_fields.detach()),
            "beta_couplings_first_order": float(beta_couplings.detach()),
            "largest_phase": float(largest_phases(problem, layers).max()),
        }
        if isinstance(self._schedule, AnnealSchedule):
            error = splitting_error(problem, layers, self._schedule.order)
            self.last_info["step_error"] = error
            if error > _COARSE and not self._warned:
                self._warned = True
                warnings.warn(
                    f"the {layers.depth} steps of the schedule {self._schedule.name!r} are coarse for this problem: "
                    f"Trotter error up to {error:.2g} per spin (above {_COARSE}); raise num_layers, or use a learned "
                    "schedule, which is not a discretised anneal (warned once per sampler)",
                    CoarseScheduleWarning,
                    stacklevel=5,
                )
        return layers


def _problem_seeds(part: IsingProblem, key: int) -> Tensor:
    """One int64 seed for each problem, for engines that draw by themselves."""
    return torch.from_numpy(stream_keys(key, part.streams).astype(np.int64))


def _scale_of(schedule: Schedule) -> ScaleDependence | None:
    return schedule.scale if isinstance(schedule, AngleSchedule) else None
