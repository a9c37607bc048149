"""Training in a team of two processes: the losses and weights of one process, one writer, a clean stop for all."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import team
import torch

from ising_attn.batch_rows import problem_streams, rows_from
from ising_attn.lab.distributed import Team, current_team, is_follower, is_launched, joined, num_rows, rows_of
from ising_attn.lab.main import run_main
from ising_attn.lab.runs import read_metrics
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig
from samplers import InvalidOptionError, NotSupportedError, get_sampler


@dataclasses.dataclass
class Played:
    """What the processes of a team saw of each scenario."""

    out: Path

    def seen(self, name: str, rank: int) -> dict[str, Any]:
        return json.loads((self.out / f"{name}-{rank}.json").read_text())

    def weights(self, name: str, rank: int) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(self.out / f"{name}-{rank}.safetensors")


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Played:
    """Every scenario, once, in two processes."""
    out, port = tmp_path_factory.mktemp("team"), team.free_port()
    script = str(Path(team.__file__))
    processes = [team.started([script, str(out), *team.SCENARIOS], rank, port) for rank in range(team.SIZE)]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert said == ["", ""]
    return Played(out)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Played:
    """Every scenario in this process."""
    out = tmp_path_factory.mktemp("alone")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    for name in team.SCENARIOS:
        (out / f"{name}-0.json").write_text(json.dumps(team.play(name, out)))
    signal.signal(signal.SIGINT, before)
    return Played(out)


TRAINED = [name for name in team.SCENARIOS if name not in ("diverged", "odd", "misplaced")]


@pytest.mark.parametrize("name", TRAINED)
def test_losses_are_those_of_one_process(together, alone, name):
    rows = alone.seen(name, 0)["rows"]
    assert len(rows) >= 2 and rows[-1]["loss"] < rows[0]["loss"]
    for rank in range(team.SIZE):
        own = together.seen(name, rank)["rows"]
        assert [row["step"] for row in own] == [row["step"] for row in rows]
        for ours, theirs in zip(own, rows, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_draws_for_other_rows_would_be_noticed(together, alone):
    ours, right = ([row["loss"] for row in played.seen("misplaced", 0)["rows"]] for played in (together, alone))
    assert ours != pytest.approx(right, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_weights_are_those_of_one_process_on_every_process(together, alone, name):
    expected, (first, second) = alone.weights(name, 0), (together.weights(name, rank) for rank in range(team.SIZE))
    assert first.keys() == second.keys() == expected.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    for key, tensor in expected.items():
        torch.testing.assert_close(first[key], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_found_is_found_by_all(together, alone, name):
    one, (first, second) = alone.seen(name, 0), (together.seen(name, rank) for rank in range(team.SIZE))
    for key in ("best", "best_step", "steps", "calls", "errors"):
        assert first[key] == second[key], key
    assert first["best"] == pytest.approx(one["best"], rel=1e-4, abs=1e-5)
    assert [first[key] for key in ("best_step", "steps", "errors")] == [
        one[k] for k in ("best_step", "steps", "errors")
    ]


def test_weights_that_no_loss_uses_are_left_alone(together):
    assert torch.equal(together.weights("unused", 0)["unused"], torch.ones(3, 3))


def test_a_resumed_team_goes_on_as_if_it_had_not_stopped(together):
    for name in ("resumed", "interrupted"):
        whole, parts = together.weights("gibbs", 0), together.weights(name, 1)
        assert all(torch.equal(parts[key], tensor) for key, tensor in whole.items())
    assert [row["step"] for row in together.seen("resumed", 1)["rows"]] == list(range(1, team.STEPS + 1))


def test_ctrl_c_at_one_process_stops_all_after_the_same_step(together):
    for rank in range(team.SIZE):
        seen = together.seen("interrupted", rank)
        assert seen["errors"] == ["TrainingInterrupted"]
        # Step 5 was finished and kept: the resumption begins with step 6.
        assert [row["step"] for row in seen["rows"]] == list(range(1, team.STEPS + 1))


def test_what_is_no_number_at_one_process_stops_all(together):
    assert [together.seen("diverged", rank)["errors"] for rank in range(2)] == [["TrainingDivergedError"]] * 2
    assert [len(together.seen("diverged", rank)["rows"]) for rank in range(2)] == [4, 4]


def test_a_batch_that_cannot_be_divided_is_refused(together, alone):
    assert [together.seen("odd", rank)["errors"] for rank in range(2)] == [["InvalidOptionError"]] * 2
    assert alone.seen("odd", 0)["errors"] == []
    with pytest.raises(
        InvalidOptionError, match="--batch-size=7 cannot be divided evenly among 2 processes.*such as 6"
    ):
        Team(0, 2).check_batch(7)
    Team().check_batch(7)


def test_one_process_writes(together, alone):
    for name in ("gibbs", "resumed"):
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(together.out / name)]
        own = [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(alone.out / name)]
        assert [row["step"] for row in rows] == [2, 4, 6, 8]
        for ours, theirs in zip(rows, own, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    environment = json.loads((together.out / "gibbs" / "environment.json").read_text())
    assert environment["processes"] == team.SIZE


# ---- parts of a batch ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sampler", ["exact", "gibbs", "annealing"])
def test_a_part_of_a_batch_draws_for_its_rows_what_the_whole_batch_does(sampler):
    torch.manual_seed(0)
    options = {} if sampler == "exact" else {"num_reads": 16, "num_sweeps": 8}
    source = get_sampler(sampler, **options)
    coupled = AttentionConfig(coupling_std=0.5)
    config = BracketMatcherConfig(num_heads=2, num_layers=2, embed_dim=8, attention=coupled)
    model = BracketMatcher(config, sampler=source).eval()
    tokens = torch.randint(0, 12, (6, 8))
    with torch.no_grad():
        with source.seeded(3):
            whole = model(tokens)
        parts = []
        for first in (0, 2, 4):
            with source.seeded(3), rows_from(first):
                parts.append(model(tokens[first : first + 2]))
        with source.seeded(3):
            displaced = model(tokens[2:4])
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)
    if sampler != "exact":
        assert not torch.allclose(displaced, whole[2:4], atol=1e-3)


def test_streams_of_a_whole_batch_are_left_to_the_problem():
    assert problem_streams((2, 3)) is None
    with rows_from(4):
        streams = problem_streams((2, 3))
    assert streams is not None and streams.tolist() == [[12, 13, 14], [15, 16, 17]]


@dataclasses.dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


def test_batches_of_many_kinds_are_divided():
    x, y = torch.arange(4), torch.arange(8).reshape(4, 2)
    part = rows_of({"a": [x, (y,)], "b": Pair(x, y)}, 1, 3)
    assert torch.equal(part["a"][0], x[1:3]) and torch.equal(part["a"][1][0], y[1:3])
    assert torch.equal(part["b"].x, x[1:3]) and torch.equal(part["b"].y, y[1:3])
    assert num_rows(part) == 2
    with pytest.raises(NotSupportedError, match="parts of \\[3, 4\\] rows"):
        num_rows((x, torch.zeros(3)))
    with pytest.raises(NotSupportedError, match="a str cannot be divided"):
        rows_of(("text", x), 0, 2)


# ---- processes -------------------------------------------------------------------------------------------------------
class Named(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Doubled:
    x: torch.Tensor
    twice: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.x)


def test_batches_that_are_made_in_their_own_way_are_divided():
    x = torch.arange(4.0)
    named, doubled = rows_of((Named(x, -x), Doubled(x)), 1, 3)
    assert isinstance(named, Named) and named.x.tolist() == [1, 2] and named.y.tolist() == [-1, -2]
    assert isinstance(doubled, Doubled) and doubled.twice.tolist() == [2, 4]
    with pytest.raises(NotSupportedError, match="parts of .0, 4. rows"):
        num_rows((x, x.sum()))


def test_one_process_needs_nothing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not is_launched()
    with joined("cpu") as (alone_, device):
        assert alone_ == Team() == current_team() and device == torch.device("cpu")
        assert alone_.sums([1.0, 2.0]) == [1.0, 2.0] and alone_.shared({"a": 1}) == {"a": 1}
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert not is_launched() and not is_follower()  # torchrun --nproc-per-node=1


def test_followers_leave_it_to_the_first_process_to_speak(monkeypatch, capsys):
    for name, value in (("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)

    def refuse() -> None:
        raise InvalidOptionError("--batch-size=7")

    def interrupt() -> None:
        raise KeyboardInterrupt("stopped after step 3")

    for rank, said in (("0", ["error: --batch-size=7\n", "\nstopped after step 3\n"]), ("1", ["", ""])):
        monkeypatch.setenv("RANK", rank)
        assert run_main(refuse, debug=False) == 2
        assert capsys.readouterr().err == said[0]
        assert run_main(interrupt, debug=False) == 130
        assert capsys.readouterr().err == said[1]


BRACKETS = [str(team.ROOT / "experiments" / "brackets.py"), "--sampler=exact", "--no-plots", "--device=cpu"]
SMALL = ["--context=5", "--embed-dim=8", "--heads=1", "--ffn-dim=8", "--validation-size=20", "--test-size=20"]


def launched(*arguments: str) -> subprocess.Popen[str]:
    """The experiment under torchrun."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={team.SIZE}", f"--master-port={team.free_port()}"]
    return team.piped([sys.executable, *launcher, *BRACKETS, *SMALL, *arguments], {})


@pytest.mark.slow
def test_an_experiment_under_torchrun_stops_and_goes_on(tmp_path):
    """Two seeds; Ctrl-C in the first one; the resumption's numbers are those of one process."""
    settings = ["--seeds=0,1", "--steps=60", "--eval-every=20", "--batch-size=8"]
    process = launched(*settings, "--steps=4000", f"--out={tmp_path / 'two'}")
    waiting = time.monotonic() + 200
    while not (tmp_path / "two" / "seed-0" / "checkpoints" / "last.safetensors").exists():
        assert process.poll() is None and time.monotonic() < waiting, process.communicate()[0]
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert f"continue with --resume --out={tmp_path / 'two'}" in said
    assert said.count("continue with") == 1
    reached = read_metrics(tmp_path / "two" / "seed-0")[-1]["step"]
    assert 20 <= reached < 4000
    steps = ["--seeds=0,1", f"--steps={reached + 20}", "--eval-every=20", "--batch-size=8"]
    resumed = launched("--resume", *steps, f"--out={tmp_path / 'two'}")
    said = resumed.communicate(timeout=300)[0]
    assert resumed.returncode == 0, said
    assert said.count("Run folder with settings") == 1
    one = [sys.executable, *BRACKETS, *SMALL, *steps, f"--out={tmp_path / 'one'}"]
    subprocess.run(one, check=True, capture_output=True)
    for seed in ("seed-0", "seed-1"):
        ours, theirs = (read_metrics(tmp_path / folder / seed) for folder in ("two", "one"))
        assert [row["step"] for row in ours] == [row["step"] for row in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-3, abs=1e-4)
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["seeds"].keys() == {"0", "1"}


@pytest.mark.slow
def test_an_experiment_that_is_refused_says_so_once(tmp_path):
    process = launched("--batch-size=9", f"--out={tmp_path / 'run'}")
    said = process.communicate(timeout=200)[0]
    assert process.returncode != 0
    assert said.count("error: --batch-size=9 cannot be divided evenly among 2 processes") == 1
    assert not (tmp_path / "run").exists()
