"""The parts of the live page, rendered from the `RunView` of a run. The report shares some of them.

A part changes only if the run changes, not with the time of the request, because ages are `<time>`
elements that the page's script updates.
"""

from collections.abc import Sequence
from pathlib import Path

from infrastructure.core.features import all_of
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.html import Markup, element, joined, table
from infrastructure.monitoring.records.run_rows import RunRow
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.live_parts import meters, progress
from infrastructure.monitoring.report.report_machine import machine_figures
from infrastructure.monitoring.report.report_sections import (
    NOTHING,
    alerts,
    before_after,
    configuration,
    curve_section,
    errors,
    example,
    header,
    make_tile,
    moment,
    next_steps,
    notices,
    safety,
    section,
    tiles,
)

MAX_RUNS = 60
MAX_OPEN_RUNS = 5


def sections_of(view: RunView, runs: Sequence[RunRow]) -> dict[str, Markup]:
    """Return the parts of the page in order, by the IDs of the elements that contain them."""
    return {
        "head": header(view, "live", _pulse(view)),
        "runs": run_list(runs, Path(view["directory"]).name),
        "progress": progress(view),
        "tiles": tiles(view, *_possible_loss(view)),
        "notices": notices(view),
        "alerts": alerts(view),
        "result": joined([before_after(view), example(view)]),
        "curves": curve_section(view),
        "features": joined([make(view) for make in all_of("live")]),
        "machine": section("Machine", meters(view), machine_figures(view)),
        "errors": errors(view),
        "safety": safety(view),
        "next": next_steps(view) if view["is_over"] else NOTHING,
        "configuration": configuration(view),
    }


def no_run(folder: str) -> dict[str, Markup]:
    """Return the page to show while the folder contains no run."""
    title = element("h1", phrase("monitoring.no_run_yet"))
    text = phrase("dashboard.empty", folder=folder)
    how = element("p", "Start one with ", element("code", "temper train DATA"), css_class="soft")
    return {"head": element("header", title, element("p", text, css_class="lead"), how)}


def _pulse(view: RunView) -> Markup:
    """Return an indicator of whether the run is alive, with the time of its last metrics."""
    written = view["written_at"]
    text = (
        phrase("dashboard.no_metrics_yet")
        if written is None
        else joined(["last numbers ", moment(written)])
    )
    return element("span", element("span", "", css_class=f"pulse {view['state']}"), text)


def _possible_loss(view: RunView) -> list[Markup]:
    """Return the age of the last confirmed backup; nothing if there is no backup destination."""
    known = view["backup"]
    if view["is_over"] or known["place"] is None:
        return []
    name, step, saved_at = (
        phrase("dashboard.at_risk_now"),
        known["confirmed_step"],
        known["saved_at"],
    )
    if step is None or saved_at is None:
        return [make_tile(name, "everything", more=phrase("dashboard.nothing_confirmed"))]
    return [
        make_tile(name, moment(saved_at, "age"), more=phrase("dashboard.step_is_safe", step=step))
    ]


def run_list(runs: Sequence[RunRow], shown: str) -> Markup:
    """Return a list of all runs of the folder, the newest first.

    A click on a run shows it. The check box of a run adds its curves to those of the shown run.
    """
    if len(runs) < 2:
        return NOTHING
    rows = [_run_row(row, shown) for row in list(runs)[:MAX_RUNS]]
    headings = ("run", "", "step", "loss", "held-out loss")
    parts = [table(headings, rows[:MAX_OPEN_RUNS], "numbers runs")]
    if earlier := rows[MAX_OPEN_RUNS:]:
        most = (
            phrase("dashboard.newest_runs_listed", shown=MAX_RUNS, total=len(runs))
            if len(runs) > MAX_RUNS
            else ""
        )
        label = element("summary", f"{len(earlier)} earlier runs{most}")
        parts.append(element("details", label, table((), earlier, "numbers runs")))
    return section(phrase("monitoring.runs_heading"), *parts)


def _run_row(row: RunRow, shown: str) -> tuple[object, ...]:
    is_shown = row.name == shown
    here = {"aria-current": "true"} if is_shown else {}
    link = element("a", row.title, **{"data-run": row.name, "href": "?", "title": row.name}, **here)
    state = element("span", row.state, css_class=f"status {row.state}")
    step = "" if row.step is None else f"{row.step:,}"
    name = joined([NOTHING if is_shown else _overlay_box(row), link])
    return (name, state, step, _number(row.loss), _number(row.held_out_loss))


def _overlay_box(row: RunRow) -> Markup:
    """Return the check box for comparing a run. It is visible only if the page's script runs."""
    label = f"compare with {row.title}"
    attributes = {"data-with": row.name, "aria-label": label, "title": label}
    return element("input", type="checkbox", css_class="with", **attributes)


def _number(value: float | None) -> str:
    return "" if value is None else format_number(value)
