"""Quantum-enhanced chains: symmetry, invariance, the chain against its transition matrices, the sampler's contract."""

from typing import Any

import numpy as np
import pytest
import torch
from qiskit.primitives import StatevectorSampler
from torch import Tensor

from samplers import IsingProblem, conformance, enumeration, get_sampler
from samplers.dqa import chain_spectrum as spectrum
from samplers.dqa.quantum_mcmc import QuantumProposal, proposal_angles, quantum_chains, scaled
from samplers.dqa.quantum_sampler import QuantumMCMCSampler
from samplers.errors import InvalidOptionError, ProblemTooLargeError
from samplers.states import index_of_spins, spin_table
from samplers.streams import derive_key


def make_problem(groups: int, queries: int, n: int, *, beta: float = 1.0, seed: int = 0) -> IsingProblem:
    generator = torch.Generator().manual_seed(seed)
    fields = torch.randn(groups, queries, n, generator=generator, dtype=torch.float64)
    J = 0.6 * torch.randn(groups, 1, n, n, generator=generator, dtype=torch.float64).triu(1)
    return IsingProblem(fields, J + J.mT, beta=beta)


def boltzmann(problem: IsingProblem) -> Tensor:
    return enumeration.log_probabilities(problem)[0].exp().flatten(0, 1)


def of_fields_alone(problem: IsingProblem) -> Tensor:
    """Where chains start."""
    return boltzmann(IsingProblem(problem.fields, beta=problem.beta))


def chi_square(index: Tensor, law: Tensor) -> float:
    """Pearson's statistic over states with at least 5 expected draws (others in one bin), in standard deviations."""
    expected, counts = law * len(index), torch.bincount(index, minlength=len(law)).double()
    often = expected >= 5
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    counts = torch.cat([counts[often], counts[~often].sum()[None]])
    keep = expected > 1e-9
    freedom = max(1, int(keep.sum()) - 1)
    return float(((((counts - expected) ** 2) / expected)[keep].sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("step", [0.1, 0.8, 5.0])
def test_proposals_are_symmetric_at_any_trotter_step(step: float):
    problem, proposal = make_problem(1, 2, 4), QuantumProposal(step=step)
    moves = spectrum.proposal_matrix(problem, proposal.layers(0.4, 7.3))
    assert torch.allclose(moves, moves.mT, atol=1e-13)
    assert torch.allclose(moves.sum(-1), torch.ones(2, 16, dtype=torch.float64))
    assert moves.diagonal(dim1=-2, dim2=-1).mean() < 0.95  # it does move


def test_fine_steps_tend_to_the_exact_evolution():
    problem, (gamma, time) = make_problem(1, 1, 3), (0.45, 3.0)
    fields, couplings = scaled(problem)
    assert couplings is not None
    table = spin_table(3)
    energy = -(table @ fields[0, 0]) - 0.5 * ((table @ couplings[0, 0]) * table).sum(-1)
    flips = torch.zeros(8, 8, dtype=torch.float64)
    for k in range(3):
        index = torch.arange(8)
        flips[index, index ^ (1 << k)] += 1
    assert float((energy**2).sum()) == pytest.approx(float((flips**2).sum()))  # what α is for
    hamiltonian = (1 - gamma) * torch.diag(energy) - gamma * flips
    exact = torch.linalg.matrix_exp(-1j * time * hamiltonian).abs() ** 2
    errors = [
        float((spectrum.proposal_matrix(problem, QuantumProposal(step=s).layers(gamma, time))[0] - exact).abs().max())
        for s in (0.2, 0.1)
    ]
    assert errors[0] < 0.02 and 3.5 < errors[0] / errors[1] < 4.5  # second order


def test_every_chain_leaves_the_boltzmann_law_invariant():
    problem, proposal = make_problem(1, 2, 4, beta=1.3), QuantumProposal()
    law = boltzmann(problem)
    for matrix in (
        spectrum.metropolis_matrix(problem, spectrum.proposal_matrix(problem, proposal.layers(0.3, 5.0))),
        spectrum.quantum_matrix(problem, proposal, draws=3),
        spectrum.local_matrix(problem),
        spectrum.uniform_matrix(problem),
        spectrum.heat_bath_matrix(problem),
    ):
        assert torch.allclose(torch.einsum("ps,pst->pt", law, matrix), law, atol=1e-13)
        assert bool((matrix >= -1e-15).all())
        gap = spectrum.spectral_gap(matrix)
        assert bool(((gap > 0) & (gap <= 1)).all())


def test_a_chain_has_the_law_of_the_product_of_its_matrices():
    problem, proposal, key, steps = make_problem(1, 2, 4, beta=1.5), QuantumProposal(), 9, 3
    law = of_fields_alone(problem)
    for step in range(steps):
        moves = spectrum.proposal_matrix(problem, proposal.draw(key, step))
        law = torch.einsum("ps,pst->pt", law, spectrum.metropolis_matrix(problem, moves))
    run = quantum_chains(problem, num_chains=4000, num_steps=steps, key=key, keep_history=True)
    assert run.history is not None
    assert torch.equal(run.history[..., -1], run.index) and run.history.shape == (2, 4000, 3)
    for own in range(2):
        assert abs(chi_square(run.index[own], law[own])) < 4.5
        assert chi_square(run.index[own], boltzmann(problem)[own]) > 8  # three steps are not yet enough
        assert chi_square(run.index[own], law[1 - own]) > 50


def test_proposals_run_as_circuits():
    # Every basis state as a chain: the circuits' laws are the rows of the proposal matrix.
    aer = pytest.importorskip("samplers.dqa.aer")
    pytest.importorskip("qiskit_aer")
    problem, layers = make_problem(1, 2, 3), QuantumProposal().layers(0.4, 3.0)
    angles = proposal_angles(*scaled(problem), torch.arange(8).expand(2, 8), layers)
    rows = aer.AerEngine().probabilities_at(angles).reshape(2, 8, 8)
    assert (rows - spectrum.proposal_matrix(problem, layers)).abs().max() < 1e-9


@pytest.mark.parametrize("engine", ["aer", "primitive"])
def test_chains_on_circuits_have_the_same_law(engine: str):
    pytest.importorskip("qiskit_aer")
    weak, steps = make_problem(1, 1, 3), 2
    problem = IsingProblem(0.5 * weak.fields, 2.0 * weak.couplings)
    law = start = of_fields_alone(problem)
    sampler = QuantumMCMCSampler(
        engine=StatevectorSampler(seed=np.random.default_rng(1)) if engine == "primitive" else engine,
        num_steps=steps,
        time_high=4.0,
    )
    proposal = QuantumProposal(time=(2.0, 4.0))
    for step in range(steps):
        moves = spectrum.proposal_matrix(problem, proposal.draw(derive_key(7), step))
        law = torch.einsum("ps,pst->pt", law, spectrum.metropolis_matrix(problem, moves))
    spins = sampler.sample(problem, 500, seed=7).spins[0, 0]
    assert abs(chi_square(index_of_spins(spins), law[0])) < 4.5
    assert chi_square(index_of_spins(spins), start[0]) > 15


def test_many_steps_reach_the_boltzmann_law():
    problem = make_problem(1, 2, 4, beta=0.8)
    run = quantum_chains(problem, num_chains=3000, num_steps=40, key=1)
    for own in range(2):
        assert abs(chi_square(run.index[own], boltzmann(problem)[own])) < 4.5
    assert bool(((run.acceptance > 0.2) & (run.acceptance < 1)).all()) and run.layers > 40 * 3


def test_chains_depend_on_key_stream_and_chain_alone():
    problem = make_problem(2, 2, 3)
    options: dict[str, Any] = {"num_steps": 4, "key": 3}
    whole = quantum_chains(problem, num_chains=6, **options).index
    assert torch.equal(whole[2:], quantum_chains(problem[1:], num_chains=6, **options).index)
    assert torch.equal(whole[:, :2], quantum_chains(problem, num_chains=2, **options).index)
    # More chains than states go by another path.
    assert torch.equal(whole, quantum_chains(problem, num_chains=20, **options).index[:, :6])
    # One chain at a time fits into this limit.
    tight = 5 * 16 * 2**3 / 2**30 * 1.5
    assert torch.equal(whole, quantum_chains(problem, num_chains=6, memory_limit=tight, **options).index)
    assert not torch.equal(whole, quantum_chains(problem, num_chains=6, num_steps=4, key=4).index)


def test_chains_start_where_they_are_told():
    start = torch.tensor([[0, 3, 7]])
    run = quantum_chains(make_problem(1, 1, 3), num_chains=3, num_steps=0, key=0, start=start)
    assert torch.equal(run.index, start) and run.layers == 0


def test_a_problem_without_energy_is_mixed_uniformly():
    problem = IsingProblem(torch.zeros(1, 1, 3, dtype=torch.float64))
    run = quantum_chains(problem, num_chains=4000, num_steps=3, key=2)
    assert abs(chi_square(run.index[0], torch.full((8,), 1 / 8, dtype=torch.float64))) < 4.5
    assert float(run.acceptance) == 1


def test_where_quantum_proposals_beat_local_ones():
    # Layden et al.: at low temperature a fully connected instance of random couplings has a larger spectral gap
    # under quantum proposals than under local or uniform ones (average over instances).
    problem = IsingProblem(*_spin_glasses(6, count=8), beta=5.0)
    gaps = {
        name: float(spectrum.spectral_gap(matrix).mean())
        for name, matrix in (
            ("quantum", spectrum.quantum_matrix(problem, QuantumProposal(), draws=10)),
            ("local", spectrum.local_matrix(problem)),
            ("uniform", spectrum.uniform_matrix(problem)),
        )
    }
    assert gaps["quantum"] > 1.5 * gaps["local"] and gaps["quantum"] > 1.5 * gaps["uniform"]


def _spin_glasses(n: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    fields = torch.randn(count, 1, n, generator=generator, dtype=torch.float64)
    J = torch.randn(count, 1, n, n, generator=generator, dtype=torch.float64).triu(1)
    return fields, J + J.mT


def test_the_sampler_on_masked_problems():
    mask = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)
    whole = make_problem(1, 3, 4, seed=5)
    problem = IsingProblem(whole.fields[0], whole.couplings[0, 0], allowed=mask, beta=0.7)
    sampler = QuantumMCMCSampler(num_reads=1000, num_steps=15)
    mean, exact = sampler.magnetization(problem, seed=1), enumeration.moments(problem)[0]
    error = ((1 - exact**2) / 1000).sqrt().clamp_min(1e-9)
    assert ((mean - exact) / error)[mask].abs().max() < 4.5
    assert bool((mean[~mask] == -1).all())
    assert 0 < sampler.last_info["acceptance"] <= 1 and sampler.last_info["layers"] > 45
    assert torch.equal(sampler.sample(problem, 5, seed=2).spins, sampler.sample(problem, 5, seed=2).spins)


def test_its_gradient_is_that_of_the_boltzmann_law():
    whole = make_problem(1, 1, 3, beta=0.8)
    fields = whole.fields[0, 0].clone().requires_grad_()
    problem = IsingProblem(fields, whole.couplings[0, 0], beta=0.8)
    exact = torch.autograd.grad(enumeration.moments(problem)[0].sum(), fields)[0]
    mean = QuantumMCMCSampler(num_reads=8000, num_steps=25).magnetization(problem, seed=4)
    assert (torch.autograd.grad(mean.sum(), fields)[0] - exact).abs().max() < 0.08


def test_refusals():
    for options in ({"gamma": (0.5, 0.2)}, {"gamma": (0.5, 1.2)}, {"time": (-1.0, 2.0)}, {"step": 0.0}):
        with pytest.raises(InvalidOptionError, match="QuantumProposal"):
            QuantumProposal(**options)
    with pytest.raises(InvalidOptionError, match="QuantumProposal: time"):
        QuantumMCMCSampler(time_low=5.0, time_high=2.0)
    with pytest.raises(InvalidOptionError, match="from its seed 1,"):
        QuantumMCMCSampler(engine=StatevectorSampler(seed=1)).sample(IsingProblem(torch.zeros(2)), 3)
    with pytest.raises(InvalidOptionError, match="engine is of type int"):
        QuantumMCMCSampler(engine=3)
    problem = make_problem(1, 1, 3)
    with pytest.raises(InvalidOptionError, match="num_chains=0"):
        quantum_chains(problem, num_chains=0, num_steps=1, key=0)
    with pytest.raises(ProblemTooLargeError, match="memory_limit allows"):
        quantum_chains(problem, num_chains=1, num_steps=1, key=0, memory_limit=1e-9)
    with pytest.raises(ProblemTooLargeError, match="at most 16"):
        quantum_chains(make_problem(1, 1, 17), num_chains=1, num_steps=1, key=0)
    with pytest.raises(ProblemTooLargeError, match="at most 16"):
        QuantumMCMCSampler().magnetization(IsingProblem(torch.zeros(17)))


@pytest.mark.slow
@pytest.mark.parametrize("check", conformance.all_checks(), ids=lambda check: check.name)
def test_contract(check):
    # Most of the kit's problems are reached in 40 steps; free spins need none.
    steps = {"draws-under-a-mask": 100, "small-seeds-are-good-seeds": 2}.get(check.name, 40)
    conformance.run_check(check, lambda: get_sampler("quantum-mcmc", num_steps=steps, num_reads=4000))
