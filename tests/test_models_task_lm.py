"""`TaskLM`: no prediction sees its target, generation sees what training saw, and the causal task is `CharLM`."""

import pytest
import torch
from torch import Tensor

from ising_attn import masks
from models import AttentionConfig, CharLM, CharLMConfig, TaskLM, TaskLMConfig, model_from_config
from models.task_lm import TASKS
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError

VOCABULARY, N, BLOCK = 9, 6, 2


def make(task: str, attention: str = "boltzmann", **options) -> TaskLM:
    torch.manual_seed(3)
    spread = 0.4 if attention == "boltzmann" else None
    sizes = {"vocabulary": VOCABULARY, "context": N, "embed_dim": 8, "feed_forward": 12, "num_heads": 2} | options
    config = TaskLMConfig(
        task=task, block=BLOCK, attention=AttentionConfig(kind=attention, coupling_std=spread), **sizes
    )
    return TaskLM(config, sampler="exact" if attention == "boltzmann" else None).double().eval()


def text(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (batch, N), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("attention", ["softmax", "boltzmann"])
@pytest.mark.parametrize("task", TASKS)
def test_a_prediction_depends_on_exactly_what_its_task_says(task, attention):
    """Changing a character changes just the predictions that its positions reach, and never its own."""
    model, tokens = make(task, attention, num_layers=2), text()
    before = model(tokens)
    held = model.task.input_weights(N) > 0
    reach = model.task.order.reach
    for changed in range(N):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCABULARY
        differs = (model(other) - before).abs().amax((0, 2)) > 1e-12
        expected = (reach[model.answers] & held[:, changed]).any(-1)
        assert differs.tolist() == expected.tolist()
        assert not differs[model.label_tokens == changed].any()


@pytest.mark.parametrize(
    ("task", "first", "seen_by_last"),
    [("causal", 1, 5), ("block-causal", 2, 4), ("block-two-stream", 0, 4), ("butterfly", 0, 5)],
)
def test_which_characters_are_predicted_from_how_many(task, first, seen_by_last):
    model = make(task)
    assert sorted(model.label_tokens.tolist()) == list(range(first, N))
    last = model.answers[model.label_tokens == N - 1]
    held = (model.task.input_weights(N)[model.task.order.reach[last][0]] > 0).any(0)
    assert int(held.sum()) == seen_by_last


@pytest.mark.parametrize("attention", ["softmax", "boltzmann"])
@pytest.mark.parametrize("task", ["causal", "block-causal", "block-two-stream"])
def test_logits_in_generation_are_those_of_training(task, attention):
    model, tokens = make(task, attention, num_layers=2), text()
    trained = model(tokens)
    least = int(model.label_tokens.min())
    step = model.config.predicted_at_once
    for start in range(least, N, step):
        unknown = tokens.clone()
        unknown[:, start:] = text(seed=9)[:, start:]  # not generated yet: anything may stand there
        got = model.predict(unknown, range(start, start + step))
        wanted = torch.stack([trained[:, model.label_tokens == k].squeeze(1) for k in range(start, start + step)], 1)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_masks_at_the_end_of_the_text_so_far_give_the_logits_of_training():
    """The layout of generation: clean tokens of earlier blocks, then the masks of one block, and nothing else."""
    model, tokens = make("block-two-stream", "softmax", num_layers=2), text()
    trained, x = model(tokens), model.embed(tokens)
    for start in range(0, N, BLOCK):
        places = [p for p in range(model.task.size) if model.places[p] < start and model.streams[p] == 0]
        masked = [p for p in range(model.task.size) if start <= model.places[p] < start + BLOCK and model.streams[p]]
        alone, kept = model.task.restricted(places + masked), x[:, places + masked]
        for block in model.decoder_blocks():
            kept = block(kept, alone.allowed)
        logits = model.head(model.final_norm(kept))[:, -BLOCK:]
        torch.testing.assert_close(logits, trained[:, start : start + BLOCK], rtol=0, atol=1e-12)


def test_the_causal_task_is_the_causal_language_model():
    model = make("causal", num_layers=2)
    twin = CharLM(
        CharLMConfig(
            vocabulary=VOCABULARY, context=N - 1, embed_dim=8, feed_forward=12, num_heads=2, num_layers=2,
            attention=model.config.attention, dropout=0.0,
        ),
        sampler="exact",
    ).double()  # fmt: skip
    state = model.state_dict()
    model.stream.weight.data.zero_()
    wanted = twin.state_dict()
    twin.load_state_dict({name: state[name][: len(value)] for name, value in wanted.items()})
    twin.eval()
    tokens = text()
    torch.testing.assert_close(model(tokens), twin(tokens[:, :-1]), rtol=0, atol=1e-12)


def test_how_clean_tokens_see_one_another_matters_from_the_second_layer_on():
    for layers, differs in ((1, False), (2, True)):
        token, block = (make("block-two-stream", content=c, num_layers=layers) for c in ("token", "block"))
        assert token.task.allowed.sum() < block.task.allowed.sum()
        assert ((token(text()) - block(text())).abs().max() > 1e-6) == differs


def test_generation_goes_on_block_by_block_and_repeats_with_a_seed():
    model = make("block-two-stream")
    prompt = text()[:, :3]
    drawn = [model.generate(prompt, 7, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert drawn[0].shape == (3, 10)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[0][:, :3], prompt)


def test_greedy_generation_takes_the_likeliest_of_each_character_of_a_block():
    model, tokens = make("block-two-stream"), text()
    likeliest = model(tokens)[:, 2:4].argmax(-1)
    assert torch.equal(model.generate(tokens[:, :2], 2, temperature=0)[:, 2:], likeliest)


def test_a_causal_task_generates_like_the_causal_language_model_does():
    model, tokens = make("causal"), text()
    greedy = model.generate(tokens[:, :1], 3, temperature=0)
    for k in range(1, 4):
        window = torch.zeros(3, N, dtype=torch.long)
        window[:, :k] = greedy[:, :k]
        assert torch.equal(model(window)[:, k - 1].argmax(-1), greedy[:, k])


def test_weights_and_configuration_make_the_same_model_again():
    model = make("butterfly")
    again = model_from_config(model.config.to_dict(), sampler="exact").double().eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(text()), model(text()))


def test_every_parameter_is_trained():
    model = make("block-two-stream").train()
    model(text()).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # Couplings with a content token of the last block would be trained if it were there: the task is trimmed.
    assert missing == []


def test_the_attention_problems_have_the_mask_of_the_task():
    model = make("butterfly")
    (problem,) = model.problems(text())
    allowed = problem.expanded_allowed()
    assert allowed is not None and torch.equal(allowed[0, 0], masks.butterfly(N).allowed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "two-way"}, "task='two-way'"),
        ({"context": 1, "block": 1}, "context=1"),
        ({"task": "block-two-stream", "block": 4}, "6.*4|4.*6"),
        ({"task": "block-two-stream", "block": 6}, "block=6"),
        ({"task": "block-two-stream", "content": "word"}, "content='word'"),
    ],
)
def test_impossible_tasks_are_refused(change, message):
    config = {"vocabulary": VOCABULARY, "context": N, "embed_dim": 8, "block": 2} | change
    with pytest.raises((InvalidOptionError, masks.InvalidMaskError), match=message):
        TaskLM(TaskLMConfig(**config))


def test_other_than_whole_windows_are_refused():
    with pytest.raises(InvalidProblemError, match=r"\(batch, 6\)"):
        make("causal")(text()[:, :4])


def test_the_butterfly_cannot_go_on_with_a_text():
    with pytest.raises(NotSupportedError, match="both sides"):
        make("butterfly").generate(text(), 1)


def test_a_prompt_shorter_than_a_block_is_refused_where_a_block_must_come_before():
    with pytest.raises(InvalidProblemError, match="from at least 2"):
        make("block-causal").generate(text()[:, :1], 1)
    assert make("block-two-stream").generate(text()[:, :1], 1).shape == (3, 2)


def test_only_what_a_task_asks_for_is_predicted():
    with pytest.raises(InvalidOptionError, match="character 0 is none"):
        make("causal").predict(text(), [0])
