"""What a spread sampler sends to its workers, and the workers: processes of its own, or any executor."""

import concurrent.futures
import contextlib
import dataclasses
import os
import pickle
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch
from torch import Tensor

from samplers.base import Sampler
from samplers.errors import EngineError, NotSupportedError
from samplers.problem import IsingProblem
from samplers.processes import end_with_parent, server_context

MOST_TRIES = 3
"""How often a call is made whose processes are killed."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A private method of a sampler on one part of a batch.

    Args:
        sampler: without workers of its own.
        method: its name.
        problem: see `sent`.
        arguments: that follow the problem.
        graph: whether gradients are on, as they are for a magnetization that will be differentiated.
        grad: where given, the derivatives of Σ grad·⟨s⟩ are asked for, and not ⟨s⟩.
        home: the process that asks.
    """

    sampler: Sampler
    method: str
    problem: IsingProblem
    arguments: tuple
    graph: bool = False
    grad: Tensor | None = None
    home: int = dataclasses.field(default_factory=os.getpid)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a method returned (or the derivatives by the fields, J and K), noted and warned of."""

    value: Any
    info: dict[str, Any]
    warnings: list[tuple[str, type[Warning]]]


def sent(problem: IsingProblem) -> IsingProblem:
    """The problem as leaves of a graph, on the CPU, without the storage of the batch that it is a part of."""

    def alone(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.detach().cpu().clone().requires_grad_(t.requires_grad)

    return problem._rebuilt(
        fields=alone(problem.fields),
        couplings=alone(problem._couplings),
        triples=alone(problem.triples),
        allowed=alone(problem.allowed),
        streams=problem.streams.clone(),
    )


def answered(task: bytes) -> bytes:
    """Do a pickled `Task`, on a worker. Bytes, since every kind of executor has its own way with tensors."""
    todo: Task = pickle.loads(task)
    with _recorded(elsewhere=todo.home != os.getpid()) as said, torch.set_grad_enabled(todo.graph):
        value = getattr(todo.sampler, todo.method)(todo.problem, *todo.arguments)
        if todo.grad is not None:
            value = _derivatives(todo.problem, value, todo.grad)
        elif isinstance(value, Tensor):
            value = value.detach()
    return pickle.dumps(Answer(value, todo.sampler.last_info, said), protocol=pickle.HIGHEST_PROTOCOL)


@contextlib.contextmanager
def _recorded(*, elsewhere: bool) -> Iterator[list[tuple[str, type[Warning]]]]:
    """Collects warnings for the caller. In the caller's own process they reach it anyway, and threads share filters."""
    said: list[tuple[str, type[Warning]]] = []
    if not elsewhere:
        yield said
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [(str(one.message), one.category) for one in caught]


def _derivatives(problem: IsingProblem, value: Tensor, grad: Tensor) -> list[Tensor | None]:
    parts = [problem.fields, problem._couplings, problem.triples]
    wanted = [t for t in parts if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(value, wanted, grad, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in parts]


class Workers:
    """Where tasks run.

    Args:
        executor: of someone else; None for processes that are made on first use.
        count: parts of a call, and processes.
    """

    def __init__(self, executor: concurrent.futures.Executor | None, count: int):
        self.executor, self.count = executor, count
        self._own: concurrent.futures.Executor | None = None
        self._said: set[tuple[str, type[Warning]]] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Workers":
        """Copies of a model share the processes."""
        return self

    def map(self, tasks: Sequence[Task]) -> list[Answer]:
        """The answers, in order; each warning is given once.

        Raises:
            NotSupportedError: a sampler that cannot be sent to another process.
            EngineError: the workers died, again and again.
        """
        answers = [pickle.loads(one) for one in self._done([_packed(task) for task in tasks])]
        for text, kind in (one for each in answers for one in each.warnings):
            if (text, kind) not in self._said:
                self._said.add((text, kind))
                warnings.warn(text, kind, stacklevel=2)
        return answers

    def close(self) -> None:
        """End the processes that were made here."""
        if self._own is not None:
            self._own.shutdown(cancel_futures=True)
            self._own = None

    def _done(self, packed: Sequence[bytes]) -> list[bytes]:
        if self.executor is not None:
            return list(self.executor.map(answered, packed))
        for _ in range(MOST_TRIES):
            try:
                return list(self._processes().map(answered, packed))
            except BrokenProcessPool as error:
                self.close()
                lost = error
        raise EngineError(
            f"processes of a spread sampler died {MOST_TRIES} times (for want of memory?); use fewer workers or reads"
        ) from lost

    def _processes(self) -> concurrent.futures.Executor:
        if self._own is None:
            context = server_context([__name__, "numba"])
            self._own = concurrent.futures.ProcessPoolExecutor(self.count, mp_context=context, initializer=_begin)
        return self._own


def _begin() -> None:
    """In a new process. Ctrl-C goes to all processes of a terminal; what it means is for the caller to say."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _packed(task: Task) -> bytes:
    try:
        return pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotSupportedError(
            f"the sampler {task.sampler.name!r} cannot be sent to another process ({error}); use it without workers"
        ) from error
