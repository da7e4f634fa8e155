"""Arguments that several commands share."""

import argparse
from collections.abc import Collection

from infrastructure.commands.short_help import IN_RUN
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.messages import phrase

A_RUN_HELP = "commands.help_run"


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the argument DATA, which sets `data.path`."""
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help=phrase("commands.help_data_or_samples")
    )


def add_run(
    parser: argparse.ArgumentParser, help_text: str = "commands.help_run_or_checkpoint"
) -> None:
    """Add the argument RUN."""
    parser.add_argument("run", nargs="?", metavar="RUN", help=phrase(help_text))


def add_accept(
    parser: argparse.ArgumentParser, help_text: str = "commands.help_accept_in_train"
) -> None:
    """Add `--accept`; `accepted` reads its values."""
    parser.add_argument(
        "--accept",
        action="extend",
        type=names_in,
        metavar="NAMES",
        default=[],
        help=phrase(help_text),
    )


def accepted(options: argparse.Namespace) -> list[str]:
    """Return the values of all `--accept` flags; a value may be a flag and is then converted to a
    setting name.
    """
    from infrastructure.run.configuration_judge import accepted_name

    return [accepted_name(name) for name in options.accept]


def names_in(text: str) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which prints the result as a JSON object."""
    parser.add_argument("--json", action="store_true", help=phrase("commands.help_json"))


def add_folder_flags(
    parser: argparse.ArgumentParser, *keys: str, inherited: Collection[str] = ()
) -> None:
    """Add `--output`, `--log-level` and the flags of the settings `keys` to a command.

    Args:
        inherited: the keys of settings whose default in this command is the value recorded in the
            run.
    """
    add_config_flags(parser, ["output_dir", "log_level", *keys], inherited, IN_RUN)
