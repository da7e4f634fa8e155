"""The parts of a page or a panel that follows a run while it trains."""

from pathlib import Path

from infrastructure.monitoring.drawing.css import RULES
from infrastructure.monitoring.drawing.html import Markup, element, raw_markup
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.report_sections import NOTHING

MAX_CPU_SHARE = 0.01  # of one core, for reading the runs; a run may be training on the same two
MAX_LONGEST_SECONDS = 30.0  # between two readings
BAR_WIDTH = 1000


def live_rules() -> str:
    """Return the CSS of these parts; its colors are those of `css.COLOURS`."""
    return RULES + Path(__file__).with_name("live.css").read_text(encoding="utf-8")


def progress(view: RunView) -> Markup:
    """Return the progress of the run as text and as a bar."""
    share = view["share_done"]
    if view["step"] is None:
        return NOTHING
    words = element("span", view["progress"]), element("span", view["times"])
    picture = NOTHING if share is None else bar(share, view["state"])
    return element(
        "section", element("div", *words, css_class="split"), picture, css_class="progress"
    )


def bar(share: float, css_class: str) -> Markup:
    """Return a progress bar as SVG, because the page's policy does not allow style attributes."""
    width = max(0.0, min(1.0, share)) * BAR_WIDTH
    return raw_markup(
        f'<svg class="bar {css_class}" viewBox="0 0 {BAR_WIDTH} 10" preserveAspectRatio="none"'
        f' aria-hidden="true"><rect class="track" width="{BAR_WIDTH}" height="10"/>'
        f'<rect class="fill" width="{width:.1f}" height="10"/></svg>'
    )


def meters(view: RunView) -> Markup:
    """Return the machine's current load, or nothing if the run has ended."""
    shown = [
        element(
            "div",
            element(
                "div",
                element("span", meter["name"]),
                element("span", meter["text"]),
                css_class="split",
            ),
            bar(meter["share"], meter["level"]),
        )
        for meter in view["machine"]["meters"]
    ]
    return element("div", *shown, css_class="meters") if shown else NOTHING
