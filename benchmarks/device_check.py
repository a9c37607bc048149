"""Samplers on a GPU against their CPU twins: values, gradients and speed, in one table and under three minutes.

    python benchmarks/device_check.py                 # on CUDA; needs torch and numpy, nothing else
    python benchmarks/device_check.py --device=cpu    # the same checks without a GPU, to try the script

Values and gradients are held against plain enumeration in float64 on the CPU (gibbs: within its own noise; dqa: against
the plain torch engine in double precision). Times are medians; the ratio is CPU over device for the same call. Where
numba is missing the CPU side is torch as well, and says so.
"""

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
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


def seconds_of(call: Callable[[], object], device: str, repeats: int = 5) -> float:
    def once() -> float:
        _wait(device)
        started = time.perf_counter()
        call()
        _wait(device)
        return time.perf_counter() - started

    once()
    return statistics.median(once() for _ in range(repeats))


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=128, help="sequences of the timed layers")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        sys.stderr.write("no CUDA device is available to torch; --device=cpu tries the script without one\n")
        return 2
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else "CPU"
    twin = "numba" if importlib.util.find_spec("numba") else "torch (numba is missing)"
    print(f"device: {name}; torch {torch.__version__}; CPU side: {twin}")
    print(f"{'sampler':<26}{'dtype':<9}{'|d m|':>10}{'|d grad|':>10}{'allowed':>10}{'ms':>9}{'CPU ms':>9}{'ratio':>8}")
    failures = 0
    has_numba = importlib.util.find_spec("numba") is not None
    chains = {"num_chains": 64, "num_sweeps": 32, "burn_in": 16}
    cases: list[tuple[str, Sampler, Sampler | None, int, int | None, float]] = [
        ("exact, T=8", get_sampler("exact"), get_sampler("exact"), 8, None, 5e-5),
        ("exact, T=12", get_sampler("exact"), get_sampler("exact"), 12, None, 5e-5),
        ("band, T=12, w=4", get_sampler("band", width=4), get_sampler("band", width=4), 12, 4, 5e-5),
        ("gibbs, T=8", get_sampler("gibbs", engine="torch", **chains), get_sampler("gibbs", **chains), 8, None, 0.4),
        ("dqa, T=8", get_sampler("dqa", num_layers=10), get_sampler("dqa", num_layers=10), 8, None, 5e-4),
    ]  # fmt: skip
    for label, sampler, cpu_sampler, n, width, allowed in cases:
        law = anneal_twin(sampler) if isinstance(sampler, DQASampler) else boltzmann
        reference = forward_backward(law, causal_problem(4, n, torch.float64, "cpu", width), width)
        for dtype in (torch.float32, torch.float64):
            small = causal_problem(4, n, dtype, given.device, width)
            seeded = partial(sampler.magnetization, seed=0)
            found = forward_backward(seeded, small, width)
            errors = [float((a - b).abs().max()) for a, b in zip(found, reference, strict=True)]
            scale = max(1.0, float(reference[2].abs().max()))
            bad = errors[0] > allowed or max(errors[1], errors[2] / scale) > allowed
            failures += bad
            large = causal_problem(given.batch, n, dtype, given.device, width)
            own = seconds_of(partial(forward_backward, seeded, large), given.device)
            cpu = float("nan")
            if cpu_sampler is not None and (has_numba or sampler.name in ("gibbs", "dqa")):
                there = causal_problem(given.batch, n, dtype, "cpu", width)
                cpu = seconds_of(partial(forward_backward, partial(cpu_sampler.magnetization, seed=0), there), "cpu")
            print(
                f"{label:<26}{str(dtype)[6:]:<9}{errors[0]:>10.1e}{max(errors[1:]):>10.1e}{allowed:>10.0e}"
                f"{1e3 * own:>9.2f}{1e3 * cpu:>9.2f}{cpu / own:>8.2f}{'  FAILED' if bad else ''}"
            )
    print("all within what is allowed" if not failures else f"{failures} rows FAILED")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
