"""The parameter-shift rule against autograd through the matrix twin, exactly and from shots."""

import pytest
import torch
from torch import Tensor

from samplers.dqa import reference
from samplers.dqa.angles import GateAngles
from samplers.dqa.layers import Layers
from samplers.dqa.parameter_shift import shifted_magnetization
from samplers.dqa.primitive import PrimitiveEngine
from samplers.errors import NotSupportedError
from samplers.states import spin_table

pytest.importorskip("qiskit_aer")

from samplers.dqa.aer import AerEngine  # noqa: E402

WEIGHTS = torch.tensor([[[0.3, -1.0, 0.7], [1.1, 0.2, -0.5]]], dtype=torch.float64)


def make(requires_grad: bool = True) -> tuple[Tensor, Tensor, Layers]:
    generator = torch.Generator().manual_seed(4)
    fields = torch.randn(1, 2, 3, generator=generator, dtype=torch.float64)
    couplings = torch.tensor([[0, 0.5, 0.0], [0.5, 0, -0.4], [0.0, -0.4, 0]], dtype=torch.float64)[None, None]
    angles = [0.2 + 0.5 * torch.rand(2, generator=generator, dtype=torch.float64) for _ in range(3)]
    leaves = [t.clone().requires_grad_(requires_grad) for t in (fields, couplings, *angles)]
    return leaves[0], leaves[1], Layers(*leaves[2:])


def inputs_of(fields: Tensor, couplings: Tensor, layers: Layers) -> list[Tensor]:
    return [fields, couplings, layers.fields, layers.couplings, layers.mixer]


def reference_gradients() -> tuple[Tensor, list[Tensor]]:
    fields, couplings, layers = make()
    symmetric = (couplings + couplings.mT) / 2
    laws = torch.stack([reference.probabilities(h, symmetric[0, 0], layers) for h in fields[0]])
    mean = (laws @ spin_table(3))[None]
    return mean, list(torch.autograd.grad((WEIGHTS * mean).sum(), inputs_of(fields, couplings, layers)))


def test_exact_gradients_of_everything():
    fields, couplings, layers = make()
    mean = shifted_magnetization(AerEngine(), fields, couplings, layers)
    found = torch.autograd.grad((WEIGHTS * mean).sum(), inputs_of(fields, couplings, layers))
    expected_mean, expected = reference_gradients()
    assert (mean - expected_mean).abs().max() < 1e-10
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-9
    # The pair (0, 2) has no coupling and a gradient all the same.
    assert found[1][0, 0, 0, 2].abs() > 1e-3 and torch.equal(found[1], found[1].mT)


class Counting:
    """An engine that counts its circuits."""

    exact = True

    def __init__(self) -> None:
        self.engine, self.circuits = AerEngine(), 0
        self.keys: list[int] = []

    def probabilities_at(self, angles: GateAngles) -> Tensor:
        self.circuits += angles.num_problems
        return self.engine.probabilities_at(angles)

    def draw_at(self, angles: GateAngles, shots: int, seed: int) -> Tensor:
        self.circuits += angles.num_problems
        self.keys.append(seed)
        return self.engine.draw_at(angles, shots, seed)


def test_only_gates_that_need_a_gradient_are_shifted(monkeypatch):
    fields, couplings, layers = make(requires_grad=False)
    fields.requires_grad_()
    engine = Counting()
    mean = shifted_magnetization(engine, fields, couplings, layers)
    assert engine.circuits == 2
    whole = torch.autograd.grad(mean.sum(), fields)[0]
    assert engine.circuits == 2 + 2 * 2 * (2 * 3)  # ± · problems · RZ gates
    monkeypatch.setattr("samplers.dqa.parameter_shift._CIRCUITS_PER_BLOCK", 5)
    split = torch.autograd.grad(shifted_magnetization(engine, fields, couplings, layers).sum(), fields)[0]
    assert torch.allclose(whole, split, atol=1e-12)


def test_gradients_from_shots_are_unbiased():
    # 40 independent estimates of 60 shots: their mean is within 5 of its standard errors of the exact gradient,
    # and a rule with the wrong factor is not.
    _, expected = reference_gradients()
    fields, couplings, layers = make()
    estimates = []
    for seed in range(40):
        mean = shifted_magnetization(AerEngine(), fields, couplings, layers, shots=60, seed=seed)
        parts = torch.autograd.grad((WEIGHTS * mean).sum(), inputs_of(fields, couplings, layers))
        estimates.append(torch.cat([part.flatten() for part in parts]))
    drawn, exact = torch.stack(estimates), torch.cat([part.flatten() for part in expected])
    error = (drawn.std(0) / 40**0.5).clamp_min(1e-12)
    used = drawn.std(0) > 0
    assert int(used.sum()) == len(exact) - 3  # all but the diagonal of J
    assert ((drawn.mean(0) - exact) / error)[used].abs().max() < 5
    assert ((drawn.mean(0) - 2 * exact) / error)[used].abs().max() > 10


def test_shots_repeat_with_their_seed_and_use_fresh_streams():
    fields, couplings, layers = make()
    engine = Counting()

    def gradient(seed: int) -> Tensor:
        mean = shifted_magnetization(engine, fields, couplings, layers, shots=20, seed=seed)
        return torch.autograd.grad(mean.sum(), fields)[0]

    assert torch.equal(gradient(1), gradient(1)) and not torch.equal(gradient(1), gradient(2))
    assert len(engine.keys) == 8 and len(set(engine.keys)) == 4  # forward and backward of two seeds


def test_own_seeds_make_gradients_independent_of_the_batch_and_of_blocks(monkeypatch):
    seeds = torch.tensor([[5, 6]])

    def gradient(first: int) -> Tensor:
        fields, couplings, layers = make()
        part, own = fields[:, first:], seeds[:, first:]
        mean = shifted_magnetization(AerEngine(), part, couplings, layers, shots=20, seed=own)
        return torch.autograd.grad(mean[:, -1].sum(), fields)[0][:, -1]

    alone = gradient(1)
    assert torch.equal(gradient(0), alone)
    monkeypatch.setattr("samplers.dqa.parameter_shift._CIRCUITS_PER_BLOCK", 4)
    assert torch.equal(gradient(0), alone)


def test_under_noise_it_is_the_gradient_of_the_noisy_circuit():
    fields, couplings, layers = make()
    engine = AerEngine(noise={"depolarizing": 0.05, "readout": (0.02, 0.1)})
    mean = shifted_magnetization(engine, fields, couplings, layers, pairs=((0, 1), (1, 2)))
    slope = torch.autograd.grad(mean[0, 0, 1], fields)[0][0, 0, 2]
    step = torch.zeros_like(fields)
    step[0, 0, 2] = 1e-4
    ends = [engine.probabilities((fields + s * step).detach(), couplings, layers)[0, 0] for s in (1, -1)]
    numeric = ((ends[0] - ends[1]) @ spin_table(3))[1] / 2e-4
    assert float(slope) == pytest.approx(float(numeric), abs=1e-6)


def test_primitives_take_the_rule_with_shots_only():
    from qiskit.primitives import StatevectorSampler

    fields, couplings, layers = make()
    engine = PrimitiveEngine(StatevectorSampler(seed=3))
    with pytest.raises(NotSupportedError, match="set shots="):
        shifted_magnetization(engine, fields, couplings, layers)
    mean = shifted_magnetization(engine, fields, couplings, layers, shots=400)
    gradient = torch.autograd.grad((WEIGHTS * mean).sum(), fields)[0]
    assert (gradient - reference_gradients()[1][0]).abs().max() < 0.3
    with pytest.raises(NotSupportedError, match="gradient='adjoint'"):
        shifted_magnetization(object(), fields, couplings, layers)


def test_no_gradient_asked_no_backward():
    fields, couplings, layers = make(requires_grad=False)
    engine = Counting()
    mean = shifted_magnetization(engine, fields, None, layers)
    assert not mean.requires_grad and engine.circuits == 2
    empty = shifted_magnetization(engine, fields[:, :0], couplings, layers)
    assert empty.shape == (1, 0, 3)
