"""The HTML page of an evaluation: tables, and the models' answers side by side. Works offline."""

from collections.abc import Mapping, Sequence

from infrastructure.core.messages import phrase
from infrastructure.evaluation.comparison import MeasureDifference, paired
from infrastructure.evaluation.evaluation_tables import (
    LABELS,
    difference_table,
    overall_table,
    short_names,
    shown,
    task_table,
)
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.rows import ALL, MeasuredRow, MeasuredRows, ModelRows, by_task
from infrastructure.monitoring.drawing.formatting import blank, clip
from infrastructure.monitoring.drawing.html import (
    MAX_TEXT_CHARACTERS,
    Markup,
    element,
    table,
)
from infrastructure.monitoring.drawing.html_page import page
from infrastructure.monitoring.report.report_sections import NOTHING, section

MAX_SHOWN = 100


def evaluation_page(
    data: str,
    models: Sequence[ModelRows],
    compared: Mapping[str, Sequence[MeasureDifference]],
    notes: Sequence[str] = (),
) -> str:
    """Return the whole page as HTML.

    Args:
        models: one model, or two that were measured on the same rows.
        compared: what `compare` returned for two models.
    """
    short = short_names([model.model for model in models])
    names = " and ".join(short)
    whole = [
        element("p", f"{name}: {model.model}", css_class="soft")
        for name, model in zip(short, models, strict=True)
        if name != model.model
    ]
    head = element(
        "header",
        element("div", "Temper · evaluation", css_class="over"),
        element("h1", names),
        element("p", f"measured on {data}", css_class="lead"),
        *whole,
    )
    items = [element("li", note) for note in notes]
    parts = [
        section("Notes", element("ul", *items)) if items else NOTHING,
        _comparison(compared, short),
        *[_model_section(*each) for each in zip(models, short, strict=True)],
        _answers(models, short),
    ]
    return page(f"{names} on {data} · Temper", head, *parts)


def _comparison(
    compared: Mapping[str, Sequence[MeasureDifference]], names: Sequence[str]
) -> Markup:
    if not compared:
        return NOTHING
    headings, rows = difference_table(compared, (names[0], names[1]))
    explanation = phrase("evaluation.comparison_explained")
    return section(
        phrase("evaluation.comparison_heading"),
        element("p", explanation, css_class="soft"),
        table(headings, rows, "numbers measures"),
    )


def _model_section(model: ModelRows, name: str) -> Markup:
    measured: dict[str, dict[str, MeasuredRows]] = by_task(model)
    headings, rows = overall_table("", measured[ALL])
    parts: list[Markup] = [table(headings, rows, "numbers measures")] if rows else []
    by_names, of_tasks = task_table(measured, with_intervals=True)
    if of_tasks:
        parts.append(element("h3", "By task"))
        parts.append(table(by_names, of_tasks, "numbers measures"))
    return section(name, *parts)


def _answers(models: Sequence[ModelRows], names: Sequence[str]) -> Markup:
    """Return a card for each prompt; rows on which two models score differently come first."""
    shown_rows: list[tuple[MeasuredRow, ...]]
    if len(models) == 1:
        shown_rows = [(row,) for row in models[0].rows if row.answer is not None]
    else:
        both = paired(models[0], models[1])
        answered = [pair for pair in both if all(row.answer for row in pair)]
        shown_rows = [*sorted(answered, key=lambda pair: pair[0].scores == pair[1].scores)]
    if not shown_rows:
        return NOTHING
    cards = [_card(rows, names) for rows in shown_rows[:MAX_SHOWN]]
    left = len(shown_rows) - len(cards)
    rest = (
        element("p", phrase("evaluation.more_answers_in_file", count=left), css_class="soft")
        if left
        else NOTHING
    )
    return section("Answers", *cards, rest)


def _card(rows: Sequence[MeasuredRow], names: Sequence[str]) -> Markup:
    first = rows[0].answer
    assert first is not None
    where = f"{rows[0].place} · {rows[0].task}" if rows[0].task else rows[0].place
    columns = [_column("Expected", first.question.expected, "")]
    for row, name in zip(rows, names, strict=True):
        assert row.answer is not None
        columns.append(_column(name, row.answer.text, _verdict(row, row.answer)))
    css_class = "columns three" if len(columns) > 2 else "columns"
    return element(
        "div",
        element("h3", where),
        element("pre", clip(first.question.prompt, MAX_TEXT_CHARACTERS)),
        element("div", *columns, css_class=css_class),
    )


def _column(name: str, text: str, verdict: Markup | str) -> Markup:
    heading = element("h3", name, verdict)
    shown_text = text if text.strip() else blank(text)
    return element("div", heading, element("pre", clip(shown_text, MAX_TEXT_CHARACTERS)))


def _verdict(row: MeasuredRow, answer: Answer) -> Markup:
    texts = [f"{LABELS[name]} {shown(name, value)}" for name, value in row.scores.items()]
    if answer.is_cut:
        texts.append("cut")
    is_right = bool(row.scores) and next(iter(row.scores.values())) == 1
    return element("span", " · ".join(texts), css_class="good" if is_right else "bad")
