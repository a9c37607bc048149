"""Shell completion knows every command, its flags and their values; bash is asked itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ising_attn import cli
from ising_attn.lab.completion import all_commands, sampler_flags
from ising_attn.lab.completion_scripts import FILES, SCRIPTS, Command
from ising_attn.lab.sampler_list import SamplerListSettings
from samplers.registry import sampler_names


@pytest.fixture(scope="module")
def commands() -> dict[str, Command]:
    return {command.name: command for command in all_commands()}


@pytest.fixture(scope="module")
def scripts(commands, tmp_path_factory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("completion"), {}
    for shell, write in SCRIPTS.items():
        found[shell] = folder / f"ising-attn.{shell}"
        found[shell].write_text(write(list(commands.values()), sampler_flags()))
    return found


def test_every_command_is_there_with_its_flags(commands):
    assert set(commands) == {*cli.experiments(), *cli.COMMANDS}
    flags = {flag.name: flag for flag in commands["brackets"].flags}
    assert {"--sampler", "--steps", "--seeds", "--resume", "--no-plots", "--help"} <= set(flags)
    assert flags["--resume"].values is None and flags["--resume"].help.startswith("Go on with the run in --out")
    assert flags["--steps"].values == () and flags["--out"].values == FILES
    assert flags["--sampler"].values == tuple(sampler_names())
    assert {"--name", "--markdown"} <= {flag.name for flag in commands["samplers"].flags}
    assert [flag.help for flag in commands["samplers"].flags if flag.name == "--markdown"] == [
        "Print tables as Markdown"
    ]
    assert SamplerListSettings.__module__ == "ising_attn.lab.sampler_list"
    assert all(len(command.flags) > 2 for command in commands.values() if command.name != "completion")


def test_options_of_samplers_have_their_choices():
    options = {flag.name: flag for flag in sampler_flags()["dqa"]}
    assert options["--sampler.engine"].values == ("statevector", "aer")
    assert sampler_flags()["sa"] == sampler_flags()["annealing"]


CASES = [
    (("ising-attn", "bra"), {"brackets"}),
    (("ising-attn", "brackets", "--sampler"), {"--sampler=", "--sampler.max-spins="}),
    (("ising-attn", "tiny_shakespeare", "--res"), {"--resume", "--rescale="}),
    (("ising-attn", "brackets", "--sampler", "=", "ban"), {"band"}),
    (("ising-attn", "brackets", "--sampler", "ban"), {"band"}),
    (("ising-attn", "brackets", "--sampler", "=", "dqa", "--sampler.num-l"), {"--sampler.num-layers="}),
    (("ising-attn", "brackets", "--sampler", "=", "dqa", "--sampler.engine", "=", ""), {"statevector", "aer"}),
    (("ising-attn", "reproduce", "--budget", "=", ""), {"medium", "paper", "quick"}),
    (("ising-attn", "brackets", "--resume", "--step"), {"--steps="}),
    (("ising-attn", "brackets", "--steps", "=", ""), set()),
    (("ising-attn", "completion", ""), set(SCRIPTS)),
]


@pytest.mark.parametrize(("words", "expected"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bash_completes(scripts, words, expected):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    asked = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ising_attn; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [bash, "-c", asked, str(scripts["bash"]), *words], capture_output=True, text=True, check=True, timeout=60
    )
    found = set(done.stdout.split())
    assert expected <= found and (expected or not found) and not done.stderr
    assert all(one.startswith(words[-1]) for one in found)
    if words[-1] == "--sampler":
        assert "--sampler-file" not in found and {one for one in found if "num-layers" in one} == set()


def test_bash_completes_folders_of_runs(scripts, tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    (tmp_path / "my-run").mkdir()
    asked = 'source "$0"; COMP_WORDS=(ising-attn report my); COMP_CWORD=2; _ising_attn; echo "${COMPREPLY[@]}"'
    done = subprocess.run([bash, "-c", asked, str(scripts["bash"])], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["my-run"]


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_scripts_are_of_their_shell_and_name_everything(scripts, commands, shell):
    text = scripts[shell].read_text()
    for command in commands.values():
        assert command.name in text
        for flag in command.flags:
            assert (f"-l {flag.name[2:]} " if shell == "fish" else flag.name) in text
    if program := shutil.which(shell):
        subprocess.run([program, "-n", str(scripts[shell])], check=True, timeout=60)


def test_a_mistyped_shell_names_the_nearest(capsys):
    assert cli.main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'?" in capsys.readouterr().err
    assert cli.main(["completion"]) == 0 and "usage: ising-attn completion {bash,zsh,fish}" in capsys.readouterr().out
