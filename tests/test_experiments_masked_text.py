"""The experiment on tasks with masks, from the command line, on text made up for the purpose."""

import json

import pytest
from script_runs import exit_code, loaded

from ising_attn.lab.masked_text_task import MaskedTextTask
from ising_attn.lab.text import TextData
from models import TaskLM, TaskLMConfig

SMALL = ("--quick", "--context=6", "--block=3", "--embed-dim=8", "--ffn-dim=8", "--steps=4", "--batch-size=4")


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("so much depends upon a red wheel barrow\n" * 60)
    return tmp_path / "text.txt"


@pytest.fixture
def script():
    with loaded("masked_text") as module:
        yield module


def run(script, monkeypatch, text, out, *flags) -> dict:
    assert exit_code(script, monkeypatch, (f"--data={text}", f"--out={out}", *SMALL, *flags)) == 0
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("task", ["causal", "block-causal", "block-two-stream", "butterfly"])
def test_each_task_reports_the_same_characters(script, monkeypatch, text, tmp_path, task):
    summary = run(script, monkeypatch, text, tmp_path / "run", f"--task={task}", "--no-plots")
    assert summary["score_from"] == 3
    assert summary["test_characters"] == 60  # 20 windows, places 3 to 5
    assert summary["test_perplexity"] > 1
    assert summary["largest_problem"] == {"causal": 5, "block-causal": 3, "block-two-stream": 6, "butterfly": 6}[task]


def test_a_run_draws_its_mask_and_writes_a_sample(script, monkeypatch, text, tmp_path):
    pytest.importorskip("matplotlib")
    run(script, monkeypatch, text, tmp_path / "run", "--attention=softmax", "--sample=20", "--prompt=a red")
    assert (tmp_path / "run" / "plots" / "mask.png").stat().st_size > 5000
    assert len((tmp_path / "run" / "sample.txt").read_text()) == 25


def test_scores_are_those_of_the_logits(text):
    data = TextData.tuned(text.read_text())
    model = TaskLM(TaskLMConfig(vocabulary=len(data.vocabulary), context=6, block=3, embed_dim=8, task="butterfly"))
    model.eval()
    task = MaskedTextTask(data, context=6, batch_size=4, label_tokens=model.label_tokens, score_from=2)
    characters = data.test[:20]
    scores = task.masked_scores(model, characters)
    nats, right = [], []
    for start in (0, 6, 12):  # the last two characters make no window
        window = characters[None, start : start + 6]
        chances = model(window)[0].double().log_softmax(-1).detach()
        for place in range(2, 6):
            nats.append(-float(chances[place, window[0, place]]))
            right.append(bool(chances[place].argmax() == window[0, place]))
    assert scores.nats.tolist() == pytest.approx(nats, rel=1e-6)
    assert scores.correct.tolist() == right
    assert scores.places.tolist() == [2, 3, 4, 5] * 3
    assert scores.by_place()[4].loss == pytest.approx((nats[2] + nats[6] + nats[10]) / 3, rel=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task=block-two-stream", "--block=4"], "4"),
        (["--task=causal", "--score-from=0"], "predicts the characters 1 to 5"),
        (["--task=butterfly", "--sample=5"], "both sides"),
        (["--task=causal", "--score-from=9"], "score-from is 9"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(script, monkeypatch, text, tmp_path, capsys, flags, message):
    assert exit_code(script, monkeypatch, (f"--data={text}", f"--out={tmp_path / 'run'}", *SMALL, *flags)) != 0
    assert message in capsys.readouterr().err
