"""The report's section on the machine during training: curves, numbers, and profiled steps."""

from infrastructure.core.json_text import JsonObject, as_integer, as_list, as_number, as_object
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import Chart, figure
from infrastructure.monitoring.drawing.formatting import clip, format_duration
from infrastructure.monitoring.drawing.html import Markup, element, table
from infrastructure.monitoring.records.machine_history import machine_charts
from infrastructure.monitoring.records.run_view import Machine, RunView
from infrastructure.monitoring.report.report_sections import NOTHING, section

MAX_OPERATIONS = 15


def machine_figures(view: RunView) -> Markup:
    """Return the curves of the machine during training, and a note on pauses, which are not
    drawn.
    """
    curves = view["machine"]["curves"]
    charts = machine_charts(curves)
    figures = [figure(key, chart, _numbers(chart)) for key, chart in charts.items()]
    if not figures:
        return NOTHING
    return element(
        "div", element("div", *figures, css_class="columns three"), _pauses(view["machine"])
    )


def _numbers(chart: Chart) -> str:
    """Return the maximum and the newest value, in the unit of the curve."""
    values = [value for _, value in chart.points]
    shown = chart.format_value
    return f"max {shown(max(values))} · last {shown(values[-1])}"


def _pauses(known: Machine) -> Markup:
    """Return a note on the total duration of pauses, which the time axis leaves out."""
    if not (pauses := known["pauses"]):
        return NOTHING
    how_long = format_duration(sum(end - begin for begin, end in pauses))
    # the number of stops is shown elsewhere: only long gaps are pauses
    text = phrase("monitoring.curves_omit_pauses", duration=how_long)
    return element("p", text, css_class="soft")


def machine_use(view: RunView) -> Markup:
    """Return the report's section on the machine, or nothing if the run was not monitored."""
    known = view["machine"]
    is_quiet = known["is_watched"] and not view["alerts"]
    return section(
        phrase("monitoring.system_metrics_heading"),
        element("p", phrase("monitoring.no_alerts_raised"), css_class="soft")
        if is_quiet
        else NOTHING,
        machine_figures(view),
        _profile(known["profile"]),
    )


def _profile(profile: JsonObject) -> Markup:
    try:
        rows = as_list(profile["rows"])[:MAX_OPERATIONS]
        cells = [_operation(as_object(row)) for row in rows]
        first, last, trace = profile["first_step"], profile["last_step"], profile["trace"]
    except (TypeError, KeyError):
        return NOTHING
    heading = element("h3", phrase("monitoring.profile_heading", first=first, last=last))
    where = element("p", phrase("monitoring.profile_trace_file", trace=trace), css_class="soft")
    columns = ("operation", "calls", "CPU time", "GPU time")
    return element("div", heading, table(columns, cells, "numbers"), where)


def _operation(row: JsonObject) -> tuple[str, ...]:
    return (
        clip(str(row["name"]), 80),
        f"{as_integer(row['calls']):,}",
        f"{1000 * as_number(row['processor_seconds']):,.1f} ms",
        f"{1000 * as_number(row['gpu_seconds']):,.1f} ms",
    )
