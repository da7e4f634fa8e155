"""`report.html`: one self-contained page of a run, for people who would rather look.

Needs no network and no drawing package; the page's policy forbids the network and any script but
ours, which makes the charts answer. Works for unfinished and failed runs too, and says what they
are. Shows the configuration as it stands in `run.json`: secrets are taken out before they are
written there.
"""

from pathlib import Path

from infrastructure.core.files import write_text
from infrastructure.monitoring.drawing.curves import holes, points_by_key
from infrastructure.monitoring.drawing.html_page import page
from infrastructure.monitoring.records.run_reader import FINISHED, RunFacts, read_run_facts
from infrastructure.monitoring.report.check_section import checks
from infrastructure.monitoring.report.quantum_section import quantum_steps
from infrastructure.monitoring.report.report_forecast import forecast
from infrastructure.monitoring.report.report_machine import machine_use
from infrastructure.monitoring.report.report_sections import (
    NOTHING,
    before_after,
    configuration,
    contents_of,
    curve_section,
    data,
    errors,
    example,
    header,
    machine,
    next_steps,
    notices,
    places,
    safety,
    tiles,
)
from infrastructure.monitoring.report.stack_section import stack_section
from infrastructure.monitoring.report.stage_section import stages

REPORT_FILE = "report.html"


def write_report(run_directory: Path) -> Path:
    """Write `report.html` into the run directory, atomically, and return its path.

    Reads run.json, metrics.jsonl, summary.json, quantum.json, comparison.json, stackwise.json,
    data_report.json and the logs of errors, machine and speed; each may be missing.

    Raises:
        ValueError: there is no such directory.
        OSError: the page could not be written.
    """
    path = run_directory / REPORT_FILE
    write_text(path, render_report(read_run_facts(run_directory)))
    return path


def render_report(run: RunFacts) -> str:
    """The whole page as HTML: of a finished run its result is first, of another what stopped it."""
    got_over = errors(run)
    is_finished = run.status == FINISHED
    first = [
        tiles(run),
        notices(run, holes(points_by_key(run.records))),
        NOTHING if is_finished else got_over,
    ]
    sections = [
        before_after(run),
        example(run),
        curve_section(run),
        got_over if is_finished else NOTHING,
        stack_section(run.directory, points_by_key(run.records)),
        quantum_steps(run.directory),
        machine_use(run.directory),
        checks(run.directory),
        data(run),
        next_steps(run),
        safety(run),
        places(run),
        forecast(run),
        configuration(run),
        machine(run),
        stages(run),
    ]
    listed = contents_of([*first, *sections])
    return page(f"{run.title} · Temper", header(run), *first, listed, *sections)
