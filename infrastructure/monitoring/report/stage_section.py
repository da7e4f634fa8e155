"""The report's section on the stages of a run, from summary.json; see `run.timings`."""

from dataclasses import dataclass

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.monitoring.drawing.html import Markup, raw_markup, table
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.report_sections import section

COLUMNS = ("stage", "time", "share", "description")


@dataclass(frozen=True)
class _Stage:
    name: str
    seconds: float
    what: str

    @classmethod
    def of(cls, record: JsonObject) -> "_Stage | None":
        """Return the stage in a record, or None if the record is damaged or not understood."""
        seconds = record.get("seconds")
        if "name" not in record or not isinstance(seconds, int | float) or seconds < 0:
            return None
        ended = f" (ended by {record['error']})" if "error" in record else ""
        return cls(str(record["name"]), seconds, str(record.get("what", "")) + ended)


def stages(view: RunView) -> Markup:
    """Return the duration of each stage of the last session, or nothing if it is not recorded."""
    whole = [one for record in view["stages"] if (one := _Stage.of(record)) is not None]
    total = sum(one.seconds for one in whole)
    if not total:
        return raw_markup("")
    rows = [
        (one.name, format_duration(one.seconds), f"{100 * one.seconds / total:.0f} %", one.what)
        for one in whole
    ]
    since = phrase("monitoring.since_last_resume") if view["num_sessions"] > 1 else ""
    return section(phrase("monitoring.timing_heading", since=since), table(COLUMNS, rows, "stages"))
