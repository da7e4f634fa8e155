"""The stages of a run on its page, from summary.json: see `run.timings`."""

from dataclasses import dataclass

from infrastructure.core.json_text import JsonValue
from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.monitoring.drawing.html import Markup, raw_markup, table
from infrastructure.monitoring.records.run_reader import RunFacts
from infrastructure.monitoring.report.report_sections import section

COLUMNS = ("stage", "time", "share", "what is done")


@dataclass(frozen=True)
class _Stage:
    name: str
    seconds: float
    what: str

    @classmethod
    def of(cls, record: JsonValue) -> "_Stage | None":
        """None where the file is damaged, or of a later version."""
        if not isinstance(record, dict) or "name" not in record:
            return None
        seconds = record.get("seconds")
        if not isinstance(seconds, int | float) or seconds < 0:
            return None
        ended = f" (ended by {record['error']})" if "error" in record else ""
        return cls(str(record["name"]), seconds, str(record.get("what", "")) + ended)


def stages(run: RunFacts) -> Markup:
    """How long each stage of the run's last process took; nothing where it did not say."""
    records = run.summary.get("stages")
    known = [_Stage.of(one) for one in records] if isinstance(records, list) else []
    whole = [one for one in known if one is not None]
    total = sum(one.seconds for one in whole)
    if not total:
        return raw_markup("")
    rows = [
        (one.name, format_duration(one.seconds), f"{100 * one.seconds / total:.0f} %", one.what)
        for one in whole
    ]
    return section("What took how long", table(COLUMNS, rows))
