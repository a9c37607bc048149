"""Tasks, node equivalence, the minimal integrated task, leaks, and every mask of the library from its family."""

import itertools
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

from ising_attn import BoltzmannAttention, SoftmaxAttention, masks
from ising_attn.masks import InvalidMaskError, InvalidTaskError, LeakError, Task, integrate, node_classes

N = 6


def chain(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def asked_last(contents: Tensor, masked: int, labels: list[int], inputs: list[Any]) -> Task:
    """Contents with an order of their own, below `masked` nodes that see each other and all of them."""
    size = len(contents)
    allowed = torch.ones(size + masked, size + masked, dtype=torch.bool)
    allowed[:size, :size], allowed[:size, size:] = contents, False
    return Task(allowed, inputs, [None] * size + labels)


# ---- the families: what each mask of the library is for, one task per prediction ------------------------------------


def causal_family(n: int = N, start: int = 0, last: int | None = None) -> list[Task]:
    """Predict token t from those before it, t = 1 … n, the first token being number `start`."""
    return [Task(chain(t), range(start, start + t), [None] * (t - 1) + [start + t]) for t in range(1, (last or n) + 1)]


def prefix_family(n: int, length: int) -> list[Task]:
    family = []
    for t in range(length, n + 1):
        allowed = chain(t)
        allowed[:length, :length] = True
        family.append(Task(allowed, range(t), [None] * (t - 1) + [t]))
    return family


def document_family(lengths: list[int]) -> list[Task]:
    starts = [0, *itertools.accumulate(lengths)]
    return [task for start, n in zip(starts, lengths, strict=False) for task in causal_family(n, start, n - 1)]


def blocks(n: int, block: int) -> Tensor:
    return torch.kron(chain(n // block).int(), torch.ones(block, block, dtype=torch.int)).bool()


def block_causal_family(n: int, block: int) -> list[Task]:
    return [
        Task(blocks(t, block), range(t), [None] * (t - block) + list(range(t, t + block)))
        for t in range(block, n + 1, block)
    ]


def two_stream_family(order: list[int]) -> list[Task]:
    return [asked_last(chain(t), 1, [k], [*order[:t], ("mask", k)]) for t, k in enumerate(order)]


def block_two_stream_family(n: int, block: int, content: str) -> list[Task]:
    family = []
    for t in range(0, n, block):
        places = list(range(t, t + block))
        contents = chain(t) if content == "token" else blocks(t, block)
        family.append(asked_last(contents, block, places, [*range(t), *(("mask", k) for k in places)]))
    return family


def butterfly_family(n: int) -> list[Task]:
    family = []
    for k in range(n):
        before, after = k, n - 1 - k
        contents = torch.block_diag(chain(before), chain(after).T).bool()
        neighbours = tuple(t for t in (k - 1, k + 1) if 0 <= t < n)
        family.append(asked_last(contents, 1, [k], [*range(k), *range(k + 1, n), neighbours]))
    return family


LIBRARY: list[tuple[str, Task, list[Task]]] = [
    ("causal", masks.causal(N), causal_family()),
    ("prefix-1", masks.prefix(N, 1), prefix_family(N, 1)),
    ("prefix-3", masks.prefix(N, 3), prefix_family(N, 3)),
    ("prefix-all", masks.prefix(N, N), prefix_family(N, N)),
    ("document", masks.document([3, 2, 4]), document_family([3, 2, 4])),
    ("block-causal", masks.block_causal(N, 2), block_causal_family(N, 2)),
    ("two-stream", masks.two_stream(5), two_stream_family(list(range(5)))),
    ("two-stream-permuted", masks.two_stream(5, [3, 0, 4, 2, 1]), two_stream_family([3, 0, 4, 2, 1])),
    ("block-two-stream", masks.block_two_stream(N, 2), block_two_stream_family(N, 2, "token")),
    ("block-two-stream-3", masks.block_two_stream(N, 3), block_two_stream_family(N, 3, "token")),
    (
        "block-two-stream-block",
        masks.block_two_stream(N, 2, content="block"),
        block_two_stream_family(N, 2, "block"),
    ),
    ("butterfly", masks.butterfly(N), butterfly_family(N)),
    ("butterfly-2", masks.butterfly(2), butterfly_family(2)),
    ("butterfly-1", masks.butterfly(1), butterfly_family(1)),
]
NAMES = [name for name, _, _ in LIBRARY]
TASKS = [(name, task) for name, task, _ in LIBRARY] + [("window", masks.window(7, 3))]


@pytest.mark.parametrize(("name", "task", "family"), LIBRARY, ids=NAMES)
def test_the_library_is_what_its_families_merge_to(name: str, task: Task, family: list[Task]):
    merged = integrate(family).task
    needed = task.trimmed()  # the last tokens of some masks are seen by no prediction
    places = masks.same_task(merged, needed)
    assert places is not None
    assert torch.equal(needed.allowed[places][:, places], merged.allowed)
    assert [needed.inputs[p] for p in places] == list(merged.inputs)
    assert [needed.labels[p] for p in places] == list(merged.labels)
    assert task.is_dense


def test_what_no_prediction_needs():
    sizes = {name: (task.size, task.trimmed().size) for name, task in TASKS}
    assert sizes["causal"] == (6, 6) and sizes["window"] == (7, 7)
    assert sizes["document"] == (9, 6)  # the last token of each text
    assert sizes["two-stream"] == (10, 9) and sizes["block-two-stream-3"] == (12, 9)  # contents of the last block
    assert sizes["butterfly"] == (3 * N - 2,) * 2


@pytest.mark.parametrize(("name", "task", "family"), LIBRARY, ids=NAMES)
def test_a_merged_task_contains_every_task_and_nothing_can_be_dropped(name: str, task: Task, family: list[Task]):
    merged = integrate(family)
    for one, nodes in zip(family, merged.nodes, strict=True):
        assert masks.embedding(one, merged.task) == nodes
        assert torch.equal(merged.task.allowed[nodes][:, nodes], one.order.reach)
        # The nodes of a task see nothing outside it: its predictions are the same inside the merged task.
        outside = [p for p in range(merged.task.size) if p not in nodes]
        assert not merged.task.allowed[nodes][:, outside].any()
    for dropped in range(merged.task.size if merged.task.size > 1 else 0):
        rest = merged.task.restricted([p for p in range(merged.task.size) if p != dropped])
        assert any(masks.embedding(one, rest) is None for one in family)


def test_a_window_is_the_causal_order_in_more_layers():
    for n, width in ((7, 3), (9, 2), (8, 8), (5, 9)):
        task = masks.window(n, width)
        assert task.order.same_as(masks.causal(n).order)
        assert task.order.depth == -(-(n - 1) // (width - 1))
        # Derived: what width − 1 layers of the causal Hasse diagram see.
        hasse = masks.reduction(masks.causal(n).allowed)
        assert torch.equal(masks.reachability(hasse, width - 1), task.allowed)
    assert masks.window(4, 1).order.depth == 0


def test_bidirectional_contexts_do_not_share_nodes():
    """The causal mask is minimal because its contexts are chains: as cliques, no two prefixes have a node in common."""
    family = [Task(torch.ones(t, t, dtype=torch.bool), range(t), [None] * (t - 1) + [t]) for t in range(1, N + 1)]
    assert integrate(family).task.size == N * (N + 1) // 2
    assert integrate(causal_family()).task.size == N


def test_labels_of_equivalent_nodes_are_joined():
    two = [Task(chain(2), [0, 1], [None, 2]), Task(chain(2), [0, 1], [1, 3])]
    merged = integrate(two).task
    assert merged.size == 2 and list(merged.labels) == [(1,), (2, 3)]
    with pytest.raises(InvalidTaskError, match=r"asked for the tokens \(2, 3\)"):
        merged.label_numbers()


@pytest.mark.parametrize(("name", "task", "family"), LIBRARY, ids=NAMES)
def test_merging_again_or_in_another_order_changes_nothing(name: str, task: Task, family: list[Task]):
    merged = integrate(family).task
    assert masks.same_task(integrate(family[::-1]).task, merged) is not None
    assert masks.same_task(integrate([merged, *family]).task, merged) is not None
    shuffle = torch.randperm(merged.size, generator=torch.Generator().manual_seed(1)).tolist()
    places = masks.same_task(merged.restricted(shuffle), merged)
    assert places == shuffle


def test_tasks_that_differ_are_told_apart():
    causal, shifted = masks.causal(4), Task(masks.causal(4).allowed, range(4), [1, 2, 3, None])
    assert masks.same_task(shifted, causal) is None  # fewer labels
    assert masks.embedding(shifted, causal) == [0, 1, 2, 3] and masks.embedding(causal, shifted) is None
    assert masks.same_task(causal, masks.prefix(4, 2)) is None
    assert masks.same_task(causal, masks.causal(5)) is None
    # A sparser mask is the same task in more layers.
    assert masks.same_task(causal, masks.window(4, 2)) == [0, 1, 2, 3]


def test_the_first_example():
    task = masks.butterfly(16).check()
    layer = SoftmaxAttention(8, 2, task.size)
    assert layer(task.input_weights(16) @ torch.randn(2, 16, 8), task.allowed).shape == (2, 46, 8)


# ---- node equivalence against networkx's isomorphism ----------------------------------------------------------------


def equivalent(a: Task, p: int, b: Task, q: int) -> bool:
    """The definition, by networkx: an isomorphism of the down-sets that keeps inputs and takes p to q."""
    graphs = []
    for task, root in ((a, p), (b, q)):
        graph = nx.DiGraph()
        for node in task.order.down_set(root):
            graph.add_node(node, key=(task.inputs[node], node == root))
        graph.add_edges_from(e for e in task.order.reach.nonzero().tolist() if set(e) <= set(graph.nodes))
        graphs.append(graph)
    return nx.is_isomorphic(*graphs, node_match=lambda x, y: x["key"] == y["key"])


@pytest.mark.parametrize("seed", range(12))
def test_node_classes_are_those_of_the_definition(seed: int):
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for _ in range(3):
        n = int(torch.randint(3, 7, (), generator=generator))
        allowed = torch.rand(n, n, generator=generator) < 0.3
        inputs = torch.randint(0, 1 + seed % 3, (n,), generator=generator).tolist()
        tasks.append(Task(allowed, inputs, [None] * n))
    classes = node_classes(tasks)
    nodes = [(t, p) for t, task in enumerate(tasks) for p in range(task.size)]
    for (s, p), (t, q) in itertools.combinations(nodes, 2):
        assert (classes[s][p] == classes[t][q]) == equivalent(tasks[s], p, tasks[t], q)


def test_look_alikes_that_colours_cannot_tell_apart():
    """A hexagon and two triangles, each below one node: every node sees the same colours, yet they differ."""

    def crown(pairs: list[tuple[int, int]]) -> Task:
        allowed = torch.zeros(13, 13, dtype=torch.bool)
        for number, (a, b) in enumerate(pairs):
            allowed[6 + number, a] = allowed[6 + number, b] = True
        allowed[12] = True
        return Task(allowed, ["x"] * 13, [None] * 13)

    hexagon = crown([(k, (k + 1) % 6) for k in range(6)])
    triangles = crown([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)])
    renumbered = crown([(5, 3), (3, 1), (1, 0), (0, 2), (2, 4), (4, 5)])
    classes = node_classes([hexagon, triangles, renumbered])
    assert classes[0][12] == classes[2][12] != classes[1][12]
    assert classes[0][:12] == classes[1][:12] == classes[2][:12]
    assert masks.same_task(hexagon, triangles) is None


# ---- leaks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("layers", [None, 0, 1, 2, 3])
def test_leaks_are_found_by_brute_force(seed: int, layers: int | None):
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(9, 9, generator=generator) < 0.15
    inputs: list[Any] = torch.randint(0, 7, (9,), generator=generator).tolist()
    inputs[4], inputs[5] = (1, 3), "mask"
    labels: list[Any] = torch.randint(0, 7, (9,), generator=generator).tolist()
    labels[2], labels[3] = None, (0, 3)
    graph = nx.DiGraph(allowed.nonzero().tolist())
    graph.add_nodes_from(range(9))
    expected = {}
    for position, token in [(p, t) for p in range(9) if p != 2 for t in (labels[p] if p == 3 else (labels[p],))]:
        lengths = nx.single_source_shortest_path_length(graph, position, cutoff=layers)
        held = [n for q, n in lengths.items() if token == inputs[q] or (q == 4 and token in (1, 3))]
        if held:
            expected[position, token] = min(held)
    found = masks.leaks(allowed, inputs, labels, layers=layers)
    assert {(leak.position, leak.token): leak.layers for leak in found} == expected


def test_labels_as_torch_has_them():
    allowed, labels = masks.window(4, 2).allowed.T, torch.tensor([1, -100, 3, -100])
    found = masks.leaks(allowed, torch.arange(4), labels)
    assert [(leak.position, leak.source, leak.layers) for leak in found] == [(0, 1, 1), (2, 3, 1)]
    with pytest.raises(LeakError, match="2 of 2 positions"):
        masks.check_no_leaks(allowed, torch.arange(4), labels)
    masks.check_no_leaks(masks.causal(4).allowed, torch.arange(4), labels)


def test_leaks_through_a_mask_per_layer():
    up = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    far = torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)
    labels = [None, None, 0]
    assert [leak.source for leak in masks.leaks(torch.stack([up, far]), [0, 1, 2], labels)] == [0]
    assert masks.leaks(torch.stack([far, up]), [0, 1, 2], labels) == []  # the other way round nothing arrives


@pytest.mark.parametrize(("name", "task"), TASKS, ids=[name for name, _ in TASKS])
def test_no_mask_of_the_library_leaks_and_one_planted_entry_does(name: str, task: Task):
    assert task.check() is task
    asked = next((p for p in range(task.size) for t in task.labels[p] if (t,) in task.inputs), None)
    if asked is None:  # the last target stands nowhere among the inputs
        assert name in ("prefix-all", "butterfly-1")
        return
    holder = list(task.inputs).index((task.labels[asked][0],))
    wrong = task.allowed.clone()
    wrong[asked, holder] = True
    with pytest.raises(LeakError, match=f"position {asked} has token {task.labels[asked][0]} from position {holder}"):
        Task(wrong, task.inputs, task.labels).check()


def test_a_leak_through_two_layers_only():
    allowed = masks.butterfly(4).allowed.clone()
    allowed[0, 4] = True  # the forward chain sees the backward one: each layer alone shows no target
    task = Task(allowed, masks.butterfly(4).inputs, masks.butterfly(4).labels)
    assert task.leaks(layers=1) == []
    assert {(leak.position, leak.layers) for leak in task.leaks()} == {(8, 2), (9, 3)}
    with pytest.raises(LeakError, match="after 2 layers"):
        task.check()
    with pytest.raises(LeakError, match="1 of 1 positions with a label.*in its own input"):
        masks.check_no_leaks(torch.eye(1, dtype=torch.bool), [0], [0])
    with pytest.raises(LeakError, match="and 12 more"):
        masks.check_no_leaks(torch.ones(20, 20, dtype=torch.bool), range(20), range(20))


# ---- by perturbation, through real layers ---------------------------------------------------------------------------


class Stack(nn.Module):
    """Residual attention layers under one mask."""

    def __init__(self, kind: type, task: Task, tokens: int, depth: int = 3, **options: Any):
        super().__init__()
        self.task, self.weights = task, task.input_weights(tokens).double()
        self.places = nn.Parameter(torch.randn(task.size, 8))
        self.layers = nn.ModuleList(kind(8, 2, task.size, **options) for _ in range(depth))

    def forward(self, embedded: Tensor) -> Tensor:
        x = self.weights @ embedded + self.places
        for layer in self.layers:
            x = x + layer(x, self.task.allowed)
        return x


def influence(kind: type, task: Task, tokens: int, **options: Any) -> Tensor:
    """Whether the output of each position moves with each token, (n, tokens)."""
    torch.manual_seed(0)
    model = Stack(kind, task, tokens, **options).double().eval()
    embedded = torch.randn(1, tokens, 8, dtype=torch.float64)
    with torch.no_grad():
        before = model(embedded)
        moved = []
        for token in range(tokens):
            changed = embedded.clone()
            changed[:, token] += 1.0
            moved.append((model(changed) - before).abs().amax(-1)[0])
    return torch.stack(moved, 1) > 1e-12


def expected_influence(task: Task, tokens: int) -> Tensor:
    return (task.order.reach.double() @ task.input_weights(tokens).double()) > 0


@pytest.mark.parametrize(
    "task",
    [masks.butterfly(5), masks.block_two_stream(6, 2), masks.block_two_stream(4, 2, content="block"),
     masks.two_stream(5, [3, 0, 4, 2, 1]), masks.window(6, 3), masks.document([3, 4])],
    ids=["butterfly", "block-two-stream", "block-content", "two-stream", "window", "document"],
)  # fmt: skip
def test_softmax_layers_see_exactly_what_the_order_says(task: Task):
    tokens = 1 + max(t for atoms in task.inputs for t in atoms if isinstance(t, int))
    moved = influence(SoftmaxAttention, task, tokens)
    assert torch.equal(moved, expected_influence(task, tokens))
    for position, label in enumerate(task.labels):
        assert not any(moved[position, t] for t in label if t < tokens)


@pytest.mark.parametrize("task", [masks.butterfly(4), masks.block_two_stream(4, 2)], ids=["butterfly", "two-stream"])
def test_boltzmann_layers_see_exactly_what_the_order_says(task: Task):
    moved = influence(BoltzmannAttention, task, 4, sampler="exact", coupling_std=0.3)
    assert torch.equal(moved, expected_influence(task, 4))
    predictions = range(task.size - 4, task.size)
    assert [moved[p].tolist() for p in predictions] != [[True] * 4] * 4
    for k, position in enumerate(predictions):
        assert task.labels[position] == (k,) and not moved[position, k]


def test_butterfly_predictions_see_all_other_tokens():
    assert expected_influence(masks.butterfly(5), 5)[-5:].tolist() == (~torch.eye(5, dtype=torch.bool)).tolist()


def test_the_identity_order_of_two_streams_predicts_like_a_causal_model():
    """The query of token k sees the contents before it, as position k − 1 of a causal model does."""
    stream, plain = masks.two_stream(6).order.reach, masks.causal(6).order.reach
    for k in range(1, 6):
        assert torch.equal(stream[6 + k, :6], plain[k - 1])


# ---- inputs and labels as tensors, and what is refused --------------------------------------------------------------


def test_inputs_and_labels_as_tensors():
    task = masks.butterfly(3)
    assert list(task.inputs) == [(0,), (1,), (1,), (2,), (1,), (0, 2), (1,)]
    expected = [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]]
    torch.testing.assert_close(task.input_weights(3), torch.tensor(expected))
    assert task.label_numbers().tolist() == [-100] * 4 + [0, 1, 2]
    assert task.label_density == pytest.approx(3 / 7)
    assert not masks.two_stream(3).input_weights(3)[3:].any()


@pytest.mark.parametrize(
    ("refused", "kind", "words"),
    [
        (lambda: masks.block_two_stream(10, 4), InvalidMaskError, "n=10 .* block=4: 2 would be left over"),
        (lambda: masks.block_causal(10, 3), InvalidMaskError, "n=10 .* block=3: 1 would"),
        (lambda: masks.block_two_stream(4, 2, content="tokens"), InvalidMaskError, "did you mean 'token'"),
        (lambda: masks.causal(0), InvalidMaskError, "n=0"),
        (lambda: masks.butterfly(2.5), InvalidMaskError, "n=2.5"),  # type: ignore[arg-type]
        (lambda: masks.prefix(4, 5), InvalidMaskError, "length=5; it must be at most 4"),
        (lambda: masks.window(4, 0), InvalidMaskError, "width=0"),
        (lambda: masks.document([]), InvalidMaskError, "lengths is empty"),
        (lambda: masks.document([3, 0]), InvalidMaskError, "each of lengths=0"),
        (lambda: masks.two_stream(3, [0, 1, 1]), InvalidMaskError, r"order is \[0, 1, 1\]"),
        (lambda: Task(chain(3), [0, 1], [None] * 3), InvalidTaskError, "2 inputs .* 3 positions"),
        (lambda: Task(chain(2), [0, 1], [None]), InvalidTaskError, "1 labels .* 2 positions"),
        (lambda: Task(chain(2), [0, 1.5], [None] * 2), InvalidTaskError, "position 1 is 1.5"),
        (lambda: Task(chain(2), [0, -1], [None] * 2), InvalidTaskError, "position 1 holds -1"),
        (lambda: Task(chain(2), [0, 1], [None, "a"]), InvalidTaskError, "label of position 1 is 'a'"),
        (lambda: Task(chain(2), [0, 1], [None, -1]), InvalidTaskError, "label of position 1 is -1"),
        (lambda: Task(chain(2), [0, 1], [None, (1, "a")]), InvalidTaskError, "label of position 1 is"),
        (lambda: integrate([]), InvalidTaskError, "empty family"),
        (lambda: integrate([Task(chain(2), [0, 1], [None, 0])]), LeakError, "position 1 has token 0"),
        (
            lambda: integrate([Task(torch.ones(2, 2, dtype=torch.bool), ["mask", "mask"], [0, 1])]),
            InvalidTaskError,
            "positions 0 and 1 of task 0 are equivalent",
        ),
        (lambda: masks.causal(3).restricted([0, 0]), InvalidTaskError, "each once"),
        (lambda: masks.causal(3).input_weights(2), InvalidMaskError, "num_tokens=2; .* at least 3"),
    ],
)  # fmt: skip
def test_refused(refused: Any, kind: type[Exception], words: str, unchecked: None):
    with pytest.raises(kind, match=words):
        refused()
