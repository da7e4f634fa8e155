"""Arguments that several commands take."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.lookup import unknown_name
from infrastructure.monitoring.records.run_list import (
    MAX_NAMED,
    RUN_FILE,
    finished_model,
    run_named,
    runs_in,
)

DATA_HELP = "file, folder or hub data set (default: samples)"
RUN_HELP = (
    "a run, RUN@step, RUN@best, or the path of a run or of a checkpoint (default: the newest run)"
)
A_RUN_HELP = "a run (default: the newest)"
NOT_HERE = "no folder of that name here"  # how a refusal of a model begins


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add DATA, which is `data.path`."""
    parser.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)


def add_run(parser: argparse.ArgumentParser, help_text: str = RUN_HELP) -> None:
    """Add RUN."""
    parser.add_argument("run", nargs="?", metavar="RUN", help=help_text)


def add_accept(parser: argparse.ArgumentParser) -> None:
    """Add `--accept`; see `accepted`."""
    parser.add_argument(
        "--accept",
        action="extend",
        type=names_in,
        metavar="NAMES",
        default=[],
        help="go on although these changed, and with them the result: learning_rate,data,…",
    )


def accepted(options: argparse.Namespace) -> list[str]:
    """The names that `--accept` gives, once or several times."""
    return [*options.accept]


def names_in(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def run_or_model(name: str, output_dir: Path) -> str:
    """A path or a hub name as it stands; the id of a run in the folder of runs, or the name that a
    person has given one, as its path, and `runs/final` as the model of its newest finished run.

    Raises:
        ValueError: it names a checkpoint, which is no model yet.
    """
    name = finished_model(name)
    if Path(name).exists():
        return name
    run, at, _ = name.rpartition("@")
    places = (Path(run), output_dir / run, *filter(None, [run_named(run, output_dir)]))
    if at and any((place / RUN_FILE).is_file() for place in places):
        raise ValueError(
            f"{name} is a checkpoint, and this takes a model: write its model with"
            f" temper export {name} FOLDER, and name FOLDER"
        )
    if at and "@" in Path(name).name:  # which no name of the hub has
        raise ValueError(
            f"{name}: there is no run {run!r} in {output_dir}; give its path, as in"
            f" {output_dir / 'RUN'}@best"
        )
    if (output_dir / name).is_dir():
        return str(output_dir / name)
    named = run_named(name, output_dir)
    return name if named is None else str(named)


@contextmanager
def naming_runs(output_dir: Path) -> Iterator[None]:
    """Inside, what is said of a model that is nowhere names the runs that there are, too: it may
    have been meant as one."""
    try:
        yield
    except ValueError as error:
        match = re.match(rf"model '([^'/]+)': {NOT_HERE}", str(error))
        runs = [path.name for path in runs_in(output_dir)]
        if match is None or not runs:
            raise
        known = unknown_name("run", match[1], runs, MAX_NAMED)
        raise ValueError(f"{error}; in {output_dir}: {known}") from error


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`; see `output`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def add_folder_flags(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Add the flags of a command that looks for runs, and those of settings `keys`."""
    add_config_flags(parser, ["output_dir", "log_level", *keys])


def keys_of(section: str) -> list[str]:
    """The settings of a section of the configuration."""
    return [key for key in schema_of(DeploymentConfig).fields if key.startswith(f"{section}.")]
