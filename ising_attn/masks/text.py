"""Masks and Hasse diagrams as plain text and as Graphviz DOT."""

from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

from ising_attn.masks.checks import checked_mask
from ising_attn.masks.errors import InvalidTaskError
from ising_attn.masks.order import Order
from ising_attn.masks.tasks import Task

MOST_NAMED = 8


def mask_text(allowed: Bool[Tensor, "n n"], *, on: str = "#", off: str = ".") -> str:
    """One line per row, `on` where a column is allowed; `load_mask` reads it back."""
    return "".join("".join(on if one else off for one in row) + "\n" for row in checked_mask(allowed).tolist())


def hasse_text(order: Order, names: Sequence[str] | None = None) -> str:
    """The Hasse diagram, a line per class, from the top level down: its positions, and the classes it covers.

    level 2: {3} covers {1}, {2}
    """
    names = checked_names(order, names)
    covered: list[list[int]] = [[] for _ in range(order.num_classes)]
    for upper, lower in order.hasse_edges():
        covered[upper].append(lower)
    levels = order.levels.tolist()
    lines = []
    for number in sorted(range(order.num_classes), key=lambda c: (-levels[c], c)):
        seen = ", ".join(class_name(order, lower, names) for lower in covered[number])
        lines.append(
            f"level {levels[number]}: {class_name(order, number, names)}" + (f" covers {seen}" if seen else "")
        )
    return "\n".join(lines) + "\n"


def hasse_dot(order: Order, names: Sequence[str] | None = None) -> str:
    """The Hasse diagram in Graphviz's language, `dot -Tsvg` draws it: arrows go down to what a class covers."""
    names = checked_names(order, names)
    nodes = [f'  c{c} [label="{_quoted(class_name(order, c, names))}"];' for c in range(order.num_classes)]
    edges = [f"  c{upper} -> c{lower};" for upper, lower in order.hasse_edges()]
    return "\n".join(["digraph hasse {", "  rankdir=TB;", "  node [shape=box];", *nodes, *edges, "}"]) + "\n"


def class_name(order: Order, number: int, names: Sequence[str]) -> str:
    """{0, 1, 2}, long classes cut short."""
    members = order.members[number]
    more = f", … {len(members)} in all" if len(members) > MOST_NAMED else ""
    return "{" + ", ".join(names[p] for p in members[:MOST_NAMED]) + more + "}"


def checked_names(order: Order, names: Sequence[str] | None) -> Sequence[str]:
    """The names of all positions: those given, or their numbers."""
    if names is None:
        return [str(position) for position in range(order.size)]
    if len(names) != order.size:
        raise InvalidTaskError(f"{len(names)} names were given for {order.size} positions; it needs one for each")
    return names


def position_names(task: Task) -> list[str]:
    """What each position holds and, after an arrow, what it is asked for: "w0→w1", "mask 3→w3", "w1+w3→w2"."""
    return [
        ("+".join(_atom(atom) for atom in atoms) or "–") + ("→" + ",".join(f"w{t}" for t in tokens) if tokens else "")
        for atoms, tokens in zip(task.inputs, task.labels, strict=True)
    ]


def _atom(atom: object) -> str:
    if isinstance(atom, int):
        return f"w{atom}"
    return " ".join(map(str, atom)) if isinstance(atom, tuple) else str(atom)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
