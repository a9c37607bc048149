"""The command line finds experiments in a checkout and in an installed package, and passes everything on."""

import pytest

from ising_attn import cli

SCRIPT = '''"""Counts its arguments.

More text.
"""

import sys

if __name__ == "__main__":
    print(sys.argv)
    if "--fail" in sys.argv:
        raise SystemExit(3)
    if "--say" in sys.argv:
        raise SystemExit("a reason")
'''


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A package folder with two scripts in the given place; returns the maker."""

    def make(place: str):
        package = tmp_path / "site" / "ising_attn"
        package.mkdir(parents=True)
        folder = package / place
        folder.mkdir()
        (folder / "count_words.py").write_text(SCRIPT)
        (folder / "_private.py").write_text(SCRIPT)
        monkeypatch.setattr(cli, "__file__", str(package / "cli.py"))
        return folder

    return make


@pytest.mark.parametrize("place", ["experiments", "../experiments"])
def test_help_lists_experiments_by_name_and_first_line(scripts, capsys, place):
    scripts(place)
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "count-words  Counts its arguments.\n" in shown and "private" not in shown
    assert cli.main([]) == 0 and capsys.readouterr().out == shown


@pytest.mark.parametrize("name", ["count-words", "count_words"])
def test_arguments_and_exit_codes_pass_through(scripts, capsys, name):
    folder = scripts("experiments")
    assert cli.main([name, "--x=1"]) == 0
    assert capsys.readouterr().out.strip() == str([str(folder / "count_words.py"), "--x=1"])
    assert cli.main([name, "--fail"]) == 3
    assert cli.main([name, "--say"]) == 1 and "a reason" in capsys.readouterr().err


def test_an_unknown_experiment_names_the_nearest_and_all(scripts, capsys):
    scripts("experiments")
    assert cli.main(["count-word"]) == 2
    message = capsys.readouterr().err
    assert "'count-word'" in message and "did you mean 'count-words'?" in message and "known: count-words" in message


def test_without_any_script_help_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "a" / "b" / "cli.py"))
    assert cli.main(["--help"]) == 0 and "none is installed" in capsys.readouterr().out
    assert cli.main(["brackets"]) == 2 and "none is installed" in capsys.readouterr().err


def test_version_is_one_line(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ising-attn ")


def test_this_checkout_has_the_brackets_experiment():
    assert "brackets" in cli.experiments()
