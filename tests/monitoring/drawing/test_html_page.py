"""A page needs nothing but itself, and says so to the browser."""

import base64
import hashlib
import re
from html import unescape

from infrastructure.monitoring.drawing.charts import Chart, figure
from infrastructure.monitoring.drawing.html import element
from infrastructure.monitoring.drawing.html_page import FOLDER, allowed_by_hash, document, page


def policy_of(html: str) -> str:
    match = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert match is not None
    return unescape(match[1])


def test_a_page_without_charts_has_no_script() -> None:
    html = page("A & B", element("p", "x < y"))
    assert html.startswith("<!DOCTYPE html>\n<html lang=")
    assert policy_of(html).startswith("default-src 'none'; style-src 'sha256-")
    assert "script" not in policy_of(html)
    assert "<title>A &amp; B</title>" in html
    assert "<p>x &lt; y</p>" in html
    assert "<script" not in html


def test_a_page_with_charts_allows_just_its_own_script() -> None:
    points = [(1.0, 1.0), (2.0, 2.0)]
    html = page("A", figure("loss", Chart("Loss", points)))
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy_of(html).endswith(f"; script-src 'sha256-{digest}'")
    assert "uPlot" in script
    (style,) = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert f"style-src {allowed_by_hash(style)};" in policy_of(html)
    assert (".uplot" in style, ".uplot" in page("A")) == (True, False)
    assert "scrollIntoView" not in script
    links = element("nav", "x", css_class="contents")
    assert "scrollIntoView" in page("A", links)


def test_a_document_takes_further_rules() -> None:
    html = document("A", element("main", "m"), "s {}", "", "connect-src 'self'")
    assert policy_of(html) == (
        f"default-src 'none'; style-src {allowed_by_hash('s {}')}; connect-src 'self'"
    )
    assert html.endswith("<body><main>m</main></body></html>\n")


def test_the_chart_library_is_the_one_that_the_readme_names() -> None:
    named = (FOLDER / "vendor" / "README.md").read_text(encoding="utf-8")
    for file in ("uPlot.iife.min.js", "uPlot.min.css"):
        digest = hashlib.sha256((FOLDER / "vendor" / file).read_bytes()).hexdigest()
        assert f"SHA-256 of `{file}`: `{digest}`" in named
    assert (FOLDER / "vendor" / "uPlot.LICENSE").read_text().startswith("The MIT License")
