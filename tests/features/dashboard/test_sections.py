"""The parts of the live page: true in every state, and the same text until something happens."""

import gzip
import html
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.dashboard.page import Look
from infrastructure.features.dashboard.sections import run_list, sections_of
from infrastructure.monitoring.drawing.html import Markup
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_rows import RunRow
from infrastructure.monitoring.records.run_view import read_view, view_of
from tests.monitoring.records.test_run_view import STATES, require_texts
from tests.monitoring.report.test_report import Page
from tests.monitoring.written_run import (
    a_training,
    add,
    falling,
    sample,
    step_record,
    system_file,
    write_run,
)


def text_of(run: LiveRun, rows: list[RunRow] | None = None) -> dict[str, str]:
    """The text of each part, as a reader of well-formed HTML sees it."""
    return {
        name: Page(part).all_text for name, part in sections_of(view_of(run), rows or []).items()
    }


def write_backup(directory: Path, text: str) -> None:
    (directory / "checkpoints").mkdir(exist_ok=True)
    (directory / "checkpoints/backup.json").write_text(text)


@STATES
def test_the_page_shows_what_the_other_views_show(
    tmp_path: Path, summary: dict[str, Any], state: str, texts: list[str]
) -> None:
    view = read_view(a_training(tmp_path, **summary))
    require_texts("".join(sections_of(view, []).values()), texts)


def test_nothing_changes_until_something_happens(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *falling(1, 30))
    write_backup(directory, '{"place": "x", "confirmed_step": 20, "saved_at": 1000.0}')
    with closing(LiveRun(directory)) as run:
        first = sections_of(view_of(run), [])
        time.sleep(1.1)
        run.refresh()
        assert sections_of(view_of(run), []) == first
        add(directory, step_record(31))
        run.refresh()
        changed = {
            name for name, part in sections_of(view_of(run), []).items() if part != first[name]
        }
    assert {"progress", "tiles", "curves"} <= changed
    assert not changed & {"configuration", "safety", "errors"}


@pytest.mark.parametrize(
    ("backup", "text"),
    [
        ('{"place": "x", "state": "copying"}', "everything dashboard.nothing_confirmed()"),
        (
            '{"place": "x", "confirmed_step": 20, "saved_at": 1000.0}',
            "dashboard.step_is_safe(step=20)",
        ),
    ],
)
def test_what_would_be_lost_is_a_tile_where_there_is_a_place(
    tmp_path: Path, backup: str, text: str
) -> None:
    directory = write_run(tmp_path)
    with closing(LiveRun(directory)) as run:
        assert "dashboard.at_risk_now" not in text_of(run)["tiles"]
        write_backup(directory, backup)
        run.refresh()
        tiles = text_of(run)["tiles"]
    assert "dashboard.at_risk_now" in tiles
    assert text in tiles


def test_the_machine_is_shown_while_it_works_and_its_curves_afterwards(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *[sample(20 - i) for i in range(20)], file=system_file("system"))
    with closing(LiveRun(directory)) as run:
        machine = text_of(run)["machine"]
        assert "GPU 0 memory 14.0 of 15.0 GiB" in machine
        assert "GPU temperature, °C" in machine
        (directory / "summary.json").write_text('{"status": "finished"}')
        run.refresh()
        machine = text_of(run)["machine"]
    assert "14.0 of 15.0 GiB" not in machine
    assert "GPU temperature, °C" in machine


def test_alerts_show_the_newest_first_and_how_many_there_were(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    alerts = [{"time": 1000.0 + i, "rule": "r", "message": f"number {i}"} for i in range(20)]
    add(directory, *alerts, file=system_file("alerts"))
    with closing(LiveRun(directory)) as run:
        text = text_of(run)["alerts"]
    assert text.startswith("Alertsmonitoring.newest_of_all(shown=8, total=20)")
    assert text.index("number 19") < text.index("number 12")
    assert "number 11" not in text


def test_a_run_before_its_first_step_shows_what_happens(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    (directory / "summary.json").unlink()
    with closing(LiveRun(directory)) as run:
        text = text_of(run)
    assert "Preparing (process " in text["head"]
    assert "dashboard.no_metrics_yet()" in text["head"]
    assert text["progress"] == ""
    assert "monitoring.preparing_before_first_step" in text["curves"]


def test_runs_beside_it_are_listed_and_the_shown_one_is_marked(tmp_path: Path) -> None:
    rows = [RunRow("b", "b", "running", 3, 0.5, None), RunRow("a", "a", "finished", 40, 0.25, 0.5)]
    directory = write_run(tmp_path, "a")
    with closing(LiveRun(directory)) as run:
        page = Page(sections_of(view_of(run), rows)["runs"])
        assert text_of(run, rows[1:])["runs"] == ""
    assert page.all_text.endswith(
        "run step loss held-out loss b running 3 0.5000 a finished 40 0.2500 0.5000"
    )
    boxes = [given for tag, given in page.tags if tag == "input"]
    assert boxes == [
        {
            **{"type": "checkbox", "class": "with", "data-with": "b"},
            **{"aria-label": "compare with b", "title": "compare with b"},
        }
    ]
    links = [given for tag, given in page.tags if tag == "a"]
    assert [link["data-run"] for link in links] == ["b", "a"]
    assert [link.get("aria-current") for link in links] == [None, "true"]


def test_of_many_runs_the_newest_are_listed_and_five_of_them_at_once() -> None:
    rows = [RunRow(f"r{n}", f"run {n}", "finished", 1000 + n, 2.0, None) for n in range(61)]
    first = Page(run_list(rows[:6], "r9"))
    assert (first.count("summary"), first.count("input")) == (1, 6)
    assert "1 earlier runs run 5" in first.all_text
    assert Page(run_list(rows[:5], "r9")).count("summary") == 0
    assert "newest_runs_listed" not in run_list(rows[:60], "r9")
    text = Page(run_list(rows, "r9")).all_text
    assert "55 earlier runsdashboard.newest_runs_listed(shown=60, total=61) run 5" in text
    assert "run 59 finished 1,059 2" in text
    assert "run 60" not in text


def test_a_page_has_all_parts_in_order_and_changes_with_them() -> None:
    look = Look("<t>", {"tiles": Markup("<b>1</b>"), "head": Markup("h")}, 2.5)
    page = Page(look.main)
    ids = [given.get("id") for tag, given in page.tags if tag == "div"]
    assert ids == [
        *("head", "runs", "progress", "tiles", "notices", "alerts", "result", "curves"),
        *("features", "machine", "errors", "safety", "next", "configuration"),
    ]
    assert page.tags[0] == ("main", {"data-title": "<t>", "data-next": "2.5"})
    assert page.all_text == "h 1 dashboard.is_read_only()"
    assert gzip.decompress(look.zipped).decode() == look.main
    versions = {replace(look, title=title).version for title in ("a", "a", "b")}
    assert (len(versions), {len(one) for one in versions}) == (2, {24})
    whole = look.render()
    assert look.main in whole
    for rule in ("connect-src 'self'", "base-uri 'none'", "form-action 'none'"):
        assert html.escape(rule) in whole
