"""`temper export`: a checkpoint as a model in the ordinary layout."""

import argparse
import logging
from pathlib import Path

from infrastructure.commands.arguments import add_folder_flags, add_json
from infrastructure.commands.output import show
from infrastructure.commands.settings import configure
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.exit_codes import ExitCode

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("run", metavar="RUN", help="a run, RUN@step, or a checkpoint's path")
    parser.add_argument("folder", metavar="FOLDER", help="an empty folder, or none yet")
    add_json(parser)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Write the model of a checkpoint; needs no GPU and none of the training data."""
    output_dir = Path(configure(options).output_dir)
    from infrastructure.deployment.export import export_checkpoint
    from infrastructure.run.directory import find_run
    from infrastructure.run.repair import repair_records, repair_records_of

    repair_records(output_dir, BackupConfig(), log.warning)
    run, checkpoint = find_run(options.run, output_dir)
    repair_records_of(run)
    exported = export_checkpoint(run, checkpoint, Path(options.folder))
    line = f"Step {exported['step']} of run {run.run_id} as a model: {exported['folder']}"
    show(options.json, exported, line)
    return ExitCode.DONE
