"""Where the text comes from, its characters and splits, the language task, and what a trained model comes to."""

import hashlib
import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ising_attn.lab import text as text_module
from ising_attn.lab import text_sample
from ising_attn.lab.errors import CorpusError
from ising_attn.lab.published import Published, text_perplexity
from ising_attn.lab.text import CORPUS_URL, CORPUS_VARIABLE, Corpus, TextData, Vocabulary, find_corpus
from ising_attn.lab.text_report import report_on
from ising_attn.lab.text_sample import sample_text
from ising_attn.lab.text_task import TextTask
from models import AttentionConfig, CharLM, CharLMConfig, model_from_config
from samplers import InvalidOptionError, get_sampler

CONTENT = b"To be, or not to be:\nthat is the question.\n"


# ---- where it comes from --------------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty user cache, no environment variable, a tiny text as the corpus, and a network that is down."""
    monkeypatch.delenv(CORPUS_VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(text_module, "CORPUS_SHA256", hashlib.sha256(CONTENT).hexdigest())
    serve(monkeypatch, None)
    return tmp_path / "cache" / "ising-attn" / "tinyshakespeare.txt"


def serve(monkeypatch, content: bytes | None) -> list[str]:
    """What the network answers; None is no network. Gives the list of addresses that are asked for."""
    asked: list[str] = []

    def download(self, url, output_file, pooch, check_only=False):
        asked.append(url)
        if content is None:
            raise ConnectionError("no route to host")
        output_file.write(content) if hasattr(output_file, "write") else Path(output_file).write_bytes(content)

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", download)
    return asked


def test_a_given_file_beats_the_variable_and_the_variable_the_cache(cache, monkeypatch, tmp_path):
    for name in ("given.txt", "named.txt"):
        (tmp_path / name).write_text(name)
    cache.parent.mkdir(parents=True)
    cache.write_bytes(CONTENT)
    assert find_corpus() == cache
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path / "named.txt"))
    assert Corpus.read().text == "named.txt"
    assert Corpus.read(tmp_path / "given.txt").text == "given.txt"


def test_a_file_that_was_named_and_is_absent_is_refused(cache, monkeypatch, tmp_path):
    with pytest.raises(CorpusError, match=r"--data names .*absent\.txt, which is no file"):
        find_corpus(tmp_path / "absent.txt")
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path))
    with pytest.raises(CorpusError, match=f"{CORPUS_VARIABLE} names .*, which is no file"):
        find_corpus()


def test_the_download_is_checked_and_kept(cache, monkeypatch):
    asked = serve(monkeypatch, CONTENT)
    for _ in range(2):
        corpus = Corpus.read()
        assert corpus.text == CONTENT.decode() and corpus.source == cache.resolve()
    assert asked == [CORPUS_URL]


@pytest.mark.parametrize("content", [None, b"<html>not found</html>"])
@pytest.mark.parametrize("damaged", [False, True])
def test_without_the_text_one_sentence_says_the_three_ways(cache, monkeypatch, content, damaged):
    if damaged:
        cache.parent.mkdir(parents=True)
        cache.write_bytes(CONTENT[:-1])
    serve(monkeypatch, content)
    with pytest.raises(CorpusError) as refused:
        find_corpus()
    message = str(refused.value)
    assert "\n" not in message and ". " not in message
    assert all(part in message for part in ("--data=PATH", CORPUS_VARIABLE, str(cache)))
    assert ("no route to host" if content is None else "another checksum") in message
    assert not cache.exists() or damaged


def test_a_long_reason_is_told_shortly(cache, monkeypatch):
    def download(*_, **__):
        raise OSError("HTTPSConnectionPool: " + "max retries exceeded " * 20)

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", download)
    with pytest.raises(CorpusError, match=r"failed \(no connection to raw\.githubusercontent\.com\); give"):
        find_corpus()


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG")
    with pytest.raises(CorpusError, match="not UTF-8 text .* byte 0"):
        Corpus.read(file)


def test_the_text_is_kept_as_it_is(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("é\r\n\tß".encode())
    corpus = Corpus.read(file)
    assert corpus.text == "é\r\n\tß" and not corpus.is_tiny_shakespeare


@pytest.fixture(scope="module")
def tiny_shakespeare() -> Corpus:
    named = os.environ.get(CORPUS_VARIABLE)
    if not named or not Path(named).is_file():
        pytest.skip(f"{CORPUS_VARIABLE} names no file, and tests do not download")
    return Corpus.read(Path(named))


def test_tiny_shakespeare_is_what_the_paper_describes(tiny_shakespeare):
    assert tiny_shakespeare.is_tiny_shakespeare and len(tiny_shakespeare.text) == 1_115_394
    paper, tuned = TextData.paper(tiny_shakespeare.text), TextData.tuned(tiny_shakespeare.text)
    assert (len(paper.vocabulary), len(paper.train), len(paper.test)) == (61, 90_000, 10_000)
    assert (len(tuned.vocabulary), len(tuned.train)) == (65, 1_003_855)


# ---- characters and splits ------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.text(min_size=1))
def test_characters_and_numbers_are_one_to_one(text):
    vocabulary = Vocabulary.of(text)
    numbers = vocabulary.encode(text)
    assert vocabulary.decode(numbers) == text
    assert len(vocabulary) == len(set(text)) == int(numbers.max()) + 1 and int(numbers.min()) == 0


@pytest.mark.parametrize("strange", ["A", "\0", "z", "é", "\udc80"])
def test_a_character_that_is_unknown_is_named(strange):
    with pytest.raises(InvalidOptionError) as refused:
        Vocabulary.of("bcd").encode("b" + strange)
    assert repr(strange) in str(refused.value) and "3" in str(refused.value)


def test_the_paper_uses_the_first_hundred_thousand_and_reports_what_it_selects_on():
    text = "ab" * 50_000 + "c" * 30_000
    data = TextData.paper(text)
    assert data.vocabulary.characters == "ab" and data.selects_on_test and data.test is data.validation
    assert data.vocabulary.decode(torch.cat([data.train, data.test])) == text[:100_000]
    assert (len(data.train), len(data.test)) == (90_000, 10_000)


def test_the_tuned_splits_are_the_whole_text_in_order():
    text = "".join(map(str, range(1000)))
    data = TextData.tuned(text)
    parts = [data.vocabulary.decode(part) for part in (data.train, data.validation, data.test)]
    assert "".join(parts) == text and not data.selects_on_test
    assert [len(part) / len(text) for part in parts] == pytest.approx([0.9, 0.05, 0.05], abs=0.001)


# ---- the task -------------------------------------------------------------------------------------------------


class Bigrams(nn.Module):
    """Knows log p(next | last) and nothing of the rest, so that windows change nothing."""

    def __init__(self, size: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(size, size, generator=torch.Generator().manual_seed(1)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


def make_task(length: int = 2000, **options) -> TextTask:
    numbers = np.random.default_rng(0).choice(list("abcde "), p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05], size=length)
    return TextTask(TextData.tuned("".join(numbers)), **{"context": 7, "batch_size": 16, **options})


def test_every_character_of_a_split_counts_once():
    task = make_task(eval_batch_size=3)
    model, test = Bigrams(6), task.split("test")
    scores = task.scores(model, test)
    log_p = model.table.detach().double().log_softmax(-1)
    expected = -log_p[test[:-1], test[1:]]
    np.testing.assert_allclose(scores.nats, expected.numpy(), rtol=1e-6)
    assert len(test) == 100 and len(scores.nats) == 99  # 14 windows of 7 and one of a single character
    assert scores.positions[-3:].tolist() == [5, 6, 0]
    assert Counter(scores.positions.tolist()) == {0: 15, **dict.fromkeys(range(1, 7), 14)}
    mean = float(expected.mean())
    assert task.evaluate(model, "test") == pytest.approx(
        {"loss": mean, "perplexity": math.exp(mean), "bits_per_char": mean / math.log(2)}
    )
    assert tuple(task.evaluate(model, "test")) == task.metrics
    groups = scores.by_position()
    assert {seen: count for seen, (count, _) in groups.items()} == {1: 15, **dict.fromkeys(range(2, 8), 14)}
    total = sum(count * math.log(perplexity) for count, perplexity in groups.values())
    assert total / 99 == pytest.approx(mean)


def test_windows_see_their_own_past_alone():
    task = make_task(eval_batch_size=4)
    test = task.split("test")
    batches = task.windows(test)
    tokens = torch.cat([b.tokens.flatten() for b in batches])
    targets = torch.cat([b.targets.flatten() for b in batches])
    assert torch.equal(tokens, test[:-1]) and torch.equal(targets, test[1:])
    assert [tuple(b.tokens.shape) for b in batches] == [(4, 7)] * 3 + [(2, 7), (1, 1)]


def test_how_evaluation_is_batched_changes_nothing():
    model = small_model()
    a, b = (make_task(eval_batch_size=size) for size in (1, 500))
    np.testing.assert_allclose(
        a.scores(model, a.split("test")).nats, b.scores(model, b.split("test")).nats, rtol=1e-5, atol=1e-6
    )


def test_batches_are_a_function_of_seed_and_step():
    task = make_task(context=7, seed=3)
    other = make_task(context=7, seed=3)
    other.batch(0)
    assert torch.equal(task.batch(5).tokens, other.batch(5).tokens)
    assert not torch.equal(task.batch(5).tokens, task.batch(6).tokens)
    assert not torch.equal(task.batch(5).tokens, make_task(context=7, seed=4).batch(5).tokens)


def test_training_windows_start_everywhere_and_end_in_the_training_text():
    text = "".join(map(chr, range(48, 48 + 100)))  # every character tells its place
    task = TextTask(TextData.tuned(text), context=4, batch_size=4000)
    batch = task.batch(0)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert torch.equal(batch.tokens + 1, batch.targets)
    counts = torch.bincount(batch.tokens[:, 0], minlength=86)
    assert len(counts) == 86 and int(counts.min()) > 20 and int(counts.max()) < 85  # 46.5 ± 6.8 each
    assert int(batch.targets.max()) == 89


def test_the_loss_is_over_all_positions():
    task, model = make_task(), Bigrams(6)
    batch = task.batch(0)
    loss, values = task.loss(model, batch)
    log_p = model.table.detach().log_softmax(-1)
    assert loss.item() == pytest.approx(-float(log_p[batch.tokens, batch.targets].mean()), rel=1e-5) and values == {}
    loss.backward()
    assert model.table.grad is not None


def test_texts_that_are_too_short_and_unknown_splits_are_refused():
    with pytest.raises(InvalidOptionError, match="validation text has 5 characters and --context=7 needs at least 8"):
        make_task(length=100)
    with pytest.raises(InvalidOptionError, match="test text has 6 characters"):
        make_task(test_characters=6)
    with pytest.raises(InvalidOptionError, match="'train'"):
        make_task().evaluate(Bigrams(6), "train")


def test_a_split_can_be_cut():
    task = make_task(validation_characters=30, test_characters=20)
    assert (len(task.split("validation")), len(task.split("test"))) == (30, 20)
    assert torch.equal(task.split("test"), task.data.test[:20])


# ---- trained models -------------------------------------------------------------------------------------------


def small_model(sampler: str = "exact", **attention) -> CharLM:
    torch.manual_seed(0)
    config = CharLMConfig(
        vocabulary=6,
        characters=" abcde",
        context=7,
        embed_dim=8,
        feed_forward=8,
        attention=AttentionConfig(**attention),
    )
    return CharLM(config, sampler=get_sampler(sampler)).eval()


def test_a_report_holds_the_sampler_against_exact_and_the_paper():
    model, task = small_model("annealing", coupling_std=1.0), make_task()
    published = Published(5.5, 0.25, 10, "Table 9")
    report, again = (
        report_on(model, task, label="annealing", seed=2, marginal_windows=4, published=published) for _ in range(2)
    )
    assert report.summary() == again.summary()
    summary = report.summary()
    assert report.chosen.magnetizations is not None and report.chosen.magnetizations.size == 4 * 28
    assert 0 < summary["marginal_mae"] < summary["marginal_max_error"] < 1
    exact = task.scores(small_model(coupling_std=1.0), task.split("test"))
    assert summary["test_perplexity_exact"] == pytest.approx(exact.perplexity, rel=1e-6)
    assert summary["test_perplexity"] == math.exp(summary["test_nats"]) != summary["test_perplexity_exact"]
    assert summary["test_bits_per_char"] == pytest.approx(summary["test_nats"] / math.log(2))
    assert summary["published_perplexity"] == 5.5
    tables = report.tables()
    assert [row[0] for row in tables["by_sampler"].rows] == ["annealing", "exact", "published"]
    assert "5.500 ± 0.250 (10 seeds, Table 9)" in tables["by_sampler"].caption
    assert "chose the weights" not in tables["by_sampler"].caption
    assert [row[0] for row in tables["by_position"].rows] == list(range(1, 8))


def test_a_report_says_that_the_paper_selects_on_what_it_reports():
    data = TextData.paper("".join(np.random.default_rng(0).choice(list("abcde "), size=500)))
    task = TextTask(data, context=7, batch_size=4)
    report = report_on(small_model(), task, label="exact", seed=0, marginal_windows=2, published=None)
    assert report.exact is report.chosen and report.summary()["marginal_mae"] == 0
    assert "chose the weights" in report.tables()["by_sampler"].caption


@pytest.mark.parametrize("sampler", ["exact", "annealing"])
def test_a_sample_is_a_function_of_its_seed(sampler, monkeypatch):
    monkeypatch.setattr(text_sample, "_PART", 10)
    model = small_model(sampler)
    prompt = torch.tensor([1, 2])
    before, calls = torch.get_rng_state(), model.decoder_blocks()[0].attention.sampler.state_dict()  # type: ignore[union-attr]
    first, again, other = (sample_text(model, prompt, 24, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len(first) == 26 and first[:2].tolist() == [1, 2] and int(first.max()) < 6
    assert torch.equal(torch.get_rng_state(), before)
    assert model.decoder_blocks()[0].attention.sampler.state_dict() == calls  # type: ignore[union-attr]


def test_samples_follow_the_model():
    model = small_model(kind="softmax")
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.05, 0.25, 0.1]).log())
    drawn = sample_text(model, torch.tensor([0]), 2000, seed=1)[1:]
    share = torch.bincount(drawn, minlength=6) / 2000
    assert (share - torch.tensor([0.1, 0.2, 0.3, 0.05, 0.25, 0.1])).abs().max() < 0.045  # four standard deviations
    assert sample_text(model, torch.tensor([0]), 5, temperature=0.0).tolist() == [0, 2, 2, 2, 2, 2]


def test_a_checkpoint_knows_its_characters():
    config = small_model().config
    again = model_from_config(config.to_dict()).config
    assert again == config and isinstance(again, CharLMConfig) and again.characters == " abcde"
    with pytest.raises(InvalidOptionError, match="2 different characters and vocabulary=3"):
        CharLMConfig(vocabulary=3, characters="aab")


# ---- published numbers ----------------------------------------------------------------------------------------

GAINS = {  # percent over softmax as the paper prints them
    "h+J": (-0.02, 0.43, 0.81, 0.92, 1.08, 1.04),
    "h": (-0.02, 0.06, -3.08, -3.93, -7.14, -5.97),
    "J": (-1.76, -4.48, -7.20, -9.49, -12.25, -14.73),
}


@pytest.mark.parametrize("mode", GAINS)
def test_published_perplexities_give_the_published_gains(mode):
    for context, gain in zip((4, 6, 8, 10, 12, 14), GAINS[mode], strict=True):
        softmax, ours = text_perplexity("softmax", context), text_perplexity(mode, context)
        assert softmax is not None and ours is not None and ours.std is not None
        assert 100 * (1 - ours.value / softmax.value) == pytest.approx(gain, abs=0.02)


def test_published_numbers_exist_where_the_paper_has_them():
    assert str(text_perplexity("h+J", 8)) == "5.846 ± 0.036 (10 seeds, Table 2)"
    assert str(text_perplexity("h+J", 8, sampler="dqa")) == "6.000 (1 seed, Table 4)"
    assert str(text_perplexity("h+J+K", 14)) == "5.506 (10 seeds, Table 6)"
    for variant, context, sampler in [
        ("h+J", 9, "exact"),
        ("h+J", 12, "dqa"),
        ("h", 8, "dqa"),
        ("h+J", 8, "gibbs"),
        ("sigmoid", 8, "exact"),
    ]:
        assert text_perplexity(variant, context, sampler=sampler) is None
    assert text_perplexity("softmax", 8, sampler="gibbs") == text_perplexity("softmax", 8)
