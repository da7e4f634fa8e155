"""`temper export --push-to-hub`: publish a model on the Hub, with or without a local folder."""

import argparse
import tempfile
from pathlib import Path

from infrastructure.commands.export import exported, requested
from infrastructure.commands.output import show
from infrastructure.core.console import waiting_beside
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.json_text import JsonObject, as_integer, as_list
from infrastructure.core.messages import phrase


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the Hub to `temper export`."""
    parser.add_argument(
        "--push-to-hub", metavar="OWNER/NAME", help=phrase("publish.help_push_to_hub")
    )
    parser.add_argument("--public", action="store_true", help=phrase("publish.help_public"))


def run(options: argparse.Namespace) -> int | None:
    """Publish the model of a checkpoint. Return None if `--push-to-hub` was not given."""
    if options.push_to_hub is None:
        if options.public:
            raise InputError("publish.public_without_push_to_hub")
        return None
    run, checkpoint, request = requested(options)
    if added := run.read_model().get("extensions"):  # others could not load them
        names = ", ".join(added)
        raise InputError("publish.extension_weights", run_id=run.run_id, extensions=names)
    with waiting_beside("loading PyTorch"):
        from infrastructure.deployment.export import final_step
        from infrastructure.features.publish.repository import ModelRepository

    run.read_run()
    repository = ModelRepository(options.push_to_hub, options.public)
    repository.make()  # missing permissions show up now, not after minutes of work
    is_there = request.is_plain and checkpoint is None and options.folder is None
    step = final_step(run) if is_there else None
    facts: JsonObject = {"run": run.run_id, "step": step}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = run.final  # the trained model already exists
        if step is None:
            folder = Path(options.folder or Path(scratch, "model"))
            facts, lines = exported(options, run, checkpoint, folder, request)
        published = repository.upload(folder, run, as_integer(facts["step"]))
    facts |= published
    if options.folder is None:
        facts.pop("folder", None)
        lines = []
    url = facts["url"]
    lines.append(phrase("publish.model_on_hub", step=facts["step"], run_id=run.run_id, url=url))
    show(options.json, facts, *lines, *(f"  {note}" for note in as_list(published["notes"])))
    return ExitCode.DONE
