"""Exact summation under masks that a batch shares: each query costs its own spins, whatever else there is."""

import pytest
import torch

from ising_attn import masks
from samplers import IsingProblem, ProblemTooLargeError, get_sampler
from samplers.dqa import DQASampler
from samplers.exact import ExactSampler
from samplers.supports import SupportSplit, largest_support, split_is_cheaper


def problem(allowed: torch.Tensor, *, batch: int = 3) -> IsingProblem:
    n, gen = len(allowed), torch.Generator().manual_seed(1)
    fields = torch.randn(batch, n, n, generator=gen, dtype=torch.float64)
    couplings = 0.4 * torch.randn(n, n, generator=gen, dtype=torch.float64)
    couplings = (couplings + couplings.mT).fill_diagonal_(0)
    return IsingProblem(fields.requires_grad_(), couplings.requires_grad_(), allowed=allowed)


def alone(whole: IsingProblem, query: int) -> tuple[IsingProblem, torch.Tensor]:
    """The problem of one query with its own spins only."""
    assert whole.allowed is not None
    spins = whole.allowed[query].nonzero().flatten()
    couplings = whole.couplings[spins][:, spins]
    return IsingProblem(whole.fields[:, query][:, spins], couplings), spins


MASKS = {
    "butterfly": masks.butterfly(6).allowed,  # 16 positions, at most 6 spins
    "two streams": masks.block_two_stream(12, 3).allowed,  # 24 positions
    "wide": masks.butterfly(12).allowed,  # 34 positions: more than can be summed
}


@pytest.mark.parametrize("name", MASKS)
def test_each_query_is_its_own_problem_in_value_and_gradient(name):
    whole, exact = problem(MASKS[name]), get_sampler("exact")
    found = exact.magnetization(whole)
    wanted = torch.full_like(found, -1.0)
    for query in range(whole.num_spins):
        own, spins = alone(whole, query)
        wanted[:, query, spins] = exact.magnetization(own)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(2), dtype=found.dtype)
    inputs = [whole.fields, whole.couplings]
    got, twin = (torch.autograd.grad((weight * m).sum(), inputs) for m in (found, wanted))
    for a, b in zip(got, twin, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MASKS)
def test_the_other_results_too(name):
    whole, exact, allowed = problem(MASKS[name]), ExactSampler(), MASKS[name]
    log_z, entropy, lowest = exact.log_partition(whole), exact.entropy(whole), exact.ground_state(whole)
    correlations = exact.correlations(whole)
    draws = exact.sample(whole, 20, seed=0)
    assert (draws.spins.masked_fill(allowed.unsqueeze(-2), -1) == -1).all()
    for query in (0, 3, whole.num_spins - 1):
        own, spins = alone(whole, query)
        torch.testing.assert_close(log_z[:, query], exact.log_partition(own))
        torch.testing.assert_close(entropy[:, query], exact.entropy(own))
        torch.testing.assert_close(lowest[:, query][:, spins], exact.ground_state(own))
        torch.testing.assert_close(correlations[:, query][:, spins][:, :, spins], exact.correlations(own))


def test_float32_is_as_near():
    whole = problem(MASKS["wide"])
    single = IsingProblem(whole.fields.float(), whole.couplings.float(), allowed=whole.allowed)
    exact = get_sampler("exact")
    torch.testing.assert_close(
        exact.magnetization(single).double(), exact.magnetization(whole), rtol=0, atol=3e-6
    )  # fmt: skip


def test_only_the_spins_of_one_query_count_against_the_limit():
    exact = get_sampler("exact", max_spins=11)
    assert largest_support(problem(MASKS["wide"])) == 12
    with pytest.raises(ProblemTooLargeError, match="12 spins need"):
        exact.magnetization(problem(MASKS["wide"]))
    assert exact.magnetization(problem(MASKS["butterfly"])).shape == (3, 16, 16)


def test_masks_of_each_sequence_above_the_limit_are_split_as_well():
    whole = problem(MASKS["wide"], batch=2)
    other = torch.stack([MASKS["wide"], MASKS["wide"].flip(0)])
    mixed = IsingProblem(whole.fields, whole.couplings, allowed=other)
    found = get_sampler("exact").magnetization(mixed)
    same = get_sampler("exact").magnetization(whole)
    torch.testing.assert_close(found[0], same[0], rtol=0, atol=1e-12)
    flipped = IsingProblem(whole.fields[1].flip(0), whole.couplings, allowed=MASKS["wide"])
    torch.testing.assert_close(
        found[1].flip(0), get_sampler("exact").magnetization(flipped), rtol=0, atol=1e-12
    )  # fmt: skip


def test_queries_join_a_larger_part_only_where_that_is_less_work():
    allowed = MASKS["butterfly"]
    few, many = (problem(allowed, batch=batch) for batch in (1, 200_000))
    apart = len(SupportSplit(few).parts)
    assert len(SupportSplit(few, join=True).parts) < apart
    assert len(SupportSplit(many, join=True).parts) > len(SupportSplit(few, join=True).parts)
    for split in (SupportSplit(few), SupportSplit(few, join=True)):
        rows = torch.cat([part.rows for part in split.parts])
        assert sorted(rows.tolist()) == list(range(len(allowed)))


def test_small_problems_are_summed_whole():
    assert not split_is_cheaper(problem(masks.butterfly(3).allowed))
    assert split_is_cheaper(problem(MASKS["two streams"]))
    unmasked = IsingProblem(torch.zeros(2, 20), torch.zeros(20, 20))
    assert not split_is_cheaper(unmasked)


def test_an_anneal_runs_each_query_on_its_own_spins_too():
    whole, anneal = problem(MASKS["wide"], batch=2), DQASampler()
    found = anneal.magnetization(whole)
    for query in (0, 5, 30):
        own, spins = alone(whole, query)
        torch.testing.assert_close(found[:, query][:, spins], anneal.magnetization(own), rtol=0, atol=1e-9)
    with pytest.raises(ProblemTooLargeError, match=r"2\^34 states"):
        anneal.probabilities(whole)


def test_without_any_allowed_spin_draws_are_all_down():
    couplings = torch.ones(24, 24).fill_diagonal_(0)
    nothing = IsingProblem(torch.randn(2, 3, 24), couplings, allowed=torch.zeros(3, 24, dtype=torch.bool))
    assert (get_sampler("exact").sample(nothing, 5).spins == -1).all()
    assert get_sampler("exact").sample(nothing, 5).spins.shape == (2, 3, 5, 24)
