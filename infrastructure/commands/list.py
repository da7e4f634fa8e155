"""`temper list`: show the runs of a folder, one per line, newest first. It does not load torch."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from infrastructure.commands.arguments import add_folder_flags, add_json
from infrastructure.commands.output import show
from infrastructure.commands.settings import configure
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.drawing.tables import HELD_OUT_LOSS, UNKNOWN, render_table
from infrastructure.monitoring.records.live_run import changed_at
from infrastructure.monitoring.records.run_reader import METRICS_FILE
from infrastructure.monitoring.records.run_rows import RunRow, RunRows
from infrastructure.monitoring.records.status_text import STATE_WORDS

HEADINGS = ("run", "state", "step", HELD_OUT_LOSS, "last written", "trains")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_json(parser)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Show the runs of the output folder."""
    config = configure(options)
    folder = Path(config.output_dir)
    rows = [(row, _written_at(folder / row.name)) for row in RunRows(folder).read()]
    runs = [{**asdict(row), "written_at": moment} for row, moment in rows]
    is_missing = config.source("output_dir").layer is Layer.FLAG and not folder.is_dir()
    not_a_folder = phrase("commands.which_is_not_a_folder") if is_missing else ""
    text = phrase("commands.no_run_to_list", folder=folder, not_a_folder=not_a_folder)
    if rows:
        text = render_table(HEADINGS, [_cells(row, moment) for row, moment in rows])
    show(options.json, spell_numbers({"folder": str(folder), "runs": runs}), text)
    return ExitCode.DONE


def _written_at(path: Path) -> float | None:
    """Return the Unix time of the last write to a run's metrics or summary; None if it has
    neither.
    """
    moments = [changed_at(path / name) for name in ("summary.json", METRICS_FILE)]
    return max((moment for moment in moments if moment is not None), default=None)


def _changed_words(steps: Sequence[int]) -> str:
    """Return a text on the steps after which settings were changed; empty if there are none."""
    numbers = ", ".join(f"{step:,}" for step in dict.fromkeys(steps))
    return phrase("commands.changed_after_step", steps=numbers) if steps else ""


def _cells(row: RunRow, moment: float | None) -> list[str]:
    return [
        row.name,
        STATE_WORDS[row.state].lower() + _changed_words(row.changed_after),
        UNKNOWN if row.step is None else f"{row.step:,}",
        UNKNOWN if row.held_out_loss is None else format_number(row.held_out_loss),
        UNKNOWN if moment is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)),
        row.training or UNKNOWN,
    ]
