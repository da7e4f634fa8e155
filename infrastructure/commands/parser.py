"""The parser of the `temper` command. It imports only the modules that every command needs."""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from infrastructure.core.errors import InputError
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import phrase
from infrastructure.core.optional import DISTRIBUTION

PROGRAM = "temper"
TRUTH = ("true", "false", "yes", "no")  # values that other tools expect after a switch
NUMBERS = {"int": "a whole number", "float": "a number"}
SHORT_FLAGS = 60  # above this number of arguments, `--help` only shows the most used flags


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that raises a ValueError with one sentence instead of printing its usage.

    The arguments are added when the parser is first used, because a command can have about two
    hundred flags.

    Args:
        add_arguments: the function that adds the arguments.
        groups: the commands to list, as a description by name, under each heading.

    Attributes:
        unused: settings that `short_help.FAMILIAR` lists but that have no effect on this command.
        texts: descriptions that replace those of settings in the short `--help`.
        examples: command lines to show at the end of the short `--help`.
    """

    unused: Collection[str] = frozenset()
    texts: Mapping[str, str] = {}
    examples: Sequence[str] = ()

    def __init__(
        self,
        *args: Any,
        add_arguments: Callable[["CommandParser"], None] | None = None,
        groups: Mapping[str, Mapping[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._add_arguments, self._groups = add_arguments, groups
        self.typed = self.prog  # differs if the user typed another name of the command

    def complete(self) -> "CommandParser":
        """Add all arguments, if that has not happened yet."""
        add_arguments, self._add_arguments = self._add_arguments, None
        if add_arguments is not None:
            add_arguments(self)
            if self.is_long():
                self.add_argument(
                    "--help-all", action=ShowAll, help=phrase("commands.help_all_flags")
                )
        return self

    def is_long(self) -> bool:
        """Return whether the command has so many flags that `--help` shows only some."""
        return len(self._actions) > SHORT_FLAGS

    def format_help(self) -> str:
        """Return the text of `--help`."""
        if self._groups is not None:
            return self._grouped_help(self._groups)
        from infrastructure.commands.short_help import short_help

        return short_help(self.complete())

    def _grouped_help(self, groups: Mapping[str, Mapping[str, str]]) -> str:
        lines = [f"usage: {self.prog} COMMAND [flags]", "", str(self.description)]
        for heading, commands in groups.items():
            lines += ["", f"{heading}:"]
            lines += [f"  {name:<13}{text}" for name, text in commands.items()]
        flags = [", ".join(a.option_strings) for a in self._actions if a.option_strings]
        return "\n".join([*lines, "", f"Flags: {', '.join(flags)}", str(self.epilog), ""])

    def format_full_help(self) -> str:
        """Return the text of `--help-all`."""
        return super().format_help()

    def parse_known_args(
        self, *args: object, **kwargs: object
    ) -> Any:  # argparse parses subcommands with it, too
        self.complete()
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        for kind, name in NUMBERS.items():  # argparse uses the names of Python's types
            before, named, value = message.partition(f"invalid {kind} value: ")
            if named:
                message = before + phrase("commands.value_must_be", kind=name, value=value)
        before, named, value = message.partition("ignored explicit argument ")
        if named:
            message = before + phrase("commands.takes_no_value", value=value)
        words = self.prog.removeprefix(PROGRAM).strip()
        raise InputError(
            "commands.wrong_arguments",
            command=words,
            separator=": " * bool(words),
            problem=message,
            prog=self.prog,
        )

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise an error for an unknown command or value, without listing hidden commands."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from infrastructure.commands.unknown_words import unknown_command

            known = [choice.dest for choice in action._choices_actions]
            if action.dest == "action" and "list" in known and _is_a_run(str(value)):
                raise InputError(
                    "commands.action_missing_before_run",
                    word=str(value),
                    prog=self.prog,
                    run=value,
                    actions=", ".join(known),
                )
            raise ValueError(unknown_command(self.prog, str(value), known))
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[-1] if action.option_strings else str(action.metavar)
            self.error(unknown_name(f"value of {name}", str(value), map(str, action.choices)))
        super()._check_value(action, value)

    def add_actions(self) -> Any:
        """Add subcommands to the command, such as `verify` in `temper checkpoints verify`."""
        return self.add_subparsers(
            dest="action", metavar="ACTION", required=True, parser_class=CommandParser
        )


def as_sentence(text: str) -> str:
    """Turn a command's description in the list of commands into a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def _is_a_run(word: str) -> bool:
    """Return whether an unknown command looks like a run: a path, or an ID such as 20261129-…."""
    return "/" in word or "@" in word or word[:8].isdecimal()


class ShowAll(argparse.Action):
    """The argparse action of `--help-all`."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, CommandParser)
        print(parser.format_full_help(), end="")
        parser.exit()


class ShowVersion(argparse.Action):
    """The argparse action of `--version`, which reads the version only when it is used."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version(DISTRIBUTION)
        except PackageNotFoundError:  # a checkout that is on the path but not installed
            number = "not installed"
        print(f"{PROGRAM} {number}")
        parser.exit()


def parse(parser: CommandParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. The error for an unknown flag suggests the nearest existing one.

    Raises:
        ValueError: if the command line cannot be parsed.
    """
    words = sys.argv[1:] if arguments is None else arguments
    words = [_with_dashes(word) for word in words]
    options, unknown = parser.parse_known_args(words)
    _refuse_value_of_switch(parser, words, options)
    if unknown and (ordered := _words_before_flags(words, unknown, options)) is not None:
        options, unknown = parser.parse_known_args(ordered)
    if not unknown:
        return options
    from infrastructure.commands.unknown_words import flag_hint

    words = [word for word in (options.command, getattr(options, "action", None)) if word]
    known, command = known_flags(parser, *words), " ".join([PROGRAM, *words])
    flags = [word.split("=")[0] for word in unknown if word.startswith("--")]
    data = getattr(options, "data", None)
    if not flags and data is not None and not unknown[0].startswith("-"):
        raise InputError("commands.second_data_argument", argument=unknown[0], data=data)
    flags = flags or [unknown[0]]
    hints = {flag: flag_hint(flag, known) for flag in dict.fromkeys(flags)}
    if len(hints) == 1:
        [(flag, hint)] = hints.items()
        hint = hint or phrase("commands.see_its_help", command=command)
        raise InputError("commands.unknown_argument", arguments=f"{flag!r}{hint}")
    named = [f"{flag!r} ({hint[2:]})" if hint else repr(flag) for flag, hint in hints.items()]
    raise InputError("commands.unknown_arguments", arguments=", ".join(named), command=command)


def _refuse_value_of_switch(
    parser: CommandParser, words: Sequence[str], options: argparse.Namespace
) -> None:
    """Reject `--lora true`, because argparse would take `true` as the argument DATA.

    Raises:
        ValueError: if `true`, `false` or a similar word follows a flag that takes no value.
    """
    pairs = [pair for pair in pairwise(words) if pair[1].lower() in TRUTH]
    if not any(flag.startswith("--") for flag, _ in pairs):
        return
    for word in filter(None, (options.command, getattr(options, "action", None))):
        parser = subcommands(parser)[word]
    switches = {
        flag for a in parser.complete()._actions if a.nargs == 0 for flag in a.option_strings
    }
    for flag, value in pairs:
        if flag in switches and not Path(value).exists():
            off = f"--no-{flag.removeprefix('--')}"
            ways = phrase("commands.switch_on_or_off", flag=off) if off in switches else ""
            raise InputError("commands.switch_takes_no_value", flag=flag, value=value, ways=ways)


def _words_before_flags(
    words: Sequence[str], unknown: Sequence[str], options: argparse.Namespace
) -> list[str] | None:
    """Return the command line with its positional arguments together, as argparse needs them.

    `RUN --flag FOLDER` becomes `RUN FOLDER --flag`. Return None if the unknown word is a flag, or
    if it is unclear to which flag a word belongs.
    """
    first_flag = next((i for i, word in enumerate(words) if word.startswith("-")), 0)
    num_commands = 1 + (getattr(options, "action", None) is not None)
    if first_flag <= num_commands or any(word.startswith("-") for word in unknown):
        return None
    if {*words[:first_flag]} & {*unknown}:
        return None  # no flag is between it and the others, so it is one too many
    rest = list(words)
    for word in unknown:
        del rest[len(rest) - 1 - rest[::-1].index(word)]
    return [*rest[:first_flag], *unknown, *rest[first_flag:]]


def _with_dashes(word: str) -> str:
    """Turn underscores in a flag into dashes: `--learning_rate=1e-4` → `--learning-rate=1e-4`."""
    flag, is_given, value = word.partition("=")
    return flag.replace("_", "-") + is_given + value if flag.startswith("--") else word


def known_flags(parser: CommandParser, *words: str) -> list[str]:
    """Return all flags of a command or subcommand."""
    for word in words:
        parser = subcommands(parser)[word]
    return [flag for action in parser.complete()._actions for flag in action.option_strings]


def subcommands(parser: CommandParser) -> dict[str, CommandParser]:
    """Return the subcommands of a parser with their own parsers; empty if it has none."""
    actions = parser.complete()._actions
    choices = [a.choices for a in actions if isinstance(a, argparse._SubParsersAction)]
    return dict(choices[0]) if choices else {}
