"""The live page: one HTML document whose script polls the server for the newest `<main>`.

Its style sheet and its script are embedded, so one request loads the complete page. The
Content-Security-Policy allows only this style sheet, this script, and requests to the page's own
server. All addresses are relative, so the page works behind a proxy that adds a path prefix, as
notebooks do.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.css import COLOURS
from infrastructure.monitoring.drawing.html import Markup, element
from infrastructure.monitoring.drawing.html_page import chart_rules, chart_script, document
from infrastructure.monitoring.report.live_parts import live_rules

SECTIONS = (
    *("head", "runs", "progress", "tiles", "notices", "alerts", "result", "curves", "features"),
    *("machine", "errors", "safety", "next", "configuration"),
)
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Look:
    """A snapshot of the live page.

    Attributes:
        sections: ID of a part of the page → its HTML. Empty parts are left out.
        next_seconds: the seconds that the page should wait before its next request.
    """

    title: str
    sections: Mapping[str, Markup]
    next_seconds: float

    @cached_property
    def main(self) -> Markup:
        """The `<main>` of the page, with all its parts, including empty ones."""
        parts = [element("div", self.sections.get(name, ""), id=name) for name in SECTIONS]
        foot = element("footer", phrase("dashboard.is_read_only"))
        attributes = {"data-title": self.title, "data-next": f"{self.next_seconds:g}"}
        return element("main", *parts, foot, **attributes)

    @cached_property
    def zipped(self) -> bytes:
        """The `<main>`, compressed. It is compressed only once for all viewers."""
        return gzip.compress(self.main.encode(errors="backslashreplace"), compresslevel=4)

    @cached_property
    def version(self) -> str:
        """A text that changes whenever the content of the page changes."""
        return hashlib.blake2b(self.main.encode(errors="replace"), digest_size=12).hexdigest()

    def render(self) -> str:
        """Return the whole page.

        The policy does not restrict which sites may embed the page, because notebooks embed it from
        unknown addresses, and nothing on the page is harmful to click by mistake.
        """
        rules = "connect-src 'self'", "base-uri 'none'", "form-action 'none'"
        return document(self.title, self.main, *_style_and_script(), *rules)


@cache
def _style_and_script() -> tuple[str, str]:
    rules, script = (
        (FOLDER / f"dashboard.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
    )
    return COLOURS + live_rules() + rules + chart_rules(), f"{chart_script()}\n{script}"
