"""What every registered sampler keeps, whatever the shapes, masks, dtypes and sizes of a problem are."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from every_sampler import NAMES, cheap
from hypothesis import given
from ising_strategies import Drawn, drawn_problems, examples
from torch import Tensor

from samplers import IsingProblem, NotSupportedError, Sampler
from samplers.enumeration import ground_states, log_probabilities, moments
from samplers.variational import ConvergenceWarning

DETERMINISTIC = ("exact", "band", "mean-field", "tap", "bethe", "dqa")
EXACT = ("exact", "band")
# The mock machine draws from its own seed, which counts calls.
REPEATS = [name for name in NAMES if name != "dwave"]
# Where iterations settle and float32 still tells states apart.
TAME = (0.0, 1e-8, 0.1, 0.3)
_samplers: dict[str, Sampler] = {}


def sampler_of(name: str) -> Sampler:
    """Made once: what machines and embeddings cost is paid once."""
    if name not in _samplers:
        _samplers[name] = cheap(name)
    return _samplers[name]


def magnetization(name: str, problem: IsingProblem, seed: int = 3) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return sampler_of(name).magnetization(problem, seed=seed)


def global_state() -> tuple[Any, ...]:
    """Of torch and numpy; Python's own is moved by the run-time type checker of the tests."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpy_state[1].tolist(), numpy_state[2]


def check_marginals(name: str, drawn: Drawn) -> None:
    """Shape, dtype, bounds, masks; repeatable; nothing global moved; the input as it was."""
    problem = drawn.problem()
    before = [None if t is None else t.clone() for t in (problem.fields, drawn.couplings, drawn.allowed)]
    state = global_state()
    m = magnetization(name, problem)
    assert global_state() == state
    for ours, kept in zip((problem.fields, drawn.couplings, drawn.allowed), before, strict=True):
        assert (ours is None) == (kept is None) and (ours is None or torch.equal(ours, kept))  # type: ignore[arg-type]
    assert m.shape == drawn.fields.shape and m.dtype == drawn.fields.dtype and m.device == drawn.fields.device
    assert bool(m.isfinite().all()) and bool((m.abs() <= 1).all())
    if problem.allowed is not None:
        assert bool((m[~problem.allowed.expand_as(m)] == -1).all())
    if name in REPEATS:
        assert torch.equal(magnetization(name, problem), m)


def check_gradients(name: str, drawn: Drawn) -> None:
    """Finite; none for spins that do not exist; symmetric with a zero diagonal in J."""
    sampler = sampler_of(name)
    if sampler.capabilities.gradient == "none":
        return
    fields = drawn.fields.clone().requires_grad_()
    couplings = None if drawn.couplings is None else drawn.couplings.clone().requires_grad_()
    m = magnetization(name, drawn.problem(fields=fields, couplings=couplings))
    weight = torch.linspace(-1, 1, m.numel(), dtype=m.dtype).reshape(m.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        (m * weight).sum().backward()
    assert fields.grad is not None and bool(fields.grad.isfinite().all())
    if drawn.allowed is not None:
        assert bool((fields.grad[~drawn.allowed.expand_as(fields)] == 0).all())
    if couplings is not None:
        grad = couplings.grad
        assert grad is not None and bool(grad.isfinite().all())
        # A covariance is a difference of averages, so its zeros are zeros but for rounding.
        rounding = 64 * torch.finfo(grad.dtype).eps * (1 + float(grad.abs().sum()))
        assert bool((grad.diagonal(dim1=-2, dim2=-1).abs() <= rounding).all())
        assert torch.allclose(grad, grad.mT, rtol=0, atol=rounding)


def check_layouts(name: str, drawn: Drawn) -> None:
    """Strides mean nothing: transposed, expanded and sliced memory give the same."""
    m = magnetization(name, drawn.problem())
    strided = torch.stack([drawn.fields, torch.full_like(drawn.fields, 7.0)], -1)[..., 0]
    transposed = None if drawn.couplings is None else drawn.couplings.mT
    if name in REPEATS:
        assert torch.equal(magnetization(name, drawn.problem(fields=strided, couplings=transposed)), m)
    one = drawn.fields[(0,) * (drawn.fields.ndim - 1)] if drawn.fields.numel() else drawn.fields.new_ones(1)
    shared = IsingProblem(one.expand(3, *one.shape), beta=drawn.beta)
    m = magnetization(name, shared)
    assert m.shape == (3, *one.shape) and bool(m.isfinite().all()) and bool((m.abs() <= 1).all())


def check_batches(name: str, drawn: Drawn) -> None:
    """Problems of a batch do not see one another: permuted and cut batches give the same rows."""
    problem = drawn.problem()
    if not problem.batch_shape or name not in REPEATS:
        return
    m = magnetization(name, problem)
    order = torch.arange(problem.batch_shape[0]).flip(0)
    assert close(magnetization(name, problem[order]), m[order], drawn)
    if problem.num_problems:
        assert close(magnetization(name, problem[0]), m[0], drawn)


def check_draws(name: str, drawn: Drawn) -> None:
    """Spins of ±1 with weights and the problem's own energies; −1 where no spin is."""
    sampler, problem = sampler_of(name), drawn.problem()
    if not sampler.capabilities.can_sample:
        with pytest.raises(NotSupportedError):
            sampler.sample(problem)
        return
    for reads in (1, 5):
        samples = sampler.sample(problem, reads, seed=2)
        assert samples.spins.shape == (*problem.batch_shape, samples.num_reads, problem.num_spins)
        assert samples.num_reads >= reads and samples.weights.shape == samples.spins.shape[:-1]
        assert bool((samples.spins.abs() == 1).all())
        assert bool((samples.weights >= 0).all()) and bool((samples.weights.sum(-1) > 0).all())
        assert samples.energies.dtype == samples.weights.dtype == problem.dtype
        assert bool(samples.energies.isfinite().all()) or problem.dtype == torch.float16
        if problem.allowed is not None:
            forbidden = ~problem.allowed.expand_as(problem.fields).unsqueeze(-2).expand_as(samples.spins)
            assert bool((samples.spins[forbidden] == -1).all())


def check_ground_state(name: str, drawn: Drawn) -> None:
    """Spins of ±1; from the exact samplers, no state is lower."""
    sampler, problem = sampler_of(name), drawn.problem()
    if not sampler.capabilities.can_ground_state:
        return
    best = sampler.ground_state(problem, seed=2)
    assert best.dtype == torch.int8 and best.shape == problem.fields.shape and bool((best.abs() == 1).all())
    if problem.allowed is not None:
        assert bool((best[~problem.allowed.expand_as(best)] == -1).all())
    if name in EXACT and problem.num_problems:
        wide = problem.to(dtype=torch.float64)
        found, lowest = (wide.energy(s.unsqueeze(-2)).squeeze(-1) for s in (best, ground_states(wide)))
        assert bool((found <= lowest + 1e-6 * drawn.largest * (problem.dtype != torch.float64) + 1e-9).all())


def check_moments(name: str, drawn: Drawn) -> None:
    """Correlations within [−1, 1] with a diagonal of 1; a finite log Z, which is 0 where no spin exists."""
    sampler, problem = sampler_of(name), drawn.problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pairs = sampler.correlations(problem, seed=1)
    assert pairs.shape == (*problem.fields.shape, problem.num_spins) and bool(pairs.isfinite().all())
    assert torch.allclose(pairs.diagonal(dim1=-2, dim2=-1).float(), torch.ones(problem.fields.shape), atol=2e-2)
    if sampler.capabilities.can_log_partition:
        log_z = sampler.log_partition(problem)
        assert log_z.shape == problem.batch_shape
        if problem.dtype == torch.float16:
            return  # 6e4 is its largest number, and log Z may pass that
        assert bool(log_z.isfinite().all())
        if problem.allowed is not None:
            empty = log_z[~problem.allowed.expand_as(problem.fields).any(-1)]
            assert bool((empty.abs() <= 64 * torch.finfo(empty.dtype).eps * (1 + drawn.largest)).all())


CHECKS: list[Callable[[str, Drawn], None]] = [
    check_marginals, check_gradients, check_layouts, check_batches, check_draws, check_ground_state, check_moments,
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", NAMES)
@examples(8)
@given(drawn=drawn_problems())
def test_every_sampler_keeps(name: str, check: Callable[[str, Drawn], None], drawn: Drawn):
    check(name, drawn)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", NAMES)
@examples(300)
@given(drawn=drawn_problems(most_spins=7))
def test_every_sampler_keeps_on_many_problems(name: str, check: Callable[[str, Drawn], None], drawn: Drawn):
    check(name, drawn)


# ---- symmetries of the deterministic samplers, and the laws of the exact ones ---------------------------------------


def close(ours: Tensor, theirs: Tensor, drawn: Drawn) -> bool:
    """Equal up to rounding, which grows with the numbers that are added up."""
    eps = max(torch.finfo(ours.dtype).eps, torch.finfo(torch.float32).eps if ours.dtype != torch.float64 else 0)
    return torch.allclose(ours.double(), theirs.double(), rtol=0, atol=min(2.5, 1e-6 + 64 * eps * (1 + drawn.largest)))


def check_relabelling(name: str, drawn: Drawn) -> None:
    """Renamed spins have renamed marginals."""
    n = drawn.fields.shape[-1]
    order = torch.arange(n).roll(1)
    couplings = None if drawn.couplings is None else drawn.couplings[..., order, :][..., order]
    allowed = None if drawn.allowed is None else drawn.allowed[..., order]
    moved = drawn.problem(fields=drawn.fields[..., order], couplings=couplings, allowed=allowed)
    assert close(magnetization(name, moved), magnetization(name, drawn.problem())[..., order], drawn)


def check_gauge(name: str, drawn: Drawn) -> None:
    """s_j → g_j s_j: fields g_j h_j and couplings g_j g_k J_jk have marginals g_j m_j."""
    gauge = torch.tensor([1.0, -1.0] * 4, dtype=drawn.fields.dtype)[: drawn.fields.shape[-1]]
    couplings = None if drawn.couplings is None else drawn.couplings * gauge * gauge.unsqueeze(-1)
    m = magnetization(name, drawn.problem())
    expected = m * gauge if drawn.allowed is None else torch.where(drawn.allowed, m * gauge, -1.0)
    turned = magnetization(name, drawn.problem(fields=drawn.fields * gauge, couplings=couplings))
    assert close(turned, expected, drawn)


@pytest.mark.parametrize("check", [check_relabelling, check_gauge], ids=["relabelling", "gauge"])
@pytest.mark.parametrize("name", DETERMINISTIC)
@examples(12)
@given(drawn=drawn_problems(sizes=TAME, dtypes=(torch.float64, torch.float32)))
def test_deterministic_samplers_keep_the_symmetries(name: str, check: Callable[[str, Drawn], None], drawn: Drawn):
    check(name, drawn)


@pytest.mark.parametrize("name", ("exact", "band", "mean-field", "tap", "bethe"))
@examples(15)
@given(drawn=drawn_problems())
def test_without_couplings_the_marginals_are_tanh_of_the_fields(name: str, drawn: Drawn):
    for couplings in (None, torch.zeros(drawn.fields.shape[-1], drawn.fields.shape[-1], dtype=drawn.fields.dtype)):
        m = magnetization(name, drawn.problem(couplings=couplings))
        expected = torch.tanh(drawn.beta * drawn.fields.double())
        if drawn.allowed is not None:
            expected = torch.where(drawn.allowed, expected, -1.0)
        # Fixed points are found to their tolerance, 1e-9.
        slack = 4 * torch.finfo(m.dtype).eps + (0 if name in EXACT else 1e-8)
        assert torch.allclose(m.double(), expected, rtol=slack, atol=slack)


@pytest.mark.parametrize("name", EXACT)
@examples(25)
@given(drawn=drawn_problems(dtypes=(torch.float64, torch.float32)))
def test_exact_marginals_are_those_of_the_sum_over_all_states(name: str, drawn: Drawn):
    problem = drawn.problem()
    if not problem.num_problems:
        return
    expected = moments(problem.to(dtype=torch.float64))[0]
    if problem.allowed is not None:
        expected = torch.where(problem.allowed, expected, -1.0)
    m = magnetization(name, problem).double()
    assert torch.allclose(m, expected, rtol=0, atol=2e-6 + 1e-15 * drawn.largest * 100)
    log_z = sampler_of(name).log_partition(problem).double()
    assert torch.allclose(log_z, log_probabilities(problem.to(dtype=torch.float64))[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_where_no_spin_is_left_every_part_is_still_in_the_graph(name: str):
    if not sampler_of(name).capabilities.higher_order:
        pytest.skip("takes no three-body terms")
    fields, couplings, triples = (torch.zeros(shape, requires_grad=True) for shape in ((2, 3), (3, 3), (3, 3, 3)))
    problem = IsingProblem(fields, couplings, triples=triples, allowed=torch.zeros(2, 3, dtype=torch.bool))
    m = magnetization(name, problem)
    assert bool((m == -1).all())
    m.sum().backward()
    for part in (fields, couplings, triples):
        assert part.grad is not None and bool((part.grad == 0).all())
