"""Lists as people type them, with items that have commas themselves."""

import pytest

from infrastructure.core.comma_list import join_items, split_items


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a,b", ["a", "b"]),
        (" a , ,b,\n c ", ["a", "b", "c"]),
        ('"a,b",c', ["a,b", "c"]),
        (r'"format=\d{1,3}", exact_answer', [r"format=\d{1,3}", "exact_answer"]),
        ('a"b,"say ""x"""', ['a"b', 'say "x"']),
        ("", []),
    ],
)
def test_items_stand_between_commas_and_keep_their_own_in_quotes(
    text: str, items: list[str]
) -> None:
    assert split_items(text) == items


@pytest.mark.parametrize("items", [["a", "b"], ["a,b", "c"], ['"x", y', "[z]", 'a"b'], []])
def test_what_is_joined_is_read_back(items: list[str]) -> None:
    assert split_items(join_items(items)) == items


def test_quotes_that_stay_open_are_refused() -> None:
    with pytest.raises(ValueError, match=r"core\.unreadable_list"):
        split_items('"a,b')
