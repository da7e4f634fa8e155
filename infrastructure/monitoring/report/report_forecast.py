"""The report's section on the forecast before the first step, and on the values chosen then."""

from collections.abc import Mapping, Sequence
from typing import Any

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration, format_share
from infrastructure.monitoring.drawing.html import Markup, joined, table
from infrastructure.monitoring.records.run_view import RunView, mapping_of
from infrastructure.monitoring.report.report_sections import section

NAMES = {
    "seconds": "time from the first step to the end",
    "peak_memory_bytes": "peak memory of training",
    "disk_bytes": "run directory on disk",
    "backup_bytes": "backup at the destination",
}


def forecast(view: RunView) -> Markup:
    """Return the forecast next to the actual values, and the values measured for `auto`."""
    parts = [part for part in (_compared(view["forecast"]), _decided(view["decided"])) if part]
    return section("Forecast", *parts) if parts else joined(())


def _compared(forecast: Sequence[Mapping[str, Any]]) -> Markup | None:
    rows = [
        (_name(row), _shown(row, "foretold"), _shown(row, "was"), _error(row["error"]))
        for row in forecast
        if row.get("what") in NAMES and _is_whole(row)
    ]
    return table(("", "forecast", "actual", "error"), rows, "numbers forecast") if rows else None


def _name(row: Mapping[str, Any]) -> str:
    """Return the name of a forecast quantity, with its first step if the run was resumed."""
    if row["what"] == "seconds" and row.get("first_step"):
        return phrase("monitoring.forecast_time_since_resume", step=row["first_step"])
    return NAMES[row["what"]]


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
