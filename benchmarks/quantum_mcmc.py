"""Spectral gaps of quantum-enhanced chains against local, uniform and heat-bath ones, per step and per gate.

    python benchmarks/quantum_mcmc.py [--sizes 4 6 8] [--betas 0.3 1 3 5] [--instances 10]

Problems: h ~ N(0, 1), J ~ N(0, 1) of every pair, as in Layden et al. (2023). The gap is that of the whole transition
matrix, averaged over instances (±: standard error); nothing is sampled, so nothing is timed. A step of the quantum
chain is one evolution, a step of the heat bath a sweep over all spins, of the others one proposal.

  per step   the gap itself
  per gate   the gap divided by a step's work: two-qubit gates for the quantum chain, multiply-adds for the classical
             ones (n for an energy difference with local fields at hand, n²/2 for a fresh energy, n² for a sweep).
             A gate and a multiply-add are not the same price: the column says how large the ratio of prices may be.
"""

import argparse

import torch

from samplers import IsingProblem
from samplers.dqa import chain_spectrum as spectrum
from samplers.dqa.quantum_mcmc import QuantumProposal

DRAWS = 20


def family(n: int, count: int, beta: float) -> IsingProblem:
    make = torch.Generator().manual_seed(3)
    fields = torch.randn(count, 1, n, generator=make, dtype=torch.float64)
    upper = torch.triu(torch.randn(count, 1, n, n, generator=make, dtype=torch.float64), 1)
    return IsingProblem(fields, upper + upper.mT, beta=beta)


def compare(n: int, beta: float, instances: int, proposal: QuantumProposal) -> None:
    problem = family(n, instances, beta)
    layers = sum(proposal.draw(0, i).depth - 1 for i in range(DRAWS)) / DRAWS
    methods = {
        "quantum": (spectrum.quantum_matrix(problem, proposal, draws=DRAWS), layers * n * (n - 1) / 2),
        "local": (spectrum.local_matrix(problem), n),
        "uniform": (spectrum.uniform_matrix(problem), n * n / 2),
        "heat bath": (spectrum.heat_bath_matrix(problem), n * n),
    }
    for name, (matrix, work) in methods.items():
        gaps = spectrum.spectral_gap(matrix)
        error = gaps.std() / instances**0.5
        print(
            f"n={n:2d}  β={beta:<4g} {name:10s} per step {gaps.mean():.5f} ± {error:.5f}   "
            f"work {work:6.0f}   per gate {gaps.mean() / work:.2e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 6, 8])
    parser.add_argument("--betas", type=float, nargs="+", default=[0.3, 1.0, 3.0, 5.0])
    parser.add_argument("--instances", type=int, default=10)
    options = parser.parse_args()
    for n in options.sizes:
        for beta in options.betas:
            compare(n, beta, options.instances, QuantumProposal())


if __name__ == "__main__":
    main()
