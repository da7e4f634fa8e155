"""`temper checkpoints list|verify`: inspect a run without changing it or loading torch."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Required, TypedDict

from infrastructure.backup.format.manifest import Manifest, Pack
from infrastructure.backup.format.store import Store
from infrastructure.commands.arguments import add_folder_flags, add_json, add_run
from infrastructure.commands.output import show
from infrastructure.commands.parser import CommandParser, as_sentence
from infrastructure.commands.settings import configure
from infrastructure.config.measures import LOSS
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_bytes, format_moment, format_number
from infrastructure.monitoring.drawing.tables import HELD_OUT_LOSS, render_table
from infrastructure.run.directory import RunDirectory, find_run
from infrastructure.run.progress_bar import byte_bar

NOTHING = "–"


class VersionRow(TypedDict, total=False):
    """A row about a checkpoint. For an unreadable checkpoint, it has only name, path and problem.

    Attributes:
        problem: what is wrong with the checkpoint, or None.
        where: where the checkpoint is stored, if several locations are shown.
        best_metric, score: present instead of the held-out loss if another metric selects the best
            checkpoint.
    """

    name: Required[str]
    path: Required[str]
    problem: Required[str | None]
    where: str
    step: int
    kind: str
    healthy: bool
    held_out_loss: float | None
    best_metric: str
    score: float
    saved: str
    size_bytes: int


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


def list_checkpoints(run: RunDirectory, checkpoint: Path | None, as_json: bool = False) -> ExitCode:
    """Show the checkpoints of a run, the newest first. Only manifests are read."""
    rows = [describe(store, name) for store, name in _chosen(run, checkpoint)]
    facts = {"run": run.run_id, "path": str(run.path), "checkpoints": rows}
    if rows:
        label = _name_scores(run, rows)
        show(as_json, facts, f"Run {run.run_id}", checkpoint_table(rows, label))
    else:
        show(as_json, facts, phrase("commands.no_checkpoint_yet", run_id=run.run_id))
    return ExitCode.DONE


def verify_checkpoints(
    run: RunDirectory, checkpoint: Path | None, as_json: bool = False
) -> ExitCode:
    """Compare every byte of a run's checkpoints with the recorded hashes, and show the result."""
    chosen = list(_chosen(run, checkpoint))
    if not chosen:
        raise InputError("commands.no_checkpoint_to_verify", run_id=run.run_id)
    rows = verify_versions(chosen)
    num_damaged = sum(row["problem"] is not None for row in rows)
    facts = {"run": run.run_id, "checkpoints": rows, "damaged": num_damaged}
    lines = [f"{_name(row)}: {row['problem'] or phrase('commands.version_intact')}" for row in rows]
    num_intact = len(rows) - num_damaged
    verdict = phrase("commands.num_intact", num_intact=num_intact, total=len(rows))
    show(as_json, facts, *lines, verdict)
    return ExitCode.FAILED if num_damaged else ExitCode.DONE


def describe(store: Store, name: str) -> VersionRow:
    """Return a table row for a checkpoint, with the problem if its manifest cannot be read."""
    path = str(store.manifest_path(name))
    try:
        manifest = store.read(name)
    except CheckpointError as error:
        return {"name": name, "path": path, "problem": str(error)}
    return {
        "name": name,
        "path": path,
        "problem": None,
        "step": manifest.step,
        "kind": manifest.kind,
        "healthy": manifest.healthy,
        "held_out_loss": manifest.score,
        "saved": manifest.created,
        "size_bytes": sum(pack.size_bytes for pack in manifest.packs),
    }


def _name_scores(run: RunDirectory, rows: list[VersionRow]) -> str:
    """Return the heading for a run's scores, and put the name of its metric into `rows`.

    Scores of a metric for which greater is better are stored with the opposite sign, which is
    reversed here.
    """
    try:
        training = run.read_configuration().training
    except ValueError:
        return HELD_OUT_LOSS
    if training.best_metric == LOSS:
        return HELD_OUT_LOSS
    for row in rows:
        if (score := row.pop("held_out_loss", None)) is not None:
            row["best_metric"] = training.best_metric
            row["score"] = -score if training.best_is_greater else score
    return training.best_metric.replace("_", " ")


def checkpoint_table(rows: list[VersionRow], label: str = HELD_OUT_LOSS) -> str:
    """Format rows from `describe` as a table.

    Args:
        label: the heading of the column of scores.
    """
    cells = []
    for row in rows:
        if row["problem"]:
            cells.append([row["name"][:12], "damaged", row["problem"], "", ""])
            continue
        kind = row["kind"] if row["healthy"] else f"{row['kind']}, not healthy"
        loss = row.get("score", row.get("held_out_loss"))
        cells.append(
            [
                f"step {row['step']}",
                kind,
                format_moment(row["saved"]),
                NOTHING if loss is None else format_number(loss),
                format_bytes(row["size_bytes"]),
            ]
        )
    return render_table(["checkpoint", "kind", "saved", label, "size"], cells)


def verify_versions(chosen: list[tuple[Store, str]]) -> list[VersionRow]:
    """Verify every byte of the given checkpoints, and return a row with any `problem` for each.

    A file that several checkpoints share is read only once.
    """
    rows = [describe(store, name) for store, name in chosen]
    total_bytes = sum(row.get("size_bytes", 0) for row in rows)
    checked: dict[str, str | None] = {}
    done_bytes = 0
    with byte_bar("verifying") as show_progress:
        for (store, name), row in zip(chosen, rows, strict=True):
            if row["problem"] is not None:
                continue
            manifest = store.read(name)
            for pack in manifest.packs:
                if pack.hash not in checked:
                    checked[pack.hash] = _problem(store, manifest, pack)
                row["problem"] = row["problem"] or checked[pack.hash]
                done_bytes += pack.size_bytes
                show_progress(done_bytes, total_bytes)
    return rows


def _problem(store: Store, manifest: Manifest, pack: Pack) -> str | None:
    try:
        store.objects.verify(pack, manifest.hash_name)
    except CheckpointError as error:
        return str(error)
    return None


def _name(row: VersionRow) -> str:
    """Return the label of a row: its step, or the checkpoint's name if the step is unknown."""
    return f"step {row['step']}" if "step" in row else str(row["name"])[:12]


def _chosen(run: RunDirectory, checkpoint: Path | None) -> Iterator[tuple[Store, str]]:
    if checkpoint is not None:
        yield Store(checkpoint.parent.parent), checkpoint.stem
        return
    store = Store(run.checkpoints)
    for name in store.versions():
        yield store, name
