"""The report's section on what was foretold before the first step, and what was decided then."""

from collections.abc import Mapping
from typing import Any

from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration, format_share
from infrastructure.monitoring.drawing.html import Markup, joined, table
from infrastructure.monitoring.records.run_reader import RunFacts
from infrastructure.monitoring.report.report_sections import mapping_of, section

NAMES = {
    "seconds": "time from the first step to the end",
    "peak_memory_bytes": "highest memory of the training",
    "disk_bytes": "run directory on the disk",
    "backup_bytes": "backup at its place",
}


def forecast(run: RunFacts) -> Markup:
    """Forecast beside truth, and the values that were measured for `auto`."""
    parts = [part for part in (_compared(run.summary), _decided(run.run)) if part]
    return section("Forecast", *parts) if parts else joined(())


def _compared(summary: Mapping[str, object]) -> Markup | None:
    forecast = summary.get("forecast")
    rows = [
        (NAMES[row["what"]], _shown(row, "foretold"), _shown(row, "was"), _error(row["error"]))
        for row in (forecast if isinstance(forecast, list) else [])
        if isinstance(row, dict) and row.get("what") in NAMES and _is_whole(row)
    ]
    return table(("", "foretold", "was", "error"), rows) if rows else None


def _decided(run: Mapping[str, object]) -> Markup | None:
    rows = [
        (key, str(mapping_of(decision).get("value")), str(mapping_of(decision).get("origin")))
        for key, decision in mapping_of(run.get("decided")).items()
    ]
    return table(("setting", "value", "decided"), rows) if rows else None


def _is_whole(row: Mapping[str, object]) -> bool:
    return all(isinstance(row.get(name), int | float) for name in ("foretold", "was", "error"))


def _shown(row: Mapping[str, Any], name: str) -> str:
    shown = format_duration if row["what"] == "seconds" else format_bytes
    return shown(row[name])


def _error(share: float) -> str:
    return ("+" if share >= 0 else "") + format_share(share)
