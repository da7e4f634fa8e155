"""`temper checkpoints list|verify`: inspect a run without changing it or loading torch."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import (
    HERE,
    BackupEntry,
    VerifiedVersion,
    list_entries,
    verify_all,
)
from infrastructure.commands.arguments import add_folder_flags, add_json, add_run
from infrastructure.commands.output import show
from infrastructure.commands.parser import CommandParser, as_sentence
from infrastructure.commands.settings import configure
from infrastructure.config.measures import LOSS
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_bytes, format_moment, format_number
from infrastructure.monitoring.drawing.tables import HELD_OUT_LOSS, UNKNOWN, render_table
from infrastructure.run.directory import RunDirectory, find_run
from infrastructure.run.progress_bar import byte_bar


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_actions()
    for action, text in (
        ("list", phrase("commands.help_checkpoints_list")),
        ("verify", phrase("commands.help_checkpoints_verify")),
    ):
        actions.add_parser(
            action, help=text, description=as_sentence(text), add_arguments=_add_action_arguments
        )


def _add_action_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """List or verify the checkpoints of a run, or a single one. Return FAILED if any is damaged."""
    run, checkpoint = find_run(options.run, Path(configure(options).output_dir))
    act = {"list": list_checkpoints, "verify": verify_checkpoints}[options.action]
    return act(run, checkpoint, options.json)


def list_checkpoints(run: RunDirectory, checkpoint: Path | None, as_json: bool) -> ExitCode:
    """Show the checkpoints of a run, the newest first. Only manifests are read."""
    entries = list_entries({HERE: Store(run.checkpoints)})
    if checkpoint is not None:
        entries = [entry for entry in entries if entry.name == checkpoint.stem]
    metric, entries = _scored(run, entries)
    rows = [asdict(entry) for entry in entries]
    facts = {"run": run.run_id, "path": str(run.path), "metric": metric, "checkpoints": rows}
    if entries:
        label = HELD_OUT_LOSS if metric == LOSS else metric.replace("_", " ")
        show(as_json, facts, f"Run {run.run_id}", checkpoint_table(entries, label))
    else:
        show(as_json, facts, phrase("commands.no_checkpoint_yet", run_id=run.run_id))
    return ExitCode.DONE


def verify_checkpoints(run: RunDirectory, checkpoint: Path | None, as_json: bool) -> ExitCode:
    """Compare every byte of a run's checkpoints with the recorded hashes, and show the result."""
    names = None if checkpoint is None else [checkpoint.stem]
    with byte_bar("verifying") as show_progress:
        results = verify_all(HERE, Store(run.checkpoints), names, show_progress)
    if not results:
        raise InputError("commands.no_checkpoint_to_verify", run_id=run.run_id)
    damaged = sum(one.problem is not None for one in results)
    rows = [asdict(one) for one in results]
    facts = {"run": run.run_id, "checkpoints": rows, "damaged": damaged}
    show(as_json, facts, *verified_lines(results))
    return ExitCode.FAILED if damaged else ExitCode.DONE


def _scored(run: RunDirectory, entries: list[BackupEntry]) -> tuple[str, list[BackupEntry]]:
    """Return the metric of a run's scores, and the entries with its values.

    Scores of a metric for which greater is better are stored with the opposite sign, which is
    reversed here.
    """
    try:
        training = run.read_configuration().training
    except ValueError:
        return LOSS, entries
    if not training.best_is_greater:
        return training.best_metric, entries
    scores = (None if entry.score is None else -entry.score for entry in entries)
    pairs = zip(entries, scores, strict=True)
    return training.best_metric, [replace(entry, score=score) for entry, score in pairs]


def checkpoint_table(entries: Sequence[BackupEntry], label: str, is_placed: bool = False) -> str:
    """Format checkpoints as a table.

    Args:
        label: the heading of the column of scores.
        is_placed: whether to show where the checkpoints are stored.
    """
    cells = []
    for entry in entries:
        places = [", ".join(entry.places)] if is_placed else []
        if entry.problem is not None:
            cells.append([entry.name[:12], "damaged", entry.problem, "", "", *places])
            continue
        cells.append(
            [
                f"step {entry.step}",
                f"{entry.kind}" if entry.healthy else f"{entry.kind}, not healthy",
                format_moment(entry.created or ""),
                UNKNOWN if entry.score is None else format_number(entry.score),
                format_bytes(entry.size_bytes or 0),
                *places,
            ]
        )
    headings = ["checkpoint", "kind", "saved", label, "size", *(["stored"] if is_placed else [])]
    return render_table(headings, cells)


def label_of(version: BackupEntry | VerifiedVersion) -> str:
    """Return the step of a checkpoint, or its name if the step is unknown."""
    return f"step {version.step}" if version.step is not None else str(version.name)[:12]


def verified_lines(results: Sequence[VerifiedVersion]) -> list[str]:
    """Return a line for each checkpoint that was verified, and one with their number."""
    intact = phrase("commands.version_intact")
    lines = [f"{label_of(one)} {one.where}: {one.problem or intact}" for one in results]
    num_intact = sum(one.problem is None for one in results)
    return [*lines, phrase("commands.num_intact", num_intact=num_intact, total=len(results))]
