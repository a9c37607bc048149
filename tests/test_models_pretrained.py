"""Models kept in folders: every registered one comes back, with its samplers; strange folders are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from default_dtype import default_dtype
from torch import Tensor, nn

import models
from ising_attn import get_sampler, samplers_of, use_sampler
from ising_attn.lab.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from ising_attn.lab.errors import CheckpointError
from ising_attn.learned_schedule import learn_schedule, schedule_of
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig, CharLM, from_pretrained, model_from_config
from samplers import InvalidOptionError

SMALL: dict[str, Any] = {"vocabulary": 6, "context": 4}
GATES: dict[str, Any] = {**SMALL, "widths": [16]}
# A configuration of each registered model.
CONFIGS: dict[str, dict[str, Any]] = {
    "bracket-matcher": {**SMALL, "embed_dim": 8, "num_layers": 2},
    "char-lm": {**SMALL, "embed_dim": 8, "characters": "abcdef", "attention": {"learn_beta": True}},
    "hba": {**SMALL, "embed_dim": 8, "num_heads": 2, "feed_forward": {"kind": "logic", "hidden_dim": 8}},
    "logic-lm": GATES,
    "looped-logic-lm": {**GATES, "widths": [32], "state": 32, "iterations": 2},
    "task-lm": {**SMALL, "embed_dim": 8, "task": "block-two-stream", "block": 2},
}
TOKENS = torch.tensor([[0, 3, 5, 1], [2, 2, 4, 0]])


def made(name: str, sampler: Any = None, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return model_from_config({"model": name, **CONFIGS[name]}, sampler=sampler).eval()


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(TOKENS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_comes_back(tmp_path, name, dtype):
    model = made(name).to(dtype)
    model.save_pretrained(tmp_path / "kept")
    before = torch.random.get_rng_state()
    for back in (from_pretrained(tmp_path / "kept"), type(model).from_pretrained(str(tmp_path / "kept"))):
        assert type(back) is type(model) and back.config == model.config and not back.training
        state = model.state_dict()
        assert back.state_dict().keys() == state.keys()
        assert all(torch.equal(t, state[n]) and t.dtype == state[n].dtype for n, t in back.state_dict().items())
        for buffer, own in zip(back.buffers(), model.buffers(), strict=True):  # those that are not stored as well
            assert buffer.dtype == own.dtype
        with default_dtype(dtype):
            assert torch.equal(outputs(back), outputs(model))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_configurations_are_named_for_every_model():
    assert CONFIGS.keys() == models.MODELS.keys()


def test_each_layer_gets_its_own_sampler_back(tmp_path):
    shared, other = get_sampler("gibbs", num_chains=4, num_sweeps=8, burn_in=2, seed=5), get_sampler("band", width=1)
    torch.manual_seed(0)
    config = BracketMatcherConfig(
        **SMALL, embed_dim=8, num_layers=3, attention=AttentionConfig(couplings="band", width=1)
    )
    model = BracketMatcher(config, sampler=shared).eval()
    model.decoder_blocks()[1].attention.sampler = other  # type: ignore[assignment]
    model.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path)
    first, middle, last = (block.attention.sampler for block in back.decoder_blocks())
    assert first is last and middle is not first
    assert (first.name, first.options()) == ("gibbs", shared.options())
    assert (middle.name, middle.options()) == ("band", other.options())
    assert torch.equal(outputs(back), outputs(model))  # the same draws, call for call


def anneal(**options: Any) -> BracketMatcher:
    model = made("bracket-matcher", get_sampler("dqa", **options))
    learned = learn_schedule(model)
    with torch.no_grad():
        learned.fields += 0.125
    return model


def test_a_learned_schedule_comes_back(tmp_path):
    model = anneal(num_layers=4, precision="double")
    model.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path)
    learned, kept = schedule_of(model), schedule_of(back)
    assert learned is not None and kept is not None
    assert kept.fields.dtype == torch.float64 and torch.equal(kept.fields, learned.fields)
    assert samplers_of(back)[0].precision == "double"  # type: ignore[attr-defined]
    assert torch.equal(outputs(back), outputs(model))
    with torch.no_grad():  # what the sampler runs are the parameters themselves
        kept.fields += 1.0
    assert not torch.equal(outputs(back), outputs(model))


def test_another_sampler_may_be_given(tmp_path):
    model = anneal(num_layers=4)
    model.save_pretrained(tmp_path)
    exact = from_pretrained(tmp_path, sampler="exact")
    assert schedule_of(exact) is None and samplers_of(exact)[0].name == "exact"
    with use_sampler(model, "exact"):
        assert torch.equal(outputs(exact), outputs(model))
    # An anneal without a schedule of its own runs the learned angles; one with a schedule keeps it.
    same = from_pretrained(tmp_path, sampler=get_sampler("dqa"))
    assert torch.equal(outputs(same), outputs(model))
    other = from_pretrained(tmp_path, sampler=get_sampler("dqa", schedule="kick"))
    assert schedule_of(other) is None and not torch.equal(outputs(other), outputs(model))


def test_models_without_samplers_leave_one_alone(tmp_path):
    made("logic-lm").save_pretrained(tmp_path)
    assert samplers_of(from_pretrained(tmp_path, sampler="gibbs")) == []


def test_a_sampler_that_is_no_data_must_be_given(tmp_path):
    import dimod

    sampler = get_sampler("dimod", sampler=dimod.ExactSolver())
    made("char-lm", sampler).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="names the sampler 'dimod' without options.*sampler="):
        from_pretrained(tmp_path)
    assert samplers_of(from_pretrained(tmp_path, sampler=sampler)) == [sampler]


def test_a_class_of_ones_own(tmp_path):
    class Mine(BracketMatcher):
        """A model that nothing knows."""

        class Config(BracketMatcherConfig):
            model = "mine"

    torch.manual_seed(0)
    model = Mine(Mine.Config(**SMALL, embed_dim=8)).eval()
    model.save_pretrained(tmp_path)
    back = Mine.from_pretrained(tmp_path)
    assert type(back) is Mine and torch.equal(outputs(back), outputs(model))
    with pytest.raises(CheckpointError, match="model 'mine'; known: .*char-lm"):
        from_pretrained(tmp_path)
    made("char-lm").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="holds a CharLM, no Mine"):
        Mine.from_pretrained(tmp_path)
    assert isinstance(models.Decoder.from_pretrained(tmp_path), CharLM)


def test_saving_again_replaces_the_model(tmp_path):
    made("char-lm").save_pretrained(tmp_path)
    other = made("bracket-matcher", seed=1)
    other.save_pretrained(tmp_path)
    assert torch.equal(outputs(from_pretrained(tmp_path)), outputs(other))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


# ---- runs and checkpoints --------------------------------------------------------------------------------------------


def checkpoint_of(model: Any, **changes: Any) -> Checkpoint:
    from ising_attn.lab.stored_samplers import stored_states

    own = {"model": model.state_dict(), "model_config": model.config.to_dict()}
    return Checkpoint(**{**own, "samplers": stored_states(model, samplers_of(model)), **changes})


def test_a_run_folder_and_its_checkpoints_are_taken(tmp_path):
    best, last = made("char-lm", get_sampler("gibbs", num_chains=4, seed=3)), made("char-lm", "exact", seed=1)
    save_checkpoint(tmp_path / "checkpoints" / "best.safetensors", checkpoint_of(best))
    save_checkpoint(tmp_path / "checkpoints" / "last.safetensors", checkpoint_of(last, step=9))
    (tmp_path / "config.json").write_text('{"sampler": "gibbs"}')
    assert torch.equal(outputs(from_pretrained(tmp_path)), outputs(best))
    assert torch.equal(outputs(from_pretrained(tmp_path / "checkpoints" / "last.safetensors")), outputs(last))
    rescaled = made("char-lm", "exact", seed=2)
    save_checkpoint(tmp_path / "checkpoints" / "rescaled.safetensors", checkpoint_of(rescaled))
    assert torch.equal(outputs(from_pretrained(tmp_path)), outputs(rescaled))  # what the run's numbers were made with


def test_a_run_of_several_seeds_is_refused(tmp_path):
    for name in ("seed-1", "seed-0"):
        save_checkpoint(tmp_path / name / "checkpoints" / "best.safetensors", checkpoint_of(made("char-lm")))
    with pytest.raises(CheckpointError, match="give one of its folders seed-0, seed-1"):
        from_pretrained(tmp_path)
    from_pretrained(tmp_path / "seed-1")


def test_a_checkpoint_without_the_samplers_options_asks_for_the_sampler(tmp_path):
    old = checkpoint_of(made("char-lm"), samplers=[{"name": "exact", "state": {"calls": 3}}])
    save_checkpoint(tmp_path / "old", old)
    with pytest.raises(CheckpointError, match="does not say which options.*sampler="):
        from_pretrained(tmp_path / "old")
    from_pretrained(tmp_path / "old", sampler="exact")


def test_a_model_of_another_library_is_never_overwritten(tmp_path):
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text('{"architectures": ["BertModel"]}')
    weights.write_bytes(b"theirs")
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(CheckpointError, match=f"{name} of something else; give another folder"):
            made("logic-lm").save_pretrained(tmp_path)
        assert weights.read_bytes() == b"theirs"
        config.unlink(missing_ok=True)
    weights.unlink()
    for first in (config, weights):  # one of our own is replaced, also where the other file is lost
        made("logic-lm").save_pretrained(tmp_path)
        first.unlink()
    made("logic-lm", seed=1).save_pretrained(tmp_path)
    from_pretrained(tmp_path)


def test_a_run_is_never_overwritten(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="config.json of something else"):
        made("char-lm").save_pretrained(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        made("char-lm").save_pretrained(tmp_path / "file")


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path) -> Path:
    made("char-lm").save_pretrained(tmp_path / "kept")
    return tmp_path / "kept"


def edited(kept: Path, **changes: Any) -> None:
    config = json.loads((kept / "config.json").read_text())
    (kept / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not of a model of ising-attn"),
        ({"version": 2}, "version 2; this ising-attn reads up to 1; upgrade"),
        ({"version": "1"}, "version '1'"),
        ({"surprise": 1}, "unknown keys surprise"),
        ({"config": {"model": "char-lm"}}, "differs from the weights beside it in attention"),
        ({"samplers": []}, "differs from the weights beside it in samplers"),
    ],
)
def test_a_config_that_is_not_of_the_weights_is_refused(kept, changes, message):
    edited(kept, **changes)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(kept)
    from_pretrained(kept / "model.safetensors")  # nothing is lost: the header has the settings too


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b"[" * 100_000])
def test_a_config_that_is_no_config_is_refused(kept, content):
    (kept / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="config.json"):
        from_pretrained(kept)


def test_weights_of_another_model_are_refused(kept, tmp_path):
    made("bracket-matcher").save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", kept)
    with pytest.raises(CheckpointError, match="differs from the weights beside it"):
        from_pretrained(kept)


def test_files_that_are_missing_or_cut_short_are_refused(kept, tmp_path):
    weights = (kept / "model.safetensors").read_bytes()
    (kept / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match="truncated, damaged or no safetensors"):
        from_pretrained(kept)
    (kept / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no model"):
        from_pretrained(kept)
    with pytest.raises(CheckpointError, match="does not exist"):
        from_pretrained(tmp_path / "nowhere")
    (kept / "model.safetensors").write_bytes(weights)
    (kept / "config.json").unlink()
    with pytest.raises(CheckpointError, match="config.json is missing"):
        from_pretrained(kept)


CONFIG = {"model": "char-lm", **CONFIGS["char-lm"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model None; known"),
        ({**CONFIG, "model": ["char-lm"]}, "known: "),
        ({**CONFIG, "surprise": 1}, "no field 'surprise'"),
        ({**CONFIG, "attention": {"kind": "boltzmann", "surprise": 1}}, "no field 'surprise'"),
        ({**CONFIG, "context": "four"}, "context='four'; it must be an integer"),
        ({**CONFIG, "dropout": "much"}, "makes no CharLM"),
        ({**CONFIG, "attention": 3}, "makes no CharLM"),
        ({**CONFIG, "feed_forward": [1]}, "feed_forward"),
        ({**CONFIG, "embed_dim": 4}, "from another model: 'blocks.0.attention"),
        ({**CONFIG, "embed_dim": 16}, "from another model: it holds [0-9]+ numbers"),
        ({**CONFIG, "embed_dim": 2**30}, "from another model: it holds|makes no CharLM"),
        ({**CONFIG, "num_layers": 10**9}, "from another model: it holds"),
    ],
)
def test_strange_configurations_in_the_weights_are_refused(tmp_path, unchecked, config, message):
    save_checkpoint(tmp_path / "x", checkpoint_of(made("char-lm"), model_config=config))
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(tmp_path / "x")


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "device is 'gpu': "), ("meta", "'meta', which holds no weights"), ("cuda:99", "device is 'cuda:99': ")],
)
def test_devices_that_are_none_are_refused_before_anything_is_read(tmp_path, device, message):
    with pytest.raises(InvalidOptionError, match=message):
        from_pretrained(tmp_path / "nowhere", device=device)


@pytest.mark.parametrize("samplers", [[{"name": "exact", "options": {}, "layers": ["head"]}], [3], []])
def test_samplers_of_other_layers_are_refused(tmp_path, unchecked, samplers):
    save_checkpoint(tmp_path / "x", checkpoint_of(made("char-lm"), samplers=samplers))
    with pytest.raises(CheckpointError, match="sampler"):
        from_pretrained(tmp_path / "x")


def test_a_failed_write_leaves_the_model_that_was_there(kept, monkeypatch):
    from ising_attn.lab import files

    before = {path.name: path.read_bytes() for path in kept.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        made("bracket-matcher").save_pretrained(kept)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_a_save_that_was_cut_between_the_files_says_how_to_go_on(kept, monkeypatch):
    from ising_attn.lab import files

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_json", killed)
    other = made("bracket-matcher", seed=3)
    with pytest.raises(KeyboardInterrupt):
        other.save_pretrained(kept)
    with pytest.raises(CheckpointError, match="takes the weights with the settings in their own header"):
        from_pretrained(kept)
    assert torch.equal(outputs(from_pretrained(kept / "model.safetensors")), outputs(other))


def test_the_checkpoint_is_read_as_any_other(kept):
    stored = load_checkpoint(kept / "model.safetensors")
    assert stored.step == 0 and stored.optimizer is None and stored.model_config["model"] == "char-lm"
