"""JSON that is nested beyond reason is refused on every Python, and so is what is no JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.json_text import (
    MAX_DEPTH,
    as_integer,
    as_list,
    as_number,
    as_object,
    as_text,
    is_too_deep,
    json_of,
    parse_json,
    parse_record,
)


@pytest.mark.parametrize("text", ["[1]", "{", "\xff", None])
def test_a_file_that_is_no_object_is_empty(text: str | None, tmp_path: Path) -> None:
    (tmp_path / "whole").write_text('{"a": 1}')
    if text is not None:
        (tmp_path / "file").write_bytes(text.encode("latin-1"))
    paths = (tmp_path / "whole", tmp_path / "file", None)
    assert [json_of(path) for path in paths] == [{"a": 1}, {}, {}]


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5000, 200_000])
def test_what_is_nested_too_deep_is_refused(begin: str, end: str, depth: int) -> None:
    with pytest.raises(ValueError, match=rf"core\.nested_too_deep\(max_depth={MAX_DEPTH}\)"):
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


def test_a_key_that_is_there_twice_is_refused_where_its_values_differ() -> None:
    assert parse_record('{"a": 1, "b": {"c": 2, "c": 2}, "a": 1}') == {"a": 1, "b": {"c": 2}}
    for text in ('{"c": 1, "c": 2}', '[{"b": {"c": 2, "c": 3}}]'):
        with pytest.raises(ValueError, match=r"core\.duplicate_json_key\(key=c\)"):
            parse_record(text)
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 200_000):
        with pytest.raises(ValueError, match=rf"nested_too_deep\(max_depth={MAX_DEPTH}\)"):
            parse_record(text)


def test_what_is_no_number_of_json_is_made_by_the_caller() -> None:
    assert parse_json("[NaN, -Infinity]", parse_constant=str.lower) == ["nan", "-infinity"]


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        (as_object, [{}]),
        (as_list, [[]]),
        (as_text, [""]),
        (as_number, [0, 0.5]),
        (as_integer, [0]),
    ],
)
def test_a_value_is_of_the_kind_that_a_record_has_it(
    kind: Callable[[Any], object], right: list[object]
) -> None:
    values: list[object] = [None, True, 0, 0.5, "", [], {}]
    taken = []
    for value in values:
        try:
            taken.append(kind(value))
        except TypeError:
            continue
    assert [(type(value), value) for value in taken] == [(type(value), value) for value in right]
    name = {"text": "string"}.get(kind.__name__[3:], kind.__name__[3:])
    wrong: object = {"x": 1} if kind is as_list else [*range(99)]
    with pytest.raises(TypeError) as raised:
        kind(wrong)
    assert str(raised.value).endswith(f"not_a_json_{name}(value={repr(wrong)[:80]})")
