"""The report's section on the machine during training: curves and numbers."""

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import Chart, figure
from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.monitoring.drawing.html import Markup, element
from infrastructure.monitoring.records.machine_history import machine_charts
from infrastructure.monitoring.records.run_view import Machine, RunView
from infrastructure.monitoring.report.report_sections import NOTHING, section


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
    )
