"""`temper export`: write a checkpoint as a standard model folder."""

import argparse
import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.commands.arguments import add_folder_flags, add_json
from infrastructure.commands.output import progress, show
from infrastructure.commands.settings import configure
from infrastructure.config.registries import EXPORT_FORMATS
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.console import waiting_beside
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import refuse_what_is_there
from infrastructure.core.json_text import JsonObject, as_list
from infrastructure.core.messages import phrase

if TYPE_CHECKING:
    from infrastructure.deployment.export_request import ExportRequest
    from infrastructure.run.directory import RunDirectory

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("run", metavar="RUN", help=phrase("commands.help_export_run"))
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help=phrase("commands.help_export_folder")
    )
    parser.add_argument(
        "--as",
        dest="part",
        choices=["auto", "lora", "merged"],
        default="auto",
        help=phrase("commands.help_export_as"),
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=[16, 8, 4],
        help=phrase("commands.help_export_bits"),
    )
    parser.add_argument(
        "--format",
        choices=EXPORT_FORMATS.names(),
        default="safetensors",
        help=phrase("commands.help_export_format"),
    )
    add_json(parser)
    add_folder_flags(parser)


def requested(options: argparse.Namespace) -> "tuple[RunDirectory, Path | None, ExportRequest]":
    """Return the run, the checkpoint (None: the newest) and the request, if they can be exported.

    Raises:
        ValueError: if there is no such run, or the export is not possible.
    """
    from infrastructure.deployment.export_request import ExportRequest, Part, check_possible
    from infrastructure.run.directory import find_run
    from infrastructure.run.repair import repair_records, repair_records_of

    output_dir = Path(configure(options).output_dir)
    repair_records(output_dir, BackupConfig(), log.warning)
    run, checkpoint = find_run(options.run, output_dir)
    repair_records_of(run)
    if options.folder is not None:
        refuse_what_is_there(Path(options.folder))
    request = ExportRequest(Part(options.part), options.bits, options.format)
    check_possible(run, Path(options.folder or tempfile.gettempdir()), request)
    return run, checkpoint, request


def exported(
    options: argparse.Namespace,
    run: "RunDirectory",
    checkpoint: Path | None,
    folder: Path,
    request: "ExportRequest",
) -> tuple[JsonObject, list[str]]:
    """Export a model into `folder`, and return the facts about it, and lines for the user."""
    with waiting_beside("loading PyTorch"):
        from infrastructure.deployment.export import export_model

    with waiting_beside(phrase("commands.exporting_model")):
        facts = export_model(run, checkpoint, folder, request, partial(progress, options.json))
    step, where = facts["step"], facts["folder"]
    lines = [phrase("commands.model_exported", step=step, run_id=run.run_id, folder=where)]
    lines += [f"  {line}" for key in ("lines", "notes") for line in as_list(facts.pop(key, []))]
    return facts, lines


def run(options: argparse.Namespace) -> int:
    """Export the model of a checkpoint. This needs neither a GPU nor the training data."""
    if options.folder is None:
        raise InputError("commands.no_export_target")
    run, checkpoint, request = requested(options)
    facts, lines = exported(options, run, checkpoint, Path(options.folder), request)
    show(options.json, facts, *lines)
    return ExitCode.DONE
