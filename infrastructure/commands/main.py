"""The `temper` command: the table of commands, and the handling of errors.

A traceback is shown only with `--log-level DEBUG`; a failed run keeps one in its log directory.
Neither contains secrets. Large packages are imported only when a command needs them, so that
`--help` answers immediately.
"""

import argparse
import importlib
import io
import logging
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Protocol, cast

from infrastructure.commands.parser import (
    PROGRAM,
    CommandParser,
    ShowVersion,
    as_sentence,
    parse,
    subcommands,
)
from infrastructure.core.agent import agent_folder, end_with_agent, left_to_agent
from infrastructure.core.console import RED, styled, write_above_bar
from infrastructure.core.console_log import start_console_log
from infrastructure.core.error_place import described, error_place
from infrastructure.core.errors import (
    NoAnswerError,
    ProcessLostError,
    TemperError,
)
from infrastructure.core.exit_codes import ExitCode, exit_code_of_signal
from infrastructure.core.features import features, merged
from infrastructure.core.importing import own_process
from infrastructure.core.kept_traceback import traceback_file
from infrastructure.core.launcher import LaunchedProcess, launched_process
from infrastructure.core.messages import phrase, spelled_by
from infrastructure.core.process_end import leave_the_rest
from infrastructure.core.redact import redact
from infrastructure.core.shared_cores import share_the_cores
from infrastructure.core.standard_output import LossyStream, is_reader_gone, lossy_output
from infrastructure.core.stop_signals import (
    StopSignal,
    ignore_stop_signals,
    take_usr1_as_sigterm,
)

# By heading, in the order of the help; a command is the module of its name in this folder.
GROUPS = {
    "Train": {
        "train": "train a model, or resume the unfinished run that has the same settings",
        "resume": "resume an interrupted run",
        "stop": "make a run save a checkpoint and stop",
    },
    "Before you train": {
        "check": "check the model, the data and the machine without training",
        "config": "show all settings and their sources, or write a configuration file",
        "doctor": "show versions, devices, memory and disk of this machine",
    },
    "Use a model": {
        "eval": "evaluate a model on held-out data, or compare two models",
        "ask": "ask a model questions",
        "export": "export a checkpoint as a model that other programs can load",
    },
    "Runs and backups": {
        "list": "list runs",
        "watch": "follow the progress of a run in the terminal",
        "checkpoints": "list or verify checkpoints",
        "backup": "back up, list and restore runs",
    },
}
_OF_FEATURES = merged("commands")
for _name, _command in _OF_FEATURES.items():
    GROUPS.setdefault(_command.group, {})[_name] = _command.help
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}
# Other names of commands: those of the specification, and those that people type.
SAME_COMMANDS = {
    "train-resume": "resume",
    "train-eval": "eval",
    "evaluate": "eval",
    "chat": "ask",
}
# The process that `train --detach` starts. It is not meant for users, so no help lists it.
HIDDEN = "train-detached"

# An agent of ours, torchrun or accelerate may start several of these; the first one leads. Their
# work is not what they print.
TRAINS = ("train", "resume", HIDDEN)
# These resume from their saved state when they are called again.
RESUMING = (
    "train",
    "resume",
    *(words for one in _OF_FEATURES.values() for words in one.resuming),
)

INTERRUPTED = "temper: interrupted"

log = logging.getLogger("temper")


class CommandModule(Protocol):
    """The interface of a command's module. Modules with flags that a feature adds have it, too."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command."""

    def run(self, options: argparse.Namespace) -> int | None:
        """Run the command, and return its exit code. The module of a feature returns None if its
        flags were not given.

        Raises:
            ValueError: if the input is wrong; the message is one sentence.
            TemperError, OSError: if the command failed.
        """


def command(name: str) -> CommandModule:
    """Return the module of a command. It is imported on the first call."""
    of_feature = _OF_FEATURES.get(name)
    own = f"infrastructure.commands.{name.replace('-', '_')}"
    return cast(CommandModule, importlib.import_module(of_feature.module if of_feature else own))


def create_parser() -> CommandParser:
    """Create the parser of the whole command line, without the arguments of the commands."""
    parser = CommandParser(
        prog=PROGRAM,
        description=phrase("commands.help_temper"),
        epilog=phrase("commands.help_of_a_command"),
        groups=GROUPS,
    )
    parser.add_argument("-V", "--version", action=ShowVersion, help=phrase("commands.help_version"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for name, text in COMMANDS.items():
        add = partial(_add_arguments, name)
        commands.add_parser(name, help=text, description=as_sentence(text), add_arguments=add)
    commands.add_parser(HIDDEN, add_arguments=partial(_add_arguments, HIDDEN))
    return parser


def with_full_names(words: Sequence[str]) -> list[str]:
    """Replace aliases of commands in a command line: `help train` becomes `train --help`."""
    first, *rest = words or [""]
    if first == "help":
        return [*with_full_names(rest[:1]), "--help"] if rest else ["--help"]
    return [SAME_COMMANDS.get(first, first), *rest] if words else []


def additions(name: str) -> list[CommandModule]:
    """Return the modules of features that add flags to the command `name`."""
    places = (feature.additions.get(name) for feature in features())
    return [cast(CommandModule, importlib.import_module(place)) for place in places if place]


def _add_arguments(name: str, parser: CommandParser) -> None:
    for module in (command(name), *additions(name)):
        module.add_arguments(parser)


def _execute(options: argparse.Namespace) -> int:
    for module in additions(options.command):
        if (code := module.run(options)) is not None:
            return code
    code = command(options.command).run(options)
    assert code is not None
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. If a launcher started it, report the code to the
    launcher.
    """
    with spelled_by(_as_flag):
        code = _run_and_flush(arguments)
    if (agent := agent_folder()) is not None:
        agent.note_exit_code(code)
    return code


def _run_and_flush(arguments: Sequence[str] | None) -> int:
    """Run one command and flush its output, even if stdout and stderr cannot be written to."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    with lossy_output("stderr"):
        code = _run(arguments)
        try:
            sys.stdout.flush()
        except OSError as error:
            is_gone = is_reader_gone(sys.stdout)
            LossyStream(sys.stdout).release_traceback()
            if is_gone:
                return code or ExitCode.READER_GONE
            return max(code, _fail(error, ExitCode.FAILED))
        return code


def _run(arguments: Sequence[str] | None) -> int:
    share_the_cores()  # before anything imports torch
    try:
        parser = create_parser()
        typed = sys.argv[1:] if arguments is None else arguments
        words = with_full_names(typed)
        for name in {*typed[:2]} & {*SAME_COMMANDS}:
            subcommands(parser)[SAME_COMMANDS[name]].typed = f"{PROGRAM} {name}"
        options = parse(parser, words)
        options.words_given = words
        if options.command is None:
            parser.print_help()
            return ExitCode.DONE
        _start_debugging(options)
        process = launched_process()
        if options.command in TRAINS:
            take_usr1_as_sigterm()
            end_with_agent()
        if process is not None and process.rank > 0 and options.command in TRAINS:
            return _train_with_first(process)
        if options.command in TRAINS:
            with lossy_output("stdout"), _others_dismissed(process):
                return _execute(options)
        return _execute(options)
    except BrokenPipeError as error:
        if is_reader_gone(sys.stdout):  # as in `temper … | head`: nobody is left to read a message
            return ExitCode.READER_GONE
        return _fail(error, ExitCode.FAILED)
    except ProcessLostError as error:
        return _lost(error)
    except (NoAnswerError, OSError) as error:
        return _fail(error, ExitCode.FAILED)
    except (ValueError, TemperError) as error:
        return _fail(error, ExitCode.WRONG_INPUT)
    except StopSignal as error:
        line = f"{INTERRUPTED}{_how_to_go_on(arguments)}"
        if not left_to_agent([line], error.name):
            print(line, file=sys.stderr)
        return exit_code_of_signal(error.name)
    except KeyboardInterrupt:
        print(f"{INTERRUPTED}{_how_to_go_on(arguments)}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _fail(error, ExitCode.FAILED, is_expected=False)


def _how_to_go_on(arguments: Sequence[str] | None) -> str:
    """Return how to resume after an interruption; "" if the command cannot resume."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    full = " ".join([*with_full_names(words), ""])
    if not full.startswith(tuple(f"{one} " for one in RESUMING)) or "--new-run" in words:
        return ""
    return phrase("commands.interrupted_how_to_resume")


def _start_debugging(options: argparse.Namespace) -> None:
    """Start debug logging early if `--log-level DEBUG` was given."""
    from infrastructure.config.sources.flags import flags_given  # the command has already loaded it

    if flags_given(options).get("--log-level", "").upper() == "DEBUG":
        start_console_log("DEBUG")


def _train_with_first(process: LaunchedProcess) -> int:
    """Run as a rank other than 0, in a process that torchrun or another launcher started."""
    from infrastructure.training.distributed.members import by_launcher
    from infrastructure.training.rank_process import train_as

    return train_as(by_launcher(process))


def _others_dismissed(process: LaunchedProcess | None) -> AbstractContextManager[None]:
    """Return a context that dismisses the ranks that rank 0 has not needed, if there are any."""
    if process is None:
        return nullcontext()
    from infrastructure.training.distributed.members import others_dismissed

    return others_dismissed()


def _stay_for_dismissed() -> None:
    """Wait for the ranks that `_others_dismissed` has dismissed, after all output."""
    module = "infrastructure.training.distributed.members"
    if launched_process() is not None and module in sys.modules:
        sys.modules[module].stay_for_dismissed()


def _lost(error: ProcessLostError) -> ExitCode:
    """Handle the loss of another rank. The launcher, if there is one, prints the message."""
    agent = agent_folder()
    if agent is None:
        return _fail(error, ExitCode.PROCESS_LOST)
    _show_traceback(error)
    agent.note_loss(redact(f"{error}{_notes(error)}"))
    return ExitCode.PROCESS_LOST


def _fail(error: BaseException, code: ExitCode, *, is_expected: bool = True) -> ExitCode:
    """Report an error. If it is unexpected, or was raised by user code, also report its type, where
    it was raised, and where its traceback is.
    """
    shown = _show_traceback(error)
    if is_expected and error_place(error) is None:
        text = f"{_sentence(error)}{_notes(error)}"
    else:
        text = f"{described(error)}{_notes(error)}{_hint(error, shown)}"
    write_above_bar(f"{styled('temper:', RED, sys.stderr)} {redact(text)}", sys.stderr)
    return code


def _sentence(error: BaseException) -> str:
    """Return the message of an error. If permission was denied, it names the path."""
    if isinstance(error, PermissionError) and error.filename is not None and error.errno:
        return phrase("commands.permission_denied", path=error.filename)
    return str(error)


def _as_flag(key: str, value: str) -> str:
    """Spell a setting as a flag. The settings are loaded on the first call."""
    from infrastructure.config.sources.flags import as_flag

    return as_flag(key, value)


def _hint(error: BaseException, shown: bool) -> str:
    """Return where the traceback is; if there is none, how to make Temper show it."""
    if shown:
        return ""
    path = traceback_file(error)
    if path is not None:
        return phrase("commands.traceback_location", path=path)
    return phrase("commands.how_to_see_traceback")


def _notes(error: BaseException) -> str:
    return "".join(f" ({note})" for note in getattr(error, "__notes__", []))


def _show_traceback(error: BaseException) -> bool:
    is_shown = log.isEnabledFor(logging.DEBUG)
    if is_shown:
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr)
    return is_shown


def main_of_process() -> int:
    """Run `main` as the only task of this process, and return the exit code."""
    own_process()
    try:
        code = main()
    except KeyboardInterrupt:  # another one, while the command was ending
        code = int(ExitCode.INTERRUPTED)
    with suppress(KeyboardInterrupt):
        _stay_for_dismissed()
    ignore_stop_signals()
    leave_the_rest()
    return code


if __name__ == "__main__":
    sys.exit(main_of_process())
