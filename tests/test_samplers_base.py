"""Options, registry, streams, samples and the estimators that every sampler shares."""

import numpy as np
import pytest
import torch

import samplers
from samplers import (
    Capabilities,
    InvalidOptionError,
    IsingProblem,
    NotSupportedError,
    Sampler,
    Samples,
    UnknownSamplerError,
    get_sampler,
    option,
    register_sampler,
    registry,
)
from samplers.estimators import magnetization_from_samples, straight_through
from samplers.streams import derive_key, uniforms


class Coin(Sampler):
    """Uniform spins, whatever the problem: enough to test the machinery around samplers."""

    num_reads: int = option(default=10, help="reads", minimum=2, maximum=100)
    flavour: str = option(default="plain", help="a choice", choices=("plain", "salted"))
    scale: float | None = option(default=None, help="a number or None", minimum=0)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=False, gradient="none", max_spins=6)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        u = torch.from_numpy(uniforms(key, problem.streams, num_reads * problem.num_spins))
        spins = (2 * (u.reshape(*problem.batch_shape, num_reads, -1) < 0.5) - 1).to(torch.int8)
        return Samples(spins, torch.ones(spins.shape[:-1], dtype=problem.dtype), problem.energy(spins))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers `Coin` for this file's tests alone."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    register_sampler("coin", Coin)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_read": 5}, "no option 'num_read'; did you mean 'num_reads'"),
        ({"num_reads": 1}, "between 2 and 100"),
        ({"num_reads": 101}, "between 2 and 100"),
        ({"num_reads": 5.0}, "must be int"),
        ({"num_reads": True}, "must be int"),
        ({"flavour": "plian"}, "did you mean 'plain'"),
        ({"scale": float("nan")}, "at least 0"),
        ({"scale": -1}, "at least 0"),
        ({"seed": "0"}, "must be int"),
    ],
)
def test_options_are_checked(options: dict, words: str):
    with pytest.raises(InvalidOptionError, match=words):
        get_sampler("coin", **options)


def test_options_are_kept_and_reported():
    sampler = get_sampler("coin", num_reads=7, scale=2, flavour="salted")
    assert sampler.options() == {"seed": 0, "num_reads": 7, "flavour": "salted", "scale": 2}
    samples = sampler.sample(IsingProblem(torch.zeros(2, 3), beta=0.5), seed=3)
    assert samples.info["options"]["num_reads"] == 7
    assert samples.info["sampler"] == "Coin"
    assert samples.info["beta_target"] == 0.5
    assert samples.info["seconds"] >= 0


def test_unknown_sampler_lists_names_and_needs():
    with pytest.raises(UnknownSamplerError, match="did you mean 'exact'.*annealing/sa/neal"):
        get_sampler("exakt")
    with pytest.raises(InvalidOptionError, match="is taken"):
        register_sampler("exact", Coin)
    assert {"exact", "annealing", "sa", "neal", "dqa"} <= set(samplers.sampler_names())


@pytest.mark.parametrize("reads", [0, -3, 2.5, True])
@pytest.mark.usefixtures("unchecked")
def test_bad_num_reads_is_refused(reads):
    with pytest.raises(InvalidOptionError, match="num_reads"):
        get_sampler("coin").sample(IsingProblem(torch.zeros(3)), reads)


def test_size_limit_names_the_numbers():
    with pytest.raises(samplers.ProblemTooLargeError, match="7 spins.*at most 6"):
        get_sampler("coin").magnetization(IsingProblem(torch.zeros(7)))


def test_unwanted_things_are_refused():
    coin = get_sampler("coin")
    with pytest.raises(NotSupportedError, match="three-body"):
        coin.sample(IsingProblem(torch.zeros(3), triples=torch.zeros(3, 3, 3)))
    with pytest.raises(NotSupportedError, match="log partition"):
        coin.log_partition(IsingProblem(torch.zeros(3)))


def test_streams_are_uniform_and_independent():
    streams = torch.arange(200)
    draws = uniforms(derive_key(0), streams, 500)
    assert draws.min() > 0
    assert draws.max() < 1
    counts, _ = np.histogram(draws, bins=50, range=(0, 1))
    expected = draws.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 49 + 6 * (2 * 49) ** 0.5
    for a, b in (
        (draws[:-1], draws[1:]),
        (draws[:, :-1], draws[:, 1:]),
        (draws, uniforms(derive_key(1), streams, 500)),
    ):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 6 / a.size**0.5
    again = uniforms(derive_key(0), streams[50:60], 100)
    assert np.array_equal(again, draws[50:60, :100])
    assert not np.array_equal(draws, uniforms(derive_key(0), streams, 500, counter=1))
    assert derive_key(-1) != derive_key(1)
    assert derive_key(2**70) != derive_key(0)


def samples_of(spins: list[list[int]], rows: list[float], **info) -> Samples:
    s = torch.tensor(spins, dtype=torch.int8)
    w = torch.tensor(rows, dtype=torch.float64)
    return Samples(s, w, torch.zeros(len(rows), dtype=torch.float64), info)


def test_moments_weight_every_row():
    samples = samples_of([[1, 1, 1], [-1, -1, -1]], [3, 1], weights="counts")
    assert samples.magnetization().tolist() == [0.5] * 3
    assert samples.correlations()[0].tolist() == [1.0] * 3
    assert float(samples.effective_sample_size()) == 4
    assert float(samples_of([[1], [-1]], [3, 1]).effective_sample_size()) == pytest.approx(1.6)
    assert float(samples.standard_error()[0]) == pytest.approx((0.75 / 3) ** 0.5)
    padded = samples_of([[1, 1, 1], [-1, -1, -1], [1, -1, 1]], [3, 1, 0])
    assert torch.equal(padded.magnetization(), samples.magnetization())


def test_one_read_has_no_error_bar_and_no_covariance():
    one = samples_of([[1, -1]], [1])
    with pytest.raises(NotSupportedError, match="at least 2"):
        one.standard_error()
    problem = IsingProblem(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(NotSupportedError, match="raise num_reads"):
        magnetization_from_samples(problem, one, "covariance")


def test_covariance_gradient_equals_the_sample_covariance():
    generator = torch.Generator().manual_seed(0)
    spins = (2 * torch.randint(0, 2, (30, 3), generator=generator) - 1).to(torch.int8)
    h = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    j = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    problem = IsingProblem(h, j, beta=0.7)
    samples = Samples(spins, torch.ones(30, dtype=torch.float64), torch.zeros(30, dtype=torch.float64))
    g = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    gh, gj = torch.autograd.grad((magnetization_from_samples(problem, samples, "covariance") * g).sum(), [h, j])
    s = spins.double()
    centred = s - s.mean(0)
    assert torch.allclose(gh, 0.7 * (centred.T @ centred / 29) @ g)
    pair = s[:, 0] * s[:, 2]
    expected = 0.7 * ((centred @ g) * (pair - pair.mean())).sum() / 29
    assert torch.allclose(gj[0, 2] + gj[2, 0], expected)
    assert float(gj.diagonal().abs().max()) < 1e-12


def test_second_derivatives_of_a_covariance_are_refused():
    h = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    reads = torch.tensor([[1, 1, -1], [1, -1, 1], [-1, 1, 1]], dtype=torch.int8)
    samples = Samples(reads, torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    m = magnetization_from_samples(IsingProblem(h), samples, "covariance")
    with pytest.raises(NotSupportedError, match="create_graph"):
        torch.autograd.grad(m.sum(), h, create_graph=True)


def test_straight_through_is_exact_without_couplings():
    h = torch.tensor([0.3, -0.8], dtype=torch.float64, requires_grad=True)
    problem = IsingProblem(h, beta=0.5)
    m = straight_through(problem, torch.tanh(0.5 * h.detach()))
    (gradient,) = torch.autograd.grad(m.sum(), h)
    assert torch.allclose(gradient, torch.autograd.grad(torch.tanh(0.5 * h).sum(), h)[0])


def test_half_precision_is_computed_in_single():
    class Probe(Coin):
        def _magnetization(self, problem: IsingProblem, key: int) -> torch.Tensor:
            assert problem.dtype == torch.float32
            return problem.fields * 0.5

    h = torch.tensor([1.0, 3.0], dtype=torch.bfloat16, requires_grad=True)
    m = Probe().magnetization(IsingProblem(h))
    assert m.dtype == torch.bfloat16
    assert torch.autograd.grad(m.sum(), h)[0].tolist() == [0.5, 0.5]
