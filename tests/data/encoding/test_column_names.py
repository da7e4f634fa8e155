"""Names of columns are compared in one spelling, and each known pair has its shape and contexts."""

from collections import Counter

import pytest

from infrastructure.data.encoding.column_names import NamedPair, known_pairs, plain


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (" Question Text ", "question_text"),
        ("Question-Text", "question_text"),
        ("a b-c d-e", "a_b_c_d_e"),
        ("RE\u0301PONSE", "réponse"),
        ("Straße", "strasse"),
    ],
)
def test_names_are_compared_in_one_spelling(name: str, expected: str) -> None:
    assert plain(name) == expected


def test_each_kind_of_pair_has_its_shape_and_its_contexts() -> None:
    pairs = known_pairs("a", "b", "c")
    assert Counter(pair.shape for pair in pairs) == {"a": 31, "b": 69, "c": 21}
    assert len({(pair.prompt, pair.answer) for pair in pairs}) == len(pairs)
    first, second, third = pairs[0], pairs[31], pairs[100]
    assert first == NamedPair("a", "prompt", "generation")
    assert (second.shape, second.prompt, second.answer) == ("b", "q", "a")
    assert second.contexts[:3] == ("context", "passage", "support")
    assert (len(second.contexts), second.contexts[-1]) == (15, "맥락")
    assert third == NamedPair("c", "anweisung", "ausgabe", ("eingabe",))
    for pair in pairs:
        assert pair.contexts == second.contexts if pair.shape == "b" else len(pair.contexts) < 2
        assert bool(pair.contexts) == (pair.shape != "a")
        for name in (pair.prompt, pair.answer, *pair.contexts):
            assert name == plain(name) != ""
