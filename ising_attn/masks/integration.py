"""The minimal integrated task of a family: one mask, inputs and labels that train every task of it at once.

All nodes of all tasks are split by node equivalence and one representative of each class is kept, joined as its
original was (the minimal common supergraph, Li & Guo, arXiv 2606.09951, theorem 3.7).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ising_attn.masks.equivalence import node_classes
from ising_attn.masks.errors import InvalidTaskError
from ising_attn.masks.tasks import Task


@dataclass(frozen=True)
class Integration:
    """A merged task, and where the nodes of each task went: nodes[t][p] is the position of node p of task t."""

    task: Task
    nodes: list[list[int]]


def integrate(tasks: Sequence[Task]) -> Integration:
    """The minimal integrated task of a family, dense: its mask is its own closure. `sparsify` thins it out.

    A node that several tasks ask for different tokens is asked for all of them.

    Raises:
        InvalidTaskError: no task, or a task with two equivalent nodes, which no mask can keep apart.
        LeakError: a task in which a target reaches its own prediction.
    """
    if not tasks:
        raise InvalidTaskError("an empty family was given; it takes at least one task to merge")
    for task in tasks:
        task.check()
    classes = node_classes(tasks)
    for number, task in enumerate(tasks):
        _check_distinct(number, task, classes[number])
    size = 1 + max(max(own) for own in classes)
    allowed = torch.eye(size, dtype=torch.bool)
    inputs: list[object] = [()] * size
    labels: list[set[int]] = [set() for _ in range(size)]
    for task, own in zip(tasks, classes, strict=True):
        rows = torch.tensor(own)
        allowed[rows[:, None], rows[None, :]] |= task.order.reach.cpu()
        for position, node in enumerate(own):
            inputs[node] = task.inputs[position]
            labels[node].update(task.labels[position])
    return Integration(Task(allowed, inputs, labels), classes)


def embedding(task: Task, into: Task) -> list[int] | None:
    """Where each node of `task` is in `into`: an equivalent node that is asked for the same tokens at least.

    None where a node has no place, or where two would share one. In a task with several equivalent nodes the first
    that is asked for enough is taken.
    """
    own, others = node_classes([task, into])
    found: list[int] = []
    for position, number in enumerate(own):
        places = [
            place
            for place, other in enumerate(others)
            if other == number and set(task.labels[position]) <= set(into.labels[place]) and place not in found
        ]
        if not places:
            return None
        found.append(places[0])
    return found


def same_task(a: Task, b: Task) -> list[int] | None:
    """The renumbering that takes `a` to `b`: inputs, labels and order alike. None where they are different tasks."""
    if a.size != b.size:
        return None
    forth, back = embedding(a, b), embedding(b, a)
    return None if forth is None or back is None else forth


def _check_distinct(number: int, task: Task, classes: list[int]) -> None:
    first: dict[int, int] = {}
    for position, node in enumerate(classes):
        if first.setdefault(node, position) != position:
            raise InvalidTaskError(
                f"positions {first[node]} and {position} of task {number} are equivalent: both hold "
                f"{task.inputs[position]!r} and depend on the same things, so that they compute the same; drop one, or "
                'give them inputs that differ, such as ("mask", place)'
            )
