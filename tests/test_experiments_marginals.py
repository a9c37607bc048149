"""experiments/marginals.py from the outside: tables, files, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from script_runs import exit_code, loaded


@pytest.fixture(scope="module")
def script():
    with loaded("marginals") as module:
        yield module


@pytest.fixture
def run(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the script in this process, in an empty folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> int:
        return exit_code(script, monkeypatch, arguments)

    return call


def test_compares_samplers_end_to_end(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("--samplers=exact,tap,mean-field:damping=0.2", "--spins=4", "--problems=3", "--out=run") == 0
    shown = capsys.readouterr().out
    assert shown.strip().splitlines()[-1].endswith("run")
    assert max(len(line) for line in shown.splitlines()) <= 100
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [one["label"] for one in summary["samplers"]] == ["exact", "tap", "mean-field:damping=0.2"]
    assert summary["samplers"][0]["mae"] < 1e-12 < summary["samplers"][1]["mae"]
    for name in ("errors.csv", "laws.csv", "costs.csv", "table.md", "config.json"):
        assert (tmp_path / "run" / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--samplers=exakt",), "did you mean 'exact'"),
        (("--samplers=tap:dampin=0.2",), "did you mean 'damping'"),
        (("--samplers=tap:damping",), "NAME:option=value"),
        (("--spins=0",), "at least 1"),
        (("--problems-file=nothing.npz",), "no file of problems"),
        (("--problems-file=a.npz", "--trained=b"), "choose one"),
        (("--trained=nowhere",), "no checkpoint"),
        (("--spin=3",), "did you mean --spins|did you mean '--spins'"),
    ],
)
def test_refuses_in_a_sentence(
    flags: tuple[str, ...], words: str, run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(*flags) != 0
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert re.search(words, said), said
    assert not (tmp_path / "runs").exists()
