"""Arguments that several commands take."""

import argparse

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import add_config_flags

DATA_HELP = "file, folder or hub data set (default: samples)"
RUN_HELP = (
    "a run, RUN@step, RUN@best, or the path of a run or of a checkpoint (default: the newest run)"
)
A_RUN_HELP = "a run (default: the newest)"


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


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`; see `output`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def add_folder_flags(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Add the flags of a command that looks for runs, and those of settings `keys`."""
    add_config_flags(parser, ["output_dir", "log_level", *keys])


def keys_of(section: str) -> list[str]:
    """The settings of a section of the configuration."""
    return [key for key in schema_of(DeploymentConfig).fields if key.startswith(f"{section}.")]
