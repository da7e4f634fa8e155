from colab.form_groups import BASIC, FIELDS, groups
from colab.form_labels import title_of


def test_every_setting_is_in_one_group() -> None:
    shown = [key for keys in groups().values() for key in keys]
    assert sorted(shown) == sorted(FIELDS)


def test_a_group_can_be_looked_over() -> None:
    assert {title: len(keys) for title, keys in groups().items() if len(keys) > 40} == {}


def test_settings_of_extensions_stand_together() -> None:
    assert groups()["training: extensions"] == [
        "training.enabled_extensions",
        "training.extension_learning_rate",
        "training.optimization_frequency",
    ]


def test_what_most_people_set_comes_first() -> None:
    assert len(BASIC) == len(set(BASIC)) <= 14
    assert set(BASIC) <= FIELDS.keys()


def test_the_titles_of_groups_are_words_and_differ() -> None:
    titles = [title_of(group) for group in groups()]
    assert len(set(titles)) == len(titles)
    assert [title for title in titles if "." in title] == []
    assert "Training: multimodal" in titles
