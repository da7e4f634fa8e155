"""The report's section on the stages of a run, from summary.json; see `run.timings`."""

from infrastructure.core.json_text import JsonObject, as_number
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_duration, is_number
from infrastructure.monitoring.drawing.html import Markup, raw_markup, table
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.report_sections import section

COLUMNS = ("stage", "time", "share", "description")


def stages(view: RunView) -> Markup:
    """Return the duration of each stage of the run's last process, or nothing if not recorded."""
    whole = [record for record in view["stages"] if is_number(record.get("seconds"))]
    total = sum(as_number(record["seconds"]) for record in whole)
    if not total:
        return raw_markup("")
    rows = [_row(record, total) for record in whole]
    since = phrase("monitoring.since_last_resume") if view["num_sessions"] > 1 else ""
    return section(phrase("monitoring.timing_heading", since=since), table(COLUMNS, rows, "stages"))


def _row(record: JsonObject, total: float) -> tuple[str, ...]:
    seconds, what = as_number(record["seconds"]), str(record.get("what", ""))
    ended = f" (ended by {record['error']})" if "error" in record else ""
    share = f"{100 * seconds / total:.0f} %"
    return str(record.get("name", "")), format_duration(seconds), share, what + ended
