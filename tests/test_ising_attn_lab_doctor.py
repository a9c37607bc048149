"""The commands `doctor` and `samplers`: true statements, an exit code, and advice where something is missing."""

import importlib.metadata
import importlib.util

import pytest

from ising_attn import cli
from ising_attn.lab import doctor, sampler_list
from samplers.registry import sampler_entries


def findings() -> dict[str, doctor.Finding]:
    return {one.subject: one for one in doctor.all_findings()}


def test_versions_are_those_that_are_installed():
    found = findings()
    assert found["numpy"].found == importlib.metadata.version("numpy")
    assert {one.state for one in found.values()} <= {"ok", "missing", "broken"}


def test_what_is_missing_comes_with_advice_and_an_exit_code(monkeypatch, capsys):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "scipy" else real(name))
    assert findings()["scipy"].state == "broken"
    assert doctor.main([]) == 1
    assert "pip install scipy" in capsys.readouterr().out


def test_an_absent_simulator_is_no_failure(monkeypatch):
    real = importlib.util.find_spec
    hidden = ("qiskit_aer", "dwave.system")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in hidden else real(name, *a))
    found = findings()
    assert found["Qiskit Aer"].state == found["D-Wave"].state == "missing"
    assert "ising-attn[aer]" in found["Qiskit Aer"].advice


def test_the_corpus_is_looked_for_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("ISING_ATTN_TINY_SHAKESPEARE", str(tmp_path / "no.txt"))
    assert findings()["Tiny Shakespeare"].state == "missing"
    (tmp_path / "no.txt").write_text("a text")
    assert findings()["Tiny Shakespeare"].state == "ok"


def test_the_commands_run_by_name(capsys):
    assert cli.main(["samplers", "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert all(f"| {name} |" in shown for name in sampler_entries())
    assert cli.main(["doctor", "--markdown"]) == 0
    assert "numpy" in capsys.readouterr().out


def test_the_list_says_what_each_sampler_declares():
    rows = {row[0]: row[1:] for row in sampler_list.sampler_table().rows}
    assert rows["exact"][:4] == ["exact", "exact", 24, "dgZK"]
    assert rows["mean-field"][0] == "own"
    assert rows["gibbs"][0] == "Boltzmann" and rows["gibbs"][2] == "any"


def test_one_sampler_is_listed_with_its_options(capsys):
    assert cli.main(["samplers", "--name=gibbs", "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert "--sampler.num-chains" in shown and "--sampler.seed" in shown


def test_an_unknown_sampler_is_refused(capsys):
    assert cli.main(["samplers", "--name=gibs"]) != 0
    assert "gibbs" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["doctor", "samplers"])
def test_help_names_the_commands(name, capsys):
    assert cli.main(["--help"]) == 0
    assert f"\n  {name}" in capsys.readouterr().out
