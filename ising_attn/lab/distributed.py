"""One training on several processes, started by torchrun: who they are, how a batch is divided, what they agree on.

    torchrun --nproc-per-node=4 experiments/brackets.py

Each process makes the whole batch of a step and takes its rows of it. DistributedDataParallel averages the gradients;
each process's loss counts by its share of what the whole batch's mean is over, so that the average is the gradient of
one process with the whole batch. Samplers draw for a row what they draw for it in the whole batch. Process 0 alone
evaluates and writes; the others follow what it finds.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ising_attn.batch_rows import rows_from
from ising_attn.lab.device import resolve_device
from ising_attn.lab.errors import LostProcessError
from samplers.errors import InvalidOptionError, IsingAttnError, NotSupportedError

# Longer than any evaluation, during which the other processes wait.
_PATIENCE = datetime.timedelta(days=7)
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOST = re.compile(r"connection|broken pipe|socket|peer|nccl", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Team:
    """The processes of one training, and which of them this one is.

    Args:
        rank: its number; process 0 leads.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def check_batch(self, batch_size: int) -> None:
        """Refuse a batch that cannot be divided evenly.

        Raises:
            InvalidOptionError: the number of processes does not divide it.
        """
        if batch_size % self.size:
            near = max(batch_size // self.size, 1) * self.size
            raise InvalidOptionError(
                f"--batch-size={batch_size} cannot be divided evenly among {self.size} processes; use a multiple of "
                f"{self.size}, such as {near}"
            )

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sums of numbers over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def shared(self, value: Any) -> Any:
        """What process 0 has, for all: JSON values, or bytes."""
        if self.size == 1:
            return value
        # Not torch's broadcast of objects, which pickles.
        as_bytes = isinstance(value, bytes)
        content = b"" if not self.leads else value if as_bytes else json.dumps(value).encode()
        header = torch.tensor([len(content), as_bytes])
        dist.broadcast(header, 0)
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0).byte()
        buffer = buffer if self.leads else torch.empty(int(header[0]), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, 0)
        received = buffer.numpy().tobytes()
        return received if header[1] else json.loads(received)


def current_team() -> Team:
    """The processes that this one has joined; itself alone where it has joined none."""
    if not (dist.is_available() and dist.is_initialized()):
        return Team()
    return Team(dist.get_rank(), dist.get_world_size())


def is_launched() -> bool:
    """Whether torchrun (or anything that sets its variables) started this as one of several processes."""
    return all(name in os.environ for name in _VARIABLES) and os.environ["WORLD_SIZE"] not in ("", "1")


def is_follower() -> bool:
    """Whether it started this as another process than the first: one that leaves it to that one to speak."""
    return is_launched() and os.environ["RANK"] != "0"


@contextlib.contextmanager
def joined(device: str = "auto") -> Iterator[tuple[Team, torch.device]]:
    """Join the processes that torchrun started, within the block; the team, and the device of this process.

    Without torchrun the team is this process alone. On CUDA each process of a machine has a GPU of its own, by its
    number there, unless `device` names one; gradients go through NCCL there and through gloo on the CPU.

    Raises:
        LostProcessError: within the block, another process has ended.
    """
    if not is_launched() or dist.is_initialized():
        yield current_team(), resolve_device(device)
        return
    chosen = resolve_device(device)
    if chosen.type == "cuda":
        chosen = resolve_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}") if chosen.index is None else chosen
        torch.cuda.set_device(chosen)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield current_team(), chosen
    except RuntimeError as error:
        if isinstance(error, IsingAttnError) or not _LOST.search(str(error)):
            raise
        raise LostProcessError("another process of this training has ended; what it said above is the reason") from None
    finally:
        dist.destroy_process_group()


@runtime_checkable
class _Task(Protocol):
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]: ...


class Division:
    """The losses of a task whose batches are divided among the processes of a team.

    A loss is a mean over `task.targets(batch)` things where the task has that method, and over the rows otherwise.

    Args:
        model: the same on all processes; that of process 0 is taken.
        task: its batches are tensors whose first axis are rows, or dataclasses, tuples, lists and dicts of them.
        team: more than one process.
    """

    def __init__(self, model: nn.Module, task: _Task, team: Team):
        self.team, self.task = team, task
        self._count = getattr(task, "targets", num_rows)
        # What a loss uses may change with the step, and J may be unused altogether.
        self._loss = DistributedDataParallel(_Loss(model, task), find_unused_parameters=True)

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, float]]:
        """This process's part of the loss, whose mean over the processes is the whole batch's; and its numbers.

        Raises:
            InvalidOptionError: a batch that cannot be divided evenly.
        """
        part, first = self.part(batch)
        share = self._count(part) * self.team.size / self._count(batch)
        with rows_from(first):
            loss, values = self._loss(part)
        if not share:  # a mean over nothing is no number
            return loss.nan_to_num(0.0), dict.fromkeys(values, 0.0)
        return loss * share, {name: value * share for name, value in values.items()}

    def part(self, batch: Any) -> tuple[Any, int]:
        """The rows of a batch that are this process's, and the number of the first of them."""
        rows = num_rows(batch)
        self.team.check_batch(rows)
        each = rows // self.team.size
        first = self.team.rank * each
        return rows_of(batch, first, first + each), first

    def agreed(self, row: dict[str, float], stop: bool, seconds: float) -> tuple[dict[str, float], bool, float]:
        """The numbers of the whole batch, whether anyone was asked to stop, and the time of process 0."""
        leads = self.team.leads
        sums = self.team.sums([*row.values(), float(stop), seconds if leads else 0.0])
        means = {name: total / self.team.size for name, total in zip(row, sums, strict=False)}
        return means, sums[-2] > 0, sums[-1]


class _Loss(nn.Module):
    """A task's loss as the forward pass of a module, as DistributedDataParallel wants it; the task sees the model."""

    def __init__(self, model: nn.Module, task: _Task):
        super().__init__()
        self.model, self.task = model, task
        # DistributedDataParallel warns at length where it looks for unused parameters and finds none.
        self.unused = nn.Parameter(torch.zeros((), device=next(model.parameters()).device))

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, float]]:
        return self.task.loss(self.model, batch)


def num_rows(batch: Any) -> int:
    """How many rows a batch has."""
    counts = {len(tensor) if tensor.ndim else 0 for tensor in _tensors(batch)}
    if len(counts) != 1:
        raise NotSupportedError(
            f"a batch of type {type(batch).__name__} has parts of {sorted(counts)} rows; to be divided among processes "
            "it must consist of tensors with the same first axis"
        )
    return counts.pop()


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """The rows from `start` to `stop` of every tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch[start:stop]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch) if field.init]
        return type(batch)(**{name: rows_of(getattr(batch, name), start, stop) for name in names})
    if isinstance(batch, dict):
        return {key: rows_of(value, start, stop) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = (rows_of(value, start, stop) for value in batch)
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)  # named tuples take each
    raise NotSupportedError(
        f"a {type(batch).__name__} cannot be divided among processes; batches are made of tensors, dataclasses, "
        "tuples, lists and dicts"
    )


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _tensors(getattr(batch, field.name))
    elif isinstance(batch, dict | tuple | list):
        for value in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors(value)
