"""The report's section on the profiled steps."""

from infrastructure.core.json_text import JsonObject, as_integer, as_list, as_number, as_object
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import clip
from infrastructure.monitoring.drawing.html import Markup, element, table
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.report_sections import NOTHING, section

PROFILE_FILE = "logs/performance/profile.json"
MAX_OPERATIONS = 15


def profile_section(view: RunView) -> Markup:
    """Return the operations that took the most time in the profiled steps, or nothing."""
    profile = view["of_features"][PROFILE_FILE]
    try:
        rows = as_list(profile["rows"])[:MAX_OPERATIONS]
        cells = [_operation(as_object(row)) for row in rows]
        first, last, trace = profile["first_step"], profile["last_step"], profile["trace"]
    except (TypeError, KeyError):
        return NOTHING
    heading = phrase("profiler.heading", first=first, last=last)
    where = element("p", phrase("profiler.trace_file", trace=trace), css_class="soft")
    columns = ("operation", "calls", "CPU time", "GPU time")
    return section(heading, table(columns, cells, "numbers"), where)


def _operation(row: JsonObject) -> tuple[str, ...]:
    return (
        clip(str(row["name"]), 80),
        f"{as_integer(row['calls']):,}",
        f"{1000 * as_number(row['processor_seconds']):,.1f} ms",
        f"{1000 * as_number(row['gpu_seconds']):,.1f} ms",
    )
