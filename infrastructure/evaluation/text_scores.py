"""Scores of an answer against the expected one: a number from 0 to 1 for each row.

ROUGE and F1 come from torchmetrics. Words are runs of letters and digits of any script; each
Chinese or Japanese character is a word. For plain English this matches the rouge-score package.
"""

import re
from collections.abc import Callable, Collection
from decimal import Decimal, InvalidOperation
from typing import Any

from infrastructure.config.measures import (
    EXACT_MATCH,
    F1,
    FINAL_ANSWER,
    MEASURES,
    OF_TORCHMETRICS,
    ROUGE,
    ROUGE2,
    Of,
)
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, refuse_missing

FINAL_ANSWER_SIGN = "####"  # GSM8K's marker: the final result follows it
_SIGNS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+")
_NOT_OF_NUMBER = re.compile(r"[,$€£%\s]|\.$")

Score = Callable[[str, str], float]


def exact_match(written: str, expected: str) -> float:
    """Return 1 if the answer equals the expected one, ignoring surrounding whitespace, else 0."""
    return float(written.strip() == expected.strip())


def final_answer_of(text: str) -> str | None:
    """Return the rest of the line after the last "####"; None if there is no such marker."""
    _, sign, after = text.rpartition(FINAL_ANSWER_SIGN)
    lines = after.strip().splitlines()
    return lines[0].strip() if sign and lines else None


def final_answer(written: str, expected: str) -> float:
    """Return 1 if the final result, which follows "####", is equal in both texts, else 0.

    Results are compared as numbers if they are numbers (1,000 equals 1000.0), else as text. If the
    expected answer has no "####", the whole expected answer is the result.
    """
    was = final_answer_of(written)
    wanted = final_answer_of(expected) or expected.strip()
    return float(was is not None and _result(was) == _result(wanted))


def _result(text: str) -> Decimal | str:
    try:
        return Decimal(_NOT_OF_NUMBER.sub("", text)).normalize()
    except InvalidOperation:
        return " ".join(text.casefold().split())


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def _rouge(key: str) -> Score:
    from torchmetrics.functional.text import rouge_score

    def score(written: str, expected: str) -> float:
        scored = rouge_score(
            written,
            expected,
            rouge_keys=key,
            normalizer=lambda text: " ".join(words_of(text)),
            tokenizer=str.split,
        )
        return float(scored[f"{key}_fmeasure"])

    return score


def _f1() -> Score:
    from torchmetrics.functional.text import squad

    def score(written: str, expected: str) -> float:
        answer: Any = {"answers": {"answer_start": [0], "text": [expected]}, "id": ""}
        return float(squad([{"prediction_text": written, "id": ""}], [answer])["f1"]) / 100

    return score


def scores_by_name(names: Collection[str]) -> dict[str, Score]:
    """Return name → scoring function, for those `names` that are measures of answers.

    Raises:
        MissingPackageError: one of them needs torchmetrics, which is not installed.
    """
    refuse_missing_package(names)
    made: dict[str, Score] = {}
    for name in names:
        if name == EXACT_MATCH:
            made[name] = exact_match
        elif name == FINAL_ANSWER:
            made[name] = final_answer
        elif name == F1:
            made[name] = _f1()
        elif name in ROUGE:
            made[name] = _rouge(name)
    return made


def refuse_missing_package(names: Collection[str]) -> None:
    """Check that torchmetrics is installed if one of the measures needs it, without importing it.

    Raises:
        MissingPackageError: torchmetrics is missing; the message has the command that installs it.
    """
    if needing := [name for name in names if name in OF_TORCHMETRICS]:
        refuse_missing("torchmetrics", phrase("evaluation.computing_metrics", names=needing))


def usual_measures(*, has_final_answers: bool, has_pairs: bool = True) -> list[str]:
    """Return the measures of answers that are computed by default.

    Args:
        has_final_answers: True if an expected answer has a "####" marker.
        has_pairs: True if an expected answer has two words or more; otherwise ROUGE-2 is always 0.
    """
    left_out = set() if is_installed("torchmetrics") else {*OF_TORCHMETRICS}
    left_out |= set() if has_final_answers else {FINAL_ANSWER}
    left_out |= set() if has_pairs else {ROUGE2}
    return [name for name, of in MEASURES.items() if of is Of.ROWS and name not in left_out]
