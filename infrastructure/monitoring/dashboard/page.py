"""The live page: one HTML document that polls the server for its parts.

Its style sheet and its script are embedded, so one request loads the complete page. The
Content-Security-Policy allows only these two, and requests to the page's own server. All addresses
are relative, so the page works behind a proxy that adds a path prefix, as notebooks do.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.css import COLOURS, RULES
from infrastructure.monitoring.drawing.html import Markup, element, raw_markup
from infrastructure.monitoring.drawing.html_page import (
    allowed_by_hash,
    chart_rules,
    chart_script,
)

COMPARED = "compared"  # filled by the script: runs shown for comparison
SECTIONS = (
    *(
        "head",
        "runs",
        COMPARED,
        "progress",
        "tiles",
        "notices",
        "alerts",
        "result",
        "curves",
        "features",
    ),
    *("machine", "errors", "safety", "next", "configuration"),
)


@dataclass(frozen=True)
class Look:
    """A snapshot of the live page.

    Attributes:
        state: one of `live_run.STATES`, or "" if there is no run.
        sections: ID of a part of the page → its HTML. Empty parts are left out.
        next_seconds: the seconds that the page should wait before its next request.
        version: a text that changes whenever another attribute changes.
    """

    title: str
    state: str
    sections: Mapping[str, Markup]
    next_seconds: float

    @cached_property
    def version(self) -> str:
        text = json.dumps([self.title, self.state, self.sections, self.next_seconds])
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    @cached_property
    def zipped_json(self) -> bytes:
        """The JSON for the page's script, compressed once and sent to all viewers.

        Empty parts are included, so that the script removes parts that have become empty.
        """
        sections = {name: self.sections.get(name, "") for name in SECTIONS}
        facts = {"title": self.title, "state": self.state, "next_seconds": self.next_seconds}
        text = json.dumps({**facts, "sections": sections}, ensure_ascii=False)
        return gzip.compress(text.encode(errors="backslashreplace"), compresslevel=4)


def live_rules() -> str:
    """Return the CSS of the live page; its colors are those of `css.COLOURS`."""
    return RULES + (Path(__file__).parent / "dashboard.css").read_text(encoding="utf-8")


class Page:
    """The HTML document that contains the snapshots.

    It is created once, because only they change.
    """

    def __init__(self) -> None:
        self.style = COLOURS + live_rules() + chart_rules()
        live_script = (Path(__file__).parent / "dashboard.js").read_text(encoding="utf-8")
        self.script = f"{chart_script()}\n{live_script}"

    @property
    def policy(self) -> str:
        """The Content-Security-Policy of the live page.

        The policy does not restrict which sites may embed the page, because notebooks embed it from
        unknown addresses. This is safe, because no click on the page changes anything.
        """
        return (
            f"default-src 'none'; style-src {allowed_by_hash(self.style)};"
            f" script-src {allowed_by_hash(self.script)}; connect-src 'self'; base-uri 'none';"
            " form-action 'none'"
        )

    def render(self, look: Look, now: float) -> str:
        """Return the HTML document with the snapshot `look` in it.

        Args:
            now: the Unix time of this machine, from which ages are computed.
        """
        parts = [element("div", look.sections.get(name, ""), id=name) for name in SECTIONS]
        warning = element("div", "", id="lost", role="status")
        foot = element("footer", phrase("monitoring.dashboard_is_read_only"))
        attributes = {
            "data-now": f"{now:.1f}",
            "data-next": f"{look.next_seconds:g}",
            "data-version": look.version,
        }
        body = element(
            "body",
            element("main", warning, *parts, foot),
            element("script", raw_markup(self.script)),
            **attributes,
        )
        page = element("html", self._head(look), body, lang="en")
        return f"<!DOCTYPE html>\n{page}\n"

    def _head(self, look: Look) -> Markup:
        viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
        return element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", **viewport),
            element("title", look.title),
            element("style", raw_markup(self.style)),
        )
