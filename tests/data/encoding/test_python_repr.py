"""Values as Python prints them are read as JSON has them, or refused."""

import ast
import random
import warnings
from typing import Any

import pytest

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import MAX_DEPTH
from infrastructure.data.encoding.python_repr import MAX_CHARACTERS, parse_python


def any_value(draw: random.Random, depth: int = 3) -> Any:
    plain = [None, True, False, 7, -2.5, "it's", 'say "a"', "a\nb", "[{(", ")]}", "", "# no", "\\"]
    if not depth or draw.random() < 0.4:
        return draw.choice(plain)
    parts = [any_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return parts if draw.random() < 0.5 else {f"k{n}'": part for n, part in enumerate(parts)}


def test_what_python_prints_is_read() -> None:
    draw = random.Random(3)
    for _ in range(300):
        value = [any_value(draw)]
        assert parse_python(f"  {value!r}\n") == value
    assert parse_python(" 7") == 7
    assert parse_python("[(1, 'a'), ()]") == [[1, "a"], []]
    assert parse_python("[\n  'a',  # why\n  'b',\n]") == ["a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = [*warnings.filters]
        assert parse_python(r"['\d']") == [r"\d"]  # no escape: no warning either
        assert warnings.filters == filters


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("['a' 'b']", "python_strings_without_comma"),
        ("['a'\n 'b']", "python_strings_without_comma"),
        ("['a' # why\n 'b']", "python_strings_without_comma"),
        ("[{'k': 'a' 'b'}]", "python_strings_without_comma"),
        ("[b'a']", "no_json_equivalent"),
        ("[{1: 2}]", "no_json_equivalent"),
        ("[{'a': 1, 2: 3}]", "no_json_equivalent"),
        ("[{'a': {1, 2}}]", "no_json_equivalent"),
        ("[1j]", "no_json_equivalent"),
        ("[...]", "no_json_equivalent"),
        ("[print('a')]", "not_a_printed_list"),
        ("['a'", "not_a_printed_list"),
        ("{[]: 1}", "not_a_printed_list"),
        ("", "not_a_printed_list"),
        ("[nan]", "not_a_printed_list"),
        ("[" + "1+" * 50_000 + "1]", "not_a_printed_list"),  # no room for its tree
        ("[" + "-" * 50_000 + "1]", "not_a_printed_list"),
    ],
)
def test_what_json_does_not_have_is_refused(text: str, code: str) -> None:
    with pytest.raises(InputError, match=rf"data\.{code}"):
        parse_python(text)


def test_length_and_depth_are_bounded() -> None:
    whole = "['" + "a" * (MAX_CHARACTERS - 4) + "']"
    assert parse_python(whole) == ast.literal_eval(whole)
    with pytest.raises(ValueError, match=r"data\.python_text_too_long"):
        parse_python(whole + " ")
    for start, end in (("[", "]"), ("{'a': ", "}"), ("(", ",)")):
        for depth in (MAX_DEPTH, MAX_DEPTH + 1):
            text = start * depth + "1" + end * depth
            if depth == MAX_DEPTH:
                assert parse_python(text) is not None
            else:
                with pytest.raises(ValueError, match="deep"):
                    parse_python(text)
    flat: list[Any] = [[], {}, ["[", "}"]] * (2 * MAX_DEPTH)
    assert parse_python(repr(flat)) == flat
    with pytest.raises(ValueError, match="deep"):  # before any tree is made of it
        parse_python("[" * 5 * MAX_DEPTH + "]" * 5 * MAX_DEPTH)
    siblings, rest = "[], " * 5 * MAX_DEPTH, "]" * (5 * MAX_DEPTH + 1)
    with pytest.raises(ValueError, match="deep"):
        parse_python(f"[{siblings}{'[' * 5 * MAX_DEPTH}{rest}")
    for depth in (MAX_DEPTH, MAX_DEPTH + 1):  # a bracket in a string hides one that is open
        hidden = "[')', " * depth + "1" + "]" * depth
        if depth == MAX_DEPTH:
            assert parse_python(hidden) == ast.literal_eval(hidden)
        else:
            with pytest.raises(ValueError, match="deep"):
                parse_python(hidden)
    with pytest.raises(ValueError, match="deep"):
        parse_python("[ " * 5 * MAX_DEPTH + "] " * 5 * MAX_DEPTH)
