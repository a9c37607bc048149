"""Plots: files appear and show the numbers they were given."""

import builtins

import numpy as np
import pytest

from ising_attn.lab import plots
from samplers import MissingDependencyError

PNG = b"\x89PNG"


def couplings(heads: int, n: int) -> np.ndarray:
    a = np.random.default_rng(0).normal(size=(heads, n, n))
    j = (a + a.transpose(0, 2, 1)) / 2
    j[:, np.arange(n), np.arange(n)] = 0
    return j


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved, so that a test can look into them."""
    saved = []
    save = plots.save_figure

    def kept(figure, path):
        saved.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "save_figure", kept)
    return saved


def test_rows_by_distance_are_means_over_diagonals():
    j = couplings(2, 4)
    rows = plots.coupling_by_distance(j)
    assert len(rows) == 6
    head, distance, pairs, mean, low, high = rows[4]
    values = [j[1, 0, 2], j[1, 1, 3]]
    assert (head, distance, pairs) == (1, 2, 2)
    assert (mean, low, high) == pytest.approx((np.mean(values), min(values), max(values)))


@pytest.mark.parametrize(("heads", "n"), [(1, 2), (2, 8), (1, 40)])
def test_coupling_map_is_centred_on_zero_and_hides_the_diagonal(tmp_path, figures, heads, n):
    j = couplings(heads, n)
    plots.save_coupling_map(tmp_path / "new" / "j.png", j, "J")
    assert (tmp_path / "new" / "j.png").read_bytes()[:4] == PNG
    for axis, matrix in zip(figures[0].axes, j, strict=False):
        (image,) = axis.images
        low, high = image.get_clim()
        assert low == -high and high == pytest.approx(np.abs(j).max())
        assert image.get_array().mask.diagonal().all() and not image.get_array().mask[0, 1]
        assert image.get_array()[0, 1] == pytest.approx(matrix[0, 1])
        assert len(axis.get_xticklabels()) == n or n > 32


def test_couplings_of_zero_can_be_drawn(tmp_path):
    plots.save_coupling_map(tmp_path / "j.png", np.zeros((1, 3, 3)), "untrained")
    plots.save_coupling_by_distance(tmp_path / "d.png", np.zeros((1, 3, 3)), "untrained")
    assert (tmp_path / "j.png").exists() and (tmp_path / "d.png").exists()


def test_every_coupling_is_a_dot_and_every_distance_a_mean(tmp_path, figures):
    j = couplings(1, 5)
    plots.save_coupling_by_distance(tmp_path / "d.png", j, "J")
    dots, mean = figures[0].axes[0].lines[:2]
    assert len(dots.get_xdata()) == 10
    np.testing.assert_allclose(mean.get_ydata()[0], np.diagonal(j[0], 1).mean())


def test_attention_example_frames_the_true_matches(tmp_path, figures):
    weights = np.tril(np.full((4, 4), 0.25))
    plots.save_attention_example(
        tmp_path / "a.png", {"dqa": weights, "exact": weights}, ["(", "f1", "(", ")"], {3: 2}, "example"
    )
    axis = figures[0].axes[0]
    (frame,) = axis.patches
    assert (frame.get_x() + 0.5, frame.get_y() + 0.5) == (2, 3)
    assert [t.get_text() for t in axis.get_xticklabels()] == ["(", "f1", "(", ")"]
    assert axis.images[0].get_array().mask[0, 1] and not axis.images[0].get_array().mask[1, 0]


def test_scatter_states_the_error_it_shows(tmp_path, figures):
    exact = np.array([-1.0, 0.0, 0.5])
    plots.save_marginal_scatter(tmp_path / "s.png", exact, {"dqa": exact + [0, 0.1, 0.2]}, "marginals")
    axis = figures[0].axes[0]
    assert "mean |error| 0.1000" in axis.texts[0].get_text() and "largest 0.2000" in axis.texts[0].get_text()
    identity, dots = axis.lines
    assert list(identity.get_xdata()) == list(identity.get_ydata()) == [-1, 1]
    np.testing.assert_allclose(dots.get_ydata() - dots.get_xdata(), [0, 0.1, 0.2], atol=1e-12)


def test_learning_curve_draws_one_panel_per_quantity(tmp_path, figures):
    line = ([1, 2, 3], [3.0, 2.0, 1.0])
    plots.save_learning_curve(
        tmp_path / "l.png", {"loss": {"train": line, "validation": line}, "accuracy": {"validation": line}}, "run"
    )
    assert [axis.get_ylabel() for axis in figures[0].axes] == ["loss", "accuracy"]
    assert [len(axis.get_legend().get_texts()) for axis in figures[0].axes] == [2, 1]


def test_without_matplotlib_one_sentence_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"ising-attn\[plots\]"):
        plots.save_coupling_map(tmp_path / "j.png", couplings(1, 3), "J")
    assert not (tmp_path / "j.png").exists()


def test_a_title_is_wrapped_to_its_figure(tmp_path):
    figure = plots.new_figure(4.3, 2.0)
    words = "Boltzmann attention h+J through dqa (learned-strong-8, 8 layers), FFN, context 8"
    figure.suptitle(f"Spin marginals\n{words}", fontsize=10)
    plots.save_figure(figure, tmp_path / "a.png")
    lines = figure.get_suptitle().splitlines()
    assert lines[0] == "Spin marginals" and len(lines) >= 3 and " ".join(lines[1:]) == words
    (title,) = [text for text in figure.texts if text.get_text() == figure.get_suptitle()]
    figure.canvas.draw()
    box = title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
