"""Trainings that a test runs alone and in a team of processes: `python tests/team.py OUT SCENARIO…` is one of them."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from ising_attn import get_sampler, samplers_of  # noqa: E402
from ising_attn.lab import distributed  # noqa: E402
from ising_attn.lab.bracket_task import BracketTask  # noqa: E402
from ising_attn.lab.brackets import BracketData, BracketLaw  # noqa: E402
from ising_attn.lab.distributed import current_team, joined  # noqa: E402
from ising_attn.lab.runs import RunFolder  # noqa: E402
from ising_attn.lab.training import Trainer, TrainingSettings  # noqa: E402
from models import AttentionConfig, BracketMatcher, BracketMatcherConfig  # noqa: E402
from samplers import IsingAttnError  # noqa: E402

SIZE = 2
STEPS = 8
GIBBS: dict[str, Any] = {"num_chains": 4, "num_sweeps": 8, "burn_in": 2}


class WithUnused(nn.Module):
    """A model beside a parameter that no loss uses."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.unused = model, nn.Parameter(torch.ones(3, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)


class Striking(BracketTask):
    """At a chosen step something befalls process 1, or the only one."""

    def __init__(self, *args: Any, what: str, at: int, **options: Any):
        super().__init__(*args, **options)
        self.what, self.at, self.now = what, at, 0

    def batch(self, step: int) -> Any:
        self.now = step
        return super().batch(step)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]:
        loss, values = super().loss(model, batch)
        team = current_team()
        if self.now == self.at and team.rank == team.size - 1:
            if self.what == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            elif self.what == "diverge":
                loss = loss * torch.nan
        return loss, values


class Losses:
    """A display that keeps what it is shown."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def start(self, step: int, total: int) -> None: ...
    def advance(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append({"step": step, **values})

    def evaluated(self, step: int, values: Mapping[str, float]) -> None: ...
    def stopped_early(self, step: int) -> None: ...


@dataclasses.dataclass(frozen=True)
class Scenario:
    sampler: str = "exact"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    context: int = 5
    batch_size: int = 8
    unused: bool = False
    stops: tuple[int, ...] = (STEPS,)
    what: str = ""
    target: float | None = None
    misplaced: bool = False
    """Planted: every process draws as if its rows were the first ones."""


SCENARIOS = {
    "exact": Scenario(),
    "gibbs": Scenario("gibbs", GIBBS),
    # The batch is small, so that some part of one holds no closing bracket at all.
    "sparse": Scenario(batch_size=2, context=3),
    "unused": Scenario(unused=True),
    "resumed": Scenario("gibbs", GIBBS, stops=(4, STEPS)),
    "interrupted": Scenario("gibbs", GIBBS, what="interrupt"),
    "diverged": Scenario(what="diverge"),
    "target": Scenario(target=0.01),
    "odd": Scenario(batch_size=7),
    "misplaced": Scenario("gibbs", GIBBS, misplaced=True),
}


def trainer(scenario: Scenario, steps: int, run: RunFolder | None) -> Trainer:
    settings = TrainingSettings(
        steps=steps, batch_size=scenario.batch_size, learning_rate=0.02, coupling_learning_rate=0.05, weight_decay=0.1,
        eval_every=2, target=scenario.target,
    )  # fmt: skip
    data = BracketData(BracketLaw(scenario.context, 0.4), validation_size=20, test_size=20)
    task = Striking(data, batch_size=scenario.batch_size, what=scenario.what, at=4)
    with torch.random.fork_rng():
        torch.manual_seed(current_team().rank)  # the first process's weights count
        sizes: dict[str, Any] = {"context": scenario.context, "embed_dim": 8, "num_heads": 2, "feed_forward": 8}
        config = BracketMatcherConfig(**sizes, attention=AttentionConfig(coupling_std=0.5))
        model: nn.Module = BracketMatcher(config, sampler=get_sampler(scenario.sampler, **scenario.options))
        model = WithUnused(model) if scenario.unused else model
    return Trainer(model, task, settings, run, samplers=samplers_of(model))


def play(name: str, out: Path) -> dict[str, Any]:
    """One scenario, resumed where it was stopped; what this process saw, its weights in a file beside it."""
    scenario, team, losses = SCENARIOS[name], current_team(), Losses()
    folder = out / name
    seen: dict[str, Any] = {"errors": []}
    rows_from = distributed.rows_from
    if scenario.misplaced:
        distributed.rows_from = lambda first: rows_from(0)
    for attempt, steps in enumerate((*scenario.stops, STEPS)):
        run = None
        if team.leads:
            run = RunFolder.create(folder, config={}, resume=attempt > 0)
        try:
            ours = trainer(scenario, steps, run)
            result = ours.fit(losses, resume=attempt > 0)
            seen |= {"best": result.best_metrics, "best_step": result.best_step, "steps": result.steps}
            seen["calls"] = [sampler.state_dict()["calls"] for sampler in ours.samplers]
            safetensors.torch.save_file(ours.model.state_dict(), out / f"{name}-{team.rank}.safetensors")
        except (IsingAttnError, KeyboardInterrupt) as error:
            seen["errors"].append(type(error).__name__)
        finally:
            if run is not None:
                run.close()
        if seen["errors"] and scenario.what != "interrupt":
            break
    distributed.rows_from = rows_from
    return {**seen, "rows": losses.rows}


def main(out: str, *names: str) -> None:
    """One process of the team."""
    torch.set_num_threads(1)
    with joined("cpu") as (team, _):
        for name in names:
            seen = play(name, Path(out))
            (Path(out) / f"{name}-{team.rank}.json").write_text(json.dumps(seen))


def started(command: list[str], rank: int, port: int) -> subprocess.Popen[str]:
    """One process of a team, with the variables that torchrun sets."""
    team = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(rank)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return piped([sys.executable, *command], {**team, **address})


def piped(command: list[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """A process in a session of its own, whose output is read."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=both, text=True, start_new_session=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
