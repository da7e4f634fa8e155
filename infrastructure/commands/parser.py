"""What the `temper` command takes: its words and flags. Imports nothing heavy."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import ABSENT, SAME, plain_name
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag, as_flags
from infrastructure.core.lookup import nearest

PROGRAM = "temper"
# What other tools call a command.
COMMANDS_ELSEWHERE = {
    **dict.fromkeys(("finetune", "fine-tune", "fit", "sft", "run"), "train"),
    **dict.fromkeys(("resume", "continue"), "train-resume"),
    **dict.fromkeys(("eval", "evaluate", "benchmark"), "train-eval"),
    **dict.fromkeys(("convert", "merge", "save"), "export"),
    **dict.fromkeys(("monitor", "logs", "tail", "status"), "watch"),
    **dict.fromkeys(("restore", "sync", "copy"), "backup"),
}
DATA_HELP = "file, folder or hub data set (default: samples)"
RUN_HELP = "a run, RUN@step, or the path of a run or of a checkpoint (default: the newest run)"
BACKUP_ACTIONS = {
    "create": "copy the newest checkpoint to the place now",
    "list": "show the versions here and at the place; without RUN, the runs at --place",
    "verify": "compare every byte, here and at the place, with its hash",
    "restore": "bring a run from the place into the output folder",
    "prune": "remove versions that newer ones replace",
    "status": "show what is safe at the place, and what would be lost now",
}


class OneSentenceParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `ValueError`s: one sentence, no page of usage."""

    def error(self, message: str) -> NoReturn:
        words = self.prog.removeprefix(PROGRAM).strip()
        raise ValueError(f"{words}{': ' * bool(words)}{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Of a word that is no command; argparse would name those too that are for no person."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = [choice.dest for choice in action._choices_actions]
            raise ValueError(_unknown_command(self.prog, str(value), known))
        super()._check_value(action, value)


def create_parser() -> OneSentenceParser:
    """The whole command line."""
    parser = OneSentenceParser(
        prog=PROGRAM,
        description="Fine-tune language models on machines that go away.",
        epilog="temper COMMAND --help lists the flags of a command.",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=OneSentenceParser
    )
    _add_train(commands)
    _add_detached(commands)
    _add_resume(commands)
    _add_evaluate(commands)
    _add_optimize(commands)
    _add_check(commands)
    _add_tune(commands)
    _add_quantum(commands)
    settings = commands.add_parser("config", help="show every setting and where it came from")
    add_preset_flag(settings)
    add_config_flags(settings)
    _add_checkpoints(commands)
    _add_backup(commands)
    _add_views(commands)
    doctor = commands.add_parser("doctor", help="check versions, devices, memory and disk")
    add_config_flags(doctor, ["log_level"])
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="train a model")
    train.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)
    train.add_argument(
        "--detach", action="store_true", help="in a process of its own, which outlives this shell"
    )
    _add_accept(train)
    add_preset_flag(train)
    add_config_flags(train)


def _add_detached(commands: Any) -> None:
    """What `train --detach` starts: no word for people, so no help names it."""
    detached = commands.add_parser("train-detached")
    detached.add_argument("folder")


def _add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept",
        metavar="NAMES",
        default="",
        help="go on although these changed, and with them the result: learning_rate,data,…",
    )


def _add_resume(commands: Any) -> None:
    resume = commands.add_parser("train-resume", help="go on with a run that was interrupted")
    resume.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    _add_accept(resume)
    add_config_flags(resume)


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
    stop = commands.add_parser("stop", help="let a training save and stop, wherever it runs here")
    stop.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
    for parser in (watch, page, stop):
        add_config_flags(parser, ["output_dir", "log_level"])


def _add_backup(commands: Any) -> None:
    backup = commands.add_parser("backup", help="copies of a run at another place")
    actions = _actions(backup)
    for action, what in BACKUP_ACTIONS.items():
        parser = actions.add_parser(action, help=what)
        parser.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
        parser.add_argument("--place", metavar="TEXT", help="the same as --backup-place")
        if action == "prune":
            parser.add_argument("--dry-run", action="store_true", help="only say what would go")
        _add_output(parser, *_keys_of("backup"))


def _keys_of(section: str) -> list[str]:
    return [key for key in schema_of(DeploymentConfig).fields if key.startswith(f"{section}.")]


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


def _add_optimize(commands: Any) -> None:
    optimize = commands.add_parser("optimize", help="find the fastest way to answer with a model")
    optimize.add_argument("model", metavar="MODEL", help="a run's final/, or any model folder")
    optimize.add_argument("--rows", type=int, default=1, help="of the inputs (default: 1)")
    optimize.add_argument("--length", type=int, default=128, help="in tokens (default: 128)")
    optimize.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write a program: .pt2 torch.export, .ts TorchScript",
    )
    _add_output(optimize, *_keys_of("model"))


def _add_check(commands: Any) -> None:
    check = commands.add_parser("check", help="try out model, data and machine; trains nothing")
    check.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)
    check.add_argument("--quick", action="store_true", help="seconds: only what moves no weight")
    check.add_argument("--strict", action="store_true", help="a warning is a failure")
    check.add_argument(
        "--rebaseline", action="store_true", help="forget earlier times of this work"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_preset_flag(check)
    add_config_flags(check)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser("tune", help="measure which settings are fastest on this machine")
    tune.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)
    tune.add_argument(
        "--learning-rate-test",
        action="store_true",
        help="find out how high the learning rate may be, too",
    )
    tune.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_preset_flag(tune)
    add_config_flags(tune)


def _add_quantum(commands: Any) -> None:
    quantum = commands.add_parser(
        "quantum", help="the quantum step by itself, and what it is worth"
    )
    actions = _actions(quantum)
    compare = actions.add_parser(
        "compare", help="train with the quantum step, with plain answers and without, and compare"
    )
    compare.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)
    compare.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_preset_flag(compare)
    add_config_flags(compare)
    _add_solve(actions)


def _add_solve(actions: Any) -> None:
    solve = actions.add_parser("solve", help="find the lowest energy of a problem in a file")
    solve.add_argument("file", type=Path, metavar="PROBLEM", help="a .bqm, .npz or .json file")
    solve.add_argument(
        "--sampler", default="auto", help="its name, or module:Class (default: auto)"
    )
    solve.add_argument(
        "--time-limit", type=float, default=60.0, metavar="SECONDS", help="at most (default: 60)"
    )
    solve.add_argument("--seed", type=int, help="the same one gives the same answer")
    solve.add_argument("--num-ones", type=int, metavar="K", help="the answer has exactly K ones")
    solve.add_argument("--reads", type=int, metavar="N", help="searches, or shots of a machine")
    solve.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_config_flags(solve, ["log_level"])


def parse(parser: OneSentenceParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an unknown flag gets the nearest one that exists."""
    options, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return options
    flag = unknown[0].split("=")[0]
    words = [word for word in (options.command, getattr(options, "action", None)) if word]
    raise ValueError(f"unknown argument {flag!r}{_hint(flag, parser, words)}")


def _hint(flag: str, parser: OneSentenceParser, words: list[str]) -> str:
    """What it is called here, what to do where it is not here, or the nearest flag."""
    known = known_flags(parser, *words)
    name = plain_name(flag)
    if name in ABSENT:
        return f"; {ABSENT[name]}"
    if name in SAME and {key.partition("=")[0] for key in as_flags(SAME[name]).split()} & {*known}:
        return f"; it is {as_flags(SAME[name])} here"
    meant = nearest(flag, known)
    return f"; did you mean {meant}?" if meant else f"; see {' '.join([PROGRAM, *words])} --help"


def _unknown_command(prog: str, word: str, known: list[str]) -> str:
    """The sentence for a word that is no command of `prog`."""
    if plain_name(word) in ABSENT and word not in COMMANDS_ELSEWHERE:
        return f"unknown command {word!r}; {ABSENT[plain_name(word)]}"
    meant = COMMANDS_ELSEWHERE.get(word) or nearest(word, known)
    hint = f"; did you mean {prog} {meant}?" if meant in known else ""
    return f"unknown command {word!r}{hint} (there are {', '.join(known)})"


def known_flags(parser: argparse.ArgumentParser, *words: str) -> list[str]:
    """All flags of a command, which may be of two words."""
    for word in words:
        choices = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        parser = choices[0][word]
    return [flag for action in parser._actions for flag in action.option_strings]
