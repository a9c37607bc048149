"""Our samplers as dimod samplers: dimod's own test kit, the law, labels, offsets, and the way back."""

import dataclasses
import math
import unittest
import warnings
from typing import Any

import dimod
import dimod.testing
import dwave.samplers
import numpy as np
import pytest
import torch

from samplers import Capabilities, IsingProblem, Sampler, Samples, get_sampler, sampler_class, sampler_entries
from samplers.dimod_bridge.export import AsDimodSampler
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError


class Enumerated(Sampler):
    """Independent draws from the enumerated law; rows are aggregated on request."""

    name = "enumerated"
    aggregated: bool = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=True, gradient="none", can_ground_state=True)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        from samplers.enumeration import log_probabilities
        from samplers.states import spins_of_index
        from samplers.streams import uniforms_like

        log_p, _ = log_probabilities(problem)
        u = uniforms_like(log_p, key, problem.streams, num_reads)
        index = torch.searchsorted(log_p.exp().cumsum(-1), u).clamp_max(log_p.shape[-1] - 1)
        spins, weights = spins_of_index(index, problem.num_spins), torch.ones_like(u)
        if self.aggregated:
            found, counts = torch.unique(index, return_counts=True)
            spins = torch.cat([spins_of_index(found, problem.num_spins), spins[:1]])
            weights = torch.cat([counts.double(), torch.zeros(1, dtype=torch.float64)])
        return Samples(spins, weights, problem.energy(spins), {"weights": "counts"})


class MarginalsOnly(Sampler):
    name = "marginals-only"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=False, gradient="exact", can_sample=False)

    def _magnetization(self, problem: IsingProblem, key: int) -> torch.Tensor:
        return torch.tanh(problem.beta * problem.fields)


def drawing_names() -> list[str]:
    names = [n for n, e in sampler_entries().items() if n not in ("dimod", "dwave") and not e.missing()]
    return [name for name in names if _loads(name) and get_sampler(name).capabilities.can_sample]


def _loads(name: str) -> bool:
    try:
        sampler_entries()[name].load()
    except ModuleNotFoundError:
        return False
    return True


def cheap(name: str) -> AsDimodSampler:
    """The kit asks for labels, types and energies, not for a law: few reads and steps will do."""
    known = {field.name for field in dataclasses.fields(sampler_class(name))}
    few: dict[str, Any] = {k: 4 for k in ("num_reads", "num_steps", "num_sweeps", "burn_in") if k in known}
    return AsDimodSampler(name, **few)


@dimod.testing.load_sampler_bqm_tests(lambda: AsDimodSampler(Enumerated()))
class TestEnumeratedPassesDimodsKit(unittest.TestCase):
    pass


@dimod.testing.load_sampler_bqm_tests(lambda: AsDimodSampler("annealing", ground_state=True))
class TestGroundStatesPassDimodsKit(unittest.TestCase):
    pass


@pytest.mark.parametrize("name", drawing_names())
def test_every_sampler_with_draws_is_a_dimod_sampler(name: str):
    sampler = cheap(name)
    dimod.testing.assert_sampler_api(sampler)
    bqm = dimod.BinaryQuadraticModel({"b": 0.3, 2: -0.1}, {(2, "b"): 0.2, (2, 7): -0.1}, 1.5, "BINARY")
    sampleset = sampler.sample(bqm, num_reads=3, seed=1)
    assert set(sampleset.variables) == {"b", 2, 7} and sampleset.vartype is dimod.BINARY
    dimod.testing.assert_sampleset_energies(sampleset, bqm)


@pytest.mark.parametrize(
    "name", [name if name == "annealing" else pytest.param(name, marks=pytest.mark.slow) for name in drawing_names()]
)
def test_every_sampler_with_draws_passes_dimods_kit(name: str):
    @dimod.testing.load_sampler_bqm_tests(lambda: cheap(name))
    class Kit(unittest.TestCase):
        pass

    result = unittest.TestResult()
    with warnings.catch_warnings():
        # The kit's couplings are strong on purpose; a quantum anneal warns of its coarse steps there.
        warnings.simplefilter("ignore")
        unittest.defaultTestLoader.loadTestsFromTestCase(Kit).run(result)
    assert result.testsRun > 20
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]


def test_the_kits_catch_a_wrong_energy():
    class Wrong(AsDimodSampler):
        def sample(self, bqm, **parameters):
            sampleset = super().sample(bqm, **parameters)
            sampleset.record.energy += 1
            return sampleset

    @dimod.testing.load_sampler_bqm_tests(lambda: Wrong(Enumerated()))
    class Kit(unittest.TestCase):
        pass

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Kit).run(result)
    assert result.failures


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
@pytest.mark.parametrize("beta", [None, 0.5])
def test_moments_follow_dimods_law(vartype: str, beta: float | None):
    """Against a table of all states, on labels in an order that is not sorted."""
    bqm = dimod.BinaryQuadraticModel(
        {7: 1.0, 3: -0.4, "a": 0.2, "free": 0.0}, {(7, 3): 0.8, (3, "a"): -0.5}, 0.75, vartype
    )
    reads = 20_000
    sampleset = AsDimodSampler(Enumerated()).sample(bqm, num_reads=reads, beta=beta, seed=1)
    table = list(dimod.ExactSolver().sample(bqm).data())
    weights = np.exp([-(beta or 1.0) * row.energy for row in table])
    for label in bqm.variables:
        up = float(weights @ [row.sample[label] == 1 for row in table]) / weights.sum()
        column = sampleset.record.sample[:, list(sampleset.variables).index(label)]
        assert float((column == 1).mean()) == pytest.approx(up, abs=5 * math.sqrt(up * (1 - up) / reads))
    assert len(sampleset) == reads
    dimod.testing.assert_sampleset_energies(sampleset.slice(50), bqm)


def test_one_spin_is_up_with_probability_0_1192():
    sampleset = AsDimodSampler(Enumerated()).sample_ising({0: 1.0}, {}, num_reads=20_000)
    assert float((sampleset.record.sample == 1).mean()) == pytest.approx(0.1192, abs=0.012)


def test_marginals_and_log_partition_in_info():
    if not _loads("exact"):
        pytest.skip("the sampler 'exact' is absent")
    bqm = dimod.BinaryQuadraticModel({"x": 0.3, "y": -1.0}, {("x", "y"): 0.7}, 1.25, "BINARY")
    ours = AsDimodSampler("exact").sample(bqm, num_reads=1, beta=1.3, marginals=True).info
    peer = dwave.samplers.TreeDecompositionSampler().sample(bqm, beta=1.3).info
    assert ours["variable_marginals"] == pytest.approx(peer["variable_marginals"])
    weights = [math.exp(-1.3 * row.energy) for row in dimod.ExactSolver().sample(bqm).data()]
    assert ours["log_partition_function"] == pytest.approx(math.log(sum(weights)))


def test_ising_inputs_of_every_kind():
    sampler = AsDimodSampler(Enumerated())
    assert set(sampler.sample_ising({}, {(0, 1): 1.0}, num_reads=3).variables) == {0, 1}
    assert set(sampler.sample_ising({0: 1.0}, {}, num_reads=3).variables) == {0}
    assert set(sampler.sample_ising([0.5, 0.0, 0.0], {}, num_reads=3).variables) == {0, 1, 2}
    empty = sampler.sample(dimod.BinaryQuadraticModel({}, {}, 1.5, "SPIN"), num_reads=3)
    assert empty.record.energy.tolist() == [1.5] * 3


def test_aggregated_rows_keep_their_occurrences():
    sampleset = AsDimodSampler(Enumerated(aggregated=True)).sample_ising({0: 0.3, 1: 0.0}, {}, num_reads=500)
    assert len(sampleset) <= 4 and int(sampleset.record.num_occurrences.sum()) == 500
    assert int(sampleset.record.num_occurrences.min()) > 0


def test_weights_that_are_no_counts_are_refused():
    class Weighted(Enumerated):
        def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
            samples = super()._sample(problem, num_reads, key)
            return Samples(samples.spins, samples.weights * 0.3, samples.energies)

    with pytest.raises(NotSupportedError, match="occurrences"):
        AsDimodSampler(Weighted()).sample_ising({0: 1.0}, {}, num_reads=3)


def test_seeds():
    sampler, bqm = AsDimodSampler(Enumerated()), dimod.BinaryQuadraticModel(dict.fromkeys(range(6), 0.0), {}, "SPIN")
    rows = [sampler.sample(bqm, num_reads=20, seed=seed).record.sample for seed in (4, 4, 5)]
    assert (rows[0] == rows[1]).all() and (rows[0] != rows[2]).any()
    fresh = [sampler.sample(bqm, num_reads=20).record.sample for _ in range(2)]
    assert (fresh[0] != fresh[1]).any()


def test_ground_states():
    bqm = dimod.BinaryQuadraticModel({0: 1.0, 1: -0.5, 2: 0.3}, {(0, 1): -0.7, (1, 2): 0.4}, 2.0, "SPIN")
    best = AsDimodSampler(Enumerated(), ground_state=True).sample(bqm, num_reads=2)
    assert best.first.energy == pytest.approx(dimod.ExactSolver().sample(bqm).first.energy)
    assert int(best.record.num_occurrences.sum()) == 2


def test_composites_take_ours():
    sampler = dimod.TrackingComposite(AsDimodSampler(Enumerated()))
    sampler.sample_ising({0: 1.0}, {}, num_reads=5, seed=1)
    assert len(sampler.output) == 5
    dimod.testing.assert_composite_api(sampler)


def test_there_and_back_is_boltzmann():
    bridge = get_sampler("dimod", sampler=AsDimodSampler(Enumerated()), num_reads=4000)
    assert bridge.capabilities.boltzmann
    fields = torch.tensor([[0.5, -1.0, 0.0]], dtype=torch.float64)
    m = bridge.magnetization(IsingProblem(fields, beta=1.5))
    assert float((m - torch.tanh(1.5 * fields)).abs().max()) < 5 / math.sqrt(4000)
    assert not get_sampler("dimod", sampler=AsDimodSampler(Enumerated(), ground_state=True)).capabilities.boltzmann


@pytest.mark.parametrize(
    ("keyword", "value", "error", "message"),
    [
        ("num_read", 3, InvalidOptionError, "did you mean 'num_reads'"),
        ("num_reads", 0, InvalidOptionError, "at least 1"),
        ("beta", -1.0, InvalidProblemError, "beta"),
    ],
)
@pytest.mark.parametrize("fields", [{}, {0: 1.0}])
def test_bad_keywords_are_refused(fields: dict, keyword: str, value: Any, error: type, message: str):
    with pytest.raises(error, match=message):
        AsDimodSampler(Enumerated()).sample_ising(fields, {}, **{keyword: value})


def test_samplers_without_rows_are_refused():
    with pytest.raises(NotSupportedError, match="no draws"):
        AsDimodSampler(MarginalsOnly())
    with pytest.raises(NotSupportedError, match="ground state"):
        AsDimodSampler(MarginalsOnly(), ground_state=True)
    with pytest.raises(InvalidOptionError, match="name"):
        AsDimodSampler(Enumerated(), num_reads=3)


def test_biases_that_are_not_finite_are_refused():
    with pytest.raises(InvalidProblemError, match="NaN"):
        AsDimodSampler(Enumerated()).sample_ising({0: np.nan}, {})
