"""Any dimod sampler as ours: sign, order, weights, temperature, seeds, masks, and who is refused."""

import importlib
import math
import warnings
from typing import Any

import dimod
import dwave.preprocessing
import dwave.samplers
import numpy as np
import pytest
import torch

from samplers import IsingProblem, Samples, get_sampler
from samplers.dimod_bridge.convert import SampleSetError, bqms, dimod_biases, problem_of_bqm, rows_of_sampleset
from samplers.dimod_bridge.laws import law_of
from samplers.dimod_bridge.sampler import DimodSampler
from samplers.enumeration import ground_states, moments
from samplers.errors import InvalidOptionError, NotSupportedError

FIELDS = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
COUPLINGS = torch.tensor([[0.0, 0.7, 0.0], [0.7, 0.0, -0.4], [0.0, -0.4, 0.0]], dtype=torch.float64)


class Recorded(dimod.Sampler):
    """Gives the rows it was made with and remembers the calls."""

    properties: Any = None
    parameters: Any = None

    def __init__(self, rows: Any, counts: Any = None, labels: Any = None, vartype: str = "SPIN", extra: tuple = ()):
        self.properties = {}
        self.parameters = {"num_reads": [], "seed": [], **{name: [] for name in extra}}
        self.rows, self.counts, self.labels, self.vartype = rows, counts, labels, vartype
        self.calls: list[tuple[dimod.BinaryQuadraticModel, dict]] = []

    def sample(self, bqm, **kwargs):
        self.calls.append((bqm, kwargs))
        rows = np.asarray(self.rows(bqm) if callable(self.rows) else self.rows, dtype=np.int8)
        labels = list(range(rows.shape[1])) if self.labels is None else self.labels
        counts = None if self.counts is None else np.asarray(self.counts)
        return dimod.SampleSet.from_samples(
            (rows, labels), self.vartype, energy=[0.0] * len(rows), num_occurrences=counts
        )


def wrapped(sampler: Any, **options: Any) -> DimodSampler:
    return get_sampler("dimod", sampler=sampler, **options)  # type: ignore[return-value]


def worst_z(samples: Samples, law: IsingProblem) -> float:
    exact, pairs = moments(law)
    reads = samples.effective_sample_size()
    first = (samples.magnetization() - exact).abs() / torch.sqrt((1 - exact**2) / reads.unsqueeze(-1))
    gap = (samples.correlations() - pairs).abs() / torch.sqrt((1 - pairs**2).clamp_min(1e-9) / reads[..., None, None])
    return max(float(first.max()), float(gap.max()))


SAMPLERS = {
    "annealing": dwave.samplers.SimulatedAnnealingSampler,
    "tree": dwave.samplers.TreeDecompositionSampler,
    "tracked": lambda: dimod.TrackingComposite(dwave.samplers.SimulatedAnnealingSampler()),
    "reversed": lambda: dwave.preprocessing.SpinReversalTransformComposite(dwave.samplers.SimulatedAnnealingSampler()),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("beta", [0.7, 1.5])
def test_asymmetric_three_spins_follow_our_law(name: str, beta: float):
    problem = IsingProblem(FIELDS, COUPLINGS, beta=beta)
    samples = wrapped(SAMPLERS[name]()).sample(problem, 8000, seed=1)
    assert worst_z(samples, problem) < 5
    # The other sign convention, and a temperature wrong by 20 %, are far outside.
    assert worst_z(samples, IsingProblem(-FIELDS, COUPLINGS, beta=beta)) > 20
    assert worst_z(samples, IsingProblem(FIELDS, -COUPLINGS, beta=beta)) > 20
    assert worst_z(samples, IsingProblem(FIELDS, COUPLINGS, beta=1.2 * beta)) > 5
    assert samples.info["energy_scale"] == beta == samples.info["beta_target"]


def test_one_spin_is_up_with_probability_0_8808():
    samples = wrapped(dwave.samplers.SimulatedAnnealingSampler()).sample(IsingProblem(torch.ones(1)), 20_000)
    assert float((samples.spins == 1).double().mean()) == pytest.approx(0.8808, abs=0.012)


def test_biases_have_the_opposite_sign_and_fold_beta():
    sampler = Recorded([[1, 1, 1]])
    wrapped(sampler, num_reads=1).sample(IsingProblem(FIELDS, COUPLINGS, beta=2.0))
    ((bqm, kwargs),) = sampler.calls
    assert dict(bqm.linear) == {0: -2.0, 1: 1.0, 2: -0.6}
    assert {frozenset(pair): bias for pair, bias in bqm.quadratic.items()} == {
        frozenset({0, 1}): -1.4,
        frozenset({1, 2}): 0.8,
    }
    assert kwargs["num_reads"] == 1 and 1 <= kwargs["seed"] < 2**31


def test_fast_models_equal_models_built_term_by_term():
    fields = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    couplings = a + a.mT
    couplings.diagonal(dim1=-2, dim2=-1).zero_()
    biases = dimod_biases(IsingProblem(fields, couplings), scale=0.5)
    for g in range(2):
        for q, fast in enumerate(bqms(biases.linear[g], biases.quadratic[g])):
            slow = dimod.BinaryQuadraticModel("SPIN")
            for j in range(5):
                slow.add_linear(j, -0.5 * float(fields[g, q, j]))
                for k in range(j):
                    slow.add_quadratic(j, k, -0.5 * float(couplings[g, 0, j, k]))
            assert fast == slow


def test_isolated_spins_without_field_stay():
    problem = IsingProblem(torch.tensor([0.0, 0.5, 0.0]))
    sampler = Recorded(lambda bqm: np.ones((1, len(bqm))))
    wrapped(sampler).sample(problem)
    assert set(sampler.calls[0][0].variables) == {0, 1, 2}
    # The tree decomposition of dwave-samplers 1.8 by itself answers −1 for such spins, always.
    for kind in (dwave.samplers.SimulatedAnnealingSampler, dwave.samplers.TreeDecompositionSampler):
        m = wrapped(kind()).magnetization(problem)
        assert float((m - torch.tanh(problem.fields)).abs().max()) < 0.16


def test_columns_are_ordered_by_label():
    rows = [[1, -1, -1], [1, -1, -1]]
    samples = wrapped(Recorded(rows, labels=[2, 0, 1])).sample(IsingProblem(FIELDS), 2)
    assert samples.spins.tolist() == [[-1, -1, 1], [-1, -1, 1]]


def test_binary_sample_sets_become_spins():
    samples = wrapped(Recorded([[1, 0, 0]], vartype="BINARY")).sample(IsingProblem(FIELDS), 1)
    assert samples.spins.tolist() == [[1, -1, -1]]


def test_raw_and_aggregated_rows_give_equal_results():
    problem = IsingProblem(FIELDS.clone().requires_grad_(), COUPLINGS.clone().requires_grad_())
    raw = Recorded([[1, 1, 1], [1, 1, 1], [-1, -1, 1], [1, 1, 1]])
    aggregated = Recorded([[1, 1, 1], [-1, -1, 1]], counts=[3, 1])
    results = []
    for sampler in (raw, aggregated):
        samples = wrapped(sampler).sample(problem, 4)
        assert samples.magnetization().tolist() == [0.5, 0.5, 1.0]
        assert float(samples.effective_sample_size()) == 4
        m = wrapped(sampler, num_reads=4).magnetization(problem)
        results.append(
            [samples.correlations(), samples.standard_error(), samples.mean_energy()]
            + list(
                torch.autograd.grad(m @ torch.arange(1.0, 4, dtype=torch.float64), [problem.fields, problem.couplings])
            )
        )
    for left, right in zip(*results, strict=True):
        assert torch.allclose(left, right)


def test_different_row_counts_are_padded_with_weight_zero():
    def rows(bqm):
        return [[1], [-1], [1], [1]] if bqm.linear[0] > 0 else [[1], [-1]]

    samples = wrapped(Recorded(rows)).sample(IsingProblem(torch.tensor([[1.0], [-1.0]])), 3)
    assert samples.spins.shape == (2, 4, 1)
    assert samples.weights.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert samples.magnetization().flatten().tolist() == [0.0, 0.5]


def test_energies_are_our_own():
    problem = IsingProblem(FIELDS, COUPLINGS)
    samples = wrapped(Recorded([[1, -1, 1]])).sample(problem, 1)
    assert torch.allclose(samples.energies, problem.energy(samples.spins))
    assert float(samples.energies[0]) == pytest.approx(-(1.0 + 0.5 + 0.3 - 0.7 + 0.4))


@pytest.mark.parametrize("workers", [1, 3])
def test_every_problem_has_its_own_hashed_seed(workers: int):
    sampler = Recorded(lambda bqm: np.ones((1, len(bqm))))
    bridge = wrapped(sampler, workers=workers)
    problem = IsingProblem(torch.zeros(20, 2))
    bridge.sample(problem, seed=0)
    seeds = {kwargs["seed"] for _, kwargs in sampler.calls}
    assert len(seeds) == 20 and min(seeds) > 1000
    sampler.calls.clear()
    bridge.sample(problem[5:9], seed=0)
    assert {kwargs["seed"] for _, kwargs in sampler.calls} < seeds
    sampler.calls.clear()
    bridge.sample(problem, seed=1)
    assert not {kwargs["seed"] for _, kwargs in sampler.calls} & seeds


def test_threads_change_nothing():
    problem = IsingProblem(torch.randn(12, 4, generator=torch.Generator().manual_seed(3)))
    sampler = dwave.samplers.SimulatedAnnealingSampler()
    one, three = (wrapped(sampler, workers=w).sample(problem, 20, seed=4).spins for w in (1, 3))
    assert torch.equal(one, three)


def test_causal_masks_remove_spins():
    n = 4
    sampler = Recorded(lambda bqm: np.ones((2, len(bqm))))
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    problem = IsingProblem(torch.zeros(2, n, n), allowed=allowed)
    samples = wrapped(sampler).sample(problem, 2)
    assert sorted(len(bqm) for bqm, _ in sampler.calls) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert torch.equal(samples.spins[:, :, 0] == 1, allowed.expand(2, n, n))


def test_masked_problems_follow_the_law():
    generator = torch.Generator().manual_seed(0)
    allowed = torch.tensor([[True, True, True], [True, False, True], [False, False, True]])
    fields = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    problem = IsingProblem(fields, COUPLINGS, allowed=allowed)
    m = wrapped(dwave.samplers.TreeDecompositionSampler(), num_reads=4000).magnetization(problem)
    assert float((m - moments(problem)[0]).abs().max()) < 5 / math.sqrt(4000)
    assert bool((m[~allowed] == -1).all())


def test_nothing_allowed_and_empty_batches():
    bridge = wrapped(Recorded([[1, 1]]))
    nothing = IsingProblem(torch.zeros(2, 2), allowed=torch.zeros(2, dtype=torch.bool))
    assert bridge.magnetization(nothing).tolist() == [[-1, -1], [-1, -1]]
    assert bridge.ground_state(nothing).tolist() == [[-1, -1], [-1, -1]]
    assert bridge.magnetization(IsingProblem(torch.zeros(0, 2))).shape == (0, 2)
    assert bridge.sampler.calls == []


REFUSED = {
    "ExactSolver": dimod.ExactSolver,
    "TreeDecompositionSolver": dwave.samplers.TreeDecompositionSolver,
    "SteepestDescent": dwave.samplers.SteepestDescentSolver,
    "Truncate": lambda: dimod.TruncateComposite(dwave.samplers.SimulatedAnnealingSampler(), 2),
    "tracked ExactSolver": lambda: dimod.TrackingComposite(dimod.ExactSolver()),
    "descended": lambda: dwave.samplers.SteepestDescentComposite(dwave.samplers.SimulatedAnnealingSampler()),
    "RandomSampler": dimod.RandomSampler,
    "scaled": lambda: dwave.preprocessing.ScaleComposite(dwave.samplers.SimulatedAnnealingSampler()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimisers_and_tables_give_no_draws(name: str):
    bridge = wrapped(REFUSED[name]())
    assert not bridge.capabilities.can_sample and bridge.capabilities.gradient == "none"
    problem = IsingProblem(FIELDS, COUPLINGS)
    for call in (bridge.magnetization, bridge.sample, bridge.correlations):
        with pytest.raises(NotSupportedError, match="ground state"):
            call(problem)


@pytest.mark.parametrize("name", [n for n in REFUSED if n != "RandomSampler"])
def test_optimisers_and_tables_give_ground_states(name: str):
    allowed = torch.tensor([[True, True, True], [True, False, True]])
    problem = IsingProblem(FIELDS.expand(2, 3), COUPLINGS, allowed=allowed)
    assert torch.equal(wrapped(REFUSED[name]()).ground_state(problem), ground_states(problem))


def test_tabu_and_hybrid_solvers_are_optimisers():
    class LeapHybridSampler(Recorded):
        pass

    assert "optimiser" in law_of(LeapHybridSampler([[1]])).refusal
    tabu = wrapped(dwave.samplers.TabuSampler(), sample_kwargs={"timeout": 5})
    problem = IsingProblem(FIELDS, COUPLINGS)
    assert torch.equal(tabu.ground_state(problem), ground_states(problem))
    with pytest.raises(NotSupportedError, match="optimiser"):
        tabu.magnetization(problem)


def test_best_row_is_found_by_our_energy_not_theirs():
    rows = [[-1, -1, -1], [1, 1, 1], [1, -1, 1]]
    assert wrapped(Recorded(rows)).ground_state(IsingProblem(10 * FIELDS)).tolist() == [1, -1, 1]


def test_annealing_object_searches_ground_states_cold():
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(8, 8, generator=generator)
    problem = IsingProblem(torch.randn(6, 8, generator=generator), (a + a.mT).fill_diagonal_(0), beta=0.1)
    bridge = wrapped(dwave.samplers.SimulatedAnnealingSampler())
    assert torch.equal(bridge.ground_state(problem), ground_states(problem))
    bridge.ground_state(IsingProblem(torch.zeros(2)))


def neal_sampler() -> dimod.Sampler:
    pytest.importorskip("neal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("neal").SimulatedAnnealingSampler()


def test_neal_objects_sample_at_the_requested_temperature():
    bridge = wrapped(neal_sampler())
    problem = IsingProblem(FIELDS, COUPLINGS)
    assert worst_z(bridge.sample(problem, 8000), problem) < 5
    assert bridge.capabilities.boltzmann


def test_annealing_default_would_have_been_too_cold():
    """What the schedule is for: the object's own default ends near the ground state."""
    sampler = dwave.samplers.SimulatedAnnealingSampler()
    bqm = dimod.BinaryQuadraticModel({0: -0.5}, {}, "SPIN")
    cold = sampler.sample(bqm, num_reads=400, seed=5).record.sample.mean()
    assert cold > 0.9
    ours = wrapped(sampler, num_reads=4000).magnetization(IsingProblem(torch.tensor([0.5])))
    assert float(ours) == pytest.approx(math.tanh(0.5), abs=0.07)


def test_schedules_of_the_user_are_kept_and_must_end_at_one():
    sampler = dwave.samplers.SimulatedAnnealingSampler()
    own = {"beta_range": (0.5, 1.0), "num_sweeps": 20, "beta_schedule_type": "linear"}
    info = wrapped(sampler, sample_kwargs=own).sample(IsingProblem(FIELDS), 10).info
    assert "beta_schedule" not in info["backend_kwargs"] and info["backend_kwargs"]["beta_range"] == (0.5, 1.0)
    assert info["backend_kwargs"]["proposal_acceptance_criteria"] == "Gibbs"
    shorter = wrapped(sampler, sample_kwargs={"num_sweeps": 6}).sample(IsingProblem(FIELDS), 10).info
    assert len(shorter["backend_kwargs"]["beta_schedule"]) == 6
    with pytest.raises(InvalidOptionError, match="must end at 1"):
        wrapped(sampler, sample_kwargs={"beta_range": (0.1, 3.0)})
    with pytest.raises(InvalidOptionError, match="beta_range"):
        wrapped(dwave.samplers.PathIntegralAnnealingSampler())


@pytest.mark.parametrize("name", ["seed", "num_reads", "beta"])
def test_keywords_that_are_ours_are_refused(name: str):
    with pytest.raises(InvalidOptionError, match="use the option|IsingProblem"):
        wrapped(dwave.samplers.TreeDecompositionSampler(), sample_kwargs={name: 7})


def test_unknown_keywords_name_the_nearest():
    with pytest.raises(InvalidOptionError, match="did you mean 'num_sweeps'"):
        wrapped(dwave.samplers.SimulatedAnnealingSampler(), sample_kwargs={"num_sweep": 7})
    with pytest.raises(InvalidOptionError, match="sampler"):
        get_sampler("dimod", smapler=dimod.ExactSolver())
    with pytest.raises(InvalidOptionError, match="dimod sampler object"):
        get_sampler("dimod")


def test_auto_scale_is_off_unless_asked_for():
    machine = Recorded([[1, 1, 1]], extra=("auto_scale",))
    wrapped(machine).sample(IsingProblem(FIELDS), 1)
    assert machine.calls[0][1]["auto_scale"] is False


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [(np.zeros((0, 3)), None, "no rows"), ([[1, 1]], [0, 1], "no values"), ([[1, 0, 1]], None, "other than")],
)
def test_answers_that_are_none_are_refused(rows: Any, labels: Any, message: str):
    if message == "other than":
        sampleset = dimod.SampleSet.from_samples(np.ones((1, 3), dtype=np.int8), "SPIN", energy=[0])
        sampleset.record.sample[0, 1] = 0
        with pytest.raises(SampleSetError, match=message):
            rows_of_sampleset(sampleset, 3)
        return
    with pytest.raises(SampleSetError, match=message):
        wrapped(Recorded(rows, labels=labels)).sample(IsingProblem(FIELDS), 3)


def test_errors_of_the_object_say_where_they_come_from():
    def fail(bqm):
        raise KeyError("broken")

    with pytest.raises(KeyError) as caught:
        wrapped(Recorded(fail)).sample(IsingProblem(FIELDS), 3)
    assert "Recorded" in caught.value.__notes__[0]


def test_unknown_objects_are_not_called_boltzmann_unless_declared():
    assert not wrapped(Recorded([[1]])).capabilities.boltzmann
    assert wrapped(Recorded([[1]]), boltzmann=True).capabilities.boltzmann
    assert not wrapped(dimod.ExactSolver(), boltzmann=True).capabilities.boltzmann


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_models_become_problems(vartype: str):
    bqm = dimod.BinaryQuadraticModel({"a": 0.3, 7: -1.0, 3: 0.0}, {("a", 7): 0.5, (7, 3): -2.0}, 1.5, vartype)
    problem, labels, offset = problem_of_bqm(bqm)
    table = dimod.ExactSolver().sample(bqm).change_vartype("SPIN")
    spins = torch.from_numpy(np.array([[row.sample[v] for v in labels] for row in table.data()], dtype=np.int8))
    energies = torch.tensor([row.energy for row in table.data()], dtype=torch.float64)
    assert torch.allclose(problem.energy(spins) + offset, energies)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_dtype_is_kept(dtype: torch.dtype):
    bridge = wrapped(dwave.samplers.SimulatedAnnealingSampler(), num_reads=10)
    problem = IsingProblem(FIELDS.to(dtype), COUPLINGS.to(dtype))
    assert bridge.magnetization(problem).dtype == bridge.sample(problem).energies.dtype == dtype
