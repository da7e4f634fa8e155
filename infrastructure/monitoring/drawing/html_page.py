"""A whole page that needs no network, no script and no file beside it; its policy forbids them."""

from infrastructure.monitoring.drawing.css import STYLE
from infrastructure.monitoring.drawing.html import element, raw_markup

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
FOOTER = "Written by Temper. This page needs nothing but itself."


def page(title: str, *sections: object) -> str:
    """The sections below each other as HTML, in the style of all our pages."""
    policy = {"http-equiv": "Content-Security-Policy", "content": CONTENT_POLICY}
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **policy),
        element("meta", **viewport),
        element("title", title),
        element("style", raw_markup(STYLE)),
    )
    body = element("main", *sections, element("footer", FOOTER))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', body), lang='en')}\n"
