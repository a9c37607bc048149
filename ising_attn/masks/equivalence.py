"""Node equivalence: positions of one or several tasks that compute the same thing.

Two nodes are equivalent when they hold the same multiset and what they depend on is isomorphic, inputs included
(Li & Guo, arXiv 2606.09951, definition 3.5). "What a node depends on" is its down-set in the limit of many layers.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from ising_attn.masks.tasks import Task


@dataclass(frozen=True)
class _Node:
    """One position of one task: its down-set, itself included, and a colour that equivalent nodes share."""

    task: int
    position: int
    below: tuple[int, ...]


def node_classes(tasks: Sequence[Task]) -> list[list[int]]:
    """The class number of every position of every task; equal numbers mean equivalent nodes.

    Colours are refined along the order until nothing changes, and nodes of one colour are then told apart by an
    explicit isomorphism. Cost: polynomial where the positions that a node depends on are distinguishable, as in every
    task of the library; exponential in the number of look-alikes at worst.
    """
    reach = [task.order.reach.cpu().tolist() for task in tasks]
    nodes = [
        _Node(t, p, tuple(q for q in range(task.size) if reach[t][p][q]))
        for t, task in enumerate(tasks)
        for p in range(task.size)
    ]
    colours = _refined(tasks, reach, nodes)
    classes = [[-1] * task.size for task in tasks]
    representatives: dict[int, list[tuple[_Node, int]]] = {}
    count = 0
    for node in nodes:
        alike = representatives.setdefault(colours[node.task][node.position], [])
        same = (number for other, number in alike if _isomorphic(node, other, reach, colours))
        number = next(same, count)
        if number == count:
            count += 1
            alike.append((node, number))
        classes[node.task][node.position] = number
    return classes


def _refined(tasks: Sequence[Task], reach: list[list[list[bool]]], nodes: list[_Node]) -> list[list[int]]:
    """Colours by input, then by the colours of what a node depends on, and so on until no colour splits."""
    colours = [[0] * task.size for task in tasks]
    shared = _numbered([atoms for task in tasks for atoms in task.inputs])
    for node, colour in zip(nodes, shared, strict=True):
        colours[node.task][node.position] = colour
    before = 0
    while (now := len(set(shared))) > before:
        before = now
        shared = _numbered([_signature(node, reach, colours) for node in nodes])
        for node, colour in zip(nodes, shared, strict=True):
            colours[node.task][node.position] = colour
    return colours


def _signature(node: _Node, reach: list[list[list[bool]]], colours: list[list[int]]) -> Hashable:
    own = colours[node.task]
    seen = sorted((own[q], reach[node.task][q][node.position]) for q in node.below if q != node.position)
    return own[node.position], tuple(seen)


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _isomorphic(a: _Node, b: _Node, reach: list[list[list[bool]]], colours: list[list[int]]) -> bool:
    """Whether a bijection of the two down-sets keeps colours and relations both ways and takes a to b."""
    if len(a.below) != len(b.below):
        return False
    from_a, from_b, colour_a, colour_b = reach[a.task], reach[b.task], colours[a.task], colours[b.task]
    places: dict[int, list[int]] = {}
    for q in b.below:
        places.setdefault(colour_b[q], []).append(q)
    if any(colour_a[p] not in places for p in a.below):
        return False
    # What has the fewest places comes first, so that most of the map is forced before anything is tried.
    pending = sorted((p for p in a.below if p != a.position), key=lambda p: len(places[colour_a[p]]))
    image = {a.position: b.position}

    def fits(p: int, q: int) -> bool:
        return all(from_a[p][x] == from_b[q][y] and from_a[x][p] == from_b[y][q] for x, y in image.items())

    def candidates(p: int) -> Iterator[int]:
        taken = set(image.values())
        return (q for q in places[colour_a[p]] if q not in taken and fits(p, q))

    trying = [candidates(pending[0])] if pending else []
    while trying:
        p = pending[len(trying) - 1]
        image.pop(p, None)
        q = next(trying[-1], -1)
        if q < 0:
            trying.pop()
            continue
        image[p] = q
        if len(trying) == len(pending):
            return True
        trying.append(candidates(pending[len(trying)]))
    return not pending
