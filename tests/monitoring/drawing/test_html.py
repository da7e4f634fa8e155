from pathlib import Path

from infrastructure.monitoring.drawing.html import (
    element,
    facts,
    flatten,
    raw_markup,
    readable_key,
    readable_value,
    table,
)

ATTACK = "<script>alert('x')</script>\"&"


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = element("b", ATTACK)
    assert element("p", inner, " & ", raw_markup("<br>")) == (
        "<p><b>&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;</b> &amp; <br></p>"
    )


def test_attributes_are_escaped_and_none_is_left_out() -> None:
    assert element("p", css_class='a" onload="x', title=None) == (
        '<p class="a&quot; onload=&quot;x"></p>'
    )


def test_control_characters_do_not_reach_the_page() -> None:
    assert element("p", "a\x00\x1b\u202e\udc80b\n") == "<p>a����b\n</p>"


def test_a_table_escapes_its_cells() -> None:
    assert "<td>&lt;b&gt;</td>" in table(["<i>"], [["<b>"]])
    assert table((), [["a", "b"]], "facts") == table(["", ""], [["a", "b"]], "facts")
    assert table((), [["a", "b"]], "facts") == (
        '<div class="scroll"><table class="facts"><tbody><tr><td>a</td><td>b</td></tr>'
        "</tbody></table></div>"
    )
    measures = table(["", "loss"], [["a", 1], ["b", 2]], "numbers measures", ["total"])
    assert measures == (
        '<div class="scroll"><table class="numbers measures">'
        '<thead><tr><th scope="col"></th><th scope="col">loss</th></tr></thead><tbody>'
        '<tr class="total"><td>a</td><td data-name="loss">1</td></tr>'
        '<tr><td>b</td><td data-name="loss">2</td></tr></tbody></table></div>'
    )


def test_keys_and_values_are_readable() -> None:
    assert readable_key("num_training_rows") == "training rows"
    assert readable_key("memory.total_bytes") == "memory total"
    assert readable_value("total_bytes", 2**31) == "2.0 GiB"
    assert readable_value("second", 61) == "61"
    assert readable_value("load_seconds", 61) == "1 min 01 s"
    assert readable_value("gpu", None) == "–"
    assert readable_value("gpus", []) == "–"
    assert readable_value("limited", True) == "yes"
    assert readable_value("names", ["a", 1]) == "a, 1"
    assert readable_value("odd", [{"ä": Path("b")}]) == '[{"ä": "b"}]'
    for value in ("x" * 4001, ["x" * 4001], [{"x": "x" * 3990}]):
        assert readable_value("names", value).endswith(" … (1 more characters)")


def test_nested_facts_are_flat() -> None:
    nested = {"cpu": {"cores": 2}, "gpus": [{"name": "T4"}], "empty": {}}
    assert flatten(nested) == [("cpu.cores", 2), ("gpus.0.name", "T4"), ("empty", {})]
    assert "<td>cpu cores</td><td>2</td>" in facts(nested)
