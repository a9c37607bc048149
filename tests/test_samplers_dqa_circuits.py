"""The anneal's circuits: gates, names, export and drawing. Everything here runs without Aer."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from qiskit import qasm3
from qiskit.quantum_info import Statevector

from samplers.dqa import circuits, reference
from samplers.dqa.angles import GateAngles, all_pairs, coupled_pairs, gate_angles
from samplers.dqa.compilation import AnnealCompiler
from samplers.dqa.layers import Layers
from samplers.errors import InvalidOptionError, InvalidProblemError, MissingDependencyError

LAYERS = Layers(*torch.tensor([[0.3, 0.5], [0.2, 0.7], [0.6, 0.1]], dtype=torch.float64))
FIELDS = torch.tensor([0.9, -0.4, 0.2], dtype=torch.float64)
COUPLINGS = torch.tensor([[0, 0.5, -0.3], [0.5, 0, 0], [-0.3, 0, 0]], dtype=torch.float64)


def test_gates_and_angles_are_those_of_layers():
    circuit = circuits.problem_circuit(FIELDS, COUPLINGS, LAYERS)
    seen = [(i.operation.name, tuple(circuit.find_bit(q).index for q in i.qubits), i.params) for i in circuit.data]
    first = seen[3:11]
    expected: list[tuple[str, tuple[int, ...], float]] = [
        ("rz", (j,), -2 * 0.3 * h) for j, h in enumerate([0.9, -0.4, 0.2])
    ]
    expected += [("rzz", (0, 1), -2 * 0.2 * 0.5), ("rzz", (0, 2), -2 * 0.2 * -0.3)]
    expected += [("rx", (j,), -2 * 0.6) for j in range(3)]
    assert [(name, qubits) for name, qubits, _ in first] == [(name, qubits) for name, qubits, _ in expected]
    assert [p[0] for _, _, p in first] == pytest.approx([angle for _, _, angle in expected])
    assert dict(circuit.count_ops()) == {"h": 3, "rz": 6, "rzz": 4, "rx": 6, "measure": 3}


def test_qiskits_own_simulator_gives_the_same_law_in_the_same_order():
    circuit = circuits.problem_circuit(FIELDS, COUPLINGS, LAYERS, measure=False)
    law = torch.from_numpy(Statevector(circuit).probabilities())
    assert (law - reference.probabilities(FIELDS, COUPLINGS, LAYERS)).abs().max() < 1e-12


def test_parameters_are_bound_by_name_whatever_their_order():
    # Qiskit sorts rz_0_10 before rz_0_2.
    n = 11
    free = circuits.anneal_circuit(n, 1, pairs=((2, 10),))
    assert [p.name for p in free.parameters] != circuits.parameter_names(n, 1, ((2, 10),))
    rows = torch.arange(1.0, 2 * n + 2, dtype=torch.float64).unsqueeze(0)
    empty = GateAngles(torch.zeros(1, 1, n), torch.zeros(1, 1, 1), torch.zeros(1, 1, n), ((2, 10),))
    bound = circuits.bind(free, empty.with_flat(rows))
    angles = {(i.operation.name, bound.find_bit(i.qubits[0]).index): i.params for i in bound.data if i.params}
    assert all(angles["rz", j] == [1.0 + j] for j in range(n))
    assert angles["rzz", 2] == [1.0 + n]
    assert all(angles["rx", j] == [2.0 + n + j] for j in range(n))


def test_angles_survive_a_round_trip_and_refuse_nan():
    fields = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    angles = gate_angles(fields, COUPLINGS.new_ones(2, 1, 4, 4), LAYERS, pairs=all_pairs(4))
    again = angles.with_flat(angles.flat())
    assert torch.equal(again.rz, angles.rz) and torch.equal(again.rzz, angles.rzz) and torch.equal(again.rx, angles.rx)
    assert angles.rz.dtype == torch.float64 and angles.num_problems == 6
    assert torch.allclose(angles.rz[4, 1], -2 * 0.5 * fields[1, 1].double())
    with pytest.raises(InvalidProblemError, match="RZZ angles are NaN"):
        gate_angles(fields, COUPLINGS.new_full((1, 1, 4, 4), torch.nan), LAYERS)


def test_only_coupled_pairs_get_gates():
    couplings = torch.zeros(2, 1, 4, 4)
    couplings[0, 0, 1, 3] = couplings[0, 0, 3, 1] = 1.0
    couplings[1, 0, 0, 1] = couplings[1, 0, 1, 0] = -1.0
    assert coupled_pairs(couplings) == ((0, 1), (1, 3))
    assert coupled_pairs(None) == () and coupled_pairs(torch.zeros(4, 4)) == ()


def test_openqasm_round_trip():
    circuit = circuits.problem_circuit(FIELDS, COUPLINGS, LAYERS)
    text = circuits.to_openqasm3(circuit)
    assert text.startswith("OPENQASM 3") and "rzz(" in text and "spins[2] = measure q[2];" in text
    free = circuits.to_openqasm3(circuits.anneal_circuit(2, 1))
    for name in circuits.parameter_names(2, 1, all_pairs(2)):
        assert f"input float[64] {name};" in free


def test_openqasm_is_read_back_as_the_same_law():
    pytest.importorskip("qiskit_qasm3_import")
    text = circuits.to_openqasm3(circuits.problem_circuit(FIELDS, COUPLINGS, LAYERS, measure=False))
    law = torch.from_numpy(Statevector(qasm3.loads(text)).probabilities())
    assert (law - reference.probabilities(FIELDS, COUPLINGS, LAYERS)).abs().max() < 1e-12


def test_qpy_round_trip(tmp_path: Path):
    free = circuits.anneal_circuit(3, 2)
    loaded = circuits.load_qpy(circuits.save_qpy(free, tmp_path / "anneal.qpy"))
    assert loaded == free and {p.name for p in loaded.parameters} == {p.name for p in free.parameters}


def test_a_bad_circuit_file_is_one_sentence(tmp_path: Path):
    with pytest.raises(InvalidOptionError, match="there is no circuit file"):
        circuits.load_qpy(tmp_path / "absent.qpy")
    whole = circuits.save_qpy(circuits.anneal_circuit(3, 2), tmp_path / "anneal.qpy").read_bytes()
    for content in (b"", b"not a circuit", whole[: len(whole) // 2]):
        (tmp_path / "bad.qpy").write_bytes(content)
        with pytest.raises(InvalidOptionError, match="is not a QPY file"):
            circuits.load_qpy(tmp_path / "bad.qpy")


def test_drawing():
    circuit = circuits.anneal_circuit(2, 1)
    text = str(circuits.draw_circuit(circuit))
    assert "Rz(rz_0_0)" in text and "ZZ(rzz_0_0_1)" in text
    with pytest.raises(InvalidOptionError, match="'text' or 'mpl'"):
        circuits.draw_circuit(circuit, output="latex")
    from qiskit.utils import optionals

    with (
        optionals.HAS_MATPLOTLIB.disable_locally(),
        pytest.raises(MissingDependencyError, match=r"ising-attn\[plots\]"),
    ):
        circuits.draw_circuit(circuit, output="mpl")


def test_drawing_as_a_figure():
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pylatexenc")
    matplotlib.use("Agg")
    figure = circuits.draw_circuit(circuits.anneal_circuit(2, 1), output="mpl", fold=40)
    assert len(figure.axes) == 1
    matplotlib.pyplot.close(figure)


def test_impossible_sizes_are_refused():
    with pytest.raises(InvalidOptionError, match="at least 1 spin"):
        circuits.anneal_circuit(0, 1)


def test_old_shapes_are_forgotten(monkeypatch):
    monkeypatch.setattr("samplers.dqa.compilation.MAX_SHAPES", 2)
    compiler = AnnealCompiler()

    def angles(n: int) -> GateAngles:
        return GateAngles(torch.zeros(1, 1, n), torch.zeros(1, 1, 0), torch.zeros(1, 1, n), ())

    for n, count in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
        compiler(angles(n))
        assert compiler.count == count


def test_importing_the_modules_imports_no_qiskit():
    code = (
        "import sys; import samplers.dqa.aer, samplers.dqa.noise, samplers.dqa.primitive, samplers.dqa.circuits, "
        "samplers.dqa.parameter_shift; raise SystemExit(any(m.startswith('qiskit') for m in sys.modules))"
    )
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
