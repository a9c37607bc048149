"""Qiskit primitives as engines: order of bits, counts, layouts and refusals."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from qiskit.primitives import BackendSamplerV2, BaseSamplerV2, StatevectorSampler
from qiskit.providers.fake_provider import GenericBackendV2

from samplers.dqa import reference
from samplers.dqa.layers import Layers
from samplers.dqa.primitive import PrimitiveEngine, _indices, as_engine
from samplers.errors import EngineError, InvalidOptionError, InvalidProblemError, NotSupportedError
from samplers.states import spins_of_index

LAYERS = Layers(*torch.tensor([[0.3, 0.5], [0.2, 0.7], [0.6, 0.3]], dtype=torch.float64))
FIELDS = torch.tensor([[[0.9, -0.4, 0.2], [-1.2, 0.3, 0.7]]], dtype=torch.float64)
COUPLINGS = torch.tensor([[0, 0.5, -0.3], [0.5, 0, 0.2], [-0.3, 0.2, 0]], dtype=torch.float64)[None, None]
SHOTS = 8000


def z_scores(index: torch.Tensor, problem: int, law_of: int | None = None) -> torch.Tensor:
    own = problem if law_of is None else law_of
    law = reference.probabilities(FIELDS[0, own], COUPLINGS[0, 0], LAYERS)
    counts = torch.bincount(index[0, problem], minlength=8)
    return ((counts - SHOTS * law) / (SHOTS * law * (1 - law)).sqrt()).abs()


def assert_right_law(index: torch.Tensor) -> None:
    for problem in range(2):
        assert z_scores(index, problem).max() < 4.5
        assert z_scores(index, problem, law_of=1 - problem).max() > 10


def test_qiskits_reference_primitive():
    engine = PrimitiveEngine(StatevectorSampler(seed=1))
    index = engine.draw(FIELDS, COUPLINGS, LAYERS, SHOTS)
    assert index.dtype == torch.int64 and index.shape == (1, 2, SHOTS)
    assert_right_law(index)
    assert engine.transpilations == 1 and engine.info()["backend"] is None


def test_aers_primitive():
    aer = pytest.importorskip("qiskit_aer.primitives")
    assert_right_law(PrimitiveEngine(aer.SamplerV2(seed=2), max_experiments=1).draw(FIELDS, COUPLINGS, LAYERS, SHOTS))


@pytest.mark.filterwarnings("ignore:Qiskit backend .* has no QubitProperties:UserWarning")
def test_a_backends_primitive_keeps_to_its_gates_and_returns_spin_order():
    pytest.importorskip("qiskit_aer")
    edges = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2], [3, 4], [4, 3]]
    backend = GenericBackendV2(5, coupling_map=edges, seed=3, noise_info=False)
    engine = PrimitiveEngine(BackendSamplerV2(backend=backend, options={"seed_simulator": 4}))
    assert engine.backend is backend and engine.info()["backend"] == "generic_backend_5q"
    index = engine.draw(FIELDS, COUPLINGS, LAYERS, SHOTS)
    assert_right_law(index)
    compiled = next(iter(engine._compiler._shapes.values()))
    assert "rzz" not in compiled.circuit.count_ops() and compiled.circuit.num_qubits == 5


def test_no_parameters_and_more_than_one_byte():
    # Nine spins, no layers: uniform, and bit 8 sits in a byte of its own.
    nothing = Layers(*torch.zeros(3, 0, dtype=torch.float64))
    index = PrimitiveEngine(StatevectorSampler(seed=1)).draw(torch.zeros(1, 2, 9), None, nothing, 4000)
    assert spins_of_index(index, 9).double().mean(2).abs().max() < 5 / 4000**0.5
    assert _indices(np.array([[[1, 3]]], dtype=np.uint8)).tolist() == [[259]]


def test_probabilities_are_refused_and_so_are_bad_angles():
    engine = PrimitiveEngine(StatevectorSampler(seed=1))
    assert not engine.exact
    with pytest.raises(NotSupportedError, match="set shots="):
        engine.probabilities(FIELDS, COUPLINGS, LAYERS)
    with pytest.raises(InvalidProblemError, match="NaN"):
        engine.draw(FIELDS * torch.nan, COUPLINGS, LAYERS, 10)
    with pytest.raises(InvalidOptionError, match="shots=0"):
        engine.draw(FIELDS, COUPLINGS, LAYERS, 0)


def test_a_fixed_seed_is_seen():
    pytest.importorskip("qiskit_aer")
    backend = GenericBackendV2(2, seed=1)
    for seed in (None, 7):
        for sampler in (
            StatevectorSampler(seed=seed),
            BackendSamplerV2(backend=backend, options={"seed_simulator": seed}),
        ):
            engine = PrimitiveEngine(sampler)
            assert engine.fixed_seed == seed and engine.info()["fixed_seed"] == seed
    assert PrimitiveEngine(StatevectorSampler(seed=np.random.default_rng(7))).fixed_seed is None


def test_what_is_an_engine():
    assert isinstance(as_engine(StatevectorSampler()), PrimitiveEngine)
    engine = PrimitiveEngine(StatevectorSampler())
    assert as_engine(engine) is engine
    with pytest.raises(InvalidOptionError, match="BackendSamplerV2"):
        PrimitiveEngine(GenericBackendV2(2))


class Short(BaseSamplerV2):
    """A primitive that loses problems, shots or a whole pub."""

    def __init__(self, lose: str):
        self.inner, self.lose = StatevectorSampler(seed=0), lose

    def run(self, pubs, *, shots=None):
        results = list(self.inner.run(pubs, shots=shots - (self.lose == "shot")).result())
        if self.lose == "problem":
            results = [SimpleNamespace(data={"spins": results[0].data["spins"][:1]})]
        return SimpleNamespace(result=lambda: [] if self.lose == "pub" else results)


@pytest.mark.parametrize(
    ("lose", "words"), [("shot", "2 problems of 9 shots"), ("problem", "1 problems of 10"), ("pub", "0 of 1 pubs")]
)
def test_a_primitive_that_loses_results_is_an_error(lose: str, words: str):
    with pytest.raises(EngineError, match=words):
        PrimitiveEngine(Short(lose)).draw(FIELDS, COUPLINGS, LAYERS, 10)
