"""Samplers on a GPU against their CPU twins: values, gradients and speed, in one table and under three minutes.

    python benchmarks/device_check.py                 # on CUDA; needs torch and numpy, nothing else
    python benchmarks/device_check.py --device=cpu    # the same checks without a GPU, to try the script

Values and gradients are held against plain enumeration in float64 on the CPU (gibbs: within its own noise; dqa: against
the plain torch engine in double precision). Gradients are those in h and J. Times are medians; the ratio is CPU over
device for the same call. Where numba is missing the CPU side is torch as well, and says so.
"""

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def _stand_in_for_jaxtyping() -> None:
    """Annotations are all that the samplers take from jaxtyping; a bare GPU machine may lack it."""

    class Shaped:
        def __class_getitem__(cls, item: tuple) -> type:
            return item[0]

    module = types.ModuleType("jaxtyping")
    for name in ("Bool", "Complex", "Float", "Int", "Int8", "Integer", "Num", "Real", "Shaped", "UInt64"):
        setattr(module, name, Shaped)
    sys.modules["jaxtyping"] = module


if importlib.util.find_spec("jaxtyping") is None:
    _stand_in_for_jaxtyping()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from samplers import IsingProblem, Sampler, get_sampler  # noqa: E402
from samplers.compiled import has_kernels  # noqa: E402
from samplers.dqa.sampler import DQASampler  # noqa: E402
from samplers.dqa.statevector import StateVectorEngine  # noqa: E402
from samplers.enumeration import moments  # noqa: E402

Law = Callable[[IsingProblem], Tensor]


def causal_problem(batch: int, n: int, dtype: torch.dtype, device: str, width: int | None = None) -> IsingProblem:
    """The problems of a causal layer: fields (batch, n, n), one J, leaves that want gradients."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(batch, n, n, generator=generator, dtype=torch.float64)
    a = 0.3 * torch.randn(n, n, generator=generator, dtype=torch.float64).tril(-1)
    a = a if width is None else a.triu(-width)
    mask = torch.ones(n, n, dtype=torch.bool, device=device).tril()
    leaves = [t.to(device, dtype).requires_grad_() for t in (h, a + a.mT)]
    return IsingProblem(leaves[0], leaves[1], allowed=mask)


def forward_backward(magnetization: Law, problem: IsingProblem, width: int | None = None) -> list[Tensor]:
    """⟨s⟩ and the gradients of a fixed combination in h and J (within `width`), on the CPU in float64."""
    m = magnetization(problem)
    if problem.allowed is not None:
        m = torch.where(problem.allowed, m, -1.0)
    weights = torch.linspace(-1, 1, m.numel(), dtype=m.dtype, device=m.device).reshape(m.shape)
    leaves = [problem.fields, problem.couplings]
    by_field, by_coupling = torch.autograd.grad((m * weights).sum(), leaves)
    if width is not None:
        by_coupling = by_coupling.tril(width).triu(-width)
    return [t.detach().double().cpu() for t in (m, by_field, by_coupling)]


def seconds_of(call: Callable[[], object], device: str, *, repeats: int = 5, budget: float = 4.0) -> float:
    """Median of `repeats` calls after one that warms up; of fewer where they would take more than `budget` seconds."""

    def once() -> float:
        _wait(device)
        started = time.perf_counter()
        call()
        _wait(device)
        return time.perf_counter() - started

    first = once()
    if first > budget:
        return first
    times = [once()]
    while len(times) < repeats and sum(times) < budget:
        times.append(once())
    return statistics.median(times)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def boltzmann(problem: IsingProblem) -> Tensor:
    return moments(problem)[0]


def anneal_twin(sampler: DQASampler) -> Law:
    """⟨s⟩ of the anneal's layers by the plain torch engine in double precision, prefix by prefix."""
    engine, layers = StateVectorEngine(precision="double", compiled=False), sampler.layers(1.0)

    def law(problem: IsingProblem) -> Tensor:
        n = problem.num_spins
        rows = []
        for size in range(1, n + 1):
            own, couplings = problem.fields[None, :, size - 1, :size], problem.couplings[None, None, :size, :size]
            rows.append(torch.nn.functional.pad(engine.magnetization(own, couplings, layers)[0], (0, n - size)))
        return torch.stack(rows, 1)

    return law


@dataclass(frozen=True)
class Case:
    """One sampler at one size.

    Args:
        checked: the sampler whose values and gradients are held against the twin.
        timed: the sampler that is timed, on the device and on the CPU.
        width: of the couplings.
        allowed: largest difference of a value, and of a gradient over the largest of its kind (at least 1).
    """

    label: str
    checked: Sampler
    timed: Sampler
    num_spins: int
    allowed: float
    width: int | None = None


def cases() -> list[Case]:
    exact, band, anneal = get_sampler("exact"), get_sampler("band", width=4), get_sampler("dqa", num_layers=8)
    # 32 768 correlated reads have a standard error of about 0.01.
    many = get_sampler("gibbs", num_chains=512, num_sweeps=64, burn_in=32)
    few = get_sampler("gibbs", num_chains=64, num_sweeps=32, burn_in=16)
    return [
        Case("exact, T=8", exact, exact, 8, 5e-5),
        Case("exact, T=12", exact, exact, 12, 5e-5),
        Case("band, T=12, w=4", band, band, 12, 5e-5, 4),
        Case("gibbs, T=8", many, few, 8, 0.06),
        Case("dqa, T=8", anneal, anneal, 8, 5e-5),
        Case("dqa, T=12", anneal, anneal, 12, 5e-5),
    ]


def checked(case: Case, dtype: torch.dtype, device: str) -> tuple[float, float]:
    """Largest difference from the twin of ⟨s⟩, and of its gradients relative to theirs."""
    law = anneal_twin(case.checked) if isinstance(case.checked, DQASampler) else boltzmann
    reference = forward_backward(law, causal_problem(4, case.num_spins, torch.float64, "cpu", case.width), case.width)
    small = causal_problem(4, case.num_spins, dtype, device, case.width)
    found = forward_backward(partial(case.checked.magnetization, seed=0), small, case.width)
    value, *gradients = (
        float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in zip(found, reference, strict=True)
    )
    return value, max(gradients)


def timed(case: Case, dtype: torch.dtype, device: str, batch: int) -> float:
    """Seconds of a forward and backward pass over a causal layer of `batch` sequences."""
    problem = causal_problem(batch, case.num_spins, dtype, device, case.width)
    call = partial(forward_backward, partial(case.timed.magnetization, seed=0), problem)
    return seconds_of(call, device)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=128, help="sequences of the timed layers")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        sys.stderr.write("no CUDA device is available to torch; --device=cpu tries the script without one\n")
        return 2
    started, failures = time.perf_counter(), 0
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else "CPU"
    twin = "numba" if has_kernels(torch.device("cpu")) else "torch (numba is missing)"
    print(f"device: {name}; torch {torch.__version__}; CPU side: {twin}, {torch.get_num_threads()} threads")
    print(
        f"{'sampler':<18}{'dtype':<9}{'|d m|':>10}{'|d grad|':>10}{'allowed':>10}{'ms':>10}{'CPU ms':>10}{'ratio':>8}"
    )
    for case in cases():
        for dtype in (torch.float32, torch.float64):
            value, gradient = checked(case, dtype, given.device)
            # A NaN is no success.
            good = value <= case.allowed and gradient <= case.allowed
            failures += not good
            own, cpu = (timed(case, dtype, device, given.batch) for device in (given.device, "cpu"))
            print(
                f"{case.label:<18}{str(dtype)[6:]:<9}{value:>10.1e}{gradient:>10.1e}{case.allowed:>10.0e}"
                f"{1e3 * own:>10.2f}{1e3 * cpu:>10.2f}{cpu / own:>8.2f}{'' if good else '  FAILED'}",
                flush=True,
            )
    print(f"{time.perf_counter() - started:.0f} s; ", end="")
    print("all within what is allowed" if not failures else f"{failures} rows FAILED")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
