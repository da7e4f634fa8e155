"""`temper config`: show every setting with its source; `temper config init` writes a file."""

import argparse
from pathlib import Path

from infrastructure.commands.parser import CommandParser
from infrastructure.commands.settings import configure
from infrastructure.config.describe import describe
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.config.sources.load import DEFAULT_YAML
from infrastructure.config.sources.yaml_template import yaml_template
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import write_text
from infrastructure.core.messages import phrase


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.examples = ("temper config --lora --batch-size 8",)
    parser.add_argument(
        "action", nargs="?", choices=("init",), metavar="init", help=phrase("commands.help_init")
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help=phrase("commands.help_init_file"))
    parser.add_argument(
        "--changed", action="store_true", help=phrase("commands.help_changed_settings")
    )
    add_preset_flag(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Show the settings, or write them to a file."""
    config = configure(options)
    if options.action is None:
        print(describe(config, only_changed=options.changed))
        return ExitCode.DONE
    file = Path(options.file or DEFAULT_YAML)
    if file.exists():
        raise InputError("commands.config_file_exists", file=file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, yaml_template(config))
    print(phrase("commands.config_file_written", file=file))
    return ExitCode.DONE
