"""experiments/marginals.py from the outside: tables, files, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "experiments" / "marginals.py"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], cwd=folder, capture_output=True, text=True)


def test_compares_samplers_end_to_end(tmp_path: Path):
    done = run("--samplers=exact,tap,mean-field:damping=0.2", "--spins=4", "--problems=3", "--out=run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1].endswith("run")
    assert max(len(line) for line in done.stdout.splitlines()) <= 100
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
def test_refuses_in_a_sentence(flags: tuple[str, ...], words: str, tmp_path: Path):
    import re

    done = run(*flags, folder=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert re.search(words, done.stderr), done.stderr
    assert not (tmp_path / "runs").exists()
