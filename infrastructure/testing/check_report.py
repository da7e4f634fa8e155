"""The report of the checks: an HTML page for the user, and JSON for programs."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infrastructure.core.files import write_json, write_text
from infrastructure.monitoring.drawing.html import Markup, element, facts
from infrastructure.monitoring.drawing.html_page import page
from infrastructure.monitoring.report.check_section import check_tables
from infrastructure.testing.results import CheckResult, count, has_failed, verdict
from infrastructure.testing.subject import Subject
from infrastructure.training.resume.fingerprint import installed_versions

HTML, JSON = "report.html", "report.json"


def describe_subject(subject: Subject) -> dict[str, object]:
    """Return a description of what is checked: model, data, precision, device, versions."""
    trainer = subject.trainer
    return {
        "model": subject.adapter.describe(),
        "data": trainer.data_config.path,
        "num_examples": subject.data.num_examples,
        "data_fingerprint": subject.data.fingerprint,
        "precision": trainer.precision.name,
        "device": str(subject.device),
        "versions": installed_versions(),
    }


def report_of(results: Sequence[CheckResult], about: Mapping[str, object]) -> dict[str, object]:
    """Return the whole report as JSON values."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "verdict": verdict(results),
        "passed": not has_failed(results),
        "counts": count(results),
        "checks": [result.to_dict() for result in results],
        "about": dict(about),
    }


def write_check_report(
    folder: Path, results: Sequence[CheckResult], about: Mapping[str, object]
) -> dict[str, object]:
    """Write the report as HTML and as JSON into `folder`, which is created if necessary.

    Returns:
        The content of the JSON file, and the `paths` of both files.

    Raises:
        OSError: a file cannot be written.
    """
    report = report_of(results, about)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JSON, report)
    write_text(folder / HTML, render_check_report(report))
    return {**report, "paths": {"html": str(folder / HTML), "json": str(folder / JSON)}}


def render_check_report(report: Mapping[str, Any]) -> str:
    """Return the report as a self-contained HTML page."""
    outcome = "finished" if report["passed"] else "failed"
    word = "passed" if report["passed"] else "failed"
    header = element(
        "header",
        element("div", "Temper · checks", css_class="over"),
        element("h1", "Checks", element("span", word, css_class=f"status {outcome}")),
        element("p", report["verdict"], css_class="lead"),
        element("p", f"made {report['created']}", css_class="soft"),
    )
    return page("Checks · Temper", header, *check_tables(report["checks"]), _about(report))


def _about(report: Mapping[str, Any]) -> Markup:
    return element("section", element("h2", "What was checked"), facts(report["about"]))
