"""`temper completion`: print a script that completes commands, flags and their values in a shell.

The script contains all commands and flags, so that pressing TAB does not start Python. The shell
generates the script again at each start.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infrastructure.commands.parser import CommandParser, subcommands
from infrastructure.core.exit_codes import ExitCode

RUN_WORDS = ("RUN", "MODEL")  # positional arguments for which the folders of runs are offered


@dataclass(frozen=True)
class Words:
    """The subcommands and flags that can be typed after `command`, such as "backup".

    Attributes:
        commands: the subcommands that may come next.
        flags: maps each flag to its possible values: None if it takes no value, () if it takes any
            value.
    """

    command: str
    commands: tuple[str, ...]
    flags: dict[str, tuple[str, ...] | None]
    takes_run: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.epilog = (
        'For bash, add this line to ~/.bashrc: eval "$(temper completion bash)". For zsh, add the'
        " same line with zsh to ~/.zshrc. For fish, run: temper completion fish >"
        " ~/.config/fish/completions/temper.fish"
    )


def run(options: argparse.Namespace) -> int:
    """Print the script for the shell."""
    from infrastructure.commands.main import create_parser

    print(SHELLS[options.shell](list(words_of(create_parser()))))
    return ExitCode.DONE


def words_of(parser: CommandParser, command: str = "") -> Iterator[Words]:
    """Yield the completions of a parser, then those of its visible subcommands."""
    inner = subcommands(parser)
    names: tuple[str, ...] = ()
    flags: dict[str, tuple[str, ...] | None] = {}
    takes_run = False
    for action in parser.complete()._actions:
        if isinstance(action, argparse._SubParsersAction):
            names = tuple(choice.dest for choice in action._choices_actions) or tuple(inner)
        elif action.option_strings:
            flags |= dict.fromkeys(action.option_strings, _values(action))
        else:
            takes_run |= str(action.metavar) in RUN_WORDS
            names += tuple(map(str, action.choices or ()))
    yield Words(command, names, flags, takes_run)
    for name in names if inner else ():
        yield from words_of(inner[name], f"{command} {name}".strip())


def _values(action: argparse.Action) -> tuple[str, ...] | None:
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return tuple(map(str, action.choices))
    metavar = str(action.metavar or "")
    if metavar.startswith("{"):
        return tuple(metavar.strip("{}").split(","))
    return ()


def _bash(tables: list[Words]) -> str:
    return f"""# for bash, made by: temper completion bash
_temper() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="" offered="" word i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
{_continued(tables)}
  done
{_cases(tables, 'for word in runs/*/; do [ -d "$word" ] && offered="$offered ${word%/}"; done')}
  COMPREPLY=($(compgen -W "$offered" -- "$current"))
}}
complete -o default -F _temper temper"""


def _zsh(tables: list[Words]) -> str:
    return f"""#compdef temper
# for zsh, made by: temper completion zsh
_temper() {{
  local current="${{words[CURRENT]}}" before="${{words[CURRENT-1]}}"
  local command="" offered="" word i
  for ((i = 2; i < CURRENT; i++)); do
    word="${{words[i]}}"
{_continued(tables)}
  done
{_cases(tables, 'for word in runs/*(N/); do offered="$offered $word"; done')}
  if [[ -n $offered ]]; then compadd -- ${{=offered}}; fi
  if [[ $current != -* ]]; then _files; fi
}}
if ! (( $+functions[compdef] )); then autoload -Uz compinit; compinit; fi
compdef _temper temper"""


def _continued(tables: list[Words]) -> str:
    """Return shell code that extends `command` with `word`, if that is a subcommand."""
    lines = ['    case "$command|$word" in']
    for table in tables:
        for word in table.commands:
            whole = f"{table.command} {word}".strip()
            lines.append(f"      '{table.command}|{word}') command='{whole}' ;;")
    return "\n".join([*lines, "    esac"])


def _cases(tables: list[Words], runs: str) -> str:
    """Return shell code that sets `offered` to the possible completions of the word `current`."""
    values: dict[tuple[str, ...], set[str]] = {}
    for table in tables:
        for flag, choices in table.flags.items():
            if choices is not None:
                values.setdefault(choices, set()).add(flag)
    lines = ['  case "$before" in']
    for choices, flags in values.items():
        action = f"offered='{' '.join(choices)}'" if choices else ":"
        lines.append(f"    {'|'.join(sorted(flags))}) {action} ;;")
    lines += ["    *)", '      case "$command|$current" in']
    for table in tables:
        lines.append(f"        '{table.command}|-'*) offered='{' '.join(table.flags)}' ;;")
        if table.commands:
            lines.append(f"        '{table.command}|'*) offered='{' '.join(table.commands)}' ;;")
        elif table.takes_run:
            lines.append(f"        '{table.command}|'*) {runs} ;;")
    return "\n".join([*lines, "      esac ;;", "  esac"])


def _fish(tables: list[Words]) -> str:
    """Return the completion script for fish."""
    lines = ["# for fish, made by: temper completion fish"]
    for table in tables:
        first, _, second = table.command.partition(" ")
        if not first:
            where = "__fish_use_subcommand"
        elif second:
            where = f"__fish_seen_subcommand_from {first}; and __fish_seen_subcommand_from {second}"
        else:
            where = f"__fish_seen_subcommand_from {first}"
        if table.commands:
            words = " ".join(table.commands)
            lines.append(f"complete -c temper -n '{where}' -f -a '{words}'")
        elif table.takes_run:
            lines.append(f"complete -c temper -n '{where}' -a '(ls -d runs/*/ 2>/dev/null)'")
        for flag, choices in table.flags.items():
            name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            more = "" if choices is None else " -r"
            more += f" -f -a '{' '.join(choices)}'" if choices else ""
            lines.append(f"complete -c temper -n '{where}' {name}{more}")
    return "\n".join(lines)


SHELLS: dict[str, Callable[[list[Words]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
