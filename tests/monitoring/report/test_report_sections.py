"""Each section of a report, from the facts that it shows; `test_report` has the whole page."""

import re
import time
from typing import Any

import pytest

from infrastructure.monitoring.drawing.html import Markup
from infrastructure.monitoring.report import report_sections as sections
from infrastructure.monitoring.report.report_sections import contents_of, moment, section


def cells(markup: str) -> list[str]:
    """Return the texts between the tags."""
    return [text for text in re.split(r"<[^>]+>", markup) if text]


def test_a_section_has_an_anchor_and_a_page_of_four_has_links() -> None:
    assert section("A", "", Markup("")) == ""
    first = section("After – step 3!", "x", css_class="c")
    assert first == '<section id="at-after-step-3" class="c"><h2>After – step 3!</h2>x</section>'
    parts = [first, section("B & c", "x"), Markup(""), section("D", "x"), section("E", "x")]
    assert contents_of(parts[:4]) == ""
    assert contents_of(parts) == (
        '<nav class="contents" aria-label="Contents"><a href="#at-after-step-3">After – step 3!</a>'
        '<a href="#at-b-c">B &amp; c</a><a href="#at-d">D</a><a href="#at-e">E</a></nav>'
    )


def test_the_header_has_the_state_of_the_run() -> None:
    view: Any = {"state": "failed", "title": "T", "state_text": "S.", "subject": "on rows"}
    assert sections.header(view, "live", "more") == (
        '<header><div class="over"><span>Temper · live</span>more</div>'
        '<h1>T<span class="status failed">failed</span></h1>'
        '<p class="lead">S.</p><p class="soft">on rows</p></header>'
    )
    assert cells(sections.header(view))[0] == "Temper · training report"


def test_a_tile_has_the_value_before_and_a_detail() -> None:
    line = {"name": "Loss", "text": "1", "before": "2", "more": "best"}
    view: Any = {"headlines": [line, {"name": "Tokens", "text": "3"}]}
    assert sections.tiles(view, Markup("<i></i>")) == (
        '<section class="tiles"><div class="tile"><div class="name">Loss</div>'
        '<div class="value"><span class="from">2 → </span>1</div><div class="more">best</div></div>'
        '<div class="tile"><div class="name">Tokens</div><div class="value">3</div></div>'
        "<i></i></section>"
    )
    assert sections.tiles({**view, "headlines": []}, Markup("")) == ""


def test_a_moment_can_be_replaced_by_its_age() -> None:
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1000.6))
    assert [moment(1000.6), moment(1000.6, "age")] == [
        f'<time data-at="1001" data-form="{form}" title="{local}">{local}</time>'
        for form in ("ago", "age")
    ]


def test_problems_are_listed_below_the_error() -> None:
    view: Any = {"error": "x" * 4001, "problems": ["a", "b"]}
    shown = cells(sections.notices(view))
    assert shown == ["Problems", f"{'x' * 4000} … (1 more characters)", "a", "b"]
    assert sections.notices({**view, "error": None, "problems": []}) == ""


@pytest.mark.parametrize(
    ("severity", "is_over", "heading", "style"),
    [
        ("warning", False, "Alerts", "warning"),
        ("warning", True, "Notices", "soft"),
        ("info", False, "Notices", "info"),
    ],
)
def test_alerts_to_act_on_are_no_notices(
    severity: str, is_over: bool, heading: str, style: str
) -> None:
    alert = {"time": None, "severity": severity, "is_over": is_over, "text": "new"}
    others = [{**alert, "time": 5.0, "severity": "info", "text": f"{n}"} for n in range(7)]
    view: Any = {"alerts": [*others, alert]}
    shown = sections.alerts(view)
    moments = cells(moment(5.0))
    rows = [text for n in range(6, -1, -1) for text in (*moments, f"{n}")]
    assert cells(shown) == [heading, "new", *rows]
    assert f'<span class="{style}">new</span>' in shown
    assert ('class="alerts alarm"' in shown) == (heading == "Alerts")
    view["alerts"].insert(0, {**alert, "severity": "critical", "is_over": False})
    of_all = cells(sections.alerts(view))
    assert of_all[:2] == [f"{heading}monitoring.newest_of_all(shown=8, total=9)", "new"]


def test_errors_are_listed_with_their_rows_and_earlier_ones_are_counted() -> None:
    first = {"step": 7, "kind": "spike", "message": "x" * 4001, "action": "went back"}
    view: Any = {"state": "running", "errors": [{**first, "rows": ["a:1", 2]}, {"rows": 3}]}
    view["num_errors"] = 5
    shown = cells(sections.errors(view))
    columns = ["step", "kind", "monitoring.error_message_column()", "action", "rows"]
    message = f"{'x' * 4000} … (1 more characters)"
    assert shown == [
        *("monitoring.errors_and_actions_heading()", *columns, "7", "spike", message),
        *("went back", "a:1, 2", "monitoring.earlier_errors(count=3)"),
    ]
    finished = cells(sections.errors({**view, "state": "finished", "num_errors": 2}))
    assert (finished[0], finished[-1]) == ("monitoring.recovered_errors_heading()", "a:1, 2")
    assert sections.errors({**view, "errors": []}) == ""


def test_a_part_stands_below_its_whole() -> None:
    rows = [("mean reward (higher is better)", "1", "2", "+1"), ("  sort", "3", "4", "")]
    view: Any = {"before_after": rows}
    shown = sections.before_after(view)
    assert shown[shown.index("<tbody>") :].startswith(
        '<tbody><tr class="total"><td>mean reward (higher is better)</td><td>1</td><td>2</td>'
        "<td>+1</td>"
        '</tr><tr class="part"><td>sort</td><td>3</td><td>4</td><td></td></tr></tbody>'
    )
    assert cells(shown)[:4] == ["Before → after", "before", "after", "change"]


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        (
            {"prompt": [{"role": "user", "content": "hi"}], "expected": "a", "after": " b"},
            ["user: hi", "Expected", "a", "After", "differs", "b"],
        ),
        ({"prompt": 3, "after": "\n"}, ["3", "After", "(only white space)"]),
        (
            {"prompt": "p", "before": "", "after": " a", "expected": "a "},
            ["p", "Expected", "a", "Before", "(empty answer)", "After", "as expected", "a"],
        ),
    ],
)
def test_an_example_has_its_prompt_and_its_answers(example: Any, shown: list[str]) -> None:
    view: Any = {"example": example}
    assert cells(sections.example(view)) == ["A generated example", "Prompt", *shown]


def test_curves_are_awaited_until_the_run_is_over() -> None:
    view: Any = {"curves": {}, "evaluated": [], "is_over": False}
    waits = "monitoring.preparing_before_first_step()"
    assert cells(sections.curve_section(view)) == [
        "Curves",
        f"monitoring.no_step_logged_yet(explanation={waits})",
    ]
    over = sections.curve_section({**view, "is_over": True})
    assert cells(over) == ["Curves", "monitoring.ended_before_first_log()"]
    points = [(1.0, 0.5)]
    for keys, num_columns in ((["loss"], 0), (["loss", "grad_norm"], 1)):
        shown = sections.curve_section({**view, "curves": dict.fromkeys(keys, points)})
        assert (shown.count("<figure"), shown.count('class="columns"')) == (len(keys), num_columns)


def test_changes_are_listed_with_the_step_after_which_they_count() -> None:
    changes = [
        {"name": "lr", "was": 0.1, "is": {"a": 1}, "effect": "loss"},
        {"name": "data", "was": "a" * 64, "is": "b" * 65},
        {"name": "rows", "text": "two rows fewer"},
        {"name": "seed", "was": None, "is": 0},
        3,
    ]
    view: Any = {"history": [{"step": 6, "changes": changes}, {"step": 7}]}
    shown = sections.changed_under_way(view)
    assert cells(shown[: shown.index("<tbody>")]) == [
        *("Changed during the run", "after step", "what changed", "from", "to", "effect")
    ]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in shown.split("<tr>")[2:]]
    assert rows == [
        ["6", "lr", "0.1", "{&quot;a&quot;: 1}", "loss"],
        ["6", "data", f"{'a' * 12}…", "b" * 65, ""],
        ["6", "rows", "", "two rows fewer", ""],
        ["6", "seed", "", "", ""],
    ]


def test_data_are_shown_by_sentences_or_by_facts_and_with_a_preview() -> None:
    of_facts = {"num_rows": 3, "preview": ["x" * 50_001]}
    lines = [f"line {number}" for number in range(201)]
    view: Any = {"data": of_facts, "earlier_data": [(4, {}), (9, {"lines": lines})]}
    assert cells(sections.data(view)) == [
        *(
            "Data",
            "Since step 9:",
            "rows",
            "3",
            "preview",
            f"{'x' * 4000} … (46,001 more characters)",
        ),
        *("monitoring.first_examples_preview()", f"{'x' * 50_000} … (1 more characters)"),
        *("monitoring.data_until_step(step=4)", "monitoring.data_until_step(step=9)", *lines[:200]),
    ]
    assert cells(sections.data({**view, "earlier_data": []}))[:2] == ["Data", "rows"]


def test_settings_that_were_given_stand_before_the_defaults() -> None:
    config = {"a": (1, "default"), "b": ("x", "--b"), "c": ([], "default")}
    view: Any = {"config": config, "command": "temper train"}
    columns = ["setting", "value", "source"]
    assert cells(sections.configuration(view)) == [
        *("Configuration", "temper train", *columns, "b", "x", "--b"),
        *("monitoring.num_defaults(count=2)", *columns, "a", "1", "default", "c", "[]", "default"),
    ]
    assert sections.configuration({**view, "config": {}, "command": ""}) == ""


def test_what_is_known_of_the_machine_the_files_and_the_backup_is_shown() -> None:
    view: Any = {
        **{"hardware": {"gpus": 1}, "versions": {}, "paths": [("log", "a/b", "the log")]},
        **{"backup": {"published": "hf://a", "state": "safe"}},
        "next_steps": [("Ask:", "temper ask m"), ("Wait", "")],
    }
    assert cells(sections.software(view)) == ["Hardware and versions", "Hardware", "gpus", "1"]
    assert sections.software({**view, "hardware": {}}) == ""
    assert cells(sections.places(view)) == ["Files", "log", "a/b", "the log"]
    assert sections.places({**view, "paths": []}) == ""
    assert cells(sections.safety(view)) == ["monitoring.backups_heading()", "safe.", "hf://a"]
    heading = "monitoring.next_steps_heading()"
    assert cells(sections.next_steps(view)) == [heading, "Ask:", "temper ask m", "Wait"]


def test_a_forecast_is_compared_with_what_came() -> None:
    row = {"what": "seconds", "foretold": 60.0, "was": 50.0, "error": 0.2}
    disk = {"what": "disk_bytes", "foretold": 2**20, "was": 2**21, "error": -0.5}
    others = [{**disk, "what": "backup_bytes", "error": 0}, {**row, "what": "other"}]
    others.append({**disk, "what": "peak_memory_bytes", "error": 1})
    view: Any = {
        "forecast": [row, {**row, "first_step": 4}, disk, *others, {**disk, "error": None}],
        "decided": {"batch": {"value": 3, "origin": "measured"}, "odd": 3},
    }
    assert cells(sections.forecast(view)) == [
        *("Forecast", "forecast", "actual", "error"),
        *("time from the first step to the end", "1 min 00 s", "50 s", "+20.0%"),
        *("monitoring.forecast_time_since_resume(step=4)", "1 min 00 s", "50 s", "+20.0%"),
        *("run directory on disk", "1.0 MiB", "2.0 MiB", "-50.0%"),
        *("backup at the destination", "1.0 MiB", "2.0 MiB", "+0%"),
        *("peak memory of training", "1.0 MiB", "2.0 MiB", "+100%"),
        *("setting", "value", "decided by", "batch", "3", "measured", "odd", "None", "None"),
    ]


@pytest.mark.parametrize(
    ("num_sessions", "since"), [(1, ""), (2, "monitoring.since_last_resume()")]
)
def test_each_stage_has_its_share_of_the_last_session(num_sessions: int, since: str) -> None:
    failed = {"name": "save", "seconds": 3, "what": "saving", "error": "OSError"}
    stages = [{"name": "model", "seconds": 1.0}, failed, {"name": "x", "seconds": True}]
    view: Any = {"stages": stages, "num_sessions": num_sessions}
    assert cells(sections.stages(view)) == [
        f"monitoring.timing_heading(since={since})",
        *("stage", "time", "share", "description", "model", "1.0 s", "25%"),
        *("save", "3.0 s", "75%", "saving (ended by OSError)"),
    ]
    assert sections.stages({**view, "stages": [{"name": "x", "seconds": 0}]}) == ""
