"""The D-Wave sampler on dwave-system's mock machine: temperature, tiles, chains, gauges, limits, and no network."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("dwave.system")

import dimod
from dwave.samplers import SimulatedAnnealingSampler
from dwave.system.testing import MockDWaveSampler

from samplers import IsingProblem, get_sampler
from samplers.dimod_bridge.convert import SampleSetError
from samplers.dimod_bridge.laws import anneal_schedule
from samplers.dwave.calls import plan_calls
from samplers.dwave.machine import MachineNotConfiguredError, machine_name
from samplers.dwave.sampler import DWaveSampler
from samplers.dwave.temperature import DeviceBeta
from samplers.dwave.tiles import Programme, find_tiles, place, read_out
from samplers.enumeration import ground_states, moments
from samplers.errors import InvalidOptionError, NotSupportedError, ProblemTooLargeError

FIELDS = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
COUPLINGS = torch.tensor([[0.0, 0.7, 0.0], [0.7, 0.0, -0.4], [0.0, -0.4, 0.0]], dtype=torch.float64)


class Bath(dimod.Sampler):
    """Draws at a given β in dimod's sign, and remembers what it was given. Seeded by the call's number."""

    parameters: Any = None
    properties: Any = None

    def __init__(self, beta: float, sweeps: int = 48):
        self.parameters, self.properties = {"num_reads": []}, {}
        self.beta, self.sweeps = beta, sweeps
        self.calls: list[tuple[dimod.BinaryQuadraticModel, dict]] = []

    def sample(self, bqm, num_reads=1, **kwargs):
        self.calls.append((bqm, {"num_reads": num_reads, **kwargs}))
        return SimulatedAnnealingSampler().sample(
            bqm,
            num_reads=num_reads,
            seed=1000003 * len(self.calls),
            beta_schedule_type="custom",
            beta_schedule=[self.beta * share for share in anneal_schedule(self.sweeps, 0.6)],
            proposal_acceptance_criteria="Gibbs",
        )


def mock(
    beta: float = 3.0, topology: str = "pegasus", shape: tuple = (3,), sweeps: int = 48, **kwargs
) -> MockDWaveSampler:
    machine = MockDWaveSampler(
        topology_type=topology,
        topology_shape=list(shape),
        substitute_sampler=Bath(beta, sweeps),
        parameter_warnings=False,
        **kwargs,
    )
    # Wide ranges: what is tested with narrow ones says so.
    machine.properties |= {"h_range": [-40.0, 40.0], "j_range": [-10.0, 10.0], "extended_j_range": [-20.0, 10.0]}
    return machine


def calls_of(machine: MockDWaveSampler) -> list[tuple[dimod.BinaryQuadraticModel, dict]]:
    return machine.substitute_sampler.calls


def dwave(machine: Any, **options: Any) -> DWaveSampler:
    return get_sampler("dwave", machine=machine, **options)  # type: ignore[return-value]


def random_problem(*shape: int, seed: int = 0, beta: float = 1.0, **kwargs) -> IsingProblem:
    generator = torch.Generator().manual_seed(seed)
    n = shape[-1]
    a = 0.3 * torch.randn(n, n, generator=generator, dtype=torch.float64)
    fields = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return IsingProblem(fields, (a + a.mT).fill_diagonal_(0), beta=beta, **kwargs)


def z_scores(problem: IsingProblem, magnetization: torch.Tensor, reads: int) -> torch.Tensor:
    exact = moments(problem)[0]
    return (magnetization - exact) / torch.sqrt((1 - exact**2) / reads)


@pytest.mark.parametrize("beta", [0.7, 1.5])
def test_draws_follow_our_law_at_the_requested_temperature(beta: float):
    problem = random_problem(12, 4, beta=beta)
    sampler = dwave(mock(beta=3.0), device_beta=3.0, feedback=False)
    samples = sampler.sample(problem, 2000, seed=1)
    z = z_scores(problem, samples.magnetization(), 2000)
    assert float(z.abs().max()) < 5 and float((z**2).mean()) < 1.8
    for wrong in (IsingProblem(-problem.fields, problem.couplings), IsingProblem(problem.fields, -problem.couplings)):
        assert float((z_scores(wrong, samples.magnetization(), 2000) ** 2).mean()) > 10
    assert samples.info["energy_scale"] == pytest.approx(beta / 3.0)
    assert abs(samples.info["beta_estimated"] - beta) < 5 * samples.info["beta_estimated_error"]
    assert torch.allclose(samples.energies, problem.energy(samples.spins))


def test_one_spin_is_up_with_probability_0_8808():
    m = dwave(mock(beta=2.0), device_beta=2.0, num_reads=20_000).magnetization(IsingProblem(torch.ones(1)))
    assert (1 + float(m)) / 2 == pytest.approx(0.8808, abs=0.012)


def test_pilot_finds_the_temperature_of_the_machine():
    problem = random_problem(12, 4)
    sampler = dwave(mock(beta=5.0))
    samples = sampler.sample(problem, 1000, seed=1)
    assert samples.info["pilot"].startswith("updated")
    assert samples.info["device_beta"] == pytest.approx(5.0, rel=0.1)
    z = z_scores(problem, samples.magnetization(), 1000)
    assert float((z**2).mean()) < 3
    assert sampler.sample(problem, 1000, seed=2).info["pilot"] is None


@pytest.mark.parametrize("machine_beta", [0.05, 300.0])
def test_pilot_finds_hot_and_cold_machines(machine_beta: float):
    sampler = dwave(mock(beta=machine_beta), auto_scale=True)
    info = sampler.sample(random_problem(8, 3), 500, seed=1).info
    assert info["device_beta"] == pytest.approx(machine_beta, rel=0.4)


def test_feedback_corrects_a_wrong_temperature():
    problem = random_problem(12, 4)
    sampler = dwave(mock(beta=4.0), device_beta=2.0)
    first = sampler.sample(problem, 1000).info
    assert first["device_beta"] == 2.0 and first["device_beta_next"] == pytest.approx(4.0, rel=0.1)
    assert first["beta_estimated"] == pytest.approx(2.0, rel=0.1)
    second = sampler.sample(problem, 1000).info
    assert second["beta_estimated"] == pytest.approx(1.0, rel=0.1)
    fixed = dwave(mock(beta=4.0), device_beta=2.0, feedback=False)
    assert fixed.sample(problem, 200).info["device_beta_next"] == 2.0


def test_temperature_is_part_of_the_state():
    sampler = dwave(mock(beta=4.0), device_beta=2.0)
    sampler.magnetization(random_problem(6, 3))
    resumed = dwave(mock(beta=4.0), device_beta=2.0)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.sample(random_problem(6, 3), 50).info["device_beta"] == pytest.approx(4.0, rel=0.15)


def test_filter_weighs_estimates_and_leaves_nonsense_out():
    device = DeviceBeta()
    assert "not updated" in device.update(math.inf, math.inf) and device.value is None
    device.update(4.0, 0.04)
    device.update(8.0, 8.0)
    assert device.value == pytest.approx(4.0, rel=0.01)
    for _ in range(50):
        device.update(5.0, 0.05)
    assert device.value == pytest.approx(5.0, rel=0.01)
    for estimate in (math.nan, math.inf, -math.inf, -1.0):
        assert "not updated" in device.update(estimate, 0.1)
    assert device.value == pytest.approx(5.0, rel=0.01)


def test_several_problems_travel_in_one_call():
    machine = mock()
    problem = random_problem(20, 4)
    samples = dwave(machine, device_beta=3.0, num_spin_reversals=0).sample(problem, 50)
    info = samples.info
    assert info["calls"] == len(calls_of(machine)) == math.ceil(20 / info["problems_per_call"])
    assert info["problems_per_call"] > 4 and samples.spins.shape == (20, 50, 4)
    alone = mock()
    dwave(alone, device_beta=3.0, num_spin_reversals=0, max_tiles=1).sample(problem, 50)
    assert len(calls_of(alone)) == 20


def test_embeddings_are_kept_per_size(monkeypatch: pytest.MonkeyPatch):
    sizes = []

    def noted(machine: Any, size: int, limit: int):
        sizes.append(size)
        return find_tiles(machine, size, limit)

    monkeypatch.setattr("samplers.dwave.sampler.find_tiles", noted)
    sampler = dwave(mock(), device_beta=3.0, num_reads=5)
    for n in (3, 3, 4, 3):
        sampler.sample(random_problem(2, n))
    assert sizes == [3, 4]


@pytest.mark.parametrize(
    ("topology", "shape", "size"),
    [
        ("pegasus", (3,), 4),
        ("pegasus", (4,), 12),
        ("zephyr", (3, 4), 9),
        ("chimera", (4, 4, 4), 5),
        ("chimera", (2, 2, 4), 1),
    ],
)
def test_tiles_are_disjoint_cliques_around_defects(topology: str, shape: tuple, size: int):
    whole = mock(topology=topology, shape=shape)
    machine = mock(topology=topology, shape=shape, broken_nodes=whole.nodelist[5:8], broken_edges=whole.edgelist[40:44])
    tiles = find_tiles(machine, size, limit=100)
    qubits = [qubit for tile in tiles for chain in tile.chains for qubit in chain]
    assert len(qubits) == len(set(qubits)) and set(qubits) <= set(machine.nodelist)
    edges = set(machine.edgelist)
    for tile in tiles:
        assert len(tile.chains) == size
        assert set(tile.links) == {(i, j) for i in range(size) for j in range(i + 1, size)}
        assert {edge for group in (*tile.links.values(), *tile.bonds) for edge in group} <= edges
    assert len(tiles) >= (1 if topology == "chimera" and size == 5 else 2)
    assert len(find_tiles(machine, size, limit=1)) == 1


def test_placing_keeps_the_energy_of_unbroken_chains():
    machine = mock(topology="chimera", shape=(4, 4, 4))
    tile = find_tiles(machine, 6, 1)[0]
    assert max(map(len, tile.chains)) > 1
    generator = np.random.default_rng(0)
    linear, quadratic = generator.normal(size=5), np.triu(generator.normal(size=(5, 5)), 1)
    programme = Programme()
    placed = place(programme, tile, linear, quadratic, bond=2.0)
    bqm = dimod.BinaryQuadraticModel(programme.linear, programme.quadratic, "SPIN")
    bonds = sum(len(tile.bonds[i]) for i in range(5))
    for spins in generator.choice([-1, 1], size=(10, 5)):
        qubits = {q: int(spins[i]) for i, chain in enumerate(placed.chains) for q in chain}
        assert bqm.energy(qubits) == pytest.approx(linear @ spins + spins @ quadratic @ spins - 2.0 * bonds)


def test_spins_without_couplings_need_no_chain():
    tile = find_tiles(mock(topology="chimera", shape=(4, 4, 4)), 6, 1)[0]
    programme = Programme()
    placed = place(programme, tile, np.arange(1.0, 7.0), np.zeros((6, 6)), bond=2.0)
    assert [len(chain) for chain in placed.chains] == [1] * 6 and programme.quadratic == {}
    machine = mock(topology="chimera", shape=(4, 4, 4))
    m = dwave(machine, device_beta=3.0, num_reads=4000).magnetization(IsingProblem(FIELDS))
    assert float((m - torch.tanh(FIELDS)).abs().max()) < 5 / math.sqrt(4000)


def test_reading_out_takes_majorities_and_counts_breaks():
    from samplers.dwave.tiles import Placed

    rows = np.array([[1, 1, 1, -1, 1], [1, -1, -1, 1, -1], [-1, -1, 1, 1, 1]], dtype=np.int8)
    spins, broken = read_out(rows, {10: 0, 11: 1, 12: 2, 13: 3, 14: 4}, Placed(((10, 11, 12), (13, 14))))
    assert spins.tolist() == [[1, -1], [-1, 1], [-1, 1]]
    assert broken.tolist() == [[False, True], [True, True], [True, False]]


def test_chain_breaks_are_reported_and_bonds_scale_with_the_problem():
    problem = random_problem(3, 8)
    weak = dwave(mock(topology="chimera", shape=(4, 4, 4)), device_beta=3.0, chain_strength=0.0, num_reads=200)
    strong = dwave(mock(topology="chimera", shape=(4, 4, 4)), device_beta=3.0, chain_strength=3.0, num_reads=200)
    broken = [s.sample(problem).info["chain_break_fraction"] for s in (weak, strong)]
    assert broken[0] > 0.2 > 5 * broken[1]


def test_chains_still_give_the_law():
    machine = mock(topology="chimera", shape=(2, 2, 4), sweeps=400)
    problem = random_problem(1, 5, beta=0.5)
    samples = dwave(machine, device_beta=3.0, chain_strength=2.0, feedback=False).sample(problem, 4000, seed=3)
    z = z_scores(problem, samples.magnetization(), 4000)
    assert samples.info["chain_break_fraction"] < 0.05
    assert float(z.abs().max()) < 6


def test_gauges_differ_between_calls_and_are_undone():
    machine = mock()
    problem = IsingProblem(torch.full((1, 4), 5.0, dtype=torch.float64))
    samples = dwave(machine, device_beta=3.0, num_spin_reversals=5).sample(problem, 23)
    assert bool((samples.spins == 1).all()) and samples.spins.shape == (1, 23, 4)
    signs = {tuple(np.sign(list(bqm.linear.values())).astype(int)) for bqm, _ in calls_of(machine)}
    assert len(signs) > 2 and [k["num_reads"] for _, k in calls_of(machine)] == [5, 5, 5, 4, 4]
    plain = mock()
    dwave(plain, device_beta=3.0, num_spin_reversals=0).sample(problem, 23)
    assert all(bias < 0 for bqm, _ in calls_of(plain) for bias in bqm.linear.values())


def test_reads_beyond_one_call_are_split():
    plan = list(plan_calls(queries=5, tiles=2, num_reads=25, gauges=2, most=10))
    assert [(c.queries, c.gauge, c.reads) for c in plan[:4]] == [
        (range(0, 2), 0, 10),
        (range(0, 2), 0, 3),
        (range(0, 2), 1, 10),
        (range(0, 2), 1, 2),
    ]
    assert plan[-1].queries == range(4, 5)
    machine = mock()
    machine.properties["num_reads_range"] = [1, 30]
    samples = dwave(machine, device_beta=3.0, num_spin_reversals=0).sample(random_problem(2, 3), 70)
    assert samples.num_reads == 70 and [k["num_reads"] for _, k in calls_of(machine)] == [30, 30, 10]


def test_every_call_has_auto_scale_off_and_raw_answers():
    machine = mock()
    dwave(machine, annealing_time=5.0, machine_kwargs={"readout_thermalization": 10.0}).sample(random_problem(2, 3), 20)
    for _, kwargs in calls_of(machine):
        assert kwargs["auto_scale"] is False and kwargs["answer_mode"] == "raw"
        assert kwargs["annealing_time"] == 5.0 and kwargs["readout_thermalization"] == 10.0


def test_aggregated_answers_count_as_often_as_they_occurred():
    class Histogram(Bath):
        def sample(self, bqm, num_reads=1, **kwargs):
            return super().sample(bqm, num_reads, **kwargs).aggregate()

    raw, aggregated = mock(), mock()
    aggregated.substitute_sampler = Histogram(3.0)
    problem = random_problem(1, 3)
    one, other = (dwave(m, device_beta=3.0).magnetization(problem, seed=1) for m in (raw, aggregated))
    assert torch.allclose(one, other)


def test_missing_reads_are_noticed():
    class Short(Bath):
        def sample(self, bqm, num_reads=1, **kwargs):
            return super().sample(bqm, max(1, num_reads // 2), **kwargs)

    machine = mock()
    machine.substitute_sampler = Short(3.0)
    with pytest.raises(SampleSetError, match="of 50 reads"):
        dwave(machine, device_beta=3.0, num_spin_reversals=0).sample(random_problem(1, 3), 50)


def test_fast_anneals_carry_fields_by_one_more_spin():
    machine = mock(sweeps=200)
    problem = random_problem(6, 3)
    sampler = dwave(machine, device_beta=3.0, fast_anneal=True, annealing_time=0.01, feedback=False)
    samples = sampler.sample(problem, 2000, seed=1)
    for bqm, kwargs in calls_of(machine):
        assert kwargs["fast_anneal"] is True and not any(bqm.linear.values())
    z = z_scores(problem, samples.magnetization(), 2000)
    assert float(z.abs().max()) < 5 and float((z**2).mean()) < 2
    pilot = dwave(mock(sweeps=200), fast_anneal=True, annealing_time=0.01).sample(problem, 500).info
    assert pilot["device_beta"] == pytest.approx(3.0, rel=0.15)


def test_problems_beyond_the_range_are_refused_or_shrunk():
    machine = mock(beta=0.5)
    machine.properties |= {"h_range": [-4.0, 4.0], "j_range": [-1.0, 1.0], "extended_j_range": [-2.0, 1.0]}
    fields = torch.tensor([[0.5, 0.1], [4.0, 0.1]], dtype=torch.float64)
    with pytest.raises(NotSupportedError, match="1 of 2 problems.*auto_scale"):
        dwave(machine, device_beta=0.5).sample(IsingProblem(fields), 10)
    assert calls_of(machine) == []
    samples = dwave(machine, device_beta=0.5, auto_scale=True, feedback=False).sample(IsingProblem(fields), 4000)
    assert samples.info["problems_shrunk"] == 1 and samples.info["beta_reached"] == pytest.approx(0.5)
    expected = torch.tanh(torch.tensor([[0.5, 0.1], [2.0, 0.05]], dtype=torch.float64))
    assert float((samples.magnetization() - expected).abs().max()) < 5 / math.sqrt(4000)


def test_causal_masks():
    n = 4
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    problem = random_problem(3, n, n, allowed=mask)
    samples = dwave(mock(), device_beta=3.0, feedback=False).sample(problem, 2000, seed=2)
    allowed = mask.expand(3, n, n)
    z = z_scores(problem, samples.magnetization(), 2000)[allowed]
    assert float(z.abs().max()) < 5
    assert bool((samples.spins.mT[~allowed] == -1).all())


def test_nothing_to_send():
    machine = mock()
    nothing = IsingProblem(torch.zeros(2, 2), allowed=torch.zeros(2, dtype=torch.bool))
    assert dwave(machine).magnetization(nothing).tolist() == [[-1, -1], [-1, -1]]
    assert dwave(machine).magnetization(IsingProblem(torch.zeros(0, 3))).shape == (0, 3)
    assert calls_of(machine) == []
    m = dwave(machine, num_reads=400).magnetization(IsingProblem(torch.zeros(2, 3)))
    assert float(m.abs().max()) < 5 / 20


def test_ground_states_use_the_whole_range():
    problem = random_problem(10, 5)
    machine = mock(beta=3.0)
    assert torch.equal(dwave(machine).ground_state(problem), ground_states(problem))
    largest = max(abs(b) for bqm, _ in calls_of(machine) for b in [*bqm.linear.values(), *bqm.quadratic.values()])
    assert largest >= 9.9


def test_dry_run_counts_and_sends_nothing():
    machine = mock()
    sampler, problem = dwave(machine), random_problem(20, 4)
    plan = sampler.dry_run(problem, num_reads=700)
    assert calls_of(machine) == []
    assert plan.problems == 20 and plan.reads == 700 and not plan.machine_estimate
    sampler.sample(problem, 700)
    assert plan.calls == len(calls_of(machine))
    reads = sum(k["num_reads"] for _, k in calls_of(machine))
    assert plan.qpu_seconds == pytest.approx(plan.calls * 16e-3 + reads * 140.5e-6, rel=1e-6)
    assert "nothing was sent" in str(plan) and "20 problems" in str(plan)
    longer = dwave(mock(), annealing_time=200.0).dry_run(problem, num_reads=700)
    assert longer.qpu_seconds > plan.qpu_seconds


def test_dry_run_uses_the_timing_of_the_machine():
    class Solver:
        def estimate_qpu_access_time(self, num_qubits, num_reads, annealing_time=None):
            return 1e6 * num_qubits + num_reads + (annealing_time or 0)

    machine = mock()
    machine.solver, machine.properties["problem_timing_data"] = Solver(), {"version": "1.0.0"}
    plan = dwave(machine, device_beta=3.0, num_spin_reversals=0, annealing_time=7.0).dry_run(random_problem(1, 4), 93)
    assert plan.machine_estimate and plan.qpu_seconds == pytest.approx(plan.qubits + 100e-6)


def test_too_many_spins():
    with pytest.raises(ProblemTooLargeError, match="no clique of 40 spins"):
        dwave(mock(topology="chimera", shape=(2, 2, 4))).magnetization(random_problem(1, 40))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"annealing_time": 1e6}, "annealing_time"),
        ({"annealing_time": 0.01}, "fast_anneal=True"),
        ({"machine_kwargs": {"readout_thermalisation": 1.0}}, "did you mean 'readout_thermalization'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_sent(options: dict, message: str):
    machine = mock()
    with pytest.raises(InvalidOptionError, match=message):
        dwave(machine, **options).magnetization(IsingProblem(FIELDS))
    assert calls_of(machine) == []


@pytest.mark.parametrize(
    "options", [{"machine_kwargs": {"auto_scale": True}}, {"device_beta": -1.0}, {"device_beta": math.inf}]
)
def test_bad_options_are_refused_at_once(options: dict):
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        dwave(mock(), **options)


def test_a_machine_is_an_object_not_a_name():
    with pytest.raises(InvalidOptionError, match="solver="):
        dwave("Advantage_system4.1")


def test_without_a_token_one_sentence_says_how_to_configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No configuration: no machine is looked for, and no network is touched."""
    empty = tmp_path / "dwave.conf"
    empty.write_text("[defaults]\n")
    monkeypatch.setenv("DWAVE_CONFIG_FILE", str(empty))
    for name in ("DWAVE_API_TOKEN", "DWAVE_PROFILE", "DWAVE_API_SOLVER"):
        monkeypatch.delenv(name, raising=False)

    def refuse(*args: Any, **kwargs: Any):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    sampler = get_sampler("dwave")
    for call in (sampler.magnetization, sampler.ground_state, sampler.dry_run):  # type: ignore[attr-defined]
        with pytest.raises(MachineNotConfiguredError, match="dwave config create"):
            call(IsingProblem(FIELDS))
    with pytest.raises(MachineNotConfiguredError, match="nowhere"):
        get_sampler("dwave", profile="nowhere").magnetization(IsingProblem(FIELDS))


def test_a_machine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DWAVE_API_TOKEN", "not-a-token")

    def fail(*args: Any, **kwargs: Any):
        raise ConnectionError("unreachable")

    monkeypatch.setattr("dwave.system.DWaveSampler", fail)
    with pytest.raises(MachineNotConfiguredError, match="unreachable.*dwave ping"):
        get_sampler("dwave").magnetization(IsingProblem(FIELDS))


def test_provenance_names_the_machine_and_the_surrogate():
    fields = FIELDS.clone().requires_grad_()
    sampler = dwave(mock(), device_beta=3.0, num_reads=100)
    sampler.magnetization(IsingProblem(fields, COUPLINGS)).sum().backward()
    info = sampler.last_info
    assert info["machine"] == machine_name(sampler.machine) and "surrogate" in info["gradient"]
    assert info["reads_sent"] == 100 and info["qpu_seconds"] > 0
    assert info["options"]["machine"] == "MockDWaveSampler"
    assert fields.grad is not None and bool(fields.grad.isfinite().all())
    assert not sampler.capabilities.boltzmann
