"""`temper export`: write a checkpoint as a standard model folder, locally or on the Hub."""

import argparse
import logging
import tempfile
from functools import partial
from pathlib import Path

from infrastructure.commands.arguments import add_folder_flags, add_json
from infrastructure.commands.output import progress, show
from infrastructure.commands.settings import configure
from infrastructure.config.registries import EXPORT_FORMATS
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.console import waiting_beside
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import refuse_what_is_there
from infrastructure.core.json_text import JsonObject, as_integer, as_list
from infrastructure.core.messages import phrase

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("run", metavar="RUN", help=phrase("commands.help_export_run"))
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help=phrase("commands.help_export_folder")
    )
    parser.add_argument(
        "--push-to-hub",
        metavar="OWNER/NAME",
        help=phrase("commands.help_push_to_hub"),
    )
    parser.add_argument("--public", action="store_true", help=phrase("commands.help_public"))
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


def run(options: argparse.Namespace) -> int:
    """Export the model of a checkpoint. This needs neither a GPU nor the training data."""
    output_dir = Path(configure(options).output_dir)
    if options.folder is None and options.push_to_hub is None:
        raise InputError("commands.no_export_target")
    if options.public and options.push_to_hub is None:
        raise InputError("commands.public_without_push_to_hub")
    from infrastructure.deployment.export_request import (
        ExportRequest,
        Part,
        check_possible,
        check_publishable,
    )
    from infrastructure.run.directory import find_run
    from infrastructure.run.repair import repair_records, repair_records_of

    repair_records(output_dir, BackupConfig(), log.warning)
    run, checkpoint = find_run(options.run, output_dir)
    repair_records_of(run)
    if options.folder is not None:
        refuse_what_is_there(Path(options.folder))
    request = ExportRequest(Part(options.part), options.bits, options.format)
    check_possible(run, Path(options.folder or tempfile.gettempdir()), request)
    if options.push_to_hub is not None:
        check_publishable(run)
    with waiting_beside("loading PyTorch"):
        from infrastructure.deployment.export import export_model, final_step
        from infrastructure.deployment.publish import ModelRepository

    repository = None
    if options.push_to_hub is not None:
        run.read_run()
        repository = ModelRepository(options.push_to_hub, options.public)
        repository.make()  # missing permissions show up now, not after minutes of work
    with tempfile.TemporaryDirectory() as scratch:
        is_there = request.is_plain and checkpoint is None and options.folder is None
        step = final_step(run) if is_there else None
        if step is not None:
            folder = run.final  # the trained model already exists
            facts: JsonObject = {"run": run.run_id, "step": step}
        else:
            folder = Path(options.folder or Path(scratch) / "model")
            with waiting_beside(phrase("commands.exporting_model")):
                facts = export_model(
                    run, checkpoint, folder, request, partial(progress, options.json)
                )
        lines = [
            phrase(
                "commands.model_exported",
                step=facts["step"],
                run_id=run.run_id,
                folder=facts.get("folder"),
            )
        ]
        lines += [f"  {line}" for key in ("lines", "notes") for line in as_list(facts.pop(key, []))]
        if repository is not None:
            published = repository.upload(folder, run, as_integer(facts["step"]))
            facts |= published
            lines = lines if options.folder else []
            lines += [
                phrase(
                    "commands.model_on_hub",
                    step=facts["step"],
                    run_id=run.run_id,
                    url=facts["url"],
                )
            ]
            lines += [f"  {note}" for note in as_list(published["notes"])]
    if options.folder is None:
        facts.pop("folder", None)
    show(options.json, facts, *lines)
    return ExitCode.DONE
