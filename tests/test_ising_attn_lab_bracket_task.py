"""The bracket task and the comparison of samplers, against a model whose answers are known."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ising_attn import BoltzmannAttention
from ising_attn.lab.bracket_report import BracketReport, report_on
from ising_attn.lab.bracket_task import BracketScores, BracketTask
from ising_attn.lab.brackets import FIRST_FILLER, IGNORE, BracketBatch, BracketData, BracketLaw
from ising_attn.lab.comparison import MarginalError, marginals
from ising_attn.lab.inference import Inference
from ising_attn.lab.seeds import mean_summary, seeds_table
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig
from samplers import InvalidOptionError, IsingProblem, get_sampler
from samplers.enumeration import moments


class Oracle(nn.Module):
    """Right wherever the match is nearer than `reach`; elsewhere it points at itself, with the same confidence."""

    def __init__(self, data: BracketData, reach: int):
        super().__init__()
        self.reach = reach
        sets = (data.validation, data.test, data.train_batch(40, seed=0, step=0))
        self.known = {t.numpy().tobytes(): m for s in sets for t, m in zip(s.tokens, s.targets, strict=True)}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        targets = torch.stack([self.known[t.numpy().tobytes()] for t in tokens])
        positions = torch.arange(tokens.shape[1]).expand_as(targets)
        near = (targets != IGNORE) & (positions - targets < self.reach)
        return 5.0 * nn.functional.one_hot(torch.where(near, targets, positions), tokens.shape[1]).float()


@pytest.fixture(scope="module")
def task() -> BracketTask:
    data = BracketData(BracketLaw(8), validation_size=30, test_size=45)
    return BracketTask(data, batch_size=40, eval_batch_size=20)


@pytest.mark.parametrize("reach", [3, 99])
def test_scores_are_those_of_the_answers(task, reach):
    scores = task.scores(Oracle(task.data, reach), task.data.test)
    distances = task.data.test.distances[task.data.test.targets != IGNORE].numpy()
    np.testing.assert_array_equal(scores.distances, distances)
    np.testing.assert_array_equal(scores.correct, distances < reach)
    assert scores.accuracy == pytest.approx((distances < reach).mean())
    for distance, (count, accuracy) in scores.by_distance().items():
        assert count == (distances == distance).sum() and accuracy == float(distance < reach)
    assert sum(count for count, _ in scores.by_depth().values()) == len(distances)
    log_sum = np.log(np.exp(5) + 7)
    np.testing.assert_allclose(scores.nats, np.where(scores.correct, log_sum - 5, log_sum), rtol=1e-5)


def test_training_loss_counts_closing_brackets_alone(task):
    model, batch = Oracle(task.data, 99), task.batch(0)
    loss, values = task.loss(model, batch)
    assert values == {"accuracy": 1.0}
    assert float(loss) == pytest.approx(np.log(np.exp(5) + 7) - 5, rel=1e-5)


def test_its_metrics_are_those_it_reports(task):
    assert tuple(task.evaluate(Oracle(task.data, 99), "validation")) == task.metrics


def test_an_unknown_split_is_refused(task):
    with pytest.raises(InvalidOptionError, match="'train'"):
        task.evaluate(Oracle(task.data, 99), "train")


def small_model(**attention) -> BracketMatcher:
    torch.manual_seed(0)
    config = BracketMatcherConfig(
        context=5, embed_dim=8, num_heads=2, feed_forward=8, attention=AttentionConfig(**attention)
    )
    return BracketMatcher(config, sampler=get_sampler("exact"))


def boltzmann(model: BracketMatcher) -> BoltzmannAttention:
    layer = model.decoder_blocks()[0].attention
    assert isinstance(layer, BoltzmannAttention)
    return layer


def test_marginals_are_those_of_enumeration_and_leave_the_sampler_alone():
    model = small_model(kind="boltzmann", coupling_std=0.5)
    with torch.no_grad():
        problems = model.problems(torch.randint(12, (3, 5)))
    sampler = get_sampler("annealing", num_reads=50)
    before = sampler.state_dict(), sampler.seed
    first, second = (marginals(sampler, problems, seed=s) for s in (0, 1))
    assert not np.array_equal(first, second) and np.array_equal(first, marginals(sampler, problems, seed=0))
    assert (sampler.state_dict(), sampler.seed) == before
    expected = moments(problems[0])[0][problems[0].expanded_allowed()].numpy()
    np.testing.assert_allclose(marginals(get_sampler("exact"), problems), expected, atol=1e-5)
    error = MarginalError.between(first, expected)
    assert error.count == 3 * 2 * 15 and 0 < error.mean < 0.3 and error.mean < error.largest


def test_marginals_without_a_mask_are_all_spins():
    problem = IsingProblem(torch.tensor([[0.5, -1.0]]))
    np.testing.assert_allclose(marginals(get_sampler("exact"), [problem]), np.tanh([0.5, -1.0]), atol=1e-6)
    assert marginals(get_sampler("exact"), []).size == 0


def test_report_holds_the_chosen_sampler_against_exact():
    model = small_model(kind="boltzmann", coupling_std=1.0)
    data = BracketData(BracketLaw(5), validation_size=10, test_size=50)
    task = BracketTask(data, batch_size=4, eval_batch_size=16)
    boltzmann(model).sampler = get_sampler("annealing", num_reads=40)
    report = report_on(model, task, label="annealing", seed=3, marginal_sequences=25, aer_sequences=5)
    again = report_on(model, task, label="annealing", seed=3, marginal_sequences=25, aer_sequences=5)
    assert report.summary() == again.summary() and report.engines is None
    assert [i.label for i in report.inferences()] == ["annealing", "exact"]
    assert report.chosen.magnetizations is not None and report.chosen.magnetizations.size == 25 * 2 * 15
    error = report.error(report.chosen)
    assert error is not None and 0 < error.mean < 0.2
    assert report.exact is not None
    own = report.error(report.exact)
    assert own is not None and own.largest == 0
    exact = task.scores(small_model(kind="boltzmann", coupling_std=1.0).eval(), data.test)
    assert report.exact.scores.accuracy == exact.accuracy


def test_the_exact_sampler_is_not_run_twice():
    task = BracketTask(BracketData(BracketLaw(5), validation_size=5, test_size=20), batch_size=4)
    report = report_on(small_model(), task, label="exact", seed=0, marginal_sequences=5, aer_sequences=5)
    assert report.exact is report.chosen and len(report.inferences()) == 1
    summary = report.summary()
    assert summary["test_accuracy"] == summary["test_accuracy_exact"] and summary["marginal_mae"] == 0


def test_both_engines_of_an_anneal_run_on_a_part_of_the_test_set():
    pytest.importorskip("qiskit_aer")
    task = BracketTask(BracketData(BracketLaw(5), validation_size=5, test_size=20), batch_size=4)
    model = small_model(kind="boltzmann", coupling_std=0.3)
    boltzmann(model).sampler = get_sampler("dqa", num_layers=3, precision="double")
    report = report_on(model, task, label="dqa", seed=0, marginal_sequences=5, aer_sequences=2)
    difference = report.engine_difference()
    assert difference is not None and difference.count == 2 * 2 * 15 and difference.largest < 1e-9
    assert report.engines is not None and [i.sequences for i in report.engines] == [2, 2]
    assert report.engines[0].scores.accuracy == report.engines[1].scores.accuracy


def test_tables_of_a_report():
    scores = BracketScores(
        np.array([True, False]), np.array([0.1, 2.0]), np.array([1, 2]), np.array([1, 4]), np.ones(2, bool)
    )
    better = BracketScores(np.array([True, True]), scores.nats, scores.depths, scores.distances, scores.held_out)
    report = BracketReport(
        chosen=Inference("dqa", 1, scores, 0.5, np.array([0.2, 0.4])),
        exact=Inference("exact", 1, better, 0.1, np.array([0.1, 0.4])),
    )
    tables = report.tables()
    assert tables["by_sampler"].rows[0][:5] == ["dqa", 0.5, 1.05, pytest.approx(0.05), pytest.approx(0.1)]
    assert tables["by_depth"].rows == [[1, 1, 1.0, 1.0], [2, 1, 0.0, 1.0]]
    assert tables["by_distance"].rows == [[1, 1, 1.0, 1.0], [4, 1, 0.0, 1.0]]


def test_seeds_are_averaged_and_missing_numbers_stay_missing():
    summaries: dict[int, dict[str, Any]] = {
        0: {"test_accuracy": 0.9, "marginal_mae": None, "seed": 0, "notes": []},
        4: {"test_accuracy": 1.0, "marginal_mae": None, "seed": 4, "notes": []},
    }
    columns = [("test accuracy", "test_accuracy", ".2%"), ("mean |Δ|", "marginal_mae", ".4f")]
    table, mean = seeds_table(summaries, columns), mean_summary(summaries)
    assert list(table.columns) == ["seed", "test accuracy"]
    assert table.shown() == [["0", "90.00%"], ["4", "100.00%"], ["mean ± std", "95.00% ± 7.07%"]]
    assert mean["test_accuracy"] == pytest.approx(0.95) and mean["marginal_mae"] is None and "seed" not in mean
    assert mean["seeds"]["4"]["test_accuracy"] == 1.0


def test_batches_move_and_slice_together():
    batch = BracketBatch.of(np.array([[0, 1, 2], [2, 0, 1]]))
    part = batch[1:].to("cpu")
    assert len(part) == 1 and part.targets.tolist() == [[IGNORE, IGNORE, 1]] and part.depths.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(("context", "share", "common"), [(8, 0.25, 14), (9, 0.25, 0), (4, 0.0, 2)])
def test_accuracy_on_sequences_that_training_cannot_have_seen_is_told_apart(context, share, common):
    data = BracketData(BracketLaw(context, share), validation_size=50, test_size=400)
    task = BracketTask(data, batch_size=4)
    scores = task.scores(Oracle(data, 99), data.test)
    full = (data.test.tokens < FIRST_FILLER).all(dim=1)
    unseen = torch.full_like(full, True) if not common else ~full
    closing = data.test.targets != IGNORE
    np.testing.assert_array_equal(scores.held_out, unseen[:, None].expand_as(closing)[closing].numpy())
    if unseen.any():
        assert scores.held_out_accuracy == pytest.approx(scores.correct[scores.held_out].mean())
    else:
        assert scores.held_out_accuracy is None


def test_report_tells_the_held_out_accuracy_only_where_splits_share_sequences():
    for context, told in ((8, True), (9, False)):
        torch.manual_seed(0)
        model = BracketMatcher(BracketMatcherConfig(context=context, embed_dim=8), sampler=get_sampler("exact"))
        task = BracketTask(BracketData(BracketLaw(context), validation_size=10, test_size=200), batch_size=4)
        report = report_on(model, task, label="exact", seed=0, marginal_sequences=2, aer_sequences=0)
        held_out = report.summary()["test_accuracy_held_out"]
        assert (held_out != report.summary()["test_accuracy"]) == told
        remarks = " ".join(report.remarks())
        assert (f"no training has seen: {held_out:.2%}" in remarks) == told
