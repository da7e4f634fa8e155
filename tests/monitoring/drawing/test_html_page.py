"""A page needs nothing but itself, and says so to the browser."""

from infrastructure.monitoring.drawing.html import element
from infrastructure.monitoring.drawing.html_page import CONTENT_POLICY, page


def test_a_page_forbids_scripts_and_the_network() -> None:
    html = page("A & B", element("p", "x < y"))
    assert html.startswith("<!DOCTYPE html>\n<html lang=")
    assert CONTENT_POLICY.startswith("default-src 'none'")
    assert "default-src &#x27;none&#x27;" in html
    assert "<title>A &amp; B</title>" in html
    assert "<p>x &lt; y</p>" in html
    assert "<script" not in html
