"""`temper config`: show every setting and where it came from."""

import argparse

from infrastructure.commands.settings import configure
from infrastructure.config.describe import describe
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--changed", action="store_true", help=phrase("commands.help_changed_settings")
    )
    add_preset_flag(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Show the settings."""
    print(describe(configure(options), only_changed=options.changed))
    return ExitCode.DONE
