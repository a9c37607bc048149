"""The Aer engine against the plain matrix simulation, by probabilities and by shots; its checks and its bounds."""

import gc
import multiprocessing
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from samplers.dqa import reference
from samplers.dqa.layers import Layers
from samplers.dqa.statevector import StateVectorEngine
from samplers.errors import (
    EngineError,
    InvalidOptionError,
    InvalidProblemError,
    MissingDependencyError,
    NotSupportedError,
    ProblemTooLargeError,
)
from samplers.states import index_of_spins, spins_of_index

pytest.importorskip("qiskit_aer")

from samplers.dqa import aer  # noqa: E402
from samplers.dqa.aer import AerEngine  # noqa: E402


def make_layers(depth: int, seed: int = 0) -> Layers:
    generator = torch.Generator().manual_seed(seed)
    f, c, x = 0.2 + 0.6 * torch.rand(3, depth, generator=generator, dtype=torch.float64)
    return Layers(f, c, x)


def make_problem(groups: int, queries: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    fields = torch.randn(groups, queries, n, generator=generator, dtype=torch.float64)
    J = torch.triu(0.5 * torch.randn(groups, 1, n, n, generator=generator, dtype=torch.float64), 1)
    return fields, J + J.mT


def band(couplings: Tensor, width: int) -> Tensor:
    """Couplings without those of pairs further apart than `width`."""
    return couplings.tril(width).triu(-width)


def reference_law(fields: Tensor, couplings: Tensor | None, layers: Layers) -> Tensor:
    rows = [
        [
            reference.probabilities(h, None if couplings is None else couplings[g % len(couplings), 0], layers)
            for h in own
        ]
        for g, own in enumerate(fields)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def chi_square(index: Tensor, law: Tensor) -> float:
    """Pearson's statistic of one problem's draws, in standard deviations from its mean."""
    expected = law * len(index)
    counts = torch.bincount(index, minlength=len(law)).to(torch.float64)
    freedom = len(law) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


# ---- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "depth"), [(1, 1), (2, 3), (3, 2), (5, 4)])
def test_probabilities_are_those_of_the_matrices(n: int, depth: int):
    layers, (fields, couplings) = make_layers(depth), make_problem(2, 3, n)
    law = AerEngine().probabilities(fields, couplings, layers)
    assert law.dtype == torch.float64
    assert (law - reference_law(fields, couplings, layers)).abs().max() < 1e-10


def test_couplings_may_be_shared_absent_or_sparse():
    layers, (fields, couplings) = make_layers(3), make_problem(2, 2, 3)
    engine = AerEngine()
    sparse = couplings.clone()
    sparse[:, :, 0, 2] = sparse[:, :, 2, 0] = 0
    for given in (couplings[:1], None, torch.zeros_like(couplings), sparse):
        law = engine.probabilities(fields, given, layers)
        assert (law - reference_law(fields, given, layers)).abs().max() < 1e-10


def test_no_layers_leave_the_uniform_superposition():
    nothing = Layers(*torch.zeros(3, 0, dtype=torch.float64))
    law = AerEngine().probabilities(*make_problem(1, 2, 3), nothing)
    assert torch.allclose(law, torch.full((1, 2, 8), 1 / 8, dtype=torch.float64))
    assert AerEngine().draw(*make_problem(1, 2, 3), nothing, 5, 0).shape == (1, 2, 5)


def test_both_engines_agree_to_1e_6():
    layers, (fields, couplings) = make_layers(8), make_problem(1, 3, 12)
    law = AerEngine().probabilities(fields, couplings, layers)
    twin = StateVectorEngine("double").probabilities(fields, couplings, layers)
    assert (law - twin).abs().max() < 1e-9
    single = AerEngine(precision="single").probabilities(fields, couplings, layers)
    assert 0 < (single - twin).abs().max() < 1e-6


def test_two_equal_problems_have_equal_laws():
    # Qiskit/qiskit-aer#2391: later points of a sweep came back empty.
    fields, couplings = make_problem(1, 1, 2)
    first, second = AerEngine().probabilities(fields.expand(1, 2, 2), couplings, make_layers(2))[0]
    assert torch.equal(first, second)


def test_one_problem_by_hand():
    # n = 1, h = 0.7, one layer with 2B dt = 2A dt = 0.3: ⟨Z⟩ = sin(0.3 · 0.7) sin(0.3), problem first, then mixer.
    angle = torch.tensor([0.15], dtype=torch.float64)
    law = AerEngine().probabilities(torch.tensor([[[0.7]]], dtype=torch.float64), None, Layers(angle, angle, angle))
    expected = torch.sin(torch.tensor(0.21)) * torch.sin(torch.tensor(0.3))
    assert float(law[0, 0, 0] - law[0, 0, 1]) == pytest.approx(float(expected), abs=1e-7)


@pytest.mark.parametrize("method", ["statevector", "density_matrix", "matrix_product_state"])
def test_every_method_runs_the_same_circuit(method: str):
    layers, (fields, couplings) = make_layers(4), make_problem(1, 2, 6)
    law = AerEngine(method=method).probabilities(fields, couplings, layers)
    twin = StateVectorEngine("double").probabilities(fields, couplings, layers)
    assert (law - twin).abs().max() < 1e-8


@pytest.mark.slow
def test_matrix_product_states_of_twenty_spins():
    layers, (fields, couplings) = make_layers(8), make_problem(1, 1, 20)
    law = AerEngine(method="matrix_product_state").probabilities(fields, band(couplings, 1), layers)
    twin = StateVectorEngine("double").probabilities(fields, band(couplings, 1), layers)
    assert (law - twin).abs().max() < 1e-5
    assert (law - twin).abs().sum() < 1e-5


# ---- shots --------------------------------------------------------------------------------------------------------


def test_bit_k_of_a_draw_is_spin_k():
    # A kick that turns the spins by field: h = (+, −, 0.2) is asymmetric, so any other order shows.
    fields = torch.tensor([[[0.75, -0.4, 0.2]]], dtype=torch.float64)
    layers = Layers(*torch.full((3, 1), torch.pi / 4, dtype=torch.float64))
    index = AerEngine().draw(fields, None, layers, 20_000, 1)
    assert index.dtype == torch.int64 and index.shape == (1, 1, 20_000)
    mean = spins_of_index(index, 3).double().mean(-2)[0, 0]
    expected = torch.sin(torch.pi / 2 * fields[0, 0])
    assert (mean - expected).abs().max() < 5 / 20_000**0.5
    assert torch.equal(index_of_spins(spins_of_index(index, 3)), index)


@pytest.mark.parametrize("method", ["automatic", "matrix_product_state"])
@pytest.mark.parametrize("own_seeds", [False, True])
def test_draws_follow_the_law(method: str, own_seeds: bool, monkeypatch):
    if own_seeds and method == "matrix_product_state":
        monkeypatch.setattr(aer, "_LOG2_SMALL", -1)  # one call of Aer for each problem
    layers, (fields, couplings) = make_layers(3), make_problem(1, 3, 4)
    seed = torch.tensor([[3, -7, 2**62]]) if own_seeds else 5
    index = AerEngine(method=method).draw(fields, couplings, layers, 20_000, seed)
    law = reference_law(fields, couplings, layers)
    for q in range(3):
        assert abs(chi_square(index[0, q], law[0, q])) < 5
        assert chi_square(index[0, q], law[0, (q + 1) % 3]) > 50  # a wrong law is seen


def test_draws_repeat_and_do_not_depend_on_the_size_of_a_call():
    layers, (fields, couplings) = make_layers(2), make_problem(1, 5, 4)
    once = AerEngine().draw(fields, couplings, layers, 40, 9)
    assert torch.equal(once, AerEngine(max_experiments=2).draw(fields, couplings, layers, 40, 9))
    assert not torch.equal(once, AerEngine().draw(fields, couplings, layers, 40, 10))
    same = AerEngine().draw(fields[:, :1].expand(1, 2, 4), couplings, layers, 40, 9)
    assert not torch.equal(same[:, 0], same[:, 1])


@pytest.mark.parametrize("one_call_each", [False, True])
def test_own_seeds_make_draws_independent_of_the_batch(one_call_each: bool, monkeypatch):
    if one_call_each:
        monkeypatch.setattr(aer, "_LOG2_SMALL", -1)
    layers, (fields, couplings) = make_layers(2), make_problem(1, 3, 4)
    seeds = torch.tensor([[11, 12, 13]])
    whole = AerEngine().draw(fields, couplings, layers, 30, seeds)
    part = AerEngine().draw(fields[:, 1:], couplings, layers, 30, seeds[:, 1:])
    assert torch.equal(whole[:, 1:], part)


def test_draws_of_forty_spins_by_matrix_product_state():
    n = 40
    fields, couplings = make_problem(1, 1, n)
    layers = Layers(*torch.full((3, 1), torch.pi / 4, dtype=torch.float64))
    fields = fields.clamp(-0.8, 0.8)
    index = AerEngine(method="matrix_product_state").draw(fields, 0 * couplings, layers, 2000, 3)
    mean = spins_of_index(index, n).double().mean(-2)[0, 0]
    assert (mean - torch.sin(torch.pi / 2 * fields[0, 0])).abs().max() < 5 / 2000**0.5


# ---- one transpilation, bounded calls, checked answers ------------------------------------------------------------


def test_one_transpilation_for_each_shape():
    engine, (fields, couplings) = AerEngine(), make_problem(1, 2, 3)
    for seed in range(3):
        engine.probabilities(fields + seed, couplings, make_layers(2, seed))
        engine.draw(fields - seed, couplings, make_layers(2, seed), 3, seed)
    assert engine.transpilations == 1
    engine.probabilities(fields, couplings, make_layers(3))
    assert engine.transpilations == 2


def test_calls_are_bounded_in_number_and_memory(monkeypatch):
    engine = AerEngine(max_experiments=4)
    assert [stop - start for start, stop in engine._calls(10, 5, 8)] == [4, 4, 2]
    monkeypatch.setattr(aer, "_BYTES_PER_CALL", 64 * (5 + 8) * 3)
    assert [stop - start for start, stop in engine._calls(10, 5, 8)] == [3, 3, 3, 1]
    monkeypatch.setattr(aer, "_BYTES_PER_CALL", 1)
    assert len(list(engine._calls(10, 5, 8))) == 10


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_calls():
    engine, layers, (fields, couplings) = AerEngine(), make_layers(4), make_problem(1, 4, 6)

    def pages_after(times: int) -> int:
        for seed in range(times):
            engine.probabilities(fields, couplings, layers)
            engine.draw(fields, couplings, layers, 20, seed)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1])

    levels = [pages_after(40) for _ in range(5)]
    # Allocators take memory in jumps; a leak grows in every round. One circuit or result per call would be tens of
    # kilobytes each.
    grown = min(after - before for before, after in zip(levels, levels[1:], strict=False)) * resource.getpagesize()
    assert grown < 40 * 2 * 10_000


class OneAnswerShort:
    """A simulator that says it succeeded and leaves out the last experiment."""

    def __init__(self, simulator):
        self.simulator = simulator

    def run(self, circuits, **options):
        result = self.simulator.run(circuits, **options).result()
        result.results.pop()
        assert result.success
        return SimpleNamespace(result=lambda: result)


def test_a_missing_experiment_is_an_error():
    engine, (fields, couplings) = AerEngine(), make_problem(1, 3, 2)
    engine._simulators["statevector"] = OneAnswerShort(engine._simulator("statevector"))
    engine._simulators["automatic"] = OneAnswerShort(engine._simulator("automatic"))
    with pytest.raises(EngineError, match="2 of 3 experiments"):
        engine.probabilities(fields, couplings, make_layers(1))
    with pytest.raises(EngineError, match="2 of 3 experiments"):
        engine.draw(fields, couplings, make_layers(1), 10, 0)


def test_probabilities_that_are_not_a_law_are_an_error():
    assert aer._checked([0.5, 0.5], 2, "double").sum() == 1
    for wrong in ([0.5, 0.4], [1.0], [float("nan"), 1.0]):
        with pytest.raises(EngineError, match="expected 2 of sum 1"):
            aer._checked(wrong, 2, "double")
    with pytest.raises(EngineError, match="2 shots; 3"):
        aer._checked_shots(["0x0", "0x1"], 3)


def test_a_simulation_that_aer_refuses_is_an_error():
    engine, (fields, couplings) = AerEngine(method="statevector"), make_problem(1, 1, 45)
    with pytest.raises(EngineError, match="0 of 1"):
        engine.draw(fields, 0 * couplings, make_layers(1), 2, 0)


# ---- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_angles_that_are_not_finite_are_refused(bad: float):
    fields, couplings = make_problem(1, 1, 3)
    broken = fields.clone()
    broken[0, 0, 1] = bad
    with pytest.raises(InvalidProblemError, match="2 of 6 RZ angles"):
        AerEngine().probabilities(broken, couplings, make_layers(2))
    layers = make_layers(2)
    with pytest.raises(InvalidProblemError, match="RX angles"):
        AerEngine().draw(fields, couplings, Layers(layers.fields, layers.couplings, layers.mixer * bad), 5, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "statevectr"}, "did you mean 'statevector'"),
        ({"device": "TPU"}, "must be one of 'CPU', 'GPU'"),
        ({"precision": "half"}, "'double', 'single'"),
        ({"max_experiments": 0}, "at least 1"),
        ({"threads": 0}, "at least 1"),
        ({"method": "tensor_network"}, "device='GPU' only"),
    ],
)
def test_bad_options(options: dict, words: str):
    with pytest.raises(InvalidOptionError, match=words):
        AerEngine(**options)


def test_a_gpu_that_is_not_there_is_one_sentence():
    import qiskit_aer

    if "GPU" in qiskit_aer.AerSimulator().available_devices():
        pytest.skip("this Aer has a GPU")
    for device in ("GPU", "cuda"):
        with pytest.raises(InvalidOptionError, match=r"ising-attn\[aer-gpu\]") as caught:
            AerEngine(device=device)
        assert "\n" not in str(caught.value) and caught.value.__cause__ is None
    with pytest.raises(NotSupportedError, match="device='CPU' only"):
        aer._check_device(("CPU", "GPU"), "matrix_product_state", "GPU")


def test_without_aer_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "qiskit_aer", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'ising-attn\[aer\]'"):
        AerEngine()


def test_too_many_spins():
    fields, _ = make_problem(1, 1, 63)
    with pytest.raises(ProblemTooLargeError, match="at most 24"):
        AerEngine().probabilities(fields, None, make_layers(1))
    with pytest.raises(ProblemTooLargeError, match="at most 62"):
        AerEngine(method="matrix_product_state").draw(fields, None, make_layers(1), 5, 0)
    with pytest.raises(InvalidOptionError, match="shots=0"):
        AerEngine().draw(fields[..., :3], None, make_layers(1), 0, 0)


def test_info_says_what_ran():
    info = AerEngine(method="matrix_product_state", precision="single").info()
    assert info["engine"] == "aer" and info["noise"] is None
    assert (info["method"], info["device"], info["precision"]) == ("matrix_product_state", "CPU", "single")
    assert info["qiskit"] and info["qiskit_aer"]


def _in_a_child(queue) -> None:
    fields, couplings = make_problem(1, 2, 4)
    queue.put(AerEngine(threads=2).probabilities(fields, couplings, make_layers(2)).sum().item())


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_hang():
    AerEngine(threads=2).probabilities(*make_problem(1, 2, 4), make_layers(2))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=20) == pytest.approx(2)
    finally:
        child.join(5)
        child.kill()
