"""`temper doctor`: show versions, devices, memory and disk of this machine."""

import argparse

from infrastructure.config.sources.flags import add_config_flags
from infrastructure.testing.doctor import main


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_config_flags(parser, ["log_level"])


def run(_options: argparse.Namespace) -> int:
    """Inspect the machine and show the results."""
    return main()
