"""Masks in the forms that attention takes, as text, DOT and pictures, and from files."""

import builtins
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ising_attn import BoltzmannAttention, IsingProblem, MissingDependencyError, SoftmaxAttention, get_sampler, masks
from ising_attn.masks import InvalidMaskError, InvalidTaskError, MaskFileError, order_of
from ising_attn.masks.drawing import hasse_layout

TASKS = {
    "causal": masks.causal(7),
    "window": masks.window(7, 3),
    "butterfly": masks.butterfly(4),
    "block-two-stream": masks.block_two_stream(6, 3),
    "document": masks.document([2, 5]),
}
by_task = pytest.mark.parametrize("name", TASKS)


def holes() -> Tensor:
    """A mask with an empty row: a query that may use no key."""
    return torch.tensor([[1, 0, 0], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)


def query_key_value(n: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, 2, n, 16, generator=generator, dtype=torch.float64) for _ in range(3))


@by_task
def test_bias_and_mask_are_the_same_to_torch(name: str):
    allowed = TASKS[name].allowed
    q, k, v = query_key_value(len(allowed))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    bias = masks.attention_bias(allowed, torch.float64)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, attn_mask=bias), expected)
    weights = (q @ k.mT / 4 + bias).softmax(-1)
    torch.testing.assert_close(weights @ v, expected)


def test_a_query_without_keys_gives_zero_in_value_and_gradient():
    q, k, v = (t.requires_grad_() for t in query_key_value(3))
    for mask in (holes(), masks.attention_bias(holes(), torch.float64)):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert not out[..., 1, :].any() and out[..., 0, :].all()
        gradient = torch.autograd.grad(out.sum(), q)[0]
        assert gradient.isfinite().all() and not gradient[..., 1, :].any()
    for layer in (SoftmaxAttention(8, 2, 3), BoltzmannAttention(8, 2, 3, sampler="exact")):
        x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        weights = layer.weights(x, holes())
        assert not weights[..., 1, :].any()
        assert torch.autograd.grad(weights.square().sum(), x)[0].isfinite().all()


@by_task
def test_multihead_attention_has_the_opposite_polarity(name: str):
    allowed = TASKS[name].allowed
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    x = torch.randn(1, len(allowed), 8, dtype=torch.float64)
    _, weights = layer(x, x, x, attn_mask=masks.multihead_mask(allowed))
    assert torch.equal(weights[0] > 0, allowed)


@by_task
def test_mask_mod_is_the_mask_entry_by_entry(name: str):
    from torch.nn.attention.flex_attention import create_mask

    allowed = TASKS[name].allowed
    n = len(allowed)
    keeps = masks.mask_mod(allowed)
    zero = torch.zeros((), dtype=torch.long)
    for query in range(n):
        for key in range(n):
            assert bool(keeps(zero, zero, torch.tensor(query), torch.tensor(key))) == bool(allowed[query, key])
    assert torch.equal(create_mask(keeps, 2, 3, n, n, device="cpu"), allowed.expand(2, 3, n, n))


@by_task
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_sdpa(name: str):
    from torch.nn.attention.flex_attention import flex_attention

    allowed = TASKS[name].allowed
    q, k, v = (t.float() for t in query_key_value(len(allowed)))
    blocks = masks.block_mask(allowed)
    assert blocks.shape == (1, 1, len(allowed), len(allowed))
    torch.testing.assert_close(
        flex_attention(q, k, v, block_mask=blocks), scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    )


def test_forbidden_blocks_are_skipped():
    blocks = masks.block_mask(masks.causal(64).allowed, BLOCK_SIZE=16)
    assert blocks.to_dense()[0, 0].bool().tolist() == masks.causal(4).allowed.tolist()


@by_task
def test_ising_problems_take_the_mask_as_it_is(name: str):
    allowed = TASKS[name].allowed
    n = len(allowed)
    h = torch.randn(2, n, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    m = get_sampler("exact").magnetization(IsingProblem(h, allowed=allowed))
    torch.testing.assert_close(m, torch.where(allowed, h.tanh(), -1.0))
    torch.manual_seed(0)
    layer, x = BoltzmannAttention(8, 2, n, sampler="exact", coupling_std=0.2), torch.randn(1, n, 8)
    weights = layer.weights(x, allowed)
    assert torch.equal(weights > 0, allowed.expand_as(weights))


def test_padding_adds_positions_that_nothing_sees():
    allowed = masks.padded(masks.causal(3).allowed, 5)
    assert torch.equal(allowed[:3, :3], masks.causal(3).allowed)
    assert not allowed[3:].any() and not allowed[:, 3:].any()


# ---- text, DOT, pictures --------------------------------------------------------------------------------------------


def test_hasse_diagram_as_text():
    order = order_of(masks.prefix(4, 2).allowed)
    assert masks.hasse_text(order) == "level 2: {3} covers {2}\nlevel 1: {2} covers {0, 1}\nlevel 0: {0, 1}\n"
    diamond = order_of(masks.mask_of_pairs(4, [(3, 1), (3, 2), (1, 0), (2, 0)]))
    text = masks.hasse_text(diamond, ["a", "b", "c", "d"])
    assert text.splitlines()[0] == "level 2: {d} covers {b}, {c}"
    wide = masks.hasse_text(order_of(torch.ones(20, 20, dtype=torch.bool)))
    assert wide == "level 0: {0, 1, 2, 3, 4, 5, 6, 7, … 20 in all}\n"


def test_hasse_diagram_as_dot():
    order = order_of(masks.prefix(4, 2).allowed)
    lines = masks.hasse_dot(order, ['say "hi"', "b\\", "c", "d"]).splitlines()
    assert lines[0] == "digraph hasse {" and lines[-1] == "}"
    assert '  c0 [label="{say \\"hi\\", b\\\\}"];' in lines
    edges = {tuple(line.strip(" ;").split(" -> ")) for line in lines if "->" in line}
    assert edges == {("c1", "c0"), ("c2", "c1")}


def test_names_of_positions():
    assert masks.position_names(masks.butterfly(3))[-3:] == ["w1→w0", "w0+w2→w1", "w1→w2"]
    assert masks.position_names(masks.two_stream(2)) == ["w0", "w1", "mask 0→w0", "mask 1→w1"]
    assert masks.position_names(masks.butterfly(1)) == ["–→w0"]


@by_task
def test_layouts_put_what_is_seen_lower_and_nothing_on_top_of_anything(name: str):
    order = TASKS[name].order
    places, lines = hasse_layout(order)
    assert len(lines) == len(order.hasse_edges())
    for (upper, lower), line in zip(order.hasse_edges(), lines, strict=True):
        assert (line[0] == places[upper]).all() and (line[-1] == places[lower]).all()
        assert (np.diff(line[:, 1]) == -1).all()  # a step per level, so that no line runs through another class
    assert len({tuple(np.round(place, 6)) for place in places}) == order.num_classes


def crossings(lines: list[np.ndarray]) -> int:
    """Pairs of line segments between the same two levels that cross."""
    segments = [(a, b) for line in lines for a, b in itertools.pairwise(line)]
    return sum(
        (a[0] - c[0]) * (b[0] - d[0]) < 0 for (a, b), (c, d) in itertools.combinations(segments, 2) if a[1] == c[1]
    )


def test_layouts_untangle_trees():
    shuffle = [0, 3, 1, 2, 4, 9, 6, 8, 5, 7, 10, 13, 11, 14, 12]
    pairs = [(shuffle[k], shuffle[(k - 1) // 2]) for k in range(1, 15)]
    order = order_of(masks.mask_of_pairs(15, pairs))
    assert crossings(hasse_layout(order)[1]) == 0


def test_pictures(tmp_path: Path):
    from matplotlib.image import imread

    task = masks.window(8, 3)
    masks.save_mask_drawing(
        tmp_path / "a" / "window.png", task.allowed, title="window", names=masks.position_names(task)
    )
    shown = imread(tmp_path / "a" / "window.png")
    assert shown.shape[1] > shown.shape[0] > 300
    colours = {tuple(c) for c in (255 * shown[..., :3]).round().astype(int).reshape(-1, 3)}
    assert {(0x1F, 0x5F, 0xA8), (0xB9, 0xD0, 0xEA)} <= colours  # allowed, and reached later
    masks.save_mask_drawing(tmp_path / "dense.png", masks.causal(100).allowed)  # too many classes for a diagram
    dense = imread(tmp_path / "dense.png")
    assert (0xB9, 0xD0, 0xEA) not in {tuple(c) for c in (255 * dense[..., :3]).round().astype(int).reshape(-1, 3)}


def test_pictures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"ising-attn\[plots\]"):
        masks.save_mask_drawing(tmp_path / "x.png", masks.causal(3).allowed)


# ---- files ----------------------------------------------------------------------------------------------------------


@by_task
def test_masks_from_files(name: str, tmp_path: Path):
    allowed = TASKS[name].allowed
    numbers = allowed.int().numpy()
    np.save(tmp_path / "bool.npy", allowed.numpy())
    np.save(tmp_path / "float.npy", numbers.astype(float))
    np.savez(tmp_path / "named.npz", allowed=allowed.numpy(), other=np.zeros(3))
    np.savez(tmp_path / "only.npz", mask=numbers)
    np.savetxt(tmp_path / "comma.csv", numbers, fmt="%d", delimiter=",")
    np.savetxt(tmp_path / "spaces.txt", numbers, fmt="%d")
    (tmp_path / "drawn.txt").write_text(masks.mask_text(allowed) + "\n")
    (tmp_path / "digits.txt").write_text(masks.mask_text(allowed, on="1", off="0"))
    (tmp_path / "words.csv").write_text("\n".join(";".join(str(bool(one)) for one in row) for row in numbers))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 9
    for path in files:
        assert torch.equal(masks.load_mask(path), allowed), path


@pytest.mark.parametrize(
    ("name", "content", "kind", "words"),
    [
        ("absent.npy", None, MaskFileError, "there is no file of a mask"),
        ("mask.json", "[]", MaskFileError, "ends in .json; formats are"),
        ("mask.npy", "nonsense", MaskFileError, "cannot be read as npy"),
        ("mask.npz", "nonsense", MaskFileError, "cannot be read as npz"),
        ("mask.csv", "", MaskFileError, "is empty"),
        ("mask.csv", "1,0\n1\n", MaskFileError, "1 entries in row 2 and 2 in the first"),
        ("mask.csv", "1,0\n1,2\n", MaskFileError, "line 2: '2' is neither"),
        ("mask.txt", "#.\n##\n#.\n", InvalidMaskError, r"shape \(3, 2\)"),
        ("one.txt", "1\n", None, ""),
    ],
)
def test_files_that_are_no_masks(name: str, content: str | None, kind: Any, words: str, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_text(content)
    if kind is None:
        assert masks.load_mask(tmp_path / name).tolist() == [[True]]
        return
    with pytest.raises(kind, match=words):
        masks.load_mask(tmp_path / name)


def test_arrays_that_are_no_masks(tmp_path: Path):
    for name, array, kind, words in (
        ("weights", np.full((2, 2), 0.5), MaskFileError, "other values than 0 and 1"),
        ("objects", np.array([[None]]), MaskFileError, "cannot be read"),
        ("flat", np.ones(4, dtype=bool), InvalidMaskError, r"shape \(4,\)"),
    ):
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
        with pytest.raises(kind, match=words):
            masks.load_mask(tmp_path / f"{name}.npy")
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    with pytest.raises(MaskFileError, match="holds the arrays a, b; name one `allowed`"):
        masks.load_mask(tmp_path / "two.npz")


@pytest.mark.parametrize(
    ("refused", "kind", "words"),
    [
        (lambda: masks.attention_bias(torch.ones(2, 3, dtype=torch.bool)), InvalidMaskError, r"shape \(2, 3\)"),
        (lambda: masks.attention_bias(holes(), torch.int64), InvalidMaskError, "dtype=torch.int64"),
        (lambda: masks.mask_mod(torch.ones(2, 2)), InvalidMaskError, "dtype torch.float32"),
        (lambda: masks.padded(holes(), 2), InvalidMaskError, "length=2; it must be an integer of at least 3"),
        (lambda: masks.hasse_text(order_of(holes()), ["a"]), InvalidTaskError, "1 names .* 3 positions"),
    ],
)
def test_refused(refused: Any, kind: type[Exception], words: str, unchecked: None):
    with pytest.raises(kind, match=words):
        refused()
