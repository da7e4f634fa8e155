"""What of prepared data everybody is shown before the first step."""

import json
from typing import Any

import pytest

from infrastructure.core.json_text import JsonObject
from infrastructure.data.encoding.token_survival import LETTERS
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.readers.rows import EMPTY, INVALID_UTF8, WRONG_TYPE, BadRow


@pytest.mark.parametrize("is_verbose", [True, False])
@pytest.mark.parametrize("bad_lines", [[], [31], [47, 12, 8]])
def test_a_row_that_is_set_aside_is_named_with_its_place(
    bad_lines: list[int], is_verbose: bool
) -> None:
    """The first one in short, and the first one of each reason in full."""
    quarantine = Quarantine()
    reasons = [EMPTY, WRONG_TYPE, EMPTY]
    quarantine.add(
        BadRow("rows.jsonl", line, reason, "planted", "", 0)
        for line, reason in zip(bad_lines, reasons, strict=False)
    )
    report = DataReport(rows_read=60, num_train=60 - len(bad_lines), quarantine=quarantine)
    text = "\n".join(report.lines(is_verbose))
    named = [line for line in (8, 12, 31, 47) if f"rows.jsonl:{line}" in text]
    assert named == sorted(bad_lines[: 2 if is_verbose else 1])


FACTS: dict[str, Any] = {
    "rows_read": 60,
    "num_train": 50,
    "num_evaluation": 10,
    "tokens": 1000,
    "supervised_tokens": 250,
    "length_quantiles": {"5%": 7, "50%": 20},
    "longest": 31,
    "max_length": 64,
    "shape_reason": "columns decide",
    "end_tokens": {"<a>": 9, "<b>": 1},
    "seconds": 2.5,
}


def report_of(**facts: Any) -> DataReport:
    return DataReport(**{**FACTS, **facts})


def files(count: int) -> list[JsonObject]:
    return [{"name": f"{n}.csv", "format": "csv", "rows": n} for n in range(count)]


def test_the_figures_of_the_rows_are_in_the_lines() -> None:
    rows, shape, counts, tokens, lengths, origin = report_of(files=files(2)).lines()
    names = "0.csv (csv), 1.csv (csv)"
    assert rows == f"data.rows_read(count=60, names={names})"
    assert shape == "Columns decide"
    assert counts == "data.split_counts(num_train=50, num_held_out=10)"
    ends = "data.answers_end_with(tokens=<a>, <b>)"
    assert tokens == (
        f"data.trained_token_share(tokens=1000, trained=250, percent=25.0, ends={ends})"
    )
    quantiles = "5% ≤ 7, 50% ≤ 20"
    assert lengths == (f"data.length_quantiles(quantiles={quantiles}, longest=31, max_length=64)")
    assert origin == "data.prepared_in(seconds=2.5)"
    assert report_of(from_cache=True).lines()[-1] == "data.read_from_cache()"
    short = report_of(files=files(2)).lines(is_verbose=False)
    assert short == [
        f"data.data_line(counts={counts}, names={names}, shape=columns decide)",
        tokens,
    ]
    nothing = DataReport(rows_read=1)
    assert (nothing.supervised_share, report_of().supervised_share) == (0.0, 0.25)
    assert "ends=data.answers_without_end()" in nothing.lines()[3]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (files(3), "names=0.csv (csv), 1.csv (csv), 2.csv (csv))"),
        (files(4), "'2.csv (csv)'], count=1))"),
        (files(1) * 4, "names=0.csv (csv))"),
        ([*files(1), {"name": "0.csv", "format": "text"}], "names=0.csv (csv), 0.csv (text))"),
    ],
)
def test_a_few_files_are_named_and_the_others_counted(given: Any, names: str) -> None:
    assert report_of(files=given).lines()[0].endswith(names)


def test_the_tasks_with_the_most_examples_are_named() -> None:
    def tasks_of(**counts: int) -> list[str]:
        lines = report_of(task_counts=counts).lines()
        return [line for line in lines if line.startswith("data.tasks(")]

    assert tasks_of() == tasks_of(**{"": 50}) == []
    some = {"": 2000, "a": 1, "b": 3}
    assert tasks_of(**some) == ["data.tasks(tasks=data.no_task() 2,000, b 3, a 1)"]
    many = {f"t{n:02}": 99 - n for n in range(13)}
    named = ", ".join(f"t{n:02} {99 - n}" for n in range(12))
    assert tasks_of(**many) == [f"data.tasks(tasks=data.more_names(names={named}, count=1))"]
    assert tasks_of(**dict(list(many.items())[:12])) == [f"data.tasks(tasks={named})"]


WARNINGS: list[tuple[dict[str, Any], str]] = [
    ({"unread": "a sentence"}, "a sentence"),
    ({"notes": ["a note"]}, "a note"),
    ({"duplicates": 3}, "data.rows_repeated(count=3)"),
    ({"leaked": 1}, "data.rows_also_held_out(count=1)"),
    ({"leaked": 2}, "data.rows_also_held_out(count=2)"),
    ({"special_text_rows": 2}, "data.special_token_rows(count=2)"),
    (
        {"truncated": 1, "truncated_examples": ["a:1"]},
        "data.rows_truncated(count=1, max_length=64, places=a:1)",
    ),
    (
        {"truncated": 2, "truncated_examples": ["a:1", "a:2"]},
        "data.rows_truncated(count=2, max_length=64, places=a:1, a:2)",
    ),
    (
        {"truncated": 3, "truncated_examples": ["a:1", "a:2"]},
        "data.rows_truncated(count=3, max_length=64, places=a:1, a:2, …)",
    ),
]


@pytest.mark.parametrize("is_verbose", [True, False])
@pytest.mark.parametrize(("facts", "line"), WARNINGS)
def test_a_warning_is_shown_in_full_and_in_short(
    facts: dict[str, Any], line: str, is_verbose: bool
) -> None:
    """The other lines stay as they are."""
    plain, found = (report_of(**some).lines(is_verbose) for some in ({}, facts))
    assert [one for one in found if one not in plain] == [line]
    assert len(found) == len(plain) + 1


def test_unused_columns_are_in_the_lines() -> None:
    report = report_of(unused_columns="a, b")
    assert "data.unused_columns(columns=a, b)" in report.lines()
    shape = "shape=data.columns_unused_too(shape=columns decide, columns=a, b))"
    assert report.lines(is_verbose=False)[0].endswith(shape)


def test_rows_of_another_encoding_are_named_with_their_file() -> None:
    quarantine = Quarantine()
    quarantine.add([BadRow("a", 1, EMPTY), BadRow("b", 2, INVALID_UTF8, encoding="cp1252")])
    quarantine.add([BadRow("c", 3, INVALID_UTF8, encoding="cp1250")])
    lines = report_of(quarantine=quarantine).lines()
    remedy = "remedy=data.windows_text(encoding=cp1252)"
    assert f"data.file_read_partly(file=b, {remedy})" in lines
    skipped = "data.rows_skipped(count=3, percent=5.0,"
    [line] = [line for line in lines if line.startswith(skipped)]
    assert line.endswith("reasons=2 invalid UTF-8, 1 empty)")
    [first] = [one for one in report_of(quarantine=quarantine).lines(False) if skipped in one]
    assert first == f"data.first_skipped(skipped={line}, example=b:2: invalid UTF-8)"


def test_a_stored_report_is_read_again() -> None:
    left_out: list[JsonObject] = [
        {"kind": "k", "rows": 2, "place": "a:1", "what": "x", "cause": "c"}
    ]
    survivals: JsonObject = {
        "rows": {LETTERS: 3},
        "firsts": {LETTERS: ["a:2", "y"]},
        "num_equal": 0,
        "equal_example": "",
    }
    quarantine = Quarantine()
    quarantine.add([BadRow("a", 1, EMPTY)] * 2)
    report = report_of(
        left_out=left_out, survivals=survivals, losses={"a:1": ["z"]}, quarantine=quarantine
    )
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["quarantined"] == {EMPTY: 2}
    again = DataReport.from_dict(facts, quarantine)
    assert again == report
    assert again.lines() == report.lines()
    lines = "\n".join(again.lines(is_verbose=False))
    assert "data.never_read_by_model(kind=k, count=2" in lines
    assert "data.tokenizer_changed_answers(count=3" in lines
