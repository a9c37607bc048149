"""A mask as tables: its order, its classes, its leaks, and what sparser masks of the same order cost."""

from collections.abc import Sequence
from typing import Any

from ising_attn.lab.tables import Table
from ising_attn.masks import Task, order_of, sparsify
from ising_attn.masks.text import class_name

MOST_PRUNED = 1024
"""Positions up to which sparser masks are pruned to the last entry; it takes seconds there and grows steeply."""


def mask_numbers(task: Task, *, layers: int | None = None) -> dict[str, Any]:
    """The numbers of a mask, by name. Densities are shares of all n² pairs, residual connections included."""
    order, size = task.order, task.size
    allowed = task.allowed.clone().fill_diagonal_(True)
    found = task.leaks(layers)
    return {
        "positions": size,
        "density": int(allowed.sum()) / size**2,
        "order_density": int(order.reach.sum()) / size**2,
        "depth": order.depth,
        "dense": order.is_dense,
        "classes": order.num_classes,
        "largest_class": max(map(len, order.members)),
        "covers": int(order.covers.sum()),
        "levels": int(order.levels.max()) + 1,
        "labelled": sum(map(bool, task.labels)),
        "label_density": task.label_density,
        "needed": int(task.needed().sum()),
        "leaking": len({leak.position for leak in found}),
        "leaks": len(found),
    }


def mask_table(numbers: dict[str, Any], title: str, *, layers: int | None = None) -> Table:
    """Those numbers as a table, with what each means."""
    seen = "at any depth" if layers is None else f"after {layers} layer{'s' * (layers != 1)}"
    depth, dense = numbers["depth"], "; one layer sees all: the task is dense" if numbers["dense"] else ""
    rows = [
        ("positions", str(numbers["positions"])),
        ("allowed pairs", f"{numbers['density']:.1%} of all, residual connections included"),
        ("reached pairs", f"{numbers['order_density']:.1%} of all, in many layers"),
        ("depth", f"{depth} layer{'s' * (depth != 1)} until nothing more is reached{dense}"),
        ("classes", f"{numbers['classes']}, the largest of {numbers['largest_class']}"),
        ("Hasse diagram", f"{numbers['covers']} covers over {numbers['levels']} levels"),
        ("labels", f"at {numbers['labelled']} positions ({numbers['label_density']:.1%})"),
        ("needed", f"{numbers['needed']} positions; the others change no prediction"),
        ("leaks", f"{numbers['leaking']} of {numbers['labelled']} predictions can see their own target {seen}"),
    ]
    table = Table(title, ["what", "value"])
    for row in rows:
        table.add(*row)
    return table


def class_table(task: Task, names: Sequence[str] | None = None) -> Table:
    """Every class from the bottom up: its level, its positions, how many it sees and is seen by."""
    order = task.order
    shown = names or [str(p) for p in range(task.size)]
    table = Table(
        "Classes of positions that see one another",
        ["class", "level", "positions", "sees", "is seen by"],
        caption="sees and is seen by: positions outside the class, in many layers.",
    )
    for number, members in enumerate(order.members):
        sees, seen = len(order.down_set(members[0])), len(order.up_set(members[0]))
        level = int(order.levels[number])
        table.add(number, level, class_name(order, number, shown), sees - len(members), seen - len(members))
    return table


def leak_table(task: Task, *, layers: int | None = None) -> Table:
    """Every leak: who is asked for which token, and where it is found."""
    table = Table("Predictions that can see their own target", ["position", "token", "found at", "layers"])
    for leak in task.leaks(layers):
        table.add(leak.position, leak.token, leak.source, leak.layers)
    return table


def sparse_table(task: Task, layers: Sequence[int]) -> Table:
    """Entries of the sparsest mask of this order that we find, for each number of layers; the Hasse diagram last."""
    size = task.size
    table = Table(
        "Sparser masks of the same order",
        ["layers", "depth", "entries", "density", "entries × depth"],
        {"density": ".1%"},
        "entries: without the diagonal. The last row is the Hasse diagram, the fewest there can be.",
    )
    prune = size <= MOST_PRUNED
    for number in [*dict.fromkeys(layers), None]:
        found = sparsify(task.allowed, number, prune=prune)
        depth, entries = order_of(found).depth, int(found.sum()) - size
        table.add("any" if number is None else str(number), depth, entries, (entries + size) / size**2, entries * depth)
    return table
