"""The character model: shapes, longer sequences, generation."""

import pytest
import torch

from ising_attn import InvalidOptionError
from models import AttentionConfig, CharLM, CharLMConfig


def language_model(**options) -> CharLM:
    torch.manual_seed(0)
    return CharLM(CharLMConfig(vocabulary=7, context=5, embed_dim=8, feed_forward=8, **options))


def test_there_is_a_logit_for_every_character_at_every_position():
    model = CharLM(CharLMConfig())
    assert tuple(model(torch.zeros(2, 12, dtype=torch.int64)).shape) == (2, 12, 61)
    assert (model.config.embed_dim, model.config.feed_forward, model.config.dropout) == (64, 128, 0.1)


def test_by_distance_and_without_learnt_positions_it_takes_longer_texts_than_it_was_made_for():
    attention = AttentionConfig(couplings="distance", width=3, bias="distance", coupling_std=0.5)
    model = language_model(attention=attention, positions="sinusoidal").eval()
    assert model.max_length is None
    given = torch.randint(0, 7, (2, 9), generator=torch.Generator().manual_seed(1))
    logits = model(given)
    torch.testing.assert_close(logits[:, :5], model(given[:, :5]), rtol=1e-4, atol=1e-5)
    longer = language_model(attention=attention, positions="none")
    assert longer.max_length is None
    assert language_model(positions="sinusoidal").max_length == 5


def test_weights_trained_at_one_context_load_at_another():
    attention = AttentionConfig(couplings="distance", width=3, bias="scalar", coupling_std=0.5)
    torch.manual_seed(0)
    short, long = (
        CharLM(CharLMConfig(vocabulary=7, context=n, embed_dim=8, positions="sinusoidal", attention=attention)).eval()
        for n in (5, 9)
    )
    long.load_state_dict(short.state_dict())
    given = torch.randint(0, 7, (2, 9), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(long(given)[:, :5], short(given[:, :5]), rtol=1e-4, atol=1e-5)


def test_generation_appends_characters_and_repeats_under_a_seed():
    model = language_model().train()
    prompt = torch.tensor([[1, 2], [3, 4]])
    first, second, other = (
        model.generate(prompt, 12, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert tuple(first.shape) == (2, 14)
    assert torch.equal(first[:, :2], prompt)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert model.training
    assert 0 <= int(first.min()) <= int(first.max()) < 7


def test_generation_at_temperature_zero_takes_the_likeliest_from_the_last_context():
    model = language_model().eval()
    text = model.generate(torch.tensor([[1]]), 10, temperature=0)
    for end in range(1, 11):
        logits = model(text[:, max(0, end - 5) : end])[:, -1]
        assert int(text[0, end]) == int(logits.argmax(-1))


def test_generation_follows_the_distribution_at_its_temperature():
    model = language_model().eval()
    prompt = torch.full((4000, 3), 2)
    logits = model(prompt[:1])[0, -1].detach()
    drawn = model.generate(prompt, 1, temperature=0.7, generator=torch.Generator().manual_seed(0))[:, -1]
    counts = torch.bincount(drawn, minlength=7)
    for temperature, fits in ((0.7, True), (1.0, False)):
        p = (logits / temperature).softmax(-1)
        chi_square = float(((counts - 4000 * p) ** 2 / (4000 * p)).sum())
        # 6 degrees of freedom: 27.9 is exceeded with probability 1e-4.
        assert (chi_square < 27.9) == fits


def test_a_negative_temperature_is_refused():
    with pytest.raises(InvalidOptionError, match="temperature"):
        language_model().generate(torch.tensor([[1]]), 2, temperature=-1.0)
