"""`report.html`: one self-contained page of a run, for people who would rather look.

Needs no network, no script and no drawing package; the page carries a policy that forbids all
three. Works for unfinished and failed runs too, and says what they are. Shows the configuration as
it stands in `run.json`: secrets are taken out before they are written there.
"""

from pathlib import Path

from infrastructure.core.files import write_text
from infrastructure.monitoring.markup import Markup, element, raw_markup
from infrastructure.monitoring.report_curves import holes, points_by_key
from infrastructure.monitoring.report_machine import machine_use
from infrastructure.monitoring.report_sections import (
    before_after,
    configuration,
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
from infrastructure.monitoring.report_style import STYLE
from infrastructure.monitoring.run_facts import RunFacts, read_run_facts

REPORT_FILE = "report.html"
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(run_directory: Path) -> Path:
    """Write `report.html` into the run directory, atomically, and return its path.

    Reads run.json, metrics.jsonl, summary.json, data_report.json and the logs of errors, machine
    and speed; each may be missing.

    Raises:
        ValueError: there is no such directory.
        OSError: the page could not be written.
    """
    path = run_directory / REPORT_FILE
    write_text(path, render_report(read_run_facts(run_directory)))
    return path


def render_report(run: RunFacts) -> str:
    """The whole page as HTML."""
    body = element(
        "main",
        header(run),
        tiles(run),
        notices(run, holes(points_by_key(run.records))),
        errors(run),
        before_after(run),
        example(run),
        curve_section(run),
        machine_use(run.directory),
        data(run),
        next_steps(run),
        safety(run),
        places(run),
        configuration(run),
        machine(run),
        element("footer", "Written by Temper. This page needs nothing but itself."),
    )
    page = element("html", _head(run), element("body", body), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _head(run: RunFacts) -> Markup:
    policy = {"http-equiv": "Content-Security-Policy", "content": CONTENT_POLICY}
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **policy),
        element("meta", **viewport),
        element("title", f"{run.run_id} · Temper"),
        element("style", raw_markup(STYLE)),
    )
