"""`report.html`: one self-contained page of a run.

The report needs neither network nor a plotting package. The page's policy forbids the network and
any script except Temper's, which makes the charts interactive. For an unfinished or failed run, the
report states this. It shows the configuration from `run.json`, from which secrets are already
removed.
"""

from pathlib import Path

from infrastructure.core.features import all_of
from infrastructure.core.files import write_text
from infrastructure.monitoring.drawing.html_page import page
from infrastructure.monitoring.records.run_reader import FINISHED
from infrastructure.monitoring.records.run_view import RunView, read_view
from infrastructure.monitoring.report.check_section import checks
from infrastructure.monitoring.report.report_machine import machine_use
from infrastructure.monitoring.report.report_sections import (
    alerts,
    before_after,
    changed_under_way,
    configuration,
    contents_of,
    curve_section,
    data,
    errors,
    example,
    forecast,
    header,
    next_steps,
    notices,
    places,
    safety,
    software,
    stages,
    tiles,
)

REPORT_FILE = "report.html"
RESULT = (before_after, example, curve_section)
TROUBLE = (alerts, errors)
REST = (
    *(machine_use, checks, changed_under_way, data, next_steps),
    *(safety, places, forecast, configuration, software, stages),
)


def write_report(run_directory: Path) -> Path:
    """Write `report.html` into the run directory, atomically, and return its path.

    Raises:
        ValueError: if there is no such directory.
        OSError: if the page could not be written.
    """
    path = run_directory / REPORT_FILE
    write_text(path, render_report(read_view(run_directory)))
    return path


def render_report(view: RunView) -> str:
    """Return the whole page as HTML.

    The page begins with the result if the run is finished, and otherwise with the reason why it
    stopped.
    """
    is_finished = view["state"] == FINISHED
    order = [*RESULT, *TROUBLE] if is_finished else [*TROUBLE, *RESULT]
    first = [tiles(view), notices(view)]
    sections = [make(view) for make in (*order, *all_of("report"), *REST)]
    listed = contents_of([*first, *sections])
    return page(f"{view['title']} · Temper", header(view), *first, listed, *sections)
