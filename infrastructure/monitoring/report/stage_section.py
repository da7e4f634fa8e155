"""The stages of a run on its page, from summary.json: see `run.timings`."""

from collections.abc import Mapping

from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.monitoring.drawing.html import Markup, element, raw_markup, table
from infrastructure.monitoring.records.run_reader import RunFacts

COLUMNS = ("stage", "time", "share", "what is done")


def stages(run: RunFacts) -> Markup:
    """How long each stage of the run's last process took; nothing where it did not say."""
    records = run.summary.get("stages")
    known = [one for one in records if _is_stage(one)] if isinstance(records, list) else []
    total = sum(one["seconds"] for one in known)
    if not total:
        return raw_markup("")
    rows = [
        (
            str(one["name"]),
            format_duration(one["seconds"]),
            f"{100 * one['seconds'] / total:.0f} %",
            str(one.get("what", "")) + (f" (ended by {one['error']})" if "error" in one else ""),
        )
        for one in known
    ]
    return element("section", element("h2", "What took how long"), table(COLUMNS, rows))


def _is_stage(one: object) -> bool:
    """Files may be damaged, and of later versions."""
    return (
        isinstance(one, Mapping)
        and isinstance(one.get("seconds"), int | float)
        and one["seconds"] >= 0
        and "name" in one
    )
