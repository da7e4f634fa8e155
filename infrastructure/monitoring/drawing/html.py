"""Small pieces of HTML that are safe by construction: plain text is always escaped.

Only the results of `element` and `raw_markup` are treated as markup. This module does not depend on
pages or styles.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_bytes,
    format_duration,
    format_number,
)

MAX_TEXT_CHARACTERS = 4000
INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
VOID_TAGS = {"br", "input", "meta"}


class Markup(str):
    """Text that is already HTML and must not be escaped."""

    __slots__ = ()


def raw_markup(html: str) -> Markup:
    """Mark a string as HTML, so that it is not escaped. Never call this with text from data."""
    return Markup(html)


def as_markup(content: object) -> Markup:
    """Return `content` as HTML: markup unchanged, other text escaped and made printable."""
    if isinstance(content, Markup):
        return content
    return Markup(escape_text(content))


def escape_text(content: object) -> str:
    """Escape text for use inside HTML elements and quoted attributes."""
    return escape(INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", str(content)))


def element(tag: str, *contents: object, **attributes: str | None) -> Markup:
    """Return the element `<tag …>contents</tag>`.

    `css_class` is the `class` attribute. Empty attributes are left out.
    """
    text = ""
    for name, value in attributes.items():
        if value:
            shown = "class" if name == "css_class" else name
            text += f' {shown}="{escape_text(value)}"'
    if tag in VOID_TAGS:
        return Markup(f"<{tag}{text}>")
    return Markup(f"<{tag}{text}>{joined(contents)}</{tag}>")


def joined(contents: Iterable[object]) -> Markup:
    """Concatenate pieces of HTML and text. Text is escaped."""
    return Markup("".join([as_markup(content) for content in contents]))


def table(
    headings: Sequence[object],
    rows: Iterable[Sequence[object]],
    css_class: str | None = None,
    row_classes: Sequence[str | None] = (),
) -> Markup:
    """Return an HTML table that scrolls sideways if the page is too narrow.

    If `css_class` contains `measures`, each cell has the heading of its column as `data-name`. On a
    phone, each row is then a block in which each number follows its heading.
    """
    rows = list(rows)
    names: list[str | None] = (
        [*map(str, headings)] if "measures" in (css_class or "").split() else []
    )
    classes = [*row_classes, *[None] * (len(rows) - len(row_classes))]
    head = element("tr", *[element("th", heading, scope="col") for heading in headings])
    body = [
        element(
            "tr",
            *[
                _cell(cell, name)
                for cell, name in zip(row, names or [None] * len(row), strict=True)
            ],
            css_class=row_class,
        )
        for row, row_class in zip(rows, classes, strict=True)
    ]
    parts = [element("thead", head)] if any(headings) else []
    inner = element("table", *parts, element("tbody", *body), css_class=css_class)
    return element("div", inner, css_class="scroll")


def _cell(content: object, name: str | None) -> Markup:
    if name is None:  # most cells of a page: without `element` they take half the time
        return Markup(f"<td>{as_markup(content)}</td>")
    return element("td", content, **{"data-name": name})


def facts(pairs: Mapping[str, object]) -> Markup:
    """Return names and values as a table of two columns.

    Nested mappings are flattened with dots.
    """
    rows = [(readable_key(key), readable_value(key, value)) for key, value in flatten(pairs)]
    return table((), rows, css_class="facts")


def flatten(pairs: Mapping[Any, object], prefix: str = "") -> list[tuple[str, object]]:
    """Flatten nested mappings into one list. Outer keys precede inner ones."""
    flat: list[tuple[str, object]] = []
    for key, value in pairs.items():
        if isinstance(value, Mapping) and value:
            flat += flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            flat += flatten(dict(enumerate(value)), f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def readable_key(key: str) -> str:
    """Return a key as words, without its unit. The unit is shown with the value.

    `memory_total_bytes` → `memory total`.
    """
    for unit in ("_bytes", "_seconds"):
        key = key.removesuffix(unit)
    return re.sub(r"(?:^|(?<=\.))num_", "", key).replace("_", " ").replace(".", " ")


def readable_value(key: str, value: object) -> str:
    """Format a value: sizes and times by the unit in the key, short lists on one line."""
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_bytes"):
            return format_bytes(value)
        return format_duration(value) if key.endswith("seconds") else format_number(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return clip(", ".join(map(str, value)), MAX_TEXT_CHARACTERS)
    return clip(value if isinstance(value, str) else as_json(value), MAX_TEXT_CHARACTERS)


def as_json(value: object) -> str:
    """Return a value as JSON. Values that JSON cannot represent become text."""
    return json.dumps(value, ensure_ascii=False, default=str)
