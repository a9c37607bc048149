"""One page from run folders: everything of a run is on it, nothing is fetched, and nothing in a run becomes markup."""

import json
import os
import re
from pathlib import Path

import pytest

from ising_attn import cli
from ising_attn.lab import run_page
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.main import run_main
from ising_attn.lab.run_page import RunOnPage, comparison, markdown_page
from ising_attn.lab.run_page_html import html_page


def png(width: int) -> bytes:
    """What the head of a picture of that width looks like."""
    return b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IHDR" + width.to_bytes(4, "big") + bytes(20)


PNG = png(810)


def folder(path: Path, accuracy: float, **more) -> Path:
    (path / "plots").mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps({"test_accuracy": accuracy, "quick": False, **more}))
    (path / "config.json").write_text(json.dumps({"sampler": "exact", "training": {"steps": 7}}))
    environment = {"command": "python brackets.py --steps=7", "commit": "abc123", "versions": {"torch": "9.9"}}
    (path / "environment.json").write_text(json.dumps(environment))
    (path / "table.md").write_text("### A title\n\n| a | b |\n| --- | ---: |\n| <script>x</script> | 2 |\n")
    (path / "plots" / "learning_curve.png").write_bytes(PNG)
    return path


def test_the_page_holds_numbers_tables_plots_settings_and_environment(tmp_path):
    one, two = folder(tmp_path / "one", 0.5), folder(tmp_path / "two", 0.75, test_accuracy_std=0.01, seeds={"0": {}})
    page = html_page([RunOnPage.read(one), RunOnPage.read(two)], "My <runs>")
    for text in (
        "50.00%",
        "75.00% ± 1.00%",
        "abc123",
        "training.steps = 7",
        "torch 9.9",
        "--steps=7",
        "My &lt;runs&gt;",
    ):
        assert text in page
    assert page.count("data:image/png;base64,") == 2
    assert "<table>" in page and "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


def test_the_markdown_page_links_plots_relative_to_itself(tmp_path):
    run = RunOnPage.read(folder(tmp_path / "runs" / "one", 0.5))
    page = markdown_page([run], "Runs", tmp_path)
    assert "![Learning curve](runs/one/plots/learning_curve.png)" in page
    assert "### A title" in page and "Comparison" not in page


def several(path: Path, count: int = 11) -> Path:
    """A run of several seeds, with a plot that is no learning curve for each."""
    for seed in range(count):
        own = folder(path / f"seed-{seed}", 0.5) / "plots"
        (own / "couplings_layer_1.png").write_bytes(PNG)
        (own / "another.png").write_bytes(png(1600))
    each = {str(seed): {"quick": seed == 0, "notes": ["few shots"]} for seed in range(count)}
    (path / "summary.json").write_text(json.dumps({"test_accuracy": 0.5, "test_accuracy_std": 0.125, "seeds": each}))
    (path / "table.md").write_text("### T\n")
    return path


def test_every_seed_is_shown_in_order_the_first_one_in_full(tmp_path):
    run = RunOnPage.read(several(tmp_path / "many"))
    assert [one.name for one in run.seeds] == [f"seed-{k}" for k in range(11)]
    assert [plot.stem for plot in run.seeds[0].plots] == ["learning_curve", "couplings_layer_1", "another"]
    page = html_page([run], "T")
    assert page.count("data:image/png") == 3 + 10  # of the others, learning curves
    places = [
        page.index(text) for text in ("<h3>seed 0", "Learned couplings J, layer 1", "Tables of seed 0", "Seed 1<")
    ]
    assert places == sorted(places) and page.count("<details>") == 12
    assert page.count("### ") == 0 and page.count("A title") == 11
    assert page.count("Note: ") == 2 and "numbers mean nothing" in page and "few shots" in page
    markdown = markdown_page([run], "T", tmp_path)
    assert "many/seed-10/plots/another.png" in markdown and "Note: few shots" in markdown


def test_numbers_are_named_and_rounded_alike(tmp_path):
    one = RunOnPage.read(folder(tmp_path / "one", 0.5, marginal_mae=0.0071612, train_seconds=3.4567))
    seeds = {"0": {"parameters": 9568}, "1": {"parameters": 9568}}
    many = RunOnPage.read(folder(tmp_path / "two", 0.5, marginal_mae=0.007, marginal_mae_std=0.00112, seeds=seeds))
    table = comparison([one, many])
    assert list(table.columns) == [
        "run",
        "seeds",
        "test accuracy",
        "mean |Δ⟨s⟩| to exact",
        "parameters",
        "training time, s",
    ]
    assert [row[3] for row in table.shown()] == ["0.0072", "0.0070 ± 0.0011"]
    assert [row[4:] for row in table.shown()] == [["–", "3"], ["9,568", "–"]]


def test_pictures_have_the_size_of_the_text_and_broad_ones_scroll(tmp_path):
    page = html_page([RunOnPage.read(several(tmp_path / "many", 1))], "T")
    assert (
        page.count('width="518"') == 2 and page.count('width="1024"') == 1 and page.count('<figure class="broad">') == 1
    )


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_the_command_writes_the_page(tmp_path, capsys, suffix):
    run, out = folder(tmp_path / "one", 0.5), tmp_path / f"page.{suffix}"
    assert cli.main(["report", str(run), f"--out={out}", "--title=Mine"]) == 0
    assert str(out) in capsys.readouterr().out
    assert "Mine" in out.read_text()


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with pytest.raises(RunFolderError, match="no folder"):
        RunOnPage.read(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="no finished run"):
        RunOnPage.read(tmp_path / "empty")
    assert cli.main(["report"]) == 2 and "at least one run folder" in capsys.readouterr().err
    run = folder(tmp_path / "one", 0.5)
    assert cli.main(["report", str(run), "--out=page.pdf"]) == 2 and ".html or .md" in capsys.readouterr().err


def test_pictures_from_elsewhere_are_left_out_and_nothing_is_fetched(tmp_path):
    run = folder(tmp_path / "one", 0.5)
    (tmp_path / "secret").write_text("a secret")
    (run / "plots" / "s.png").symlink_to(tmp_path / "secret")
    (run / "plots" / "t.png").write_text("no picture")
    (run / "table.md").write_text("![i](http://far/x.png) [l](http://far)\n")
    (run / "environment.json").write_text(json.dumps({"command": "python x.py --title=don't"}))
    page = html_page([RunOnPage.read(run)], "T")
    assert page.count("data:image/png") == 1
    assert 'src="http' not in page and 'href="http' not in page and "don&#x27;t" in page
    (run / "config.json").write_text("[1]")
    with pytest.raises(RunFolderError, match="JSON object"):
        RunOnPage.read(run)


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_names_that_are_no_text_and_spaces_are_on_the_page(tmp_path, suffix, capsys):
    run = folder(tmp_path / os.fsdecode(b"caf\xe9 one"), 0.5)
    out = tmp_path / (os.fsdecode(b"page\xe9") + suffix)
    assert run_main(lambda: run_page.main([str(run), f"--out={out}"]), debug=False) == 0
    page = out.read_text(encoding="utf-8")
    assert r"caf\udce9 one" in page
    if suffix == ".md":
        assert "(caf%E9%20one/plots/learning_curve.png)" in page


def test_a_folder_is_no_page(tmp_path, capsys):
    run = folder(tmp_path / "one", 0.5)
    (tmp_path / "page.html").mkdir()
    assert run_main(lambda: run_page.main([str(run), f"--out={tmp_path / 'page.html'}"]), debug=False) == 2
    assert "which is a folder; name a file, such as report.html in it" in capsys.readouterr().err
