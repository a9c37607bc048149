"""Problem files, references and measurements behind experiments/marginals.py."""

import json
import pickle
from pathlib import Path

import dimod
import numpy as np
import pytest
import torch

from ising_attn.lab.errors import ProblemFileError
from ising_attn.lab.gradient_report import gradient_errors, gradient_table
from ising_attn.lab.marginal_curves import CurvePoint, SamplerSpec, cost_curves, coupling_curves
from ising_attn.lab.marginal_plots import save_cost_curves, save_coupling_curves, save_scatters, save_time_curves
from ising_attn.lab.marginal_report import measure, reference_for, tables_of
from ising_attn.lab.problem_sources import load_problems, random_problems, recorded_problems
from models import BracketMatcher, BracketMatcherConfig
from samplers import InvalidProblemError, get_sampler
from samplers.enumeration import moments

SMALL = random_problems(3, 4, fields=1.0, couplings=0.3)


def test_random_families_have_the_scales_that_were_asked_for():
    wide = random_problems(400, 12, fields=2.0, couplings=0.5, seed=3)
    above = torch.ones(12, 12, dtype=torch.bool).triu(1)
    assert float(wide.fields.std()) == pytest.approx(2.0, rel=0.05)
    assert float(wide.couplings[:, above].std()) == pytest.approx(0.5, rel=0.05)
    banded = random_problems(2, 8, fields=1, couplings=1, width=2, own_couplings=False)
    assert banded.couplings.shape == (8, 8)
    assert float(banded.couplings.triu(3).abs().max()) == 0 < float(banded.couplings.diagonal(2).abs().min())


def test_npz_round_trip(tmp_path: Path):
    np.savez(tmp_path / "p.npz", h=SMALL.fields.numpy(), J=SMALL.couplings.numpy(), allowed=np.ones(4, dtype=bool))
    loaded = load_problems(tmp_path / "p.npz", beta=0.5)
    assert loaded.beta == 0.5
    assert torch.equal(loaded.fields, SMALL.fields)


@pytest.mark.parametrize("kind", ["coo", "json"])
def test_dimod_files_keep_the_law(tmp_path: Path, kind: str):
    model = dimod.BinaryQuadraticModel({0: -0.7, 1: 0.2, 2: -0.1}, {(0, 1): -0.5, (1, 2): 0.3}, 0.0, "SPIN")
    path = tmp_path / f"model.{kind}"
    if kind == "coo":
        from dimod.serialization import coo

        path.write_text(coo.dumps(model, vartype_header=True), encoding="utf-8")
    else:
        path.write_text(json.dumps(model.to_serializable()), encoding="utf-8")
    problem = load_problems(path)
    assert problem.batch_shape == (1,)
    expected = random_problems(1, 3, fields=0, couplings=0)
    h = torch.tensor([[0.7, -0.2, 0.1]], dtype=torch.float64)
    j = torch.tensor([[0, 0.5, 0], [0.5, 0, -0.3], [0, -0.3, 0]], dtype=torch.float64)
    assert torch.allclose(moments(problem)[0], moments(type(expected)(h, j))[0])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.npz", None, "no file"),
        ("p.npz", b"not a zip", "cannot be read as NPZ"),
        ("p.npz", pickle.dumps({"h": 1}), "cannot be read as NPZ"),
        ("p.yaml", b"h: 1", "ends in .yaml"),
        ("p.json", b"{}", "no serialised"),
        ("p.json", b"{", "no serialised"),
        ("p.coo", b"0 1 x y z", "cannot be read as COO|without variables"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: bytes | None, words: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ProblemFileError, match=words):
        load_problems(tmp_path / name)


def test_bad_arrays_are_refused(tmp_path: Path):
    np.savez(tmp_path / "a.npz", fields=np.zeros(3))
    with pytest.raises(ProblemFileError, match="it needs h"):
        load_problems(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", h=np.zeros((2, 3)), J=np.ones((3, 3)))
    with pytest.raises(InvalidProblemError, match="indices coincide"):
        load_problems(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", h=np.array([None, 1], dtype=object), allow_pickle=True)
    with pytest.raises(ProblemFileError, match="cannot be read"):
        load_problems(tmp_path / "c.npz")


def test_problems_inside_a_model_are_recorded():
    model = BracketMatcher(BracketMatcherConfig(context=5, embed_dim=8, feed_forward=0, num_heads=2), sampler="exact")
    tokens = torch.randint(0, 12, (3, 5))
    (problem,) = recorded_problems(model, tokens)
    assert problem.batch_shape == (3, 2, 5)
    assert problem.is_causal
    assert not problem.fields.requires_grad


def test_exact_measures_as_exact_and_a_hot_sampler_does_not():
    reference = reference_for(SMALL)
    assert reference.name == "exact"
    exact = measure(get_sampler("exact"), SMALL, reference, label="exact", repeats=1)
    assert exact.largest < 1e-12
    assert exact.gradient_cosine == pytest.approx(1.0)
    assert exact.pair_rmse is not None
    assert exact.pair_rmse < 1e-12
    assert exact.beta == pytest.approx(1.0, abs=0.1)
    assert exact.total_variation is not None
    assert exact.total_variation < 0.03
    mean_field = measure(get_sampler("mean-field"), SMALL, reference, label="mean field", repeats=1)
    assert 0.001 < mean_field.mae < 0.2
    assert mean_field.kl is None
    tables = tables_of([exact, mean_field], reference, "three problems")
    assert [row[0] for row in tables["errors"].rows] == ["exact", "mean field"]


def test_more_reads_buy_accuracy():
    spec = SamplerSpec("annealing", "annealing", {"num_sweeps": 10})
    points = [p for p in cost_curves([spec], SMALL, reference_for(SMALL), seed=0, budget=5.0) if p.knob == "num_reads"]
    assert [p.value for p in points] == [8, 32, 128, 512, 2048]
    assert points[-1].rmse < points[0].rmse / 4


def test_mean_field_worsens_with_the_coupling_scale(tmp_path: Path):
    spec = SamplerSpec("mean-field", "mean-field", {})

    def at(scale: float):
        return random_problems(16, 5, fields=1, couplings=scale)

    points = list(coupling_curves([spec], [0.05, 0.5], at, seed=0))
    assert points[1].rmse > 10 * points[0].rmse
    pytest.importorskip("matplotlib")
    save_coupling_curves(tmp_path / "a.png", points, "title")
    cost = [CurvePoint("gibbs", "num_reads", 2.0**k, 2.0**-k, 0.1 * k) for k in range(1, 4)]
    save_cost_curves(tmp_path / "b.png", cost, "title")
    save_time_curves(tmp_path / "c.png", cost, "title")
    reference = reference_for(SMALL)
    save_scatters(
        tmp_path / "d.png", [measure(get_sampler("tap"), SMALL, reference, label="tap")], reference, SMALL, ""
    )
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in "abcd")


def test_gradient_errors_tell_exact_from_biased_and_noisy():
    specs = [SamplerSpec(n, n, o) for n, o in (("exact", {}), ("dqa", {"schedule": "learned-medium-4"}))]
    direction = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    errors, notes = gradient_errors(specs, SMALL, direction, seeds=2)
    assert notes == []
    found = {(one.label, one.rule): one for one in errors}
    assert found["exact", "exact"].bias < 1e-10
    assert found["exact", "exact"].circuit_bias is None
    adjoint, surrogate = found["dqa", "adjoint"], found["dqa", "covariance"]
    assert adjoint.circuit_bias is not None
    assert adjoint.circuit_bias < 1e-6 < adjoint.bias
    assert surrogate.circuit_bias is not None
    assert surrogate.circuit_bias > 0.01
    noisy, _ = gradient_errors([SamplerSpec("a", "annealing", {"num_reads": 64})], SMALL, direction, seeds=4)
    assert noisy[0].spread > 0.01
    assert len(gradient_table([*errors, *noisy], 2).rows) == len(errors) + 1
