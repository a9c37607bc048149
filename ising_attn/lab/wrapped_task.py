"""Tasks that add something to the loss of another task: an entropy of routers, a teacher."""

import abc
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ising_attn.lab.distributed import num_rows
from ising_attn.lab.training import Task
from ising_attn.routers import recorded_routing


class WrappedTask(abc.ABC):
    """The batches and the evaluation of `task`; a subclass makes the loss."""

    def __init__(self, task: Task):
        self.task = task
        self.metrics: Sequence[str] | None = getattr(task, "metrics", None)

    def batch(self, step: int) -> Any:
        return self.task.batch(step)

    def targets(self, batch: Any) -> int:
        """What the loss of the task is a mean over; see `distributed.Division`."""
        return getattr(self.task, "targets", num_rows)(batch)

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]: ...

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        return self.task.evaluate(model, split)


class EntropyTask(WrappedTask):
    """loss − weight · (mean entropy of one choice of a router, in nats): keeps routers undecided for longer.

    HBA (karumaru-kakikukekodoumei/boolean-attention) has it with weight 0.01, but sums over the batch and divides by
    the number of keys alone, so that at its batch of 256 the weight is 2.56.
    """

    def __init__(self, task: Task, weight: float):
        super().__init__(task)
        self.weight = weight

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]:
        with recorded_routing(model) as kept:
            loss, values = self.task.loss(model, batch)
        entropies = [one.entropy() for one in kept]
        entropy = sum(entropies[1:], entropies[0]) / len(entropies)
        return loss - self.weight * entropy, {**values, "routing_entropy": entropy.item()}
