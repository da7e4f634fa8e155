"""The parts of the live page, each from a `LiveRun`; what a report has too is the report's.

Nothing in them depends on the moment of the look: ages are `<time>` elements that the page's script
counts up. So a part is the same text until something has happened.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from infrastructure.monitoring.drawing.charts import figure
from infrastructure.monitoring.drawing.curves import curves, holes, single_numbers
from infrastructure.monitoring.drawing.formatting import (
    format_bytes,
    format_duration,
    format_number,
    format_share,
)
from infrastructure.monitoring.drawing.html import Markup, element, joined, raw_markup, table
from infrastructure.monitoring.drawing.tables import held_out_loss
from infrastructure.monitoring.records.live_run import STATES, LiveRun
from infrastructure.monitoring.records.machine_history import Meter
from infrastructure.monitoring.records.run_rows import RunRow
from infrastructure.monitoring.records.status_text import alert_words
from infrastructure.monitoring.report.report_sections import (
    NOTHING,
    before_after,
    configuration,
    errors,
    example,
    next_steps,
    notices,
    safety,
    section,
    subject,
)
from infrastructure.monitoring.report.stack_section import stack_section

MAX_ALERTS = 8
MAX_RUNS = 60
MAX_OPEN_RUNS = 5
BAR_WIDTH = 1000
NUM_SMALL_BUCKETS = 150  # a page that is sent every few seconds is kept small


def sections_of(run: LiveRun, runs: Sequence[RunRow]) -> dict[str, Markup]:
    """The parts of the page in their order, by the ids of the elements that hold them."""
    facts = replace(run.facts, problems=run.problems)
    return {
        "head": head(run),
        "runs": run_list(runs, run.directory.name),
        "progress": progress(run),
        "tiles": tiles(run),
        "notices": notices(facts, holes(run.curves)),
        "alerts": alerts(run),
        "result": joined([before_after(facts), example(facts)]),
        "curves": curve_section(run),
        "stacks": stack_section(run.directory, run.curves),
        "machine": machine(run),
        "errors": errors(facts),
        "safety": safety(facts),
        "next": next_steps(facts) if run.has_ended else NOTHING,
        "configuration": configuration(facts),
    }


def no_run(folder: str) -> dict[str, Markup]:
    """The page before there is a run."""
    title = element("h1", "No run yet")
    text = f"Nothing is in {folder} yet. The first run shows here by itself when it begins."
    how = element("p", "Start one with ", element("code", "temper train DATA"), css_class="soft")
    return {"head": element("header", title, element("p", text, css_class="lead"), how)}


def moment(unix_seconds: float, form: str = "ago") -> Markup:
    """A moment that the page's script keeps telling anew, as `ago` or as a bare `age`."""
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))
    attributes = {"data-at": f"{unix_seconds:.0f}", "data-form": form, "title": local}
    return element("time", local, **attributes)


def head(run: LiveRun) -> Markup:
    """Name, state and how far it is."""
    status = element("span", run.state, css_class=f"status {run.state}")
    parts: list[object] = [element("span", "", css_class=f"pulse {run.state}")]
    if run.changed_at is not None:
        parts += ["last numbers ", moment(run.changed_at)]
    else:
        parts.append("no numbers yet")
    over = element("div", element("span", "Temper"), element("span", *parts), css_class="over")
    clauses = [f"This run {STATES[run.state]}"]
    if run.trainer is not None and not run.has_ended:
        clauses[0] += f" by {run.trainer}"
    if run.is_silent:
        clauses.append("it has said nothing for long")
    return element(
        "header",
        over,
        element("h1", run.facts.title, status),
        element("p", "; ".join(clauses) + ".", css_class="lead"),
        element("p", subject(run.facts), css_class="soft"),
    )


def progress(run: LiveRun) -> Markup:
    """How far it is, as words and as a bar."""
    if run.step is None:
        return NOTHING
    words: list[object] = ["step ", element("b", f"{run.step:,}")]
    if run.total_steps is not None:
        words.append(f" of {run.total_steps:,}")
    times = [f"trained for {format_duration(run.seconds_trained)}"] if run.seconds_trained else []
    if run.seconds_left is not None:
        times.insert(0, f"about {format_duration(run.seconds_left)} of steps left")
    line = element(
        "div", element("span", *words), element("span", " · ".join(times)), css_class="split"
    )
    share = run.share_done
    if share is None:
        return element("section", line, css_class="progress")
    percent = element("span", format_share(share), css_class="percent")
    holder = element("div", bar(share, run.state), percent, css_class="bar-row")
    return element("section", line, holder, css_class="progress")


def bar(share: float, css_class: str) -> Markup:
    """A bar as a picture, because the page's policy allows no style attributes."""
    width = max(0.0, min(1.0, share)) * BAR_WIDTH
    return raw_markup(
        f'<svg class="bar {css_class}" viewBox="0 0 {BAR_WIDTH} 10" preserveAspectRatio="none"'
        f' aria-hidden="true"><rect class="track" width="{BAR_WIDTH}" height="10"/>'
        f'<rect class="fill" width="{width:.1f}" height="10"/></svg>'
    )


def tiles(run: LiveRun) -> Markup:
    """The numbers that people look for first."""
    shown = [tile for tile in [*number_tiles(run), _possible_loss(run)] if tile]
    return element("section", *shown, css_class="tiles") if shown else NOTHING


def number_tiles(run: LiveRun) -> list[Markup]:
    """A tile for each number that is known."""
    last = run.facts.last
    held_out = run.points.get("eval_loss")
    best = (
        min((v for _, v in held_out.kept if math.isfinite(v)), default=None) if held_out else None
    )
    each = run.seconds_per_step
    shown = [
        make_tile("Loss", _formatted(last("loss"), format_number)),
        make_tile(
            _held_out_loss(run), _formatted(_newest(run, "eval_loss"), format_number), _best(best)
        ),
        make_tile("Tokens per second", _formatted(last("tokens_per_second"), _whole)),
        make_tile("Time per step", _formatted(each, format_step_time)),
        make_tile("Tokens", _formatted(last("tokens"), format_number)),
        make_tile("Peak memory", _formatted(last("memory_bytes"), format_bytes)),
    ]
    return [tile for tile in shown if tile]


def _held_out_loss(run: LiveRun) -> str:
    label = held_out_loss(run.facts.config_value("training.loss"))
    return label[:1].upper() + label[1:]


def format_step_time(seconds: float) -> str:
    """Milliseconds below a second: 42 ms, 1.9 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else format_duration(seconds)


def _whole(value: float) -> str:
    return format_number(round(value) if math.isfinite(value) else value)


def _newest(run: LiveRun, key: str) -> float | None:
    points = run.points.get(key)
    return points.last if points else None


def _formatted(value: object, format_value: Callable[[float], str]) -> str | None:
    return str(format_value(value)) if isinstance(value, int | float) else None


def _best(best: float | None) -> str:
    return "" if best is None else f"best {format_number(best)}"


def make_tile(name: str, value: object, more: str = "") -> Markup:
    """A number with its name above and something smaller below; nothing where it is None."""
    if value is None:
        return NOTHING
    shown = [element("div", name, css_class="name"), element("div", value, css_class="value")]
    if more:
        shown.append(element("div", more, css_class="more"))
    return element("div", *shown, css_class="tile")


def _possible_loss(run: LiveRun) -> Markup:
    """The age of the last confirmed copy, where there is a place for copies."""
    copies = run.facts.copies
    if run.has_ended or not copies.get("place"):
        return NOTHING
    saved_at = copies.get("saved_at")
    if copies.get("confirmed_step") is None or not isinstance(saved_at, int | float):
        return make_tile("Would be lost now", "everything", "nothing is confirmed yet")
    return make_tile(
        "Would be lost now", moment(saved_at, "age"), f"step {copies['confirmed_step']} is safe"
    )


def alerts(run: LiveRun) -> Markup:
    """The newest alerts of the monitor, the newest first."""
    newest = list(run.alerts)[-MAX_ALERTS:][::-1]
    if not newest:
        return NOTHING
    rows = []
    for alert in newest:
        at = alert.get("time")
        shown = moment(at) if isinstance(at, int | float) else ""
        style = "soft" if "ended_at" in alert else str(alert.get("severity", ""))
        what = element("span", alert_words(alert), css_class=style)
        rows.append((element("span", shown, css_class="soft"), what))
    more = (
        f" (the newest {MAX_ALERTS} of {len(run.alerts)})" if len(run.alerts) > MAX_ALERTS else ""
    )
    is_alarm = any(alert.get("severity") != "info" and "ended_at" not in alert for alert in newest)
    heading, css_class = ("Alerts", "alerts alarm") if is_alarm else ("Noted", "alerts")
    return element(
        "section", element("h2", f"{heading}{more}"), table((), rows, "stack"), css_class=css_class
    )


def curve_section(run: LiveRun) -> Markup:
    """The curves of the run, or why there are none yet."""
    figures = curves(run.curves, run.evaluated, NUM_SMALL_BUCKETS)
    numbers = single_numbers(run.curves, run.evaluated)
    if not figures and not numbers:
        waits = "Before the first step the model and the data are prepared and measured."
        text = "No step has been logged yet. " + ("" if run.has_ended else waits)
        return section("Curves", element("p", text, css_class="soft"))
    small = element("div", *figures[1:], css_class="columns three") if figures[1:] else NOTHING
    return section("Curves", *figures[:1], small, numbers)


def meters(run: LiveRun) -> Markup:
    """How full the machine is now; nothing when the run has ended."""
    shown = [] if run.has_ended else [_meter(meter) for meter in run.machine.meters()]
    return element("div", *shown, css_class="meters") if shown else NOTHING


def machine(run: LiveRun) -> Markup:
    """How full the machine is now, and its curves over time."""
    figures = [figure(*shown) for shown in run.machine.charts(NUM_SMALL_BUCKETS)]
    parts = [meters(run)]
    if figures:
        parts.append(element("div", *figures, css_class="columns three"))
    return section("Machine", *parts)


def _meter(meter: Meter) -> Markup:
    reading = element("span", meter.text, css_class="soft")
    line = element("div", element("span", meter.name), reading, css_class="split")
    return element("div", line, bar(meter.share, meter.level))


def run_list(runs: Sequence[RunRow], shown: str) -> Markup:
    """All runs of the folder, the newest first; a click shows one, a check mark lays it over."""
    if len(runs) < 2:
        return NOTHING
    rows = [_run_row(row, shown) for row in list(runs)[:MAX_RUNS]]
    headings = ("run", "", "step", "loss", "held out")
    parts = [table(headings, rows[:MAX_OPEN_RUNS], "numbers runs")]
    if earlier := rows[MAX_OPEN_RUNS:]:
        most = f" (the newest {MAX_RUNS} of {len(runs)} are listed)" if len(runs) > MAX_RUNS else ""
        label = element("summary", f"{len(earlier)} earlier runs{most}")
        parts.append(element("details", label, table((), earlier, "numbers runs")))
    return section("Runs in this folder", *parts)


def _run_row(row: RunRow, shown: str) -> tuple[object, ...]:
    is_shown = row.name == shown
    here = {"aria-current": "true"} if is_shown else {}
    link = element("a", row.title, **{"data-run": row.name, "href": "?", "title": row.name}, **here)
    state = element("span", row.status, css_class=f"status {row.status}")
    step = "" if row.step is None else f"{row.step:,}"
    name = joined([NOTHING if is_shown else _overlay_box(row), link])
    return (name, state, step, _number(row.loss), _number(row.held_out_loss))


def _overlay_box(row: RunRow) -> Markup:
    """What lays a run over the one that is shown; seen where the page's script runs."""
    label = f"compare with {row.title}"
    attributes = {"data-with": row.name, "aria-label": label, "title": label}
    return element("input", type="checkbox", css_class="with", **attributes)


def _number(value: float | None) -> str:
    return "" if value is None else format_number(value)
