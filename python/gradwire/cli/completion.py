"""``gradwire completion SHELL``: print a script by which a shell completes command lines.

The script has all words in it: nothing is run when Tab is pressed.
"""

import argparse
import importlib
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gradwire.cli import COMMANDS
from gradwire.presets import PRESETS


def main(argv: Sequence[str]) -> int:
    """Print a script; return 0."""
    shell = make_parser().parse_args(argv).shell
    print("\n".join(_SHELLS[shell](_commands())))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire completion",
        description="Print a script that lets a shell complete commands, options and presets.",
        epilog='bash   add to ~/.bashrc:  eval "$(gradwire completion bash)"\n'
        'zsh    add to ~/.zshrc, after compinit:  eval "$(gradwire completion zsh)"\n'
        "fish   gradwire completion fish > ~/.config/fish/completions/gradwire.fish",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", metavar="SHELL", choices=list(_SHELLS), help=", ".join(_SHELLS))
    return parser


class Argument(NamedTuple):
    """An option of a command, or a positional argument."""

    flags: tuple[str, ...]  # none of what stands without an option
    help: str
    takes: bool  # it has a value
    words: tuple[str, ...] = ()  # that the value is one of
    listed: bool = False  # the value is a list of these words, with commas
    file: bool = False  # the value is a file


Commands = dict[str, list[Argument]]


def _commands() -> Commands:
    """Return the arguments of all commands, from their parsers."""
    return {
        name: [
            _argument(each)
            for each in importlib.import_module(f"gradwire.cli.{name}").make_parser()._actions
        ]
        for name in COMMANDS
    }


def _argument(action: argparse.Action) -> Argument:
    metavar = str(action.metavar)
    words = action.choices or (PRESETS if metavar.startswith("NAME") else ())
    # Presets of other packages have names of any kind, and a shell runs what is in the script.
    plain = tuple(str(each) for each in words if re.fullmatch(r"[\w.-]+", str(each)))
    return Argument(
        tuple(action.option_strings),
        (action.help or "") % vars(action),
        action.nargs != 0,
        plain,
        bool(plain) and metavar.endswith(",..."),
        metavar in ("FILE", "PAGE", "IN", "OUT"),
    )


def _bash(commands: Commands) -> Iterator[str]:
    yield "# bash completion of gradwire"
    yield "_gradwire() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words="
    yield "    COMPREPLY=()"
    yield "    # bash takes the = of --option=value as a word"
    yield "    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}"
    yield "    [[ $cur == = ]] && cur="
    yield "    if ((COMP_CWORD == 1)); then"
    yield f"        COMPREPLY=($(compgen -W '{' '.join([*commands, *_GENERAL])}' -- \"$cur\"))"
    yield "        return"
    yield "    fi"
    yield "    case ${COMP_WORDS[1]}:$before in"
    values: dict[str, list[str]] = {}
    for name, arguments in commands.items():
        for each in arguments:
            if each.takes:
                before = [f"{name}:{flag}" for flag in each.flags]
                values.setdefault(_bash_value(each), []).extend(before)
    yield from (f"    {'|'.join(each)}) {act}; return ;;" for act, each in values.items() if each)
    yield "    esac"
    yield "    case ${COMP_WORDS[1]}:$cur in"
    for name, arguments in commands.items():
        options = " ".join(flag for each in arguments for flag in each.flags)
        yield f"    {name}:-*) words='{options}' ;;"
        for each in arguments:
            if not each.flags:
                yield f"    {name}:*) {_bash_value(each)}; return ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _gradwire gradwire"


def _bash_value(argument: Argument) -> str:
    """Return the words that complete a value; without any, bash completes files."""
    words = " ".join(argument.words)
    if argument.listed:
        begun = '"${cur%"${cur##*,}"}"'
        return f"COMPREPLY=($(compgen -P {begun} -W '{words}' -- \"${{cur##*,}}\"))"
    if argument.words:
        return f"COMPREPLY=($(compgen -W '{words}' -- \"$cur\"))"
    return ":" if argument.file else "compopt +o default 2> /dev/null"


def _zsh(commands: Commands) -> Iterator[str]:
    yield "#compdef gradwire"
    yield "_gradwire() {"
    yield "  local -a commands=("
    yield from (f"    {shlex.quote(f'{name}:{COMMANDS[name]}')}" for name in commands)
    yield "  )"
    yield "  if (( CURRENT == 2 )); then"
    yield "    _describe command commands"
    yield f"    compadd -- {' '.join(_GENERAL)}"
    yield "    return"
    yield "  fi"
    yield "  local command=$words[2]"
    yield "  shift words"
    yield "  (( CURRENT-- ))"
    yield "  case $command in"
    for name, arguments in commands.items():
        yield f"    {name})"
        several = sum(not each.flags for each in arguments) > 1
        places = map(str, itertools.count(1)) if several else itertools.repeat("*")
        specs = " \\\n        ".join(
            spec for each in arguments for spec in _zsh_specs(each, places)
        )
        yield f"      _arguments -s \\\n        {specs} ;;"
    yield "  esac"
    yield "}"
    yield "compdef _gradwire gradwire"


def _zsh_specs(argument: Argument, places: Iterator[str]) -> Iterator[str]:
    """Return the specifications of an argument for zsh's ``_arguments``."""
    action = "_files" if argument.file else f"({' '.join(argument.words)})"
    if argument.listed:
        action = f"_sequence compadd - {' '.join(argument.words)}"
    elif not argument.words and not argument.file:
        action = " "
    text = re.sub(r"([\[\]:\\])", r"\\\1", argument.help)
    if not argument.flags:
        yield shlex.quote(f"{next(places)}:{text}:{action}")
    for flag in argument.flags:
        value = f"{'=' if flag.startswith('--') else ''}[{text}]:value:{action}"
        yield shlex.quote(f"{flag}{value if argument.takes else f'[{text}]'}")


def _fish(commands: Commands) -> Iterator[str]:
    yield "# fish completion of gradwire"
    yield "complete -c gradwire -f"
    for flag in _GENERAL:
        yield f"complete -c gradwire -n __fish_use_subcommand -l {flag.removeprefix('--')}"
    for name, arguments in commands.items():
        about = shlex.quote(COMMANDS[name])
        yield f"complete -c gradwire -n __fish_use_subcommand -a {name} -d {about}"
        for each in arguments:
            parts = ["complete -c gradwire", f"-n '__fish_seen_subcommand_from {name}'"]
            for flag in each.flags:
                bare = flag.lstrip("-")
                parts.append(f"-{'l' if flag.startswith('--') else 's'} {bare}")
            if each.takes and each.flags:
                parts.append("-r" if each.file else "-x")
            if each.file:
                parts.append("-F")
            if each.listed:
                words = " ".join(each.words)
                parts.append(
                    f'-a \'(__fish_complete_list , "string split \\" \\" \\"{words}\\"")\''
                )
            elif each.words:
                parts.append(f"-a '{' '.join(each.words)}'")
            parts.append(f"-d {_fish_quoted(each.help)}")
            yield " ".join(parts)


def _fish_quoted(text: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"


_GENERAL = ("--help", "--version")
_SHELLS: dict[str, Callable[[Commands], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
