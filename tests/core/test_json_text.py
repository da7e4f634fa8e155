"""JSON that is nested beyond reason is refused on every Python, and so is what is no JSON."""

import json

import pytest

from infrastructure.core.json_text import MAX_DEPTH, is_too_deep, parse_json


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5000, 200_000])
def test_what_is_nested_too_deep_is_refused(begin: str, end: str, depth: int) -> None:
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_DEPTH} levels"):
        parse_json(begin * depth + "1" + end * depth)


def test_what_is_nested_as_people_do_it_is_read() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(text) == json.loads(text)
    assert parse_json(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert not is_too_deep("[" * 5000)
    assert not is_too_deep([[1]], 2)
    assert is_too_deep([[1]], 1)


@pytest.mark.parametrize("text", ["", "{", "[1,]", "9" * 5000, b"\xff"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
