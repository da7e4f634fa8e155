"""A complete HTML page that needs neither network nor other files.

The page has a script only if it has charts or links to sections, which need a script. The
Content-Security-Policy forbids the network, and allows only this script and this style sheet, by
their hashes. So code in data never runs.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.css import STYLE
from infrastructure.monitoring.drawing.html import Markup, element, joined, raw_markup

FOLDER = Path(__file__).parent
# In a notebook the page is a frame without an address, in which a link to a section would load the
# notebook into the frame.
GO_TO_PART = """
document.addEventListener("click", (event) => {
  const link = event.target.closest('nav.contents a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  document.getElementById(link.getAttribute("href").slice(1)).scrollIntoView();
});
"""
DRAW = "temperCharts.draw(document);"


@cache
def chart_script() -> str:
    """Return the chart library, with Temper's script that defines `temperCharts`."""
    return _texts("vendor/uPlot.iife.min.js", "charts.js")


@cache
def chart_rules() -> str:
    """Return the CSS of the charts that the script draws."""
    return _texts("vendor/uPlot.min.css", "charts.css")


def _texts(*names: str) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def allowed_by_hash(text: str) -> str:
    """Return a Content-Security-Policy source that allows exactly this inline script or style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def page(title: str, *sections: object) -> str:
    """Return a complete page with the sections in order, in the style of Temper's pages."""
    content = joined(sections)
    has_charts = " data-chart=" in content
    script = f"{chart_script()}\n{DRAW}" if has_charts else ""
    script += GO_TO_PART if '<nav class="contents"' in content else ""
    style = STYLE + (chart_rules() if has_charts else "")
    foot = element("footer", phrase("monitoring.page_is_self_contained"))
    return document(title, element("main", content, foot), style, script)


def document(title: str, main: Markup, style: str, script: str, *rules: str) -> str:
    """Return a complete page around `main`.

    Its Content-Security-Policy allows only this style and this script.

    Args:
        rules: further rules of that policy.
    """
    allowed = {"style-src": style, "script-src": script}
    by_hash = [f"{kind} {allowed_by_hash(text)}" for kind, text in allowed.items() if text]
    policy = "; ".join(["default-src 'none'", *by_hash, *rules])
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", raw_markup(style)),
    )
    body = element("body", main, element("script", raw_markup(script)) if script else "")
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
