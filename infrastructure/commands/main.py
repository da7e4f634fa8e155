"""The `temper` command: what it takes, and which part of `deployment` does it.

Exit codes: 0 done, 2 wrong input (one sentence, no traceback), 1 failed, 3 finished here but not
confirmed at the place, 130 stopped by Ctrl-C or before a deadline, 143 by SIGTERM, 129 by SIGHUP (a
closed terminal).
A traceback is shown at `--log-level DEBUG` only, and like all that is printed without secrets.
Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

import argparse
import importlib
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from infrastructure.commands.parser import create_parser, parse
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.describe import describe
from infrastructure.config.merging.planned import unsupported
from infrastructure.config.merging.precedence import Layer, Setting
from infrastructure.config.sources.flags import flags_given
from infrastructure.config.sources.load import load_config
from infrastructure.core.console_log import start_console_log
from infrastructure.core.errors import ProcessLostError, TemperError, TrainingDivergedError
from infrastructure.core.launched import launched
from infrastructure.core.redact import redact
from infrastructure.core.shared_cores import share_the_cores
from infrastructure.core.standard_output import LossyStream, lossy_output
from infrastructure.core.stop_signals import StopSignal, exit_code_of
from infrastructure.testing.doctor import examine, exit_code, render
from infrastructure.training.data.defaults import make_ready

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

# What a run that goes on is told anew by file and environment too; the rest by flags alone.
CHANGED_BY_RESUMING = ("log_level", "cuda_visible_devices", "num_processes")

# A launcher (torchrun, accelerate launch) may start several of these; the first one leads.
LED = ("train", "train-resume")
TRAINS = (*LED, "train-detached")  # their work is not what they print

log = logging.getLogger("temper")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    with lossy_output("stderr"):
        code = _run(arguments)
        try:
            sys.stdout.flush()
        except OSError as error:
            LossyStream(sys.stdout).release_traceback()
            return max(code, _fail(error, FAILED))
        return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        parser = create_parser()
        options = parse(parser, arguments)
        if options.command is None:
            parser.print_help()
            return DONE
        if flags_given(options).get("--log-level", "").upper() == "DEBUG":
            start_console_log("DEBUG")  # before anything can go wrong
        told = launched()
        if told is not None and told.rank > 0 and options.command in LED:
            return int(_deployment().compute_for_leader(told))
        if options.command in TRAINS:
            with lossy_output("stdout"):
                return COMMANDS[options.command](options)
        return COMMANDS[options.command](options)
    except (TrainingDivergedError, ProcessLostError, OSError) as error:
        return _fail(error, FAILED)
    except (ValueError, TemperError) as error:
        return _fail(error, WRONG_INPUT)
    except KeyboardInterrupt as error:
        print("temper: interrupted", file=sys.stderr)
        return exit_code_of(error.name) if isinstance(error, StopSignal) else INTERRUPTED
    except Exception as error:
        return _fail_unexpectedly(error)


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
    _take_effect(config)
    return config


def _take_effect(config: DeploymentConfig) -> None:
    start_console_log(config.log_level)
    if config.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices


def _deployment(module: str = "commands.train") -> Any:
    """A module, which may import torch; loaded when a command needs it."""
    share_the_cores()
    return importlib.import_module(f"infrastructure.{module}")


def _train(options: argparse.Namespace) -> int:
    settings = {} if options.data is None else {"data.path": options.data}
    config = _configure(options, **settings)
    _refuse_wrong(config)
    if options.detach:
        return int(_deployment("commands.stop").train(config, _accepted(options)))
    return int(_deployment().train(config, _accepted(options)))


def _refuse_wrong(config: DeploymentConfig) -> None:
    """What cannot be carried out is told before torch is loaded, which takes a while."""
    make_ready(config)
    _deployment("deployment.given_paths").check_paths(config)


def _refuse_later(config: DeploymentConfig, keys: Collection[str] | None = None) -> None:
    """Where other settings may still change: what no version can carry out before its part is here.

    Args:
        keys: those that are looked at; None: all.
    """
    if sentences := [*unsupported(config, config.source, keys)]:
        raise ConfigurationError("; ".join(sentences))


def _train_detached(options: argparse.Namespace) -> int:
    """In the process that `train --detach` started: what to train is on standard input."""
    told = json.load(sys.stdin)
    config = DeploymentConfig.from_dict(told["configuration"])
    config.note_environment(told["environment_notes"])
    _take_effect(config)
    process = _deployment("commands.train_detached")
    return int(process.train(Path(options.folder), config, told["accept"]))


def _tune(options: argparse.Namespace) -> int:
    settings = {} if options.data is None else {"data.path": options.data}
    config = _configure(options, **settings)
    _refuse_later(config)
    _deployment("deployment.given_paths").check_paths(config)
    commands = _deployment("deployment.tuning")
    return int(commands.tune(config, options.learning_rate_test, options.json))


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
    _refuse_later(config, [setting.key for setting in given])
    return int(_deployment().resume(options.run, config.output_dir, given, _accepted(options)))


def _evaluate(options: argparse.Namespace) -> int:
    config = _configure(options, **{"model.name": options.model, "data.path": options.data})
    return int(_deployment().evaluate(config))


def _optimize(options: argparse.Namespace) -> int:
    config = _configure(options, **{"model.name": options.model})
    commands = _deployment("commands.optimize")
    wish = commands.Wish(options.rows, options.length, options.save, options.json)
    return int(commands.optimize(config, wish))


def _check(options: argparse.Namespace) -> int:
    settings = {} if options.data is None else {"data.path": options.data}
    config = _configure(options, **settings)
    commands = _deployment("commands.check")
    told = commands.Told(options.quick, options.json, options.strict, options.rebaseline)
    return int(commands.check(config, told))


def _checkpoints(options: argparse.Namespace) -> int:
    output_dir = _configure(options).output_dir
    act = {"list": "list_checkpoints", "verify": "verify_checkpoints"}[options.action]
    commands = _deployment("commands.checkpoints")
    return int(getattr(commands, act)(options.run, output_dir, options.json))


def _backup(options: argparse.Namespace) -> int:
    """What is given now goes before what the run recorded."""
    place = {} if options.place is None else {"backup.place": options.place}
    config = _configure(options, **place)
    given = (key for key, source in config.sources().items() if source.layer is not Layer.DEFAULT)
    commands = _deployment("commands.backup")
    told = commands.Told(
        options.run, config, frozenset(given), options.json, getattr(options, "dry_run", False)
    )
    return int(commands.ACTIONS[options.action](told))


def _export(options: argparse.Namespace) -> int:
    output_dir = _configure(options).output_dir
    commands = _deployment("deployment.export")
    return int(commands.export(options.run, options.folder, output_dir, options.json))


def _watch(options: argparse.Namespace) -> int:
    output_dir = Path(_configure(options).output_dir)
    commands = _deployment("commands.dashboard")
    return int(commands.watch(options.run, output_dir, options.once, options.every))


def _stop(options: argparse.Namespace) -> int:
    output_dir = Path(_configure(options).output_dir)
    return int(_deployment("commands.stop").stop(options.run, output_dir))


def _dashboard(options: argparse.Namespace) -> int:
    output_dir = Path(_configure(options).output_dir)
    commands = _deployment("commands.dashboard")
    wish = commands.DashboardWish(options.run, output_dir, options.host, options.port, options.json)
    return int(commands.dashboard(wish))


def _quantum(options: argparse.Namespace) -> int:
    return {"compare": _quantum_compare, "solve": _quantum_solve}[options.action](options)


def _quantum_compare(options: argparse.Namespace) -> int:
    settings = {} if options.data is None else {"data.path": options.data}
    config = _configure(options, **settings)
    _refuse_later(config)
    _deployment("deployment.given_paths").check_paths(config)
    return int(_deployment("commands.quantum_compare").compare(config, options.json))


def _quantum_solve(options: argparse.Namespace) -> int:
    _configure(options)
    commands = _deployment("commands.quantum")
    wish = commands.SolveWish(
        file=options.file,
        sampler=options.sampler,
        seconds=options.time_limit,
        seed=options.seed,
        num_ones=options.num_ones,
        num_reads=options.reads,
        as_json=options.json,
    )
    return int(commands.solve(wish))


def _show_config(options: argparse.Namespace) -> int:
    print(describe(_configure(options)))
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    findings = examine()
    print(render(findings))
    return exit_code(findings)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "train-detached": _train_detached,
    "train-resume": _resume,
    "train-eval": _evaluate,
    "check": _check,
    "optimize": _optimize,
    "tune": _tune,
    "quantum": _quantum,
    "backup": _backup,
    "checkpoints": _checkpoints,
    "export": _export,
    "watch": _watch,
    "stop": _stop,
    "dashboard": _dashboard,
    "config": _show_config,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
