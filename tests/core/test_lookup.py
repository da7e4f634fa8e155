"""Names are looked up, and wrong ones get the nearest right one."""

import pytest

from infrastructure.core.lookup import look_up, nearest, unknown_name


def test_a_known_name_gives_its_value() -> None:
    assert look_up("colour", "red", {"red": 1, "blue": 2}) == 1


def test_a_misspelt_name_gets_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match="unknown colour 'bleu'; did you mean 'blue'"):
        look_up("colour", "bleu", {"red": 1, "blue": 2})
    assert unknown_name("colour", "xyz", ["red"]) == "unknown colour 'xyz' (known: red)"


def test_what_reads_like_nothing_has_no_nearest() -> None:
    assert nearest("zzz", ["red", "blue"]) is None
