"""Completion scripts of bash, zsh and fish from a list of commands and their flags."""

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

FILES = "files"
"""In place of words: names of files and folders."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Args:
        name: with its dashes.
        help: a sentence.
        values: the words that it takes, `FILES`, () where they are not known, None for a switch.
    """

    name: str
    help: str
    values: tuple[str, ...] | str | None

    @property
    def shown(self) -> str:
        """As it is typed: a switch alone, others with `=`."""
        return self.name if self.values is None else f"{self.name}="


@dataclasses.dataclass(frozen=True)
class Command:
    """What follows `ising-attn`.

    Args:
        name, help: of the command.
        flags: its flags.
        words: what it takes beside flags, as `Flag.values`.
    """

    name: str
    help: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...] | str = ()


Samplers = Mapping[str, Sequence[Flag]]
_GENERAL = (Flag("--help", "Show all commands.", None), Flag("--version", "Show the version.", None))


def bash_script(commands: Sequence[Command], samplers: Samplers) -> str:
    """For `complete -F`. `--flag=` is completed without a space after it, and then its value."""
    names = " ".join([*(c.name for c in commands), *(f.name for f in _GENERAL)])
    return f"""# bash completion of ising-attn, written by `ising-attn completion bash`
_ising_attn_flags() {{
  case $1 in
{_cases((c.name, " ".join(f.shown for f in c.flags)) for c in commands)}
  esac
}}
_ising_attn_sampler_flags() {{
  case $1 in
{_cases((name, " ".join(f.shown for f in flags)) for name, flags in samplers.items())}
  esac
}}
_ising_attn_values() {{
  case "$1 $2" in
{_cases(_values(commands, samplers))}
  esac
}}
_ising_attn() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} name=${{COMP_WORDS[1]//_/-}}
  local flag='' sampler=exact flags values k
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W {shlex.quote(names)} -- "$word"))
    return
  fi
  # "=" is a word of its own here.
  if [[ $word == '=' ]]; then flag=$before word=''
  elif [[ $before == '=' ]]; then flag=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ $before == --* && $word != --* ]]; then flag=$before
  fi
  for ((k = 2; k < COMP_CWORD; k++)); do
    if [[ ${{COMP_WORDS[k]}} == --sampler ]]; then
      sampler=${{COMP_WORDS[k+1]}}
      if [[ $sampler == '=' ]]; then sampler=${{COMP_WORDS[k+2]}}; fi
    fi
  done
  flags=$(_ising_attn_flags "$name")
  if [[ " $flags " == *' --sampler= '* ]]; then flags+=" $(_ising_attn_sampler_flags "$sampler")"; fi
  if [[ " $flags " != *" $flag= "* ]]; then flag=''; fi
  values=$(_ising_attn_values "$name" "$flag"; _ising_attn_values "$sampler" "$flag")
  if [[ $values == {FILES} ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$word"))
  elif [[ -n $values && $word != --* ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
  elif [[ $word == -* || -z $flag ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
    if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace 2>/dev/null; fi
  fi
}}
complete -F _ising_attn ising-attn
"""


def zsh_script(commands: Sequence[Command], samplers: Samplers) -> str:
    """For a folder of $fpath, as `_ising-attn`."""
    described = [f"{c.name}:{_plain(c.help)}" for c in commands]
    described += [f"{f.name}:{_plain(f.help)}" for f in _GENERAL]
    return f"""#compdef ising-attn
# zsh completion of ising-attn, written by `ising-attn completion zsh`
_ising_attn_flags() {{
  case $1 in
{_arrays((c.name, c.flags) for c in commands)}
  esac
}}
_ising_attn_sampler_flags() {{
  case $1 in
{_arrays(samplers.items())}
  esac
}}
_ising_attn_values() {{
  case "$1 $2" in
{_cases(_values(commands, samplers))}
  esac
}}
_ising_attn() {{
  local name=${{words[2]//_/-}} flag='' sampler=exact values k
  local -a reply more with without
  if (( CURRENT == 2 )); then
    reply=({_quoted(described)})
    _describe 'command' reply
    return
  fi
  for (( k = 3; k < CURRENT; k++ )); do
    case $words[k] in
      --sampler=*) sampler=${{words[k]#*=}} ;;
      --sampler) sampler=$words[k+1] ;;
    esac
  done
  if [[ $PREFIX == --*=* ]]; then
    flag=${{PREFIX%%=*}}
    compset -P '*='
  elif [[ $words[CURRENT-1] == --* && $words[CURRENT-1] != *=* && $PREFIX != -* ]]; then
    flag=$words[CURRENT-1]
  fi
  _ising_attn_flags $name
  more=($reply)
  if (( ${{more[(I)--sampler=*]}} )); then _ising_attn_sampler_flags $sampler; more+=($reply); fi
  if (( ! ${{more[(I)$flag=*]}} )); then flag=''; fi
  values=$(_ising_attn_values "$name" "$flag"; _ising_attn_values "$sampler" "$flag")
  if [[ $values == {FILES} ]]; then
    _files
  elif [[ -n $values && $PREFIX != --* ]]; then
    compadd -- ${{=values}}
  elif [[ $PREFIX == -* || -z $flag ]]; then
    with=(${{(M)more:#*=:*}}) without=(${{more:#*=:*}})
    _describe 'flag' with -S '' -- without
  fi
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ising_attn "$@"; else compdef _ising_attn ising-attn; fi
"""


def fish_script(commands: Sequence[Command], samplers: Samplers) -> str:
    """For ~/.config/fish/completions."""
    lines = [
        "# fish completion of ising-attn, written by `ising-attn completion fish`",
        "function __ising_attn_sampler",
        "    set -l words (commandline -opc)",
        "    set -l given (string replace -rf -- '^--sampler=' '' $words)",
        "    test (count $given) -gt 0; or set given exact",
        "    contains -- $argv[1] $given[-1]",
        "end",
        "complete -c ising-attn -f",
    ]
    for flag in _GENERAL:
        lines.append(f"complete -c ising-attn -n __fish_use_subcommand -l {flag.name[2:]} -d {_single(flag.help)}")
    for command in commands:
        lines.append(
            f"complete -c ising-attn -n __fish_use_subcommand -a {command.name} -d {_single(_plain(command.help))}"
        )
        here = f"__fish_seen_subcommand_from {command.name}"
        lines += [_fish_flag(flag, here) for flag in command.flags]
        if command.words == FILES:
            lines.append(f"complete -c ising-attn -n {_single(here)} -F")
        elif command.words:
            lines.append(f"complete -c ising-attn -n {_single(here)} -a {_single(' '.join(command.words))}")
    with_sampler = [c.name for c in commands if any(f.name == "--sampler" for f in c.flags)]
    seen = f"__fish_seen_subcommand_from {' '.join(with_sampler)}"
    for name, flags in samplers.items():
        lines += [_fish_flag(flag, f"{seen}; and __ising_attn_sampler {name}") for flag in flags]
    return "\n".join([*lines, ""])


SCRIPTS: dict[str, Callable[[Sequence[Command], Samplers], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}


def _values(commands: Sequence[Command], samplers: Samplers) -> list[tuple[str, str]]:
    """("NAME FLAG" as a pattern, its words) where they are known; FLAG is "" for what is no flag, NAME a sampler's for
    its options."""
    owners = [*((c.name, c.flags) for c in commands), *samplers.items()]
    rows = [(f"{c.name} ", c.words) for c in commands]
    rows += [(f"{owner} {f.name}", f.values or ()) for owner, flags in owners for f in flags]
    return [(shlex.quote(pattern), FILES if words == FILES else " ".join(words)) for pattern, words in rows if words]


def _cases(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"    {pattern}) echo {shlex.quote(words)} ;;" for pattern, words in rows)


def _arrays(rows: Iterable[tuple[str, Sequence[Flag]]]) -> str:
    """Of zsh: `reply` with the flags and their help, as `_describe` reads it."""
    made = [(name, [f"{flag.shown}:{_plain(flag.help)}" for flag in flags]) for name, flags in rows]
    return "\n".join([*(f"    {name}) reply=({_quoted(items)}) ;;" for name, items in made), "    *) reply=() ;;"])


def _fish_flag(flag: Flag, condition: str) -> str:
    line = f"complete -c ising-attn -n {_single(condition)} -l {flag.name[2:]} -d {_single(_plain(flag.help))}"
    if flag.values is None:
        return line
    if flag.values == FILES:
        return f"{line} -r -F"
    return f"{line} -x" + (f" -a {_single(' '.join(flag.values))}" if flag.values else "")


def _plain(text: str) -> str:
    """Without the marks that shells give a meaning, and short."""
    shown = text.replace("`", "").replace(":", ",").replace("\\", "").replace("'", "’")
    return shown if len(shown) <= 90 else shown[:87].rsplit(" ", 1)[0] + " …"


def _quoted(items: Iterable[str]) -> str:
    return " ".join(map(_single, items))


def _single(text: str) -> str:
    return "'" + text.replace("'", "’") + "'"
