"""Whose line raised an error, and where its traceback is kept."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infrastructure.core.checksums import parse_record
from infrastructure.core.error_place import (
    at_place,
    caller_place,
    described,
    error_place,
    named,
    place_of,
)
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.files import write_text
from infrastructure.core.json_text import parse_json
from infrastructure.core.kept_traceback import traceback_file, traceback_kept_in

MODULE = """
import json


def fails(value):
    return {}[value]


def in_a_library(value):
    return json.loads("{" + value)


def calls(function, value):
    return function(value)
"""
SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"


@pytest.fixture
def own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Callable[..., None]]]:
    (tmp_path / "turns.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import turns  # type: ignore[import-not-found]

    yield vars(turns)
    sys.modules.pop("turns", None)


def raised_by(call: Callable[..., object], *arguments: object) -> Exception:
    try:
        call(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def test_an_error_of_ones_own_code_is_named_by_its_line(
    own: dict[str, Callable[..., None]],
) -> None:
    error = raised_by(own["fails"], "gone")
    assert described(error) == "KeyError: 'gone' at turns.py:6 (fails)"
    error = raised_by(own["in_a_library"], "x")
    assert described(error).endswith(" at turns.py:10 (in_a_library)")


def test_an_error_of_our_code_has_no_such_line() -> None:
    assert " at " not in described(raised_by(parse_json, b"{"))


def test_the_line_that_led_to_an_error_is_named_whoever_raised_it(
    own: dict[str, Callable[..., None]],
) -> None:
    error = raised_by(own["calls"], parse_record, b"{")
    here = f"{Path(__file__).name}:{raised_by.__code__.co_firstlineno + 2} (raised_by)"
    assert (error_place(error), caller_place(error)) == (None, "turns.py:14 (calls)")
    assert caller_place(raised_by(parse_record, b"{")) == here
    assert place_of(own["fails"]) == "turns.py:5 (fails)"
    assert [place_of(thing) for thing in (json.loads, parse_record, 3, print)] == [None] * 4


def test_an_error_is_named_on_one_line_and_its_place_once(
    own: dict[str, Callable[..., None]],
) -> None:
    assert [named(ValueError(text)) for text in ("a\n  b", " ", "")] == [
        *("ValueError: a b", "ValueError", "ValueError")
    ]
    error = raised_by(own["fails"], "turns.py:6 (fails)")
    assert (at_place(error), described(error)) == ("", "KeyError: 'turns.py:6 (fails)'")


def test_a_traceback_is_kept_without_secrets(
    own: dict[str, Callable[..., None]], tmp_path: Path
) -> None:
    path = tmp_path / "logs/errors/traceback.txt"
    with pytest.raises(KeyError) as raised, traceback_kept_in(path):
        own["fails"](SECRET)
    assert traceback_file(raised.value) == path
    text = path.read_text()
    assert 'turns.py", line 6, in fails' in text
    assert SECRET not in text


def test_an_error_with_a_sentence_of_ours_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "traceback.txt"
    with pytest.raises(DamagedFileError) as raised, traceback_kept_in(path):
        parse_record(b"{")
    assert traceback_file(raised.value) is None
    assert not path.exists()


def test_a_disk_that_refuses_is_no_second_error(
    own: dict[str, Callable[..., None]], tmp_path: Path
) -> None:
    write_text(tmp_path / "logs", "a file where a folder should be")
    with pytest.raises(KeyError) as raised, traceback_kept_in(tmp_path / "logs/traceback.txt"):
        own["fails"]("gone")
    assert traceback_file(raised.value) is None
