"""IsingProblem: sign, energies, refusals, grouping, slicing; and the state order it stands on."""

import math

import pytest
import torch

from samplers import InvalidProblemError, IsingProblem
from samplers.enumeration import ground_states, log_probabilities, moments
from samplers.states import index_of_spins, spin_table, spins_of_index
from samplers.supports import SupportSplit


def couplings(*batch: int, n: int, seed: int = 0) -> torch.Tensor:
    a = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tril(-1)
    return a + a.mT


def fields(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_sign_and_bit_order_on_an_asymmetric_problem():
    h, j = torch.tensor([0.7, -0.2, 0.1]), torch.tensor([[0.0, 0.5, 0.0], [0.5, 0.0, -0.3], [0.0, -0.3, 0.0]])
    problem = IsingProblem(h, j)
    spins = torch.tensor([[1, -1, 1], [-1, -1, 1]])
    by_hand = [-(0.7 + 0.2 + 0.1 - 0.5 + 0.3), -(-0.7 + 0.2 + 0.1 + 0.5 + 0.3)]
    assert torch.allclose(problem.energy(spins), torch.tensor(by_hand))
    assert index_of_spins(spins).tolist() == [0b010, 0b011]
    assert float(log_probabilities(IsingProblem(torch.tensor([1.0])))[0][0].exp()) == pytest.approx(0.8808, abs=1e-4)
    pair = IsingProblem(torch.zeros(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert float(moments(pair)[1][0, 1]) == pytest.approx(0.7616, abs=1e-4)


def test_state_index_round_trip():
    table = spin_table(6)
    assert torch.equal(index_of_spins(table), torch.arange(64))
    assert torch.equal(spins_of_index(torch.arange(64), 6).double(), table)
    assert table[0].tolist() == [1.0] * 6
    assert table[1].tolist() == [-1.0] + [1.0] * 5


def test_three_body_energy_counts_each_triple_once():
    k = torch.zeros(3, 3, 3, dtype=torch.float64)
    for a, b, c in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        k[a, b, c] = 0.4
    problem = IsingProblem(torch.zeros(3, dtype=torch.float64), triples=k)
    assert float(problem.energy(torch.tensor([[1, -1, -1]]))[0]) == pytest.approx(-0.4)
    assert float(problem.energy(torch.tensor([[1, 1, -1]]))[0]) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda: (torch.tensor([1.0, torch.nan]),), "1 NaN or infinite"),
        (lambda: (torch.tensor([1, 2]),), "floating-point"),
        (lambda: (torch.tensor(1.0),), "at least one spin"),
        (lambda: (torch.zeros(3, 0),), "at least one spin"),
        (lambda: (torch.zeros(3), torch.ones(3, 3)), "indices coincide"),
        (lambda: (torch.zeros(3), torch.tensor([[0, 1.0, 0], [0, 0, 0], [0, 0, 0]])), "not symmetric"),
        (lambda: (torch.zeros(3), torch.zeros(4, 4)), "must broadcast"),
        (lambda: (torch.zeros(2, 3), torch.zeros(5, 3, 3)), "must broadcast"),
        (lambda: (torch.zeros(3), torch.zeros(3, 3, dtype=torch.float64)), "same dtype"),
        (lambda: (torch.zeros(3), torch.full((3, 3), torch.inf)), "NaN or infinite"),
        (lambda: (torch.tensor([1.0, 1e16]),), "at most 1e\\+15"),
        (lambda: (torch.full((9,), 3e38),), "at most 1e\\+15"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_problems_are_refused(arguments, words: str):
    with pytest.raises(InvalidProblemError, match=words):
        IsingProblem(*arguments())


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf"), "1"])
@pytest.mark.usefixtures("unchecked")
def test_bad_beta_is_refused(beta):
    with pytest.raises(InvalidProblemError, match="beta"):
        IsingProblem(torch.zeros(2), beta=beta)


def test_beta_counts_in_the_largest_numbers():
    assert IsingProblem(torch.tensor([1e20]), beta=1e-6).beta == 1e-6
    for beta in (1e39, 1e308):
        with pytest.raises(InvalidProblemError, match="at most"):
            IsingProblem(torch.tensor([1.0, -0.5]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), beta=beta)


@pytest.mark.usefixtures("unchecked")
def test_masks_are_checked_and_hide_fields():
    with pytest.raises(InvalidProblemError, match="allowed"):
        IsingProblem(torch.zeros(3), allowed=torch.ones(3))
    with pytest.raises(InvalidProblemError, match="broadcast"):
        IsingProblem(torch.zeros(2, 3), allowed=torch.ones(4, 3, dtype=torch.bool))
    hidden = IsingProblem(torch.tensor([1.0, -torch.inf]), allowed=torch.tensor([True, False]))
    assert hidden.fields.tolist() == [1.0, 0.0]


def test_energy_leaves_forbidden_spins_out():
    h, j = fields(3), couplings(n=3)
    problem = IsingProblem(h, j, allowed=torch.tensor([True, False, True]))
    reduced = IsingProblem(h[[0, 2]], j[[0, 2]][:, [0, 2]])
    spins = torch.tensor([[1, -1, -1], [1, 1, -1]])
    assert torch.allclose(problem.energy(spins), reduced.energy(spins[:, [0, 2]]))


@pytest.mark.parametrize(
    ("batch", "own"),
    [((), ()), ((4,), ()), ((2, 3, 5), (3, 1)), ((2, 3, 5), (2, 1, 1)), ((2, 3), (2, 3)), ((2, 3, 4), (1, 4))],
)
def test_grouping_keeps_every_energy(batch: tuple[int, ...], own: tuple[int, ...]):
    n = 3
    problem = IsingProblem(fields(*batch, n), couplings(*own, n=n), allowed=fields(*batch, n, seed=5) > -0.5)
    grouped = problem.grouped()
    assert grouped.problem.couplings.shape[:2] == (math.prod(own), 1)
    table = spin_table(n)
    inside = grouped.problem.energy(table.expand(*grouped.problem.batch_shape, *table.shape))
    assert torch.equal(grouped.restore(inside), problem.energy(table.expand(*batch, *table.shape)))
    assert torch.equal(grouped.restore(grouped.problem.streams), problem.streams)


@pytest.mark.parametrize("index", [0, slice(1, 3), (slice(None), 1), torch.tensor([2, 0]), (1, slice(0, 2))])
def test_slices_keep_their_problems_and_streams(index):
    problem = IsingProblem(fields(4, 3, 2), couplings(4, 1, n=2), allowed=fields(3, 2) > -1)
    part = problem[index]
    assert torch.equal(part.streams, problem.streams[index])
    assert torch.allclose(moments(part)[0], moments(problem)[0][index])


def test_bad_slices_are_refused():
    with pytest.raises(InvalidProblemError, match="does not fit"):
        IsingProblem(fields(2, 3))[0, 0]
    with pytest.raises(InvalidProblemError, match="does not fit"):
        IsingProblem(fields(2, 3))[..., 0]


def test_causal_masks_are_recognised_only_where_queries_share_couplings():
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    assert IsingProblem(fields(2, 4, 4), couplings(n=4), allowed=triangle).is_causal
    assert IsingProblem(fields(2, 4, 4), couplings(2, 1, n=4), allowed=triangle[None]).is_causal
    assert not IsingProblem(fields(2, 4, 4), couplings(4, n=4), allowed=triangle).is_causal
    assert not IsingProblem(fields(4, 4), couplings(n=4), allowed=triangle.T).is_causal
    assert not IsingProblem(fields(4, 4), couplings(n=4)).is_causal
    assert not IsingProblem(fields(3, 4), couplings(n=4), allowed=triangle[:3]).is_causal


@pytest.mark.parametrize("mask", ["causal", "random", "per group", "empty row", "full"])
def test_supports_reduce_and_merge_with_gradients(mask: str):
    heads, n = 2, 4
    allowed = {
        "causal": torch.ones(n, n, dtype=torch.bool).tril(),
        "random": fields(3, heads, n, n, seed=8) > 0,
        "per group": fields(heads, n, n, seed=9) > 0,
        "empty row": torch.ones(n, n, dtype=torch.bool) & (torch.arange(n) != 1)[:, None],
        "full": torch.ones(n, n, dtype=torch.bool),
    }[mask]
    h, j = fields(3, heads, n, n).requires_grad_(), couplings(heads, 1, n=n).requires_grad_()
    problem = IsingProblem(h, j, allowed=allowed)
    split = SupportSplit(problem)
    if mask == "causal":
        assert [len(part.spins) for part in split.parts] == [1, 2, 3, 4]
    by_parts = split.merge([moments(part.problem)[0] for part in split.parts], -1.0)
    whole = torch.where(allowed, moments(problem)[0], -1.0)
    assert torch.allclose(by_parts, whole)
    weight = fields(*whole.shape, seed=3)
    for a, b in zip(
        torch.autograd.grad((by_parts * weight).sum(), [h, j], retain_graph=True),
        torch.autograd.grad((whole * weight).sum(), [h, j]),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-12)


def test_independent_problems_and_ground_states():
    free = IsingProblem(fields(5, 3))
    assert free.is_independent
    assert torch.allclose(moments(free)[0], torch.tanh(free.fields))
    assert torch.equal(ground_states(free), torch.where(free.fields > 0, 1, -1).to(torch.int8))
