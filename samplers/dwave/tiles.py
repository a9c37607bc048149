"""Places for dense problems on an annealer's qubit graph: disjoint clique embeddings, and the way in and out.

A tile of size n is n chains of qubits, every two of them coupled. Tiles are copies of one clique embedding of the
smallest sublattice that has one, at every offset where no qubit or coupler is missing, so a call carries as many
problems as the machine has room for. A tile of size n takes every problem of at most n spins.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplers.errors import ProblemTooLargeError

Edge = tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """`chains[i]` are the qubits of spin i, `bonds[i]` their couplers, `links[i, j]` (i < j) those between chains."""

    chains: tuple[tuple[int, ...], ...]
    bonds: tuple[tuple[Edge, ...], ...]
    links: dict[Edge, tuple[Edge, ...]]


@dataclass
class Programme:
    """Biases of qubits and couplers in dimod's sign, for one call."""

    linear: dict[int, float] = field(default_factory=dict)
    quadratic: dict[Edge, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """A problem on a tile: the qubits that carry each of its spins."""

    chains: tuple[tuple[int, ...], ...]


def find_tiles(machine: Any, size: int, limit: int) -> list[Tile]:
    """Up to `limit` disjoint tiles of `size` spins on a structured dimod sampler (D-Wave's or its mock).

    Cost: about a second for all tiles of a whole machine; the caller keeps them.

    Raises:
        ProblemTooLargeError: the machine has no clique of that size.
    """
    from dwave.system import qpu_graph
    from minorminer.busclique import find_clique_embedding

    topology = machine.properties["topology"]
    kind, shape = topology["type"], list(topology["shape"])
    graph = qpu_graph(kind, shape, machine.nodelist, machine.edgelist)
    if size == 1:
        return [Tile(((qubit,),), ((),), {}) for qubit in sorted(graph)[:limit]]
    found = [_tile(embedding, graph) for embedding in _copies(kind, shape, graph, size, limit)]
    tiles = _alike([tile for tile in found if tile is not None])
    if not tiles:
        # Defects everywhere, or a clique as large as the machine: one embedding that may use any qubit.
        whole = _tile(find_clique_embedding(size, graph), graph)
        tiles = [whole] if whole is not None else []
    if not tiles:
        raise ProblemTooLargeError(
            f"the machine ({kind} {shape}, {len(graph)} qubits) has no clique of {size} spins; use fewer spins, "
            "or 'gibbs' or 'band'"
        )
    return tiles


def _alike(tiles: list[Tile]) -> list[Tile]:
    """Those with the most couplers: a problem then needs the same biases on every tile, whatever is broken."""
    most = max((_couplers(tile) for tile in tiles), default=0)
    return [tile for tile in tiles if _couplers(tile) == most]


def _couplers(tile: Tile) -> int:
    return sum(map(len, tile.bonds)) + sum(map(len, tile.links.values()))


def _copies(kind: str, shape: list[int], graph: Any, size: int, limit: int) -> list[dict[int, Any]]:
    import networkx as nx
    from dwave.system import qpu_graph
    from minorminer.busclique import find_clique_embedding
    from minorminer.utils.parallel_embeddings import find_sublattice_embeddings

    for width in range(2 if kind == "pegasus" else 1, shape[0] + 1):
        part = {"chimera": [width, width, *shape[2:]], "pegasus": [width], "zephyr": [width, *shape[1:]]}[kind]
        lattice = qpu_graph(kind, part, None, None)
        embedding = find_clique_embedding(size, lattice) if len(lattice) >= size else None
        if embedding:
            return find_sublattice_embeddings(
                nx.complete_graph(size),
                graph,
                tile=lattice,
                tile_embedding=embedding,
                use_tile_embedding=True,
                one_to_iterable=True,
                max_num_emb=limit,
                use_filter=False,
            )
    return []


def _tile(embedding: dict[int, Any] | None, graph: Any) -> Tile | None:
    """The tile of an embedding; None where a chain is torn or two chains do not touch."""
    if not embedding:
        return None
    import networkx as nx

    chains = tuple(tuple(sorted(embedding[i])) for i in range(len(embedding)))
    owner = {qubit: i for i, chain in enumerate(chains) for qubit in chain}
    inner = graph.subgraph(owner)
    bonds: list[list[Edge]] = [[] for _ in chains]
    links: dict[Edge, list[Edge]] = {}
    for u, v in sorted(tuple(sorted(edge)) for edge in inner.edges):
        i, j = sorted((owner[u], owner[v]))
        if i == j:
            bonds[i].append((u, v))
        else:
            links.setdefault((i, j), []).append((u, v))
    joined = all(nx.is_connected(graph.subgraph(chain)) for chain in chains)
    if not joined or len(links) < len(chains) * (len(chains) - 1) // 2:
        return None
    return Tile(chains, tuple(map(tuple, bonds)), {pair: tuple(couplers) for pair, couplers in links.items()})


def place(
    programme: Programme, tile: Tile, linear: NDArray[np.float64], quadratic: NDArray[np.float64], bond: float
) -> Placed:
    """Write a problem (k), (k, k) above the diagonal, both in dimod's sign, onto the first k chains of a tile.

    Fields are spread over the qubits of a chain and couplings over the couplers between two; the couplers in a
    chain get −`bond`. A spin without couplings needs no chain and uses one qubit.
    """
    coupled = (quadratic != 0).any(0) | (quadratic != 0).any(1)
    chains = tuple(chain if coupled[i] else chain[:1] for i, chain in enumerate(tile.chains[: len(linear)]))
    for i, chain in enumerate(chains):
        programme.linear.update(dict.fromkeys(chain, float(linear[i]) / len(chain)))
        if coupled[i]:
            programme.quadratic.update(dict.fromkeys(tile.bonds[i], -bond))
    for i, j in zip(*np.nonzero(quadratic), strict=True):
        couplers = tile.links[int(i), int(j)]
        programme.quadratic.update(dict.fromkeys(couplers, float(quadratic[i, j]) / len(couplers)))
    return Placed(chains)


def room(tile: Tile, linear: NDArray[np.float64], quadratic: NDArray[np.float64], properties: dict[str, Any]) -> float:
    """The largest factor by which a problem on this tile stays within the machine's ranges; inf for a zero problem."""
    alone = Programme()
    place(alone, tile, linear, quadratic, bond=0.0)
    factors = [_within(value, properties["h_range"]) for value in alone.linear.values()]
    factors += [_within(value, properties["j_range"]) for value in alone.quadratic.values()]
    return min(factors)


def _within(value: float, limits: list[float]) -> float:
    if value == 0:
        return float("inf")
    return (limits[1] if value > 0 else limits[0]) / value


def read_out(
    rows: NDArray[np.int8], column: dict[int, int], placed: Placed
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Spins (rows, k) by majority of each chain (its first qubit decides a tie), and which chains were broken."""
    spins = np.empty((len(rows), len(placed.chains)), dtype=np.int8)
    broken = np.zeros(spins.shape, dtype=bool)
    for i, chain in enumerate(placed.chains):
        values = rows[:, [column[qubit] for qubit in chain]]
        total = values.sum(-1, dtype=np.int64)
        spins[:, i] = np.where(total == 0, values[:, 0], np.sign(total))
        broken[:, i] = np.abs(total) != len(chain)
    return spins, broken
