"""Scores of answers: final answers by hand, ROUGE and F1 by torchmetrics in any script."""

import pytest

from infrastructure.core import optional
from infrastructure.core.errors import MissingPackageError
from infrastructure.evaluation import text_scores
from infrastructure.evaluation.text_scores import (
    final_answer,
    scores_by_name,
    usual_measures,
    words_of,
)


@pytest.mark.parametrize(
    ("written", "expected", "is_right"),
    [
        ("so 40 + 2\n#### 42", "6 * 7 = 42\n#### 42", True),
        ("#### 42.0", "#### 42", True),
        ("#### $1,000.", "#### 1000", True),
        ("#### 5 €", "#### 5", True),
        ("#### £ 5", "#### 5", True),
        ("#### 50%", "#### 50", True),
        ("#### New York", "#### new  york.", False),
        ("#### 41\n#### 42\nthat is all", "#### 42", True),
        ("it is 42", "#### 42", False),
        ("#### 4.2", "#### 42", False),
        ("#### -42", "#### 42", False),
        ("####", "#### 42", False),
        ("#### Paris ", "#### paris", True),
        ("#### 42", "42", True),
    ],
)
def test_the_final_answer_decides(written: str, expected: str, is_right: bool) -> None:
    assert final_answer(written, expected) == is_right


def test_an_exact_answer_is_so_but_for_the_space_around_it() -> None:
    score = scores_by_name(["exact_match"])["exact_match"]
    pairs = [(" yes\n", "yes"), ("yes", " yes "), ("Yes", "yes"), ("yes.", "yes")]
    assert [score(*pair) for pair in pairs] == [1.0, 1.0, 0.0, 0.0]


def test_words_are_of_any_script() -> None:
    assert words_of("The cat, the_HAT; 3.5") == ["the", "cat", "the", "hat", "3", "5"]
    assert words_of("Слава Україні!") == ["слава", "україні"]
    assert words_of("東京2020") == ["東", "京", "2020"]


def test_rouge_and_f1_are_the_packages_own() -> None:
    pytest.importorskip("torchmetrics")
    score = scores_by_name(["rouge1", "rouge2", "rougeL", "f1"])
    given = ("the cat sat on a mat", "a cat sat on the mat")
    assert score["rouge1"](*given) == pytest.approx(1.0)
    assert score["rouge2"](*given) == pytest.approx(0.4)
    assert score["rougeL"](*given) == pytest.approx(2 / 3)
    assert score["f1"]("the cat", "cat sat") == pytest.approx(2 / 3)
    assert score["rougeL"]("слава їй", "Слава!") == pytest.approx(2 / 3)
    assert score["rouge1"]("", "x") == 0


def test_pairs_of_words_are_not_measured_where_answers_have_one() -> None:
    some = usual_measures(has_final_answers=False, has_pairs=False)
    assert [n for n in usual_measures(has_final_answers=False) if n not in some] == ["rouge2"]


def test_a_missing_package_is_named_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optional, "is_installed", lambda package: False)
    monkeypatch.setattr(text_scores, "is_installed", lambda package: False)
    with pytest.raises(
        MissingPackageError, match=r"core\.package_not_installed.*package=torchmetrics"
    ):
        scores_by_name(["exact_match", "f1"])
    assert usual_measures(has_final_answers=True) == ["exact_match", "final_answer"]
    assert list(scores_by_name(["exact_match"])) == ["exact_match"]
