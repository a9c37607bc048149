"""Sampler calls spread over workers equal the unsplit call: draws, marginals, gradients, notes, state."""

import copy
import inspect
import os
import pickle
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ising_attn.lab.config import SamplerSettings, parse_settings
from samplers import IsingProblem, NotSupportedError, Sampler, errors, get_sampler
from samplers.dqa import DQASampler
from samplers.errors import EngineError, InvalidOptionError, MissingDependencyError
from samplers.plain_data import sampler_to_dict
from samplers.samples import Samples
from samplers.spread import SpreadSampler, plain_class, spread_sampler
from samplers.spread_tasks import Workers

SAMPLERS: list[tuple[str, dict[str, Any]]] = [
    ("exact", {}),
    ("gibbs", {"num_chains": 8, "num_reads": 32}),
    ("annealing", {"num_reads": 16}),
    ("dqa", {}),
    ("dqa", {"shots": 20}),
    ("dqa", {"correction": "importance"}),
    ("bethe", {}),
]
NAMES = [f"{name} {options}" for name, options in SAMPLERS]


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    """Workers without the cost of processes: tasks travel as bytes all the same."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


def problem(*, causal: bool = True, grad: bool = False, batch: int = 5) -> IsingProblem:
    """(batch, heads, queries) problems that share J by head."""
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(batch, 2, 4, 4, generator=generator, dtype=torch.float64)
    a = 0.3 * torch.randn(2, 1, 4, 4, generator=generator, dtype=torch.float64)
    j = ((a + a.mT) / 2) * (1 - torch.eye(4, dtype=torch.float64))
    allowed = torch.ones(4, 4, dtype=torch.bool).tril() if causal else None
    return IsingProblem(h.requires_grad_(grad), j.requires_grad_(grad), allowed=allowed)


def gradients(sampler: Sampler, given: IsingProblem) -> tuple[Tensor, Tensor, Tensor]:
    """⟨s⟩, and the derivatives of a loss in which every ⟨s⟩ counts differently, by h and J."""
    m = sampler.magnetization(given)
    loss = (m * torch.linspace(-1, 2, m.numel(), dtype=m.dtype).reshape(m.shape)).sin().sum()
    by_h, by_j = torch.autograd.grad(loss, [given.fields, given.couplings])
    return m.detach(), by_h, by_j


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "options"), SAMPLERS, ids=NAMES)
def test_marginals_and_gradients_equal_the_unsplit_call(threads, name, options, causal):
    whole, spread = get_sampler(name, **options), spread_sampler(get_sampler(name, **options), threads, workers=2)
    for _ in range(2):  # the second call has other random numbers
        expected, found = (gradients(one, problem(causal=causal, grad=True)) for one in (whole, spread))
        if (name, options) in SAMPLERS[:5]:
            assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        for ours, theirs in zip(found, expected, strict=True):  # derivatives by J are summed over the parts
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert expected[2].abs().max() > 1e-3
    assert spread.state_dict() == whole.state_dict() == {"calls": 2}


@pytest.mark.parametrize(("name", "options"), SAMPLERS[:6], ids=NAMES[:6])
def test_draws_equal_the_unsplit_call_bit_for_bit(threads, name, options):
    whole, spread = get_sampler(name, **options), spread_sampler(get_sampler(name, **options), threads, workers=3)
    for seed in (None, 7):
        expected, found = (one.sample(problem(), 9, seed=seed) for one in (whole, spread))
        for part in ("spins", "weights", "energies"):
            assert torch.equal(getattr(found, part), getattr(expected, part))
        assert found.info["parts"] == 3 and found.info.get("weights") == expected.info.get("weights")
        for key in ("sampler", "options", "seed", "call_number", "beta_target", "num_problems", "num_spins"):
            assert found.info[key] == expected.info[key]
    assert torch.equal(spread.ground_state(problem(), seed=1), whole.ground_state(problem(), seed=1))
    torch.testing.assert_close(spread.correlations(problem(), seed=1), whole.correlations(problem(), seed=1))


def test_a_part_without_its_streams_would_differ():
    """What the tests above could not tell from right if problems had no streams of their own."""
    sampler, part = get_sampler("gibbs"), problem()[2:]
    own = sampler.sample(part, 50, seed=0).spins
    renumbered = IsingProblem(part.fields, part.couplings, allowed=part.allowed)
    assert torch.equal(own, sampler.sample(problem(), 50, seed=0).spins[2:])
    assert not torch.equal(own, sampler.sample(renumbered, 50, seed=0).spins)


def test_a_part_of_a_batch_shares_what_the_batch_shares():
    part = problem()[1:3]
    assert part.couplings.shape == (2, 1, 4, 4) and part.allowed is not None and part.allowed.shape == (4, 4)
    assert part.is_causal and part.grouped().problem.fields.shape[:2] == (2, 8)
    assert problem()[0:0].num_problems == 0


def test_log_partitions_and_their_gradients(threads):
    spread = spread_sampler(get_sampler("exact"), threads)
    expected = get_sampler("exact").log_partition(problem())
    assert torch.equal(spread.log_partition(problem()), expected)
    given = problem(causal=False, grad=True)
    (by_h,) = torch.autograd.grad(spread.log_partition(given).sum(), given.fields)
    torch.testing.assert_close(by_h, get_sampler("exact").magnetization(given).detach())


@pytest.mark.parametrize("batch", [0, 1])
def test_batches_that_cannot_be_split(threads, batch):
    spread = spread_sampler(get_sampler("exact"), threads)
    given = problem(batch=batch)
    assert torch.equal(spread.magnetization(given), get_sampler("exact").magnetization(given))
    alone = IsingProblem(torch.tensor([0.3, -1.0]))
    assert torch.equal(spread.magnetization(alone), torch.tanh(alone.fields))
    assert ("parts" in spread.last_info) is False


def test_it_stays_a_sampler_of_its_kind(threads):
    inner = get_sampler("dqa", num_layers=4, seed=5)
    spread = spread_sampler(inner, threads, workers=2)
    assert isinstance(spread, DQASampler) and isinstance(spread, SpreadSampler)
    assert (spread.name, spread.options(), spread.capabilities) == (inner.name, inner.options(), inner.capabilities)
    assert plain_class(spread) is plain_class(inner) is DQASampler and type(spread.plain()) is DQASampler
    spread.sample(problem(), 3)
    assert inner.state_dict() == {"calls": 0} and spread.state_dict() == {"calls": 1}
    again = spread_sampler(spread, threads, workers=3)
    assert type(again) is type(spread) and again.state_dict() == {"calls": 1}
    for twin in (copy.deepcopy(spread), copy.copy(spread)):
        assert twin._workers is spread._workers and twin is not spread
        assert torch.equal(twin.sample(problem(), 3).spins, spread.plain().sample(problem(), 3).spins)
    thawed = pickle.loads(pickle.dumps(spread))
    assert type(thawed) is type(spread) and thawed._workers.executor is None and thawed._workers.count == 2


def test_angles_that_are_trained_stay_here(threads):
    from samplers.dqa import AngleSchedule
    from samplers.dqa.layers import Layers

    angles = [torch.full((3,), 0.3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    spread = spread_sampler(get_sampler("dqa", schedule=AngleSchedule(Layers(*angles))), threads)
    spread.magnetization(problem()).sum().backward()
    assert all(row.grad is not None and row.grad.abs().sum() > 0 for row in angles)
    with torch.no_grad():
        spread.magnetization(problem())
    assert spread.last_info["parts"] == 2


def test_notes_of_the_parts_are_put_together(threads):
    spread = spread_sampler(get_sampler("mean-field"), threads, workers=2)
    spread.magnetization(problem())
    assert spread.last_info["converged"].shape == (5, 2, 4)
    assert isinstance(spread.last_info["iterations"], int | list) and spread.last_info["num_problems"] == 40


class Short(Sampler):
    """Draws fewer rows where the first field is negative, as backends that merge equal rows do."""

    @property
    def capabilities(self):
        return get_sampler("exact").capabilities

    def _sample(self, given: IsingProblem, num_reads: int, key: int) -> Samples:
        rows = num_reads - int(given.fields.flatten()[0] < 0)
        spins = torch.ones(*given.batch_shape, rows, given.num_spins, dtype=torch.int8)
        return Samples(spins, torch.ones(spins.shape[:-1]), given.energy(spins), {"weights": "counts"})


def test_parts_with_fewer_rows_get_rows_of_no_weight(threads):
    given = IsingProblem(torch.tensor([[0.5], [-0.5]]))
    found = spread_sampler(Short(), threads).sample(given, 3)
    assert found.spins.shape == (2, 3, 1) and found.weights.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert found.magnetization().tolist() == [[1.0], [1.0]]


class Unsendable(Short):
    """Holds what no process can be sent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held = lambda: None


@pytest.mark.parametrize(
    ("sampler", "options"), [("gibbs", {"persistent": True}), ("mean-field", {"warm_start": True})]
)
def test_samplers_that_keep_states_between_calls_are_refused(sampler, options):
    with pytest.raises(InvalidOptionError, match=f"use {next(iter(options))}=False"):
        spread_sampler(get_sampler(sampler, **options))


def test_impossible_uses_are_refused(threads):
    for workers in (0, True, -2):
        with pytest.raises(InvalidOptionError, match="at least 1"):
            spread_sampler(get_sampler("exact"), workers=workers)
    with pytest.raises(NotSupportedError, match="cannot be sent to another process"):
        spread_sampler(Unsendable(), threads).sample(problem(), 3)
    given = problem(grad=True)
    m = spread_sampler(get_sampler("exact"), threads).magnetization(given)
    with pytest.raises(NotSupportedError, match="second derivative"):
        torch.autograd.grad(m.sum(), given.fields, create_graph=True)


class Lacking(Short):
    """Needs a package that is not there."""

    def _sample(self, given: IsingProblem, num_reads: int, key: int) -> Samples:
        raise MissingDependencyError("qiskit-aer", "aer", "circuits")


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
)
def test_every_error_can_come_back_from_a_worker(kind):
    error = kind("p", "x", "y") if kind is MissingDependencyError else kind("said")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error)


# ---- processes ------------------------------------------------------------------------------------------------------


class Fragile(Short):
    """Kills the process that it is in as often as the file says, and warns."""

    file: str = ""

    def _sample(self, given: IsingProblem, num_reads: int, key: int) -> Samples:
        with Path(self.file).open("r+") as file:
            left = int(file.read())
            file.seek(0)
            file.write(str(max(0, left - 1)))
        if left > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        warnings.warn("a worker's remark", UserWarning, stacklevel=1)
        return super()._sample(given, num_reads, key)


@pytest.mark.slow
def test_processes_give_the_same_and_say_what_they_have_to_say(tmp_path):
    file = tmp_path / "left"
    fragile = Fragile()
    fragile.file = str(file)
    with spread_sampler(get_sampler("gibbs", num_reads=32, num_chains=8), workers=2) as spread:
        expected, found = (gradients(one, problem(grad=True)) for one in (spread.plain(), spread))
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    given = IsingProblem(torch.tensor([[0.5], [-0.5]]))
    with spread_sampler(fragile, workers=2) as spread:
        file.write_text("1")
        with pytest.warns(UserWarning, match="a worker's remark") as said:
            assert spread.sample(given, 3).weights.sum() == 5
        assert len(said) == 1
        file.write_text("9")
        with pytest.raises(EngineError, match="died 3 times"):
            spread.sample(given, 3)
    assert spread._workers._own is None
    with (
        spread_sampler(Lacking(), workers=2) as spread,
        pytest.raises(MissingDependencyError, match="circuits needs the package 'qiskit-aer'"),
    ):
        spread.sample(given, 3)


@pytest.mark.slow
def test_ray_gives_the_same():
    pytest.importorskip("ray", reason="Ray is not installed")
    from ising_attn.lab.script_process import with_root
    from samplers.cluster import RayExecutor, connected

    with connected("local", workers=2, environment={"PYTHONPATH": with_root()}) as ray:
        spread = spread_sampler(get_sampler("dqa"), RayExecutor(ray), workers=2)
        expected, found = (gradients(one, problem(grad=True)) for one in (get_sampler("dqa"), spread))
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert spread.last_info["parts"] == 2


def test_workers_of_someone_else_are_left_alone(threads):
    workers = Workers(threads, 2)
    workers.close()
    assert threads.submit(int).result() == 0


def test_a_file_keeps_the_sampler_without_its_workers(threads):
    inner = get_sampler("gibbs", num_chains=8)
    assert sampler_to_dict(spread_sampler(inner, threads)) == sampler_to_dict(inner)


def test_the_command_line_spreads_a_sampler():
    settings = parse_settings(SamplerSettings, ["--sampler=gibbs", "--sampler-workers=3"], prog="x")
    made = settings.make_sampler(seed=4)
    assert isinstance(made, SpreadSampler) and made._workers.count == 3 and (made.name, made.seed) == ("gibbs", 4)
    assert not isinstance(parse_settings(SamplerSettings, [], prog="x").make_sampler(), SpreadSampler)
    with pytest.raises(InvalidOptionError, match="at least 1"):
        parse_settings(SamplerSettings, ["--sampler-workers=0"], prog="x").make_sampler()
