"""Distances between laws, marginal errors and fitted temperatures on cases with known answers."""

import math

import pytest
import torch

from samplers import IsingProblem
from samplers.diagnostics import empirical_law, kl_divergence, marginal_errors, regressed_beta, total_variation
from samplers.enumeration import log_probabilities
from samplers.samples import Samples
from samplers.states import spin_table


def test_distances_of_two_coins():
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    assert float(total_variation(p, q)) == pytest.approx(0.4)
    assert float(kl_divergence(p, q)) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5))
    assert float(kl_divergence(torch.tensor([1.0, 0.0]), q)) == pytest.approx(-math.log(0.9))
    assert float(kl_divergence(q, torch.tensor([1.0, 0.0]))) == math.inf


def test_empirical_law_weights_rows():
    samples = Samples(torch.tensor([[1, 1], [-1, 1]], dtype=torch.int8), torch.tensor([3.0, 1.0]), torch.zeros(2))
    assert empirical_law(samples).tolist() == [0.75, 0.25, 0.0, 0.0]


def test_marginal_errors_skip_forbidden_spins():
    problem = IsingProblem(torch.zeros(2, 2), allowed=torch.tensor([[True, False], [True, True]]))
    given, exact = torch.tensor([[0.1, 5.0], [0.3, -0.2]]), torch.zeros(2, 2)
    errors = marginal_errors(given, exact, problem)
    assert errors["mae"] == pytest.approx(0.2)
    assert errors["max"] == pytest.approx(0.3)
    assert marginal_errors(given, exact)["max"] == 5.0
    nothing = IsingProblem(torch.zeros(1, 2), allowed=torch.zeros(2, dtype=torch.bool))
    assert marginal_errors(given[:1], exact[:1], nothing)["max"] == 0.0


def test_regressed_beta_is_the_temperature_of_a_boltzmann_law():
    h = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64)
    problem = IsingProblem(h, beta=1.7)
    beta, r2 = regressed_beta(log_probabilities(problem)[0], problem.energy(spin_table(3)))
    assert beta == pytest.approx(1.7)
    assert r2 == pytest.approx(1.0)
