"""Checkpoints: whole round trips, and refusal of whatever is damaged, foreign, newer or from another model."""

import json
import os
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ising_attn.lab import files
from ising_attn.lab.checkpoints import VERSION, Checkpoint, load_checkpoint, load_weights, save_checkpoint
from ising_attn.lab.errors import CheckpointError


def model(width: int = 3, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))


def trained() -> Checkpoint:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), betas=(0.8, 0.9))
    net(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    return Checkpoint(
        model=net.state_dict(),
        model_config={"width": 3, "kind": "plain", "sizes": (1, 2)},
        step=7,
        optimizer=optimizer.state_dict(),
        samplers=[{"name": "exact", "state": {"calls": 2**60}}],
        progress={"best": 0.1 + 0.2, "sums": {"loss": 1e-300}, "best_metrics": {}, "none": None},
    )


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "last.safetensors"
    save_checkpoint(file, trained())
    return file


def test_everything_comes_back_bit_for_bit(path):
    ours, expected = load_checkpoint(path), trained()
    assert ours.model.keys() == expected.model.keys()
    assert all(torch.equal(ours.model[k], expected.model[k]) for k in expected.model)
    assert (ours.step, ours.samplers, ours.progress) == (7, expected.samplers, expected.progress)
    assert ours.optimizer is not None and expected.optimizer is not None
    optimizer = torch.optim.AdamW(model().parameters())
    optimizer.load_state_dict(ours.optimizer)
    for ours_group, group in zip(optimizer.param_groups, expected.optimizer["param_groups"], strict=True):
        assert {k: v for k, v in ours_group.items() if k not in ("params", "betas")} == {
            k: v for k, v in group.items() if k not in ("params", "betas")
        }
        assert tuple(ours_group["betas"]) == (0.8, 0.9)
    for number, state in expected.optimizer["state"].items():
        assert all(torch.equal(ours.optimizer["state"][number][k], v) for k, v in state.items())


def test_a_path_that_is_no_text_serves_as_well(tmp_path):
    file = tmp_path / os.fsdecode(b"caf\xe9") / "last.safetensors"
    save_checkpoint(file, trained())
    assert load_checkpoint(file).step == 7


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.uint8])
def test_dtypes_and_odd_shapes_are_kept(tmp_path, dtype):
    tensors = {
        "plain": torch.arange(6).reshape(2, 3).to(dtype),
        "transposed": torch.arange(6).reshape(2, 3).T.to(dtype),
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.ones(0, 4, dtype=dtype),
    }
    save_checkpoint(tmp_path / "x", Checkpoint(model=tensors))
    loaded = load_checkpoint(tmp_path / "x").model
    assert all(torch.equal(loaded[k], t) and loaded[k].dtype == dtype for k, t in tensors.items())


def test_tied_weights_are_stored(tmp_path):
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    net["b"].weight = net["a"].weight
    save_checkpoint(tmp_path / "x", Checkpoint(model=net.state_dict()))
    load_weights(tmp_path / "x", net)


def test_it_is_a_plain_safetensors_file(path):
    assert torch.equal(safetensors.torch.load_file(path)["model.0.weight"], trained().model["0.weight"])


def test_loading_weights_fills_the_model(path):
    net = model(seed=1)
    checkpoint = load_weights(path, net, model_config={"width": 3, "kind": "plain", "sizes": (1, 2)})
    assert checkpoint.step == 7
    assert all(torch.equal(t, trained().model[k]) for k, t in net.state_dict().items())


@pytest.mark.parametrize(
    ("width", "config", "message"),
    [
        (4, None, "'0.bias' is float32 \\[3\\] there and float32 \\[4\\] here"),
        (3, {"width": 4, "kind": "plain", "sizes": [1, 2]}, "width is 3 there and 4 here"),
        (3, {"width": 3}, "kind is 'plain' there and None here"),
    ],
)
def test_another_model_is_refused_and_left_alone(path, width, config, message):
    net, before = model(width, seed=1), model(width, seed=1)
    with pytest.raises(CheckpointError, match=f"from another model: {message}"):
        load_weights(path, net, model_config=config)
    assert all(torch.equal(t, before.state_dict()[k]) for k, t in net.state_dict().items())


def test_a_model_with_other_parts_or_dtype_is_refused(path):
    with pytest.raises(CheckpointError, match="'2.bias' is absent there and float32 \\[1\\] here"):
        load_weights(path, nn.Sequential(*model().children(), nn.Linear(1, 1)))
    with pytest.raises(CheckpointError, match="'0.bias' is float32 \\[3\\] there and float64 \\[3\\] here"):
        load_weights(path, model().double())


def test_a_missing_checkpoint_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint .*nowhere"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path)


@given(share=st.floats(0, 0.999))
def test_every_truncation_is_refused(tmp_path_factory, share):
    file = tmp_path_factory.mktemp("cut") / "x"
    save_checkpoint(file, trained())
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(CheckpointError, match="truncated, damaged or no safetensors"):
        load_checkpoint(file)


@given(where=st.floats(0, 0.9999), bit=st.integers(0, 7))
def test_every_flipped_bit_is_refused(tmp_path_factory, where, bit):
    file = tmp_path_factory.mktemp("flip") / "x"
    save_checkpoint(file, trained())
    content = bytearray(file.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    file.write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(file)


def test_numbers_of_the_header_are_protected_too(path):
    with safetensors.safe_open(path, "pt") as file:
        content = file.metadata()["content"]
    with_metadata(path, content=content.replace('"step": 7', '"step": 6').replace('["step", 7]', '["step", 6]'))
    with pytest.raises(CheckpointError, match="checksum"):
        load_checkpoint(path)


def test_foreign_files_are_refused_and_never_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb()))
    torch.save(model().state_dict(), tmp_path / "torch")
    (tmp_path / "text").write_text("no checkpoint at all")
    (tmp_path / "nothing").write_bytes(b"")
    safetensors.torch.save_file({"x": torch.ones(2)}, tmp_path / "safetensors", {"format": "pt"})
    for name in ("pickle", "torch", "text", "nothing"):
        with pytest.raises(CheckpointError, match="truncated, damaged or no safetensors file"):
            load_checkpoint(tmp_path / name)
    with pytest.raises(CheckpointError, match="no checkpoint of ising-attn"):
        load_checkpoint(tmp_path / "safetensors")


def with_metadata(path, **change):
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata() | change
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, metadata)


def test_a_newer_format_is_refused(path):
    with_metadata(path, version=str(VERSION + 1))
    with pytest.raises(CheckpointError, match=f"format {VERSION + 1}; this version reads up to {VERSION}; upgrade"):
        load_checkpoint(path)


def test_a_header_that_lies_is_refused(path):
    with safetensors.safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["content"])
    content["surprise"] = 1
    with_metadata(path, content=json.dumps(content))
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("culprit", ["fsync", "replace"])
def test_a_failure_while_writing_leaves_the_old_file(path, monkeypatch, culprit):
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os if culprit == "fsync" else files.Path, culprit, fail)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, Checkpoint(model=model(seed=5).state_dict()))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
