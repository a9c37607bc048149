"""One page from run folders: everything of a run is on it, nothing is fetched, and nothing in a run becomes markup."""

import json
import re
from pathlib import Path

import pytest

from ising_attn import cli
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.run_page import RunOnPage, html_page, markdown_page

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


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


def test_the_plots_of_the_first_seed_stand_for_all(tmp_path):
    path = tmp_path / "many"
    for seed in (0, 1):
        folder(path / f"seed-{seed}", 0.5)
    (path / "summary.json").write_text("{}")
    (path / "table.md").write_text("### T\n")
    assert [plot.parent.parent.name for plot in RunOnPage.read(path).plots] == ["seed-0"]


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
