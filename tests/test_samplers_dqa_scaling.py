"""Angles that follow a problem's scale: by hand, the same in every engine, differentiated through, stored whole."""

import json
import math

import pytest
import torch

from samplers import InvalidOptionError, InvalidProblemError, IsingProblem, NotSupportedError
from samplers.dqa import AngleSchedule, DQASampler, Layers, load_schedule, reference, save_schedule
from samplers.dqa.learning import Family, circuit_magnetization, fit_schedule, measured_error
from samplers.dqa.scaling import ScaleDependence
from samplers.states import spin_table


def schedule(depth: int = 3, seed: int = 0) -> AngleSchedule:
    generator = torch.Generator().manual_seed(seed)
    angles = Layers(*(0.3 + 0.4 * torch.rand(depth, generator=generator, dtype=torch.float64) for _ in range(3)))
    weights = torch.randn(2, 3, depth, generator=generator, dtype=torch.float64)
    scale = ScaleDependence(0.8, 1.0, 8, weights, torch.tensor(0.4, dtype=torch.float64))
    return AngleSchedule(angles, name="scaled", scale=scale)


def problem(*batch: int, n: int = 4, heads: int = 2, seed: int = 0, beta: float = 1.0, causal: bool = False):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(*batch, heads, n, n, generator=generator, dtype=torch.float64)
    a = 0.4 * torch.randn(heads, 1, n, n, generator=generator, dtype=torch.float64).triu(1)
    mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else None
    return IsingProblem(h, a + a.mT, allowed=mask, beta=beta)


def by_hand(fields: torch.Tensor, couplings: torch.Tensor, given: AngleSchedule) -> torch.Tensor:
    """The law of one problem from the formulas of the module, through matrix exponentials."""
    n, scale = len(fields), given.scale
    assert scale is not None
    r2 = sum(float(couplings[j, k]) ** 2 for j in range(n) for k in range(n)) / n
    q2 = sum(float(v) ** 2 for v in fields) / n
    u = math.tanh(0.5 * math.log((1 + r2) / (1 + scale.row_norm**2)))
    v = math.tanh(math.log(n / scale.num_spins))
    y = math.tanh(0.5 * math.log((1 + q2) / (1 + scale.field**2)))
    rows = []
    for kind, row in enumerate((given.angles.fields, given.angles.couplings, given.angles.mixer)):
        factors = [
            math.exp(float(scale.weights[0, kind, i]) * u + float(scale.weights[1, kind, i]) * v) for i in range(3)
        ]
        rows.append(torch.tensor([float(a) * f for a, f in zip(row, factors, strict=True)], dtype=torch.float64))
    rows[0] = rows[0] * math.exp(float(scale.field_weight) * y)
    return reference.probabilities(fields, couplings, Layers(*rows))


@pytest.mark.parametrize("engine", ["statevector", "aer"])
def test_a_causal_batch_is_that_of_the_formulas(engine):
    batch, given = problem(2, causal=True, beta=0.7), schedule()
    sampler = DQASampler(schedule=given, engine=engine, precision="double", gradient="none")
    found, laws = sampler.magnetization(batch), sampler.probabilities(batch)
    for b in range(2):
        for head in range(2):
            for query in range(4):
                k = query + 1
                h, j = 0.7 * batch.fields[b, head, query, :k], 0.7 * batch.couplings[head, 0, :k, :k]
                law = by_hand(h, j, given)
                expected = law @ spin_table(k)
                assert (found[b, head, query, :k] - expected).abs().max() < 1e-9
                absent = 16 - 2**k
                assert (laws[b, head, query, absent:] - law).abs().max() < 1e-9


def test_the_circuit_of_one_problem_is_what_runs():
    one, given = problem(n=3, heads=1)[0, 0], schedule()
    sampler = DQASampler(schedule=given, precision="double")
    law = reference.probabilities(one.fields, one.couplings, sampler.layers_for(one))
    assert (sampler.probabilities(one) - law).abs().max() < 1e-12
    assert not torch.allclose(sampler.layers_for(one).mixer, sampler.layers().mixer)
    plain = DQASampler(schedule=AngleSchedule(given.angles))
    assert torch.equal(plain.layers_for(one).mixer, plain.layers().mixer) and not plain.follows_scale
    with pytest.raises(InvalidProblemError, match="one problem without a mask"):
        sampler.layers_for(problem(n=3))


def test_gradients_are_whole():
    batch, given = problem(n=3, causal=True), schedule()
    sampler = DQASampler(schedule=given, precision="double")

    def run(h, a):
        j = torch.triu(a, 1)
        return sampler.magnetization(IsingProblem(h, j + j.mT, allowed=batch.allowed))

    assert torch.autograd.gradcheck(run, (batch.fields.requires_grad_(), batch.couplings.detach().requires_grad_()))
    # Shifted gates see the angles' own dependence as well.
    gradients = []
    for engine, gradient in (("statevector", "adjoint"), ("aer", "parameter-shift")):
        h, a = batch.fields.detach().requires_grad_(), batch.couplings.detach().requires_grad_()
        one = IsingProblem(h, a, allowed=batch.allowed)
        value = DQASampler(schedule=given, precision="double", engine=engine, gradient=gradient).magnetization(one)
        gradients.append(torch.autograd.grad((value**2).sum(), (h, a)))
    for adjoint, shifted in zip(*gradients, strict=True):
        torch.testing.assert_close(adjoint, shifted, atol=1e-9, rtol=0)


def test_numbers_stay_finite_without_couplings_and_without_fields():
    sampler = DQASampler(schedule=schedule())
    for batch in (IsingProblem(torch.zeros(2, 3), torch.zeros(3, 3)), IsingProblem(torch.ones(2, 3))):
        h = batch.fields.detach().requires_grad_()
        j = torch.zeros(3, 3, requires_grad=True)
        value = sampler.magnetization(IsingProblem(h, j))
        slopes = torch.autograd.grad(value.sum(), (h, j))
        assert all(bool(torch.isfinite(t).all()) for t in (value, *slopes))
    assert torch.isfinite(sampler.magnetization(IsingProblem(torch.ones(2, 3)))).all()


def test_splitting_a_batch_changes_nothing():
    batch = problem(3)
    sampler = DQASampler(schedule=schedule(), shots=50, gradient="none")
    whole = sampler.sample(batch, 20, seed=5).spins
    for b in range(3):
        assert torch.equal(sampler.sample(batch[b], 20, seed=5).spins, whole[b])


def test_a_file_keeps_every_number_and_a_damaged_one_is_refused(tmp_path):
    given, path = schedule(), tmp_path / "scaled.json"
    save_schedule(given, path)
    back = load_schedule(path)
    assert isinstance(back, AngleSchedule) and back.scale is not None and given.scale is not None
    assert torch.equal(back.scale.weights, given.scale.weights)
    assert back.scale.to_json() == given.scale.to_json()
    whole = json.loads(path.read_text())
    changes = {
        "needs 'at'": lambda s: s.pop("at"),
        "needs 'mixer', a list": lambda s: s["weights"]["row_norm"].pop("mixer"),
        "has 2 numbers; the schedule has 3 layers": lambda s: s["weights"]["num_spins"]["fields"].pop(),
        "field_weight is True": lambda s: s.update(field_weight=True),
        "row_norm is inf": lambda s: s["at"].update(row_norm=float("inf")),
        "0 spins": lambda s: s["at"].update(num_spins=0),
        "couplings is 'x'": lambda s: s["weights"]["row_norm"]["couplings"].__setitem__(0, "x"),
    }
    for words, change in changes.items():
        damaged = json.loads(json.dumps(whole))
        change(damaged["scale"])
        path.write_text(json.dumps(damaged))
        with pytest.raises(InvalidOptionError, match=words):
            load_schedule(path)
    with pytest.raises(InvalidOptionError, match="those of 3 layers"):
        AngleSchedule(Layers(*torch.zeros(3, 2, dtype=torch.float64)), scale=given.scale)


def test_a_fit_that_follows_the_scale_beats_one_that_does_not():
    family = Family(0.8, 0.6, num_spins=(2, 6))
    plain, following = (
        fit_schedule(family, 2, follow_scale=follow, steps=60, batch=16, queries=4, learning_rate=0.05)
        for follow in (False, True)
    )
    assert plain.scale is None and following.scale is not None
    errors = [sum(measured_error(one, family, n, count=64) for n in (2, 6)) for one in (plain, following)]
    assert errors[1] < 0.95 * errors[0]
    problems = family.problems(5, 3, seed=1, queries=2)
    sampler = DQASampler(schedule=following)
    torch.testing.assert_close(
        circuit_magnetization(following, problems).float(), sampler.magnetization(problems), atol=1e-6, rtol=0
    )


def test_angles_that_follow_problems_are_not_stored_as_one_set():
    from ising_attn.learned_schedule import fixed_layers

    with pytest.raises(NotSupportedError, match="follow the scale of each problem"):
        fixed_layers(DQASampler(schedule=schedule()))
