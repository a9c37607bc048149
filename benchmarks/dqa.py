"""Speed of the state-vector engine against Qiskit Aer, as ratios of interleaved runs in one process.

    python benchmarks/dqa.py [--threads 2] [--rounds 2] [--layers 20] [--json PATH]

Peers: Aer with `parameter_binds` and RZZ, RZ, RX gates (one circuit, bound for every problem), and Aer with one
diagonal gate per layer (one circuit per problem). All compute the exact output probabilities of the same layers.
Building tables, binding and reading results are included; transpiling and compiling are not.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samplers.dqa.layers import Layers
from samplers.dqa.schedules import linear_ramp
from samplers.dqa.statevector import StateVectorEngine
from samplers.states import spin_table

# (spins, problems, at least this many times Aer with gates, with diagonals)
CASES = [(8, 512, 80, 50), (12, 64, 100, 40), (16, 16, 50, 35)]
TORCH_GOAL, BACKWARD_GOAL, ERROR_GOAL = 10, 3.3, 5e-6


def gaussian(num_spins: int, problems: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_spins)
    h = torch.randn(1, problems, num_spins, generator=generator)
    a = 0.3 * torch.randn(1, 1, num_spins, num_spins, generator=generator).triu(1)
    return h, a + a.mT


def aer_gates(h: torch.Tensor, j: torch.Tensor, layers: Layers, threads: int) -> Callable[[], np.ndarray]:
    """One circuit of parameters, bound to every problem by Aer."""
    from samplers.dqa.aer import AerEngine

    engine = AerEngine(method="statevector", precision="double", threads=threads)
    return lambda: engine.probabilities(h, j, layers)[0].numpy()


def aer_diagonals(h: torch.Tensor, j: torch.Tensor, layers: Layers, threads: int) -> Callable[[], np.ndarray]:
    """One circuit per problem, its phases as one diagonal gate per layer."""
    from qiskit import QuantumCircuit
    from qiskit.circuit.library import DiagonalGate
    from qiskit_aer import AerSimulator

    n, problems = h.shape[-1], h.shape[1]
    simulator = AerSimulator(method="statevector", max_parallel_threads=threads)
    table = spin_table(n)
    pair = (0.5 * ((table @ j[0, 0].double()) * table).sum(-1)).numpy()
    f, c, x = (t.tolist() for t in (layers.fields, layers.couplings, layers.mixer))

    def circuit(field: np.ndarray) -> Any:
        built = QuantumCircuit(n)
        built.h(range(n))
        for a, b, angle in zip(f, c, x, strict=True):
            built.append(DiagonalGate(np.exp(1j * (a * field + b * pair))), range(n))
            built.rx(-2 * angle, range(n))
        built.save_probabilities()
        return built

    def run() -> np.ndarray:
        fields = (table @ h[0].double().T).T.numpy()
        result = simulator.run([circuit(field) for field in fields], shots=1).result()
        if not result.success or len(result.results) != problems:
            raise RuntimeError(f"Aer returned {len(result.results)} of {problems} results: {result.status}")
        return np.stack([one.data.probabilities for one in result.results])

    return run


def forward_backward(
    engine: StateVectorEngine, h: torch.Tensor, j: torch.Tensor, layers: Layers, *, angles: bool = False
) -> None:
    """Gradients in fields and couplings, with `angles` in those of every layer as well."""
    h, j = h.clone().requires_grad_(), j.clone().requires_grad_()
    if angles:
        layers = Layers(*(row.clone().requires_grad_() for row in (layers.fields, layers.couplings, layers.mixer)))
    engine.magnetization(h, j, layers).sum().backward()


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int, slow: set[str]) -> dict[str, float]:
    """Fastest run of each, in seconds: other processes only ever slow one down. Slow ones run every third round."""
    for name, run in runs.items():
        if name not in slow:
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in runs.items():
            if name in slow and turn % 3:
                continue
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: min(values) for name, values in times.items()}


def measure(num_spins: int, problems: int, num_layers: int, threads: int, rounds: int) -> dict[str, float]:
    h, j = gaussian(num_spins, problems)
    layers = linear_ramp().layers(num_layers)
    fused, plain = StateVectorEngine("single"), StateVectorEngine("single", compiled=False)
    gates, diagonals = aer_gates(h, j, layers, threads), aer_diagonals(h, j, layers, threads)
    error = float(np.abs(fused.probabilities(h, j, layers)[0].numpy() - gates()).max())
    runs = {
        "kernels": lambda: fused.probabilities(h, j, layers),
        "marginals": lambda: fused.magnetization(h, j, layers),
        "marginals + gradient": lambda: forward_backward(fused, h, j, layers),
        "with angles": lambda: forward_backward(fused, h, j, layers, angles=True),
        "with angles, torch": lambda: forward_backward(plain, h, j, layers, angles=True),
        "torch": lambda: plain.probabilities(h, j, layers),
        "aer gates": gates,
        "aer diagonals": diagonals,
    }
    seconds = interleaved(runs, rounds, {"aer gates", "aer diagonals", "with angles, torch"})
    return {"spins": num_spins, "problems": problems, "error": error, **seconds}


def report(rows: list[dict[str, float]]) -> None:
    print(f"{'n, problems':>12} {'kernels ms':>11} {'× gates':>14} {'× diagonal':>14} {'torch × gates':>14} ", end="")
    print(f"{'f+b / f':>10} {'angles / f':>11} {'torch ÷':>8} {'error':>9}")
    for row, (_, _, gates_goal, diagonal_goal) in zip(rows, CASES, strict=True):
        gates, diagonal = row["aer gates"] / row["kernels"], row["aer diagonals"] / row["kernels"]
        torch_gain = row["aer gates"] / row["torch"]
        both, angles = (row[name] / row["marginals"] for name in ("marginals + gradient", "with angles"))
        print(
            f"{row['spins']:>4}, {row['problems']:>6} {1e3 * row['kernels']:>11.2f} "
            f"{gates:>6.0f} (≥{gates_goal:>3}) {diagonal:>7.0f} (≥{diagonal_goal:>2}) "
            f"{torch_gain:>8.1f} (≥{TORCH_GOAL}) "
            f"{both:>4.1f} (≤{BACKWARD_GOAL}) {angles:>11.1f} {row['with angles, torch'] / row['with angles']:>8.1f} "
            f"{row['error']:>9.1e}"
        )
    print("angles / f: forward and backward with the gradient in every layer's angles too; torch ÷: the same by torch")
    print(f"error: largest difference in a probability from Aer in double precision (≤ {ERROR_GOAL:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for n, problems, *_ in CASES:
        rows.append(measure(n, problems, options.layers, options.threads, options.rounds))
        print(f"measured n = {n}", file=sys.stderr)
    report(rows)
    if options.json is not None:
        options.json.write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
