"""A connection to a D-Wave machine: configuration, limits, and what a run would cost. Nothing is sampled here."""

from dataclasses import dataclass
from typing import Any

from samplers.errors import InvalidOptionError, IsingAttnError, MissingDependencyError

# Of an Advantage system, in microseconds, where a machine does not publish its own timing.
_PROGRAMMING, _READOUT, _DELAY = 15_000.0, 100.0, 20.5


class MachineNotConfiguredError(IsingAttnError, RuntimeError):
    """No D-Wave machine can be reached with the present configuration."""


@dataclass(frozen=True)
class DryRun:
    """What a call of the sampler would send.

    Args:
        problems: Ising problems in the batch.
        calls: submissions to the machine, calibration included.
        problems_per_call: tiles used at once.
        reads: reads per problem.
        qubits: of the largest submission.
        qpu_seconds: estimated access time of all submissions.
        machine_estimate: whether the machine's own timing data were used, instead of typical numbers.
    """

    machine: str
    problems: int
    calls: int
    problems_per_call: int
    reads: int
    qubits: int
    qpu_seconds: float
    machine_estimate: bool

    def __str__(self) -> str:
        source = "the machine's timing data" if self.machine_estimate else "typical timing of such machines"
        return (
            f"{self.machine}: {self.problems} problems of {self.reads} reads in {self.calls} calls "
            f"(up to {self.problems_per_call} problems, {self.qubits} qubits at once), "
            f"about {self.qpu_seconds:.3g} s of QPU time by {source}; nothing was sent"
        )


def connect(solver: str | None, profile: str | None) -> Any:
    """A `dwave.system.DWaveSampler` of the configured account.

    Raises:
        MissingDependencyError: dwave-system is not installed.
        MachineNotConfiguredError: no token, or no such machine; nothing is sent without a token.
    """
    try:
        from dwave.system import DWaveSampler
    except ImportError as error:
        raise MissingDependencyError("dwave-system", "qpu", "the sampler 'dwave'") from error
    if not has_token(profile):
        raise MachineNotConfiguredError(
            "no D-Wave API token is configured; run `dwave config create`, or set the environment variable "
            "DWAVE_API_TOKEN (and DWAVE_API_SOLVER to choose a machine)"
        )
    wanted = {} if solver is None else {"solver": solver}
    try:
        return DWaveSampler(profile=profile, **wanted)
    except Exception as error:
        raise MachineNotConfiguredError(
            f"no D-Wave machine answers ({type(error).__name__}: {error}); check the token with `dwave ping`"
        ) from error


def has_token(profile: str | None = None) -> bool:
    """Whether a token is configured, right or wrong; nothing is sent.

    Raises:
        MissingDependencyError: dwave-cloud-client is not installed.
        MachineNotConfiguredError: a configuration that cannot be read.
    """
    try:
        from dwave.cloud.config import load_config
    except ImportError as error:
        raise MissingDependencyError("dwave-system", "qpu", "the sampler 'dwave'") from error
    try:
        return bool(load_config(profile=profile).get("token"))
    except (ValueError, OSError) as error:
        raise MachineNotConfiguredError(f"the D-Wave configuration cannot be read: {error}") from error


def machine_name(machine: Any) -> str:
    return str(machine.properties.get("chip_id", type(machine).__name__))


def check_timing(machine: Any, annealing_time: float | None, fast_anneal: bool) -> None:
    """Refuse an anneal that the machine does not offer, before anything is sent."""
    if fast_anneal and "fast_anneal" not in machine.parameters:
        raise InvalidOptionError(f"{machine_name(machine)} has no fast anneal; leave fast_anneal off")
    limits = machine.properties.get("fast_anneal_time_range" if fast_anneal else "annealing_time_range")
    if annealing_time is None or limits is None:
        return
    if not limits[0] <= annealing_time <= limits[1]:
        raise InvalidOptionError(
            f"annealing_time is {annealing_time:g} µs; {machine_name(machine)} takes {limits[0]:g} to {limits[1]:g}"
            + (" for a fast anneal" if fast_anneal else "; shorter ones need fast_anneal=True")
        )


def anneal_microseconds(machine: Any, keywords: dict[str, Any]) -> float:
    if keywords.get("anneal_schedule"):
        return float(keywords["anneal_schedule"][-1][0])
    return float(keywords.get("annealing_time") or machine.properties.get("default_annealing_time", 20.0))


def reads_per_call(machine: Any, keywords: dict[str, Any]) -> int:
    """The most reads of one submission: the machine's own limit, and its limit on run time."""
    most = int(machine.properties.get("num_reads_range", [1, 10_000])[1])
    longest = machine.properties.get("problem_run_duration_range")
    if longest:
        most = min(most, int(longest[1] / (anneal_microseconds(machine, keywords) + _READOUT + _DELAY)))
    return max(1, most)


def access_seconds(machine: Any, qubits: int, reads: int, keywords: dict[str, Any]) -> tuple[float, bool]:
    """Estimated QPU access time of one submission, and whether it is the machine's own estimate."""
    names = ("annealing_time", "anneal_schedule", "programming_thermalization", "readout_thermalization")
    timing = {name: keywords[name] for name in names if keywords.get(name) is not None}
    estimate = getattr(getattr(machine, "solver", None), "estimate_qpu_access_time", None)
    if estimate is not None and machine.properties.get("problem_timing_data"):
        return float(estimate(num_qubits=qubits, num_reads=reads, **timing)) * 1e-6, True
    properties = machine.properties
    settle = timing.get("programming_thermalization", properties.get("default_programming_thermalization", 1000.0))
    pause = timing.get("readout_thermalization", properties.get("default_readout_thermalization", 0.0))
    per_read = anneal_microseconds(machine, keywords) + _READOUT + _DELAY + pause
    return (_PROGRAMMING + settle + reads * per_read) * 1e-6, False
