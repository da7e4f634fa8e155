"""The sections of a report, rendered from the `RunView` of a run. Unknown values are left out."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infrastructure.core.json_text import JsonObject, as_number
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import charts_of, curves
from infrastructure.monitoring.drawing.formatting import (
    blank,
    clip,
    format_bytes,
    format_duration,
    format_share,
    is_number,
)
from infrastructure.monitoring.drawing.html import (
    MAX_TEXT_CHARACTERS,
    Markup,
    as_json,
    element,
    facts,
    raw_markup,
    table,
)
from infrastructure.monitoring.records.run_reader import FINISHED, objects_in
from infrastructure.monitoring.records.run_view import RunView, list_of, mapping_of

HASH, HASH_CHARACTERS = re.compile("[0-9a-f]{64}"), 12
FORECAST_NAMES = {
    "seconds": "time from the first step to the end",
    "peak_memory_bytes": "peak memory of training",
    "disk_bytes": "run directory on disk",
    "backup_bytes": "backup at the destination",
}
STAGE_COLUMNS = ("stage", "time", "share", "description")
MAX_ROWS = 200
MAX_ALERTS = 8
MAX_PREVIEW_CHARACTERS = 50_000
NOTHING = raw_markup("")
HEADING = re.compile(r'<section id="(at-[a-z0-9-]+)"[^>]*><h2>(.*?)</h2>')
MIN_CONTENTS = 4


def section(heading: str, *contents: object, css_class: str | None = None) -> Markup:
    """Return a section of a page with a heading and an anchor; nothing if it has no contents."""
    if not any(contents):
        return NOTHING
    anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    return element(
        "section", element("h2", heading), *contents, id=f"at-{anchor}", css_class=css_class
    )


def contents_of(sections: Sequence[Markup]) -> Markup:
    """Return links to the sections of the page; nothing if it has only few sections."""
    known = [match.groups() for part in sections for match in HEADING.finditer(part)]
    if len(known) < MIN_CONTENTS:
        return NOTHING
    links = [element("a", raw_markup(heading), href=f"#{anchor}") for anchor, heading in known]
    return element("nav", *links, css_class="contents", **{"aria-label": "Contents"})


def header(view: RunView, kind: str = "training report", *more: object) -> Markup:
    """Return the header of a page, with the name and the state of the run.

    Args:
        more: content to show in the top right corner.
    """
    over = element("div", element("span", f"Temper · {kind}"), *more, css_class="over")
    status = element("span", view["state"], css_class=f"status {view['state']}")
    return element(
        "header",
        over,
        element("h1", view["title"], status),
        element("p", view["state_text"], css_class="lead"),
        element("p", view["subject"], css_class="soft"),
    )


def tiles(view: RunView, *more: Markup) -> Markup:
    """Return the most important numbers of a run as large tiles.

    Args:
        more: additional tiles, which only some pages show.
    """
    shown = [
        make_tile(line["name"], line["text"], line.get("before", ""), line.get("more", ""))
        for line in view["headlines"]
    ]
    shown += more
    return element("section", *shown, css_class="tiles") if any(shown) else NOTHING


def make_tile(name: str, text: object, before: str = "", more: object = "") -> Markup:
    """Return a tile: a number, its name above, its earlier value before it, and a detail below."""
    was = element("span", f"{before} → ", css_class="from") if before else ""
    shown = [element("div", name, css_class="name"), element("div", was, text, css_class="value")]
    if more:
        shown.append(element("div", more, css_class="more"))
    return element("div", *shown, css_class="tile")


def moment(unix_seconds: float, form: str = "ago") -> Markup:
    """Return a time as HTML. The live page's script replaces it by its age, as `form` (`ago`,
    `age`) says.
    """
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))
    attributes = {"data-at": f"{unix_seconds:.0f}", "data-form": form, "title": local}
    return element("time", local, **attributes)


def notices(view: RunView) -> Markup:
    """Return the section on the problems of a run: its error, and files that cannot be read."""
    parts: list[Markup] = []
    if error := view["error"]:
        parts.append(element("pre", clip(error, MAX_TEXT_CHARACTERS)))
    if view["problems"]:
        parts.append(element("ul", *[element("li", line) for line in view["problems"]]))
    return section("Problems", *parts, css_class="notice")


def alerts(view: RunView) -> Markup:
    """Return the newest alerts of the monitor, newest first."""
    newest = view["alerts"][-MAX_ALERTS:][::-1]
    rows = []
    for alert in newest:
        at = moment(alert["time"]) if alert["time"] is not None else ""
        style = "soft" if alert["is_over"] else alert["severity"]
        what = element("span", alert["text"], css_class=style)
        rows.append((element("span", at, css_class="soft"), what))
    if not rows:
        return NOTHING
    all_of_them = len(view["alerts"])
    more = ""
    if all_of_them > MAX_ALERTS:
        more = phrase("monitoring.newest_of_all", shown=MAX_ALERTS, total=all_of_them)
    is_alarm = any(alert["severity"] != "info" and not alert["is_over"] for alert in newest)
    heading, css_class = ("Alerts", "alerts alarm") if is_alarm else ("Notices", "alerts")
    return section(f"{heading}{more}", table((), rows, "stack"), css_class=css_class)


def errors(view: RunView) -> Markup:
    """Return the errors from which the run recovered, and the error that ended it."""
    rows = []
    for record in view["errors"]:
        named = record.get("rows")
        of_rows = ", ".join(map(str, named)) if isinstance(named, list) else ""
        texts = (record.get(key, "") for key in ("step", "kind", "message", "action"))
        rows.append([clip(str(text), MAX_TEXT_CHARACTERS) for text in (*texts, of_rows)])
    if not rows:
        return NOTHING
    headings = ("step", "kind", phrase("monitoring.error_message_column"), "action", "rows")
    earlier = view["num_errors"] - len(rows)
    more = (
        element("p", phrase("monitoring.earlier_errors", count=earlier), css_class="soft")
        if earlier
        else ""
    )
    is_over = view["state"] == FINISHED
    title = (
        phrase("monitoring.recovered_errors_heading")
        if is_over
        else phrase("monitoring.errors_and_actions_heading")
    )
    return section(title, table(headings, rows, "stack"), more)


def before_after(view: RunView) -> Markup:
    """Return metrics before and after training, or nothing if none were measured."""
    rows = view["before_after"]
    if not rows:
        return NOTHING
    classes = ["part" if row[0].startswith(" ") else "total" for row in rows]
    cells = [(row[0].strip(), *row[1:]) for row in rows]
    headings = ("", "before", "after", "change")
    return section("Before → after", table(headings, cells, "numbers change", classes))


def example(view: RunView) -> Markup:
    """Return a held-out prompt with its answers before and after training, or nothing."""
    shown = view["example"]
    if not shown:
        return NOTHING
    answers = []
    for key, name in (("expected", "Expected"), ("before", "Before"), ("after", "After")):
        if key in shown:
            heading = element("h3", name, _verdict(shown, key))
            text = _as_text(shown[key]).strip() or blank(_as_text(shown[key]))
            answers.append(element("div", heading, element("pre", text)))
    prompt = element("h3", "Prompt") + element("pre", _as_text(shown.get("prompt", "")))
    three = element("div", *answers, css_class="columns three")
    return section("A generated example", raw_markup(prompt), three)


def _verdict(shown: Mapping[str, object], key: str) -> Markup:
    if key != "after" or "expected" not in shown:
        return NOTHING
    is_right = _as_text(shown[key]).strip() == _as_text(shown["expected"]).strip()
    word, css_class = ("as expected", "good") if is_right else ("differs", "soft")
    return element("span", word, css_class=css_class)


def _as_text(value: object) -> str:
    """Return text unchanged, and a list of messages as `role: content` lines."""
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        lines = [f"{m.get('role', '')}: {m.get('content', '')}" for m in value]
        value = "\n".join(lines)
    return clip(value if isinstance(value, str) else as_json(value), MAX_TEXT_CHARACTERS)


def curve_section(view: RunView) -> Markup:
    """Return the curves of the run, or a note on why there are none yet."""
    figures = curves(charts_of(view["curves"], view["evaluated"]))
    if not figures:
        waits = phrase("monitoring.preparing_before_first_step")
        text = phrase("monitoring.no_step_logged_yet", explanation=waits)
        if view["is_over"]:
            text = phrase("monitoring.ended_before_first_log")
        return section("Curves", element("p", text, css_class="soft"))
    small = element("div", *figures[1:], css_class="columns") if figures[1:] else NOTHING
    return section("Curves", *figures[:1], small)


def changed_under_way(view: RunView) -> Markup:
    """Return the settings and data that changed when the run was resumed, or nothing."""
    rows = [
        (
            f"{entry.get('step')}",
            str(change.get("name")),
            *_before_and_now(change),
            str(change.get("effect", "")),
        )
        for entry in view["history"]
        for change in objects_in(entry.get("changes"))
    ]
    if not rows:
        return NOTHING
    headings = ("after step", "what changed", "from", "to", "effect")
    return section("Changed during the run", table(headings, rows, "stack"))


def _before_and_now(change: Mapping[str, object]) -> Iterator[str]:
    if not change.get("was") and not change.get("is"):  # rows have only a message
        yield from ("", str(change.get("text", "")))
        return
    for key in ("was", "is"):
        text = _exact(change.get(key))
        yield f"{text[:HASH_CHARACTERS]}…" if HASH.fullmatch(text) else text


def data(view: RunView) -> Markup:
    """Return the section on the training data. Data from before a change are collapsed."""
    parts = _data_parts(view["data"])
    earlier = []
    for step, report in view["earlier_data"]:
        summary = element("summary", phrase("monitoring.data_until_step", step=step))
        earlier.append(element("details", summary, *_data_parts(report)))
    if earlier and parts:
        text = f"Since step {view['earlier_data'][-1][0]}:"
        parts = [element("p", text, css_class="soft"), *parts]
    return section("Data", *parts, *earlier)


def _data_parts(known: Mapping[str, object]) -> list[Markup]:
    """Return the sentences on the data (or its facts, if there are no sentences), and a preview of
    the tokens.
    """
    lines, previews = list_of(known.get("lines")), list_of(known.get("preview"))
    items = [element("li", sentence) for sentence in lines[:MAX_ROWS]]
    parts = [element("ul", *items)] if items else [facts(known)] if known else []
    if previews:
        shown = [element("pre", clip(str(text), MAX_PREVIEW_CHARACTERS)) for text in previews]
        summary = element("summary", phrase("monitoring.first_examples_preview"))
        parts.append(element("details", summary, *shown))
    return parts


def configuration(view: RunView) -> Markup:
    """Return the section on the settings. Settings that still have their defaults are collapsed."""
    config = view["config"]
    given = {key: pair for key, pair in config.items() if pair[1] != "default"}
    rest = {key: pair for key, pair in config.items() if key not in given}
    parts = [element("pre", view["command"])] if view["command"] else []
    if given:
        parts.append(_config_table(given))
    if rest:
        label = phrase("monitoring.num_defaults", count=len(rest))
        parts.append(element("details", element("summary", label), _config_table(rest)))
    return section("Configuration", *parts)


def _config_table(values: Mapping[str, tuple[object, str]]) -> Markup:
    rows = [(key, _exact(value), source) for key, (value, source) in values.items()]
    return table(("setting", "value", "source"), rows, "config stack")


def _exact(value: object) -> str:
    """Return the value of a setting as the user would type it."""
    return clip(value if isinstance(value, str) else as_json(value), MAX_TEXT_CHARACTERS)


def software(view: RunView) -> Markup:
    """Return the section on the hardware and the software versions."""
    parts = [
        element("div", element("h3", heading), facts(known))
        for heading, known in (("Hardware", view["hardware"]), ("Versions", view["versions"]))
        if known
    ]
    columns = element("div", *parts, css_class="columns")
    return section("Hardware and versions", columns) if parts else NOTHING


def places(view: RunView) -> Markup:
    """Return the paths of all outputs of the run."""
    rows = [(name, element("code", path), what) for name, path, what in view["paths"]]
    return section("Files", table((), rows, "stack names")) if rows else NOTHING


def safety(view: RunView) -> Markup:
    """Return the section on the backup, including the work that would be lost with this machine."""
    known = view["backup"]
    published = element("pre", known["published"]) if known["published"] else NOTHING
    state = element("p", f"{known['state']}.", css_class="soft")
    return section(phrase("monitoring.backups_heading"), state, published)


def next_steps(view: RunView) -> Markup:
    """Return the commands that the user can run next."""
    lines = [
        part
        for what, line in view["next_steps"]
        for part in (element("p", what), *([element("pre", line)] if line else []))
    ]
    return section(phrase("monitoring.next_steps_heading"), *lines)


def forecast(view: RunView) -> Markup:
    """Return the forecast next to the actual values, and the values measured for `auto`."""
    parts = [part for part in (_compared(view["forecast"]), _decided(view["decided"])) if part]
    return section("Forecast", *parts)


def _compared(forecast: Sequence[Mapping[str, Any]]) -> Markup | None:
    rows = [
        (_forecast_name(row), _shown(row, "foretold"), _shown(row, "was"), _error(row["error"]))
        for row in forecast
        if row.get("what") in FORECAST_NAMES and _is_whole(row)
    ]
    return table(("", "forecast", "actual", "error"), rows, "numbers forecast") if rows else None


def _forecast_name(row: Mapping[str, Any]) -> str:
    """Return the name of a forecast quantity, with its first step if the run was resumed."""
    if row["what"] == "seconds" and row.get("first_step"):
        return phrase("monitoring.forecast_time_since_resume", step=row["first_step"])
    return FORECAST_NAMES[row["what"]]


def _decided(decided: Mapping[str, object]) -> Markup | None:
    rows = [
        (key, str(mapping_of(decision).get("value")), str(mapping_of(decision).get("origin")))
        for key, decision in decided.items()
    ]
    return table(("setting", "value", "decided by"), rows) if rows else None


def _is_whole(row: Mapping[str, object]) -> bool:
    return all(isinstance(row.get(name), int | float) for name in ("foretold", "was", "error"))


def _shown(row: Mapping[str, Any], name: str) -> str:
    shown = format_duration if row["what"] == "seconds" else format_bytes
    return shown(row[name])


def _error(share: float) -> str:
    return ("+" if share >= 0 else "") + format_share(share)


def stages(view: RunView) -> Markup:
    """Return the duration of each stage of the run's last process, or nothing if not recorded."""
    whole = [record for record in view["stages"] if is_number(record.get("seconds"))]
    total = sum(as_number(record["seconds"]) for record in whole)
    if not total:
        return NOTHING
    rows = [_stage_row(record, total) for record in whole]
    since = phrase("monitoring.since_last_resume") if view["num_sessions"] > 1 else ""
    return section(
        phrase("monitoring.timing_heading", since=since), table(STAGE_COLUMNS, rows, "stages")
    )


def _stage_row(record: JsonObject, total: float) -> tuple[str, ...]:
    seconds, what = as_number(record["seconds"]), str(record.get("what", ""))
    ended = f" (ended by {record['error']})" if "error" in record else ""
    share = f"{100 * seconds / total:.0f}%"
    return str(record.get("name", "")), format_duration(seconds), share, what + ended
