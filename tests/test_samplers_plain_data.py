"""Samplers as plain data: every registered one comes back as it was, and strange data are refused."""

import json

import pytest
import torch

from samplers import (
    Capabilities,
    InvalidOptionError,
    IsingProblem,
    Sampler,
    UnknownSamplerError,
    get_sampler,
    option,
    register_sampler,
    sampler_entries,
)
from samplers.dqa import AngleSchedule, Layers, named_schedule, save_schedule
from samplers.dqa.schedules import linear_ramp
from samplers.plain_data import sampler_from_dict, sampler_to_dict, stored_name

# What needs an object or a machine is named and left to the caller.
ANEW = {"dimod", "dwave"}


def through_json(sampler: Sampler) -> Sampler:
    return sampler_from_dict(json.loads(json.dumps(sampler_to_dict(sampler))), "test")


@pytest.mark.parametrize("name", [n for n, e in sampler_entries().items() if n not in ANEW and not e.missing()])
def test_every_sampler_comes_back_with_its_options(name):
    sampler = get_sampler(name, seed=7)
    back = through_json(sampler)
    assert type(back) is type(sampler)
    assert back.options() == sampler.options()


def problem() -> IsingProblem:
    return IsingProblem(torch.tensor([[0.5, -1.0, 0.2], [1.5, 0.3, -0.4]], dtype=torch.float64))


ANGLES = Layers(*(torch.tensor(row, dtype=torch.float64) for row in ([0.1, 1 / 3], [0.2, 0.7], [0.9, 0.1])))


@pytest.mark.parametrize(
    "schedule", [linear_ramp(2.5), AngleSchedule(ANGLES, name="mine"), named_schedule("adaptive-strong-8")]
)
@pytest.mark.parametrize("as_file", [False, True])
def test_a_schedule_is_stored_with_its_angles(tmp_path, schedule, as_file):
    given = schedule
    if as_file:
        save_schedule(schedule, tmp_path / "schedule.json")
        given = tmp_path / "schedule.json"
    sampler = get_sampler("dqa", schedule=given)
    stored = json.dumps(sampler_to_dict(sampler))
    if as_file:
        given.unlink()  # the angles are in the data, not the path
        assert str(tmp_path) not in stored
    back = sampler_from_dict(json.loads(stored), "test")
    assert torch.equal(back.magnetization(problem()), sampler.magnetization(problem()))


def test_a_schedule_by_name_keeps_its_name():
    stored = sampler_to_dict(get_sampler("dqa", schedule="learned-medium", num_layers=4))
    assert stored["options"]["schedule"] == "learned-medium"


def test_objects_and_machines_are_named_without_options():
    import dimod
    from qiskit.primitives import StatevectorSampler

    for sampler, name in (
        (get_sampler("dimod", sampler=dimod.ExactSolver()), "dimod"),
        (get_sampler("dqa", engine=StatevectorSampler(), shots=10), "dqa"),
        (get_sampler("dwave"), "dwave"),
    ):
        assert sampler_to_dict(sampler) == {"name": name, "options": None}


class Coin(Sampler):
    """Every spin is up."""

    flips: int = option(default=1, help="of the coin")
    sides: tuple = option(default=(1, 2), help="of the coin")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=False, gradient="none")


def test_a_sampler_of_ones_own_needs_a_name_and_plain_options():
    assert sampler_to_dict(Coin()) == {"name": "Coin", "options": None}
    register_sampler("coin-of-plain-data", Coin)
    assert stored_name(Coin()) == "coin-of-plain-data"
    assert sampler_to_dict(Coin()) == {
        "name": "coin-of-plain-data",
        "options": None,
    }  # a tuple would come back as a list


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("exact", InvalidOptionError, "name and options"),
        ({"name": "exact"}, InvalidOptionError, "name and options"),
        ({"name": "exact", "options": {}, "more": 1}, InvalidOptionError, "nothing else"),
        ({"name": 3, "options": {}}, InvalidOptionError, "name and options"),
        ({"name": "exact", "options": [1]}, InvalidOptionError, "JSON object"),
        ({"name": "exact", "options": None}, InvalidOptionError, "give your own"),
        ({"name": "dwave", "options": {}}, InvalidOptionError, "give your own"),
        ({"name": "os.system", "options": {}}, UnknownSamplerError, "from-a-file: no sampler is named"),
        ({"name": "exact", "options": {"sedd": 1}}, InvalidOptionError, "from-a-file: .* no option 'sedd'"),
        ({"name": "gibbs", "options": {"num_chains": "64"}}, InvalidOptionError, "num_chains='64' is of type str"),
        ({"name": "dqa", "options": {"schedule": "/etc/passwd"}}, InvalidOptionError, "or its name"),
        ({"name": "dqa", "options": {"schedule": "secret.json"}}, InvalidOptionError, "or its name"),
        ({"name": "dqa", "options": {"schedule": {"format": "x"}}}, InvalidOptionError, "not a schedule"),
        ({"name": "dimod", "options": {"sampler": "neal"}}, InvalidOptionError, "dimod"),
    ],
)
def test_strange_data_are_refused(unchecked, data, error, message):
    with pytest.raises(error, match=message):
        sampler_from_dict(data, "from-a-file")
