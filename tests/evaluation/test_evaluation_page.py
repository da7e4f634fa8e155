"""The page of an evaluation has each name, table and answer in its place."""

import re

from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation.comparison import MeasureDifference
from infrastructure.evaluation.evaluation_page import MAX_SHOWN, evaluation_page
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.intervals import Interval
from infrastructure.evaluation.row_losses import RowLoss
from infrastructure.evaluation.rows import MeasuredRow, ModelRows
from infrastructure.monitoring.drawing.html import MAX_TEXT_CHARACTERS

LONGEST = "w" * MAX_TEXT_CHARACTERS


def answered(number: int, text: str, task: str = "", **scores: float) -> MeasuredRow:
    question = GenerationPrompt(f"prompt {number}", [1], f"expected {number}", 1, task)
    loss = RowLoss(4.0, 1, 2)
    return MeasuredRow(f"rows:{number}", task, loss, Answer(question, text), scores)


def cells(page: str, heading: str) -> list[str]:
    """The texts of the section that begins with a heading."""
    (found,) = re.findall(rf"<h2[^>]*>{re.escape(heading)}</h2>(.*?)</section>", page, re.DOTALL)
    return [text for text in re.split(r"<[^>]+>", found) if text.strip()]


def test_one_model_has_its_tables_and_its_answers() -> None:
    rows = [
        answered(1, "first\n", f1=0.5, exact_match=1.0),
        answered(2, " \n", "sums", exact_match=1.0, f1=0.5),
        answered(3, "", "sums"),
        answered(4, f"{LONGEST}ab", f1=0.25),
    ]
    page = evaluation_page("rows.jsonl", [ModelRows("org/model", {}, rows)], {})
    assert "<title>org/model on rows.jsonl · Temper</title>" in page
    assert re.search(r'<h1>org/model</h1>\s*<p class="lead">measured on rows.jsonl</p>', page)
    for absent in ("<h2>Notes", "comparison_heading", ": org/model</p>"):
        assert absent not in page
    tables = cells(page, "org/model")
    assert tables[:4] == ["95% interval", "rows", "loss per token", "2"]
    assert tables[tables.index("By task") + 1 :][:2] == ["task", "rows"]
    assert tables[tables.index("sums") + 1] == "2"
    answers = cells(page, "Answers")
    first = ["rows:1", "prompt 1", "Expected", "expected 1", "org/model"]
    assert answers[:7] == [*first, "F1 50.0% · exact match 100%", "first\n"]
    assert answers[7:9] == ["rows:2 · sums", "prompt 2"]
    assert "(only white space)" in answers
    assert "(empty answer)" in answers
    assert answers[-1] == f"{LONGEST} … (2 more characters)"
    verdicts = re.findall(r'<span class="(good|bad)">([^<]*)</span>', page)
    assert verdicts == [
        ("bad", "F1 50.0% · exact match 100%"),
        ("good", "exact match 100% · F1 50.0%"),
        *[("bad", ""), ("bad", "F1 25.0%")],
    ]
    assert page.count('class="columns"') == 4


def test_two_models_have_their_differences_and_answers_side_by_side() -> None:
    difference = MeasureDifference("f1", 7, 0.5, 0.75, Interval(0.25, 0.125, 0.5))
    first = ModelRows("/runs/one", {}, [answered(1, "a", f1=0.5)])
    second = ModelRows("two", {}, [answered(1, "b", f1=0.75), answered(2, "c")])
    page = evaluation_page("rows.jsonl", [first, second], {"all": [difference]}, ["see <this>"])
    assert "<title>/runs/one and two on rows.jsonl · Temper</title>" in page
    assert cells(page, "Notes") == ["see &lt;this&gt;"]
    compared = cells(page, "evaluation.comparison_heading()")
    assert compared == [
        "evaluation.comparison_explained()",
        *("measure", "rows", "/runs/one", "two", "difference", "95% interval", "verdict"),
        *("F1", "7", "50.0%", "75.0%", "+25.0", "+12.5 to +50.0 points", "second is better"),
    ]
    assert cells(page, "Answers") == [
        *("rows:1", "prompt 1", "Expected", "expected 1"),
        *("/runs/one", "F1 50.0%", "a", "two", "F1 75.0%", "b"),
    ]
    assert page.count('class="columns three"') == 1
    assert page.index("<h2>/runs/one</h2>") < page.index("<h2>two</h2>")


def test_rows_without_answers_have_no_section_and_many_answers_end() -> None:
    rows = [MeasuredRow("rows:1", "", RowLoss(4.0, 1, 2))]
    assert "Answers" not in evaluation_page("rows", [ModelRows("one", {}, rows)], {})
    nothing = evaluation_page("rows", [ModelRows("one", {}, [MeasuredRow("rows:1")])], {})
    assert "95% interval" not in nothing
    many = ModelRows("one", {}, [answered(n, "a") for n in range(MAX_SHOWN + 2)])
    page = evaluation_page("rows", [many], {})
    assert len(re.findall(r"<h3>rows:", page)) == MAX_SHOWN == 100
    assert "evaluation.more_answers_in_file(count=2)" in page
