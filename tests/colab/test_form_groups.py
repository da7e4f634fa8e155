from colab.form_groups import BASIC, FIELDS, LATER, groups
from infrastructure.config.merging.planned import later_of


def test_every_setting_is_in_one_group() -> None:
    shown = [key for keys in groups().values() for key in keys]
    assert sorted(shown) == sorted(FIELDS)


def test_what_is_not_there_yet_comes_last_and_by_itself() -> None:
    *_, (title, keys) = groups().items()
    assert title == LATER
    marks = {key: later_of(spec) for key, spec in FIELDS.items()}
    assert keys == [key for key, mark in marks.items() if mark and not mark.values]


def test_a_group_can_be_looked_over() -> None:
    assert {title: len(keys) for title, keys in groups().items() if len(keys) > 40} == {}
    assert all(keys or title == LATER for title, keys in groups().items())


def test_what_most_people_set_comes_first() -> None:
    assert len(BASIC) == len(set(BASIC)) <= 14
    assert set(BASIC) <= FIELDS.keys()
