"""The `temper` command: what it takes, and which part of `deployment` does it.

Exit codes: 0 done, 2 wrong input (one sentence, no traceback), 1 failed, 130 stopped by Ctrl-C or
before a deadline, 143 by SIGTERM.
A traceback is shown at `--log-level DEBUG` only, and like all that is printed without secrets.
Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

import argparse
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.describe import describe
from infrastructure.config.flags import add_config_flags, flags_given
from infrastructure.config.layers import Layer, Setting
from infrastructure.config.loading import load_config
from infrastructure.config.schema import schema_of
from infrastructure.core.errors import TemperError, TrainingDivergedError
from infrastructure.core.lookup import nearest
from infrastructure.core.redact import RedactingFormatter, redact
from infrastructure.testing.doctor import examine, exit_code, render

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

# What a run that goes on is told anew by file and environment too; the rest by flags alone.
CHANGED_BY_RESUMING = ("log_level", "cuda_visible_devices")

# Libraries that warn, on import, of parts of themselves that nobody here asks for.
CHATTY_LOGGERS = ("torchao", "torch.utils._pytree", "httpx")

log = logging.getLogger("temper")


class OneSentenceParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `ValueError`s: one sentence, no page of usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}; see {self.prog} --help")


def create_parser() -> OneSentenceParser:
    """The whole command line."""
    parser = OneSentenceParser(
        prog="temper",
        description="Fine-tune language models on machines that go away.",
        epilog="temper COMMAND --help lists the flags of a command.",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=OneSentenceParser
    )
    _add_train(commands)
    _add_resume(commands)
    _add_evaluate(commands)
    settings = commands.add_parser("config", help="show every setting and where it came from")
    add_config_flags(settings)
    _add_checkpoints(commands)
    _add_backup(commands)
    _add_views(commands)
    doctor = commands.add_parser("doctor", help="check versions, devices, memory and disk")
    add_config_flags(doctor, ["log_level"])
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="train a model")
    train.add_argument(
        "data", nargs="?", metavar="DATA", help="file, folder or hub data set (default: samples)"
    )
    _add_accept(train)
    add_config_flags(train)


def _add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept",
        metavar="NAMES",
        default="",
        help="go on although these changed, and with them the result: learning_rate,data,…",
    )


def _add_resume(commands: Any) -> None:
    resume = commands.add_parser("train-resume", help="go on with a run that was interrupted")
    resume.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help=RUN_HELP,
    )
    _add_accept(resume)
    add_config_flags(resume)


RUN_HELP = "a run, RUN@step, or the path of a run or of a checkpoint (default: the newest run)"


def _add_checkpoints(commands: Any) -> None:
    checkpoints = commands.add_parser("checkpoints", help="list or verify checkpoints")
    actions = _actions(checkpoints)
    for action, what in (("list", "show them"), ("verify", "compare every byte with its hash")):
        parser = actions.add_parser(action, help=what)
        parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
        _add_output(parser)
    export = commands.add_parser("export", help="write a checkpoint as a model others can load")
    export.add_argument("run", metavar="RUN", help="a run, RUN@step, or a checkpoint's path")
    export.add_argument("folder", metavar="FOLDER", help="an empty folder, or none yet")
    _add_output(export)


def _add_views(commands: Any) -> None:
    watch = commands.add_parser("watch", help="follow a run in the terminal")
    watch.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
    watch.add_argument("--once", action="store_true", help="show it as it is now, and end")
    watch.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="between looks (default: 1)"
    )
    page = commands.add_parser("dashboard", help="follow runs on a web page")
    page.add_argument("run", nargs="?", metavar="RUN", help="a run (default: always the newest)")
    page.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    page.add_argument("--port", type=int, default=8765, help="0: any free one (default: 8765)")
    page.add_argument("--json", action="store_true", help="tell the address as one JSON object")
    for parser in (watch, page):
        add_config_flags(parser, ["output_dir", "log_level"])


BACKUP_ACTIONS = {
    "create": "copy the newest checkpoint to the place now",
    "list": "show the versions here and at the place; without RUN, the runs at --place",
    "verify": "compare every byte, here and at the place, with its hash",
    "restore": "bring a run from the place into the output folder",
    "prune": "remove versions that newer ones replace",
    "status": "show what is safe at the place, and what would be lost now",
}


def _add_backup(commands: Any) -> None:
    backup = commands.add_parser("backup", help="copies of a run at another place")
    actions = _actions(backup)
    keys = [key for key in schema_of(DeploymentConfig).fields if key.startswith("backup.")]
    for action, what in BACKUP_ACTIONS.items():
        parser = actions.add_parser(action, help=what)
        parser.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
        parser.add_argument("--place", metavar="TEXT", help="the same as --backup-place")
        if action == "prune":
            parser.add_argument("--dry-run", action="store_true", help="only say what would go")
        _add_output(parser, *keys)


def _actions(parser: argparse.ArgumentParser) -> Any:
    """The second word of a command, such as `verify` in `temper checkpoints verify`."""
    return parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=OneSentenceParser
    )


def _add_output(parser: argparse.ArgumentParser, *keys: str) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_config_flags(parser, ["output_dir", "log_level", *keys])


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser("train-eval", help="measure a trained model on held-out data")
    evaluate.add_argument("model", metavar="MODEL", help="a run, its final/, or any model folder")
    evaluate.add_argument("data", metavar="DATA", help="file, folder or hub data set")
    add_config_flags(evaluate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        parser = create_parser()
        options = parse(parser, arguments)
        if options.command is None:
            parser.print_help()
            return DONE
        if flags_given(options).get("--log-level", "").upper() == "DEBUG":
            _start_logging("DEBUG")  # before anything can go wrong
        return COMMANDS[options.command](options)
    except (TrainingDivergedError, OSError) as error:
        return _fail(error, FAILED)
    except (ValueError, TemperError) as error:
        return _fail(error, WRONG_INPUT)
    except KeyboardInterrupt as error:
        print("temper: interrupted", file=sys.stderr)
        return TERMINATED if str(error).startswith("SIGTERM") else INTERRUPTED
    except Exception as error:
        return _fail_unexpectedly(error)


def parse(parser: OneSentenceParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an unknown flag gets the nearest one that exists."""
    options, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return options
    flag = unknown[0].split("=")[0]
    words = [word for word in (options.command, getattr(options, "action", None)) if word]
    meant = nearest(flag, known_flags(parser, *words))
    hint = f"; did you mean {meant}?" if meant else f"; see {' '.join(['temper', *words])} --help"
    raise ValueError(f"unknown argument {flag!r}{hint}")


def known_flags(parser: argparse.ArgumentParser, *words: str) -> list[str]:
    """All flags of a command, which may be of two words."""
    for word in words:
        choices = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        parser = choices[0][word]
    return [flag for action in parser._actions for flag in action.option_strings]


def _fail(error: BaseException, code: int) -> int:
    _show_traceback(error)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    print(redact(f"temper: {error}{notes}"), file=sys.stderr)
    return code


def _fail_unexpectedly(error: Exception) -> int:
    """An error that nobody foresaw: its type, and what to do to see more."""
    shown = _show_traceback(error)
    text = " ".join(str(error).split())
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    hint = "" if shown else "; run again with --log-level DEBUG for the traceback"
    print(redact(f"temper: {type(error).__name__}: {text}{notes}{hint}"), file=sys.stderr)
    return FAILED


def _show_traceback(error: BaseException) -> bool:
    is_shown = log.isEnabledFor(logging.DEBUG)
    if is_shown:
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr)
    return is_shown


def _configure(options: argparse.Namespace, **settings: Any) -> DeploymentConfig:
    """The configuration of a command; what must be set before torch is imported is set here."""
    config = load_config(options.config, flags={**flags_given(options), **settings})
    _start_logging(config.log_level)
    if config.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices
    return config


def _start_logging(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for chatty in CHATTY_LOGGERS:
        logging.getLogger(chatty).setLevel(logging.ERROR)


def _deployment(module: str = "commands") -> Any:
    """A module that imports torch; loaded when a command needs it.

    Threads that wait for each other by spinning make a training 10 to 15 times slower where
    something else needs the same cores, as on every shared machine; so they sleep instead.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return importlib.import_module(f"infrastructure.deployment.{module}")


def _train(options: argparse.Namespace) -> int:
    settings = {} if options.data is None else {"data.path": options.data}
    config = _configure(options, **settings)
    return int(_deployment().train(config, _accepted(options)))


def _accepted(options: argparse.Namespace) -> list[str]:
    return [name.strip() for name in options.accept.split(",") if name.strip()]


def _resume(options: argparse.Namespace) -> int:
    """Go on with a run: with the settings it recorded, but for those that were given now."""
    config = _configure(options)
    given = [
        Setting(key, config.value(key), source)
        for key, source in config.sources().items()
        if key not in ("output_dir", "new_run")
        and (
            source.layer is Layer.FLAG
            or (key in CHANGED_BY_RESUMING and source.layer is not Layer.DEFAULT)
        )
    ]
    return int(_deployment().resume(options.run, config.output_dir, given, _accepted(options)))


def _evaluate(options: argparse.Namespace) -> int:
    config = _configure(options, **{"model.name": options.model, "data.path": options.data})
    return int(_deployment().evaluate(config))


def _checkpoints(options: argparse.Namespace) -> int:
    output_dir = _configure(options).output_dir
    act = {"list": "list_checkpoints", "verify": "verify_checkpoints"}[options.action]
    commands = _deployment("checkpoint_commands")
    return int(getattr(commands, act)(options.run, output_dir, options.json))


def _backup(options: argparse.Namespace) -> int:
    """What is given now goes before what the run recorded."""
    place = {} if options.place is None else {"backup.place": options.place}
    config = _configure(options, **place)
    given = (key for key, source in config.sources().items() if source.layer is not Layer.DEFAULT)
    commands = _deployment("backup_commands")
    told = commands.Told(
        options.run, config, frozenset(given), options.json, getattr(options, "dry_run", False)
    )
    return int(commands.ACTIONS[options.action](told))


def _export(options: argparse.Namespace) -> int:
    output_dir = _configure(options).output_dir
    commands = _deployment("checkpoint_commands")
    return int(commands.export(options.run, options.folder, output_dir, options.json))


def _watch(options: argparse.Namespace) -> int:
    output_dir = Path(_configure(options).output_dir)
    commands = _deployment("view_commands")
    return int(commands.watch(options.run, output_dir, options.once, options.every))


def _dashboard(options: argparse.Namespace) -> int:
    output_dir = Path(_configure(options).output_dir)
    commands = _deployment("view_commands")
    wish = commands.DashboardWish(options.run, output_dir, options.host, options.port, options.json)
    return int(commands.dashboard(wish))


def _show_config(options: argparse.Namespace) -> int:
    print(describe(_configure(options)))
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    findings = examine()
    print(render(findings))
    return exit_code(findings)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "train-resume": _resume,
    "train-eval": _evaluate,
    "backup": _backup,
    "checkpoints": _checkpoints,
    "export": _export,
    "watch": _watch,
    "dashboard": _dashboard,
    "config": _show_config,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
