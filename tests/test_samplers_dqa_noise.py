"""Noise models: what each error does to a known law, exactly and by shots, and a backend's own noise."""

import pytest
import torch

from samplers.dqa.layers import Layers
from samplers.errors import InvalidOptionError, MissingDependencyError, NotSupportedError, ProblemTooLargeError
from samplers.states import spins_of_index

pytest.importorskip("qiskit_aer")

from qiskit.providers.fake_provider import GenericBackendV2  # noqa: E402
from qiskit_aer.noise import NoiseModel, ReadoutError, depolarizing_error  # noqa: E402

from samplers.dqa import aer  # noqa: E402
from samplers.dqa.aer import AerEngine  # noqa: E402
from samplers.dqa.noise import GATE_TIMES, Noise, as_noise, backend_noise, gate_noise  # noqa: E402

# One layer that turns spin j to m_j = sin(2 f h_j) sin(2 x).
KICK = Layers(*torch.full((3, 1), torch.pi / 4, dtype=torch.float64))
FIELDS = torch.tensor([[[0.75, -0.4, 0.2]]], dtype=torch.float64)
CLEAN = torch.sin(torch.pi / 2 * FIELDS[0, 0])
COUPLINGS = torch.tensor([[0, 0.5, -0.3], [0.5, 0, 0.2], [-0.3, 0.2, 0]], dtype=torch.float64)[None, None]


def marginals(engine: AerEngine, couplings=None, layers: Layers = KICK) -> torch.Tensor:
    n = FIELDS.shape[-1]
    table = spins_of_index(torch.arange(2**n), n).double()
    return (engine.probabilities(FIELDS, couplings, layers) @ table)[0, 0]


def line(num_qubits: int, seed: int = 1) -> GenericBackendV2:
    edges = [[i, i + 1] for i in range(num_qubits - 1)]
    return GenericBackendV2(num_qubits, coupling_map=edges + [e[::-1] for e in edges], seed=seed)


def test_depolarising_shrinks_a_marginal_by_its_rate():
    noise = gate_noise(depolarizing={"rx": 0.2, "rz": 0.1})
    assert torch.allclose(marginals(AerEngine(noise=noise)), 0.8 * 0.9 * CLEAN)
    both = gate_noise(depolarizing=0.1)  # h and rx
    assert torch.allclose(marginals(AerEngine(noise=both)), 0.9**2 * CLEAN)


def test_pair_errors_act_on_pairs_only():
    engine = AerEngine(noise=gate_noise(depolarizing={"rzz": 0.3}))
    assert torch.allclose(marginals(engine), CLEAN)
    assert (marginals(engine, COUPLINGS) - marginals(AerEngine(), COUPLINGS)).abs().max() > 0.05


def test_readout_errors_are_in_exact_probabilities():
    # P(read −1 | +1) = 0.1, P(read +1 | −1) = 0.3: m → 0.2 + 0.6 m.
    engine = AerEngine(noise={"readout": (0.1, 0.3)})
    assert torch.allclose(marginals(engine), 0.2 + 0.6 * CLEAN)
    assert torch.allclose(marginals(AerEngine(noise="readout=0.05")), 0.9 * CLEAN)


def test_relaxation_decays_towards_plus_one():
    # RX takes as long as T1: P(−1) falls by e^{−1}; |0⟩, the ground state of a qubit, is +1.
    noise = gate_noise(t1=35.0, gate_times={"h": 0.0, "rz": 0.0, "rx": 35.0})
    decay = torch.exp(torch.tensor(-1.0, dtype=torch.float64))
    assert torch.allclose(marginals(AerEngine(noise=noise)), 1 - (1 - CLEAN) * decay)


def test_dephasing_acts_before_the_mixer():
    # T2 alone destroys the phase that RZ wrote; after RX it no longer matters for the outcome.
    noise = gate_noise(t2=50.0, gate_times={"h": 0.0, "rz": 50.0, "rx": 0.0})
    decay = torch.exp(torch.tensor(-1.0, dtype=torch.float64))
    assert torch.allclose(marginals(AerEngine(noise=noise)), CLEAN * decay)


@pytest.mark.parametrize("seed", [3, torch.tensor([[17]])])
@pytest.mark.parametrize("method", ["automatic", "statevector"])
def test_shots_have_the_same_noise(method: str, seed, monkeypatch):
    monkeypatch.setattr(aer, "_LOG2_SMALL", -1)
    noise = gate_noise(depolarizing=0.1, readout=(0.02, 0.2), t1=300.0, t2=200.0)
    engine, shots = AerEngine(noise=noise, method=method), 4000
    index = engine.draw(FIELDS, COUPLINGS, KICK, shots, seed)
    law = engine.probabilities(FIELDS, COUPLINGS, KICK)[0, 0]
    counts = torch.bincount(index[0, 0], minlength=8)
    z = (counts - shots * law) / (shots * law * (1 - law)).sqrt()
    assert z.abs().max() < 4.5
    clean = AerEngine().probabilities(FIELDS, COUPLINGS, KICK)[0, 0]
    assert ((counts - shots * clean) / (shots * clean * (1 - clean)).sqrt()).abs().max() > 8


def test_a_backend_keeps_spin_order_through_its_layout():
    backend = line(7)
    quiet = AerEngine(noise=Noise(NoiseModel(), "none", backend))
    layers = Layers(*torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    law = quiet.probabilities(FIELDS, COUPLINGS, layers)
    assert (law - AerEngine().probabilities(FIELDS, COUPLINGS, layers)).abs().max() < 1e-9
    compiled = next(iter(quiet._compiler._shapes.values()))
    assert set(compiled.circuit.count_ops()) <= {*backend.operation_names}
    assert compiled.qubits != (0, 1, 2)  # the transpiler did move them, so the test has teeth


def test_a_backends_own_noise_by_probabilities_and_shots(monkeypatch):
    monkeypatch.setattr(aer, "_LOG2_SMALL", -1)
    backend = line(5)
    engine, shots = AerEngine(noise=backend), 20_000
    law = engine.probabilities(FIELDS, COUPLINGS, KICK)[0, 0]
    clean = AerEngine().probabilities(FIELDS, COUPLINGS, KICK)[0, 0]
    assert 1e-3 < (law - clean).abs().max() < 0.1
    counts = torch.bincount(engine.draw(FIELDS, COUPLINGS, KICK, shots, 1)[0, 0], minlength=8)
    assert ((counts - shots * law) / (shots * law * (1 - law)).sqrt()).abs().max() < 4.5
    assert engine.transpilations == 1
    assert "generic_backend_5q" in engine.info()["noise"]


def test_readout_of_a_backend_is_that_of_the_measured_qubits():
    backend = line(5)
    noise = backend_noise(backend)
    confusions = [noise.confusion(q) for q in range(5)]
    errors = [1 - confusion[0, 0] for confusion in confusions if confusion is not None]
    expected = [backend.target["measure"][(q,)].error for q in range(5)]
    assert errors == pytest.approx(expected, abs=1e-9)


def test_what_may_be_passed_as_noise():
    assert as_noise(None) is None
    noise = gate_noise(readout=0.1)
    assert as_noise(noise) is noise
    for given in ({"t1": 1e5, "depolarizing": {"rx": 0.01}}, '{"t1": 1e5, "depolarizing": {"rx": 0.01}}'):
        read = as_noise(given)
        assert read is not None
        described = read.description
        assert "t1=100000.0" in described and "'rx': 0.01" in described and f"'rzz': {GATE_TIMES['rzz']}" in described
    model = NoiseModel()
    model.add_all_qubit_quantum_error(depolarizing_error(0.2, 1), ["rx"])
    assert torch.allclose(marginals(AerEngine(noise=model)), 0.8 * CLEAN)


def test_a_noise_model_of_other_gates_is_refused():
    model = NoiseModel()
    model.add_all_qubit_quantum_error(depolarizing_error(0.2, 2), ["cx"])
    with pytest.raises(InvalidOptionError, match="errors on cx"):
        as_noise(model)
    with pytest.raises(InvalidOptionError, match="use noise=None"):
        as_noise(NoiseModel())


def test_a_backend_without_errors_or_relaxation():
    with pytest.raises(InvalidOptionError, match="reports no errors"):
        backend_noise(GenericBackendV2(3, noise_info=False))
    backend = line(3)
    backend.target.qubit_properties = None
    assert backend_noise(backend).description.endswith("without T1/T2")


def test_correlated_readout_has_shots_but_no_exact_law():
    swap = [[0.9, 0, 0, 0.1], [0, 1, 0, 0], [0, 0, 1, 0], [0.1, 0, 0, 0.9]]
    model = NoiseModel()
    model.add_readout_error(ReadoutError(swap), [0, 1])
    engine = AerEngine(noise=model)
    with pytest.raises(NotSupportedError, match="single qubits only"):
        engine.probabilities(FIELDS, None, KICK)
    assert engine.draw(FIELDS, None, KICK, 10, 0).shape == (1, 1, 10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"depolarising": 0.1}, "did you mean 'depolarizing'"),
        ({"depolarizing": 1.5}, "between 0 and 1"),
        ({"depolarizing": {"cx": 0.1}}, "names the gate 'cx'"),
        ({"readout": -0.1}, "between 0 and 1"),
        ({"readout": (0.1, 0.1, 0.1)}, "one probability, or two"),
        ({"readout": float("nan")}, "between 0 and 1"),
        ({"t1": 0.0}, "more than 0"),
        ({"t1": 100.0, "t2": 300.0}, "more than twice"),
        ({"t1": 100.0, "gate_times": {"cz": 1.0}}, "names the gate 'cz'"),
        ({}, "does nothing"),
        ({"depolarizing": 0.0}, "does nothing"),
        ("depolarizing", "cannot be read"),
        ("depolarizing=much", "cannot be read"),
        ("{broken", "cannot be read"),
        (3.5, "noise is float"),
    ],
)
def test_bad_noise(given, words: str):
    with pytest.raises(InvalidOptionError, match=words):
        as_noise(given)


def test_limits_under_noise():
    noise = gate_noise(readout=0.1)
    with pytest.raises(ProblemTooLargeError, match="'density_matrix' take at most 12"):
        AerEngine(noise=noise).probabilities(torch.zeros(1, 1, 13), None, KICK)
    with pytest.raises(ProblemTooLargeError, match="has 2 qubits"):
        AerEngine(noise=line(2)).draw(FIELDS, COUPLINGS, KICK, 5, 0)


def test_without_aer_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "qiskit_aer", None)
    with pytest.raises(MissingDependencyError, match=r"ising-attn\[aer\]"):
        gate_noise(readout=0.1)
