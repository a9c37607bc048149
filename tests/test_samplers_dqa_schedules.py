"""Schedules: shapes, Trotter steps, JSON and CSV as data, refusals."""

import json
import math

import pytest
import torch

from samplers.dqa.schedules import (
    AngleSchedule,
    AnnealSchedule,
    anneal_from_csv,
    constant_drive,
    fast_anneal,
    free_angles,
    linear_ramp,
    load_schedule,
    named_schedule,
    save_schedule,
    schedule_names,
    single_kick,
)
from samplers.errors import InvalidOptionError


def angles_of(schedule, depth=None):
    layers = schedule.layers(depth)
    return torch.stack([layers.fields, layers.couplings, layers.mixer])


def test_steps_of_a_ramp_by_hand():
    # Over [0, 1] in two steps, ∫2(1−s) = 3/4, 1/4 and ∫4s = 1/2, 3/2.
    first = linear_ramp(2.0, 4.0, order=1).layers(2)
    assert first.mixer.tolist() == pytest.approx([0.75, 0.25])
    assert first.fields.tolist() == first.couplings.tolist() == pytest.approx([0.5, 1.5])
    # Second order: half mixers ½·¾ (no effect), ½·¾ + ½·¼, ½·¼.
    second = linear_ramp(2.0, 4.0, order=2).layers(2)
    assert second.mixer.tolist() == pytest.approx([0.5, 0.125])
    assert second.fields.tolist() == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize("depth", [1, 3, 7, 200])
def test_angles_add_up_to_the_whole_anneal(depth):
    schedule = AnnealSchedule((0.0, 0.3, 1.0), (5.0, 2.0, 0.0), (0.5, 1.0, 3.0), order=1)
    layers = schedule.layers(depth)
    assert layers.depth == depth
    assert layers.mixer.sum().item() == pytest.approx(0.3 * 3.5 + 0.7 * 1.0)
    assert layers.fields.sum().item() == pytest.approx(0.3 * 0.75 + 0.7 * 2.0)


@pytest.mark.parametrize("name", schedule_names())
def test_every_named_schedule_is_usable_and_survives_json(name, tmp_path):
    schedule = named_schedule(name)
    path = tmp_path / "one.json"
    save_schedule(schedule, path)
    again = load_schedule(path)
    assert type(again) is type(schedule)
    assert torch.equal(angles_of(again), angles_of(schedule))
    assert (again.name, again.calibrate, again.about) == (schedule.name, schedule.calibrate, schedule.about)
    assert torch.isfinite(angles_of(schedule)).all()


def test_the_paper_setting_has_200_steps_of_5_ns():
    schedule = fast_anneal()
    assert schedule.layers().depth == 200
    assert schedule.about["nanoseconds"] == 5.0
    assert schedule.layers(10).depth == 10


def test_csv_in_published_columns(tmp_path):
    path = tmp_path / "processor.csv"
    path.write_text(
        "\ufeffs,A(s) (GHz),B(s) (GHz),C (normalized)\n0,6,0.2,0\n0.5,1,3,0.5\n1,0,9,1\n\n", encoding="utf-8"
    )
    schedule = anneal_from_csv(path, nanoseconds=2.0, num_layers=30)
    assert schedule.s == (0.0, 0.5, 1.0)
    assert schedule.drive == pytest.approx([2 * math.pi * a for a in (6, 1, 0)])
    assert schedule.problem == pytest.approx([2 * math.pi * b for b in (0.2, 3, 9)])
    assert schedule.name == "processor"
    assert schedule.layers().depth == 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s,A(s) (GHz)\n0,1\n1,0\n", "needs columns"),
        ("", "needs columns"),
        ("s,A(s) (GHz),B(s) (GHz)\n0,1,x\n1,0,1\n", "not numbers"),
        ("s,A(s) (GHz),B(s) (GHz)\n0,1\n1,0,1\n", "not numbers"),
        ("s,A(s) (GHz),B(s) (GHz)\n0,1,1\n", "needs 2 rows"),
        ("s,A(s) (GHz),B(s) (GHz)\n0,1,nan\n1,0,1\n", "must be finite"),
        ("s,A(s) (GHz),B(s) (GHz)\n0,1,1\n0.5,0,1\n", "from 0 to 1"),
    ],
)
def test_unusable_csv(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InvalidOptionError, match=message):
        anneal_from_csv(path, nanoseconds=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "something else"}, "not a schedule"),
        ({"kind": "spiral"}, "must be 'anneal' or 'angles'"),
        ({"mixer": None}, "'mixer' must be a list of numbers"),
        ({"mixer": [0.1, "2"]}, "'mixer' must be a list of numbers"),
        ({"mixer": [0.1]}, "needs one of each"),
        ({"fields": [], "couplings": [], "mixer": []}, "at least one layer"),
        ({"mixer": [0.1, float("nan")]}, "must be finite"),
        ({"calibrate": "yes"}, "of type bool"),
        ({"about": 3}, "JSON object"),
    ],
)
def test_unusable_json(tmp_path, change, message):
    good = free_angles([0.1, 0.2], [0.3, 0.4], [0.5, 0.6], name="good").to_json()
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(InvalidOptionError, match=message):
        load_schedule(path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[1]"])
def test_files_that_are_no_schedule(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InvalidOptionError, match="is not a"):
        load_schedule(path)
    with pytest.raises(InvalidOptionError, match="cannot read"):
        load_schedule(tmp_path / "absent.json")


def test_refusals(unchecked):
    with pytest.raises(InvalidOptionError, match="did you mean 'ramp'"):
        named_schedule("rampp")
    with pytest.raises(InvalidOptionError, match="num_layers=0"):
        linear_ramp().layers(0)
    with pytest.raises(InvalidOptionError, match="order=3"):
        linear_ramp(order=3)
    with pytest.raises(InvalidOptionError, match="cannot be run with 2"):
        single_kick().layers(2)
    with pytest.raises(InvalidOptionError, match="same number"):
        AnnealSchedule((0.0, 1.0), (1.0,), (1.0, 2.0))
    with pytest.raises(InvalidOptionError, match="must be finite"):
        constant_drive(float("inf"))


def test_free_angles_keep_the_graph():
    mixer = torch.rand(2, dtype=torch.float64, requires_grad=True)
    from samplers.dqa.layers import Layers

    schedule = AngleSchedule(Layers(mixer.detach(), mixer.detach(), mixer))
    assert schedule.layers().mixer.requires_grad
