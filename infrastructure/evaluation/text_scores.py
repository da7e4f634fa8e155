"""How near a written answer is to the expected one: a number from 0 to 1 for each row.

ROUGE and F1 are torchmetrics'. Words are what letters and digits are in any script, and each sign
of Chinese and Japanese is one; in plain English that is what the rouge-score package takes.
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
from infrastructure.core.optional import is_installed, refuse_missing

FINAL_ANSWER_SIGN = "####"  # of GSM8K: after it stands the result alone
_SIGNS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+")
_NOT_OF_NUMBER = re.compile(r"[,$€£%\s]|\.$")

Score = Callable[[str, str], float]


def exact_match(written: str, expected: str) -> float:
    """Equal, white space around it aside."""
    return float(written.strip() == expected.strip())


def final_answer_of(text: str) -> str | None:
    """What stands after the last "####", on its line; None where there is none."""
    _, sign, after = text.rpartition(FINAL_ANSWER_SIGN)
    lines = after.strip().splitlines()
    return lines[0].strip() if sign and lines else None


def final_answer(written: str, expected: str) -> float:
    """The same result after "####": as a number where it is one (1,000 is 1000.0), else as text.

    Of an expected answer without that sign all of it is the result.
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
    """The words of a text in small letters."""
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
    """What computes the measures of answers among `names`.

    Raises:
        MissingPackageError: torchmetrics is not installed, and one of them needs it.
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
    """Refuse measures that need torchmetrics where it is not installed; imports nothing.

    Raises:
        MissingPackageError: with the line that installs it.
    """
    if needing := [name for name in names if name in OF_TORCHMETRICS]:
        refuse_missing("torchmetrics", f"the measure {', '.join(needing)}")


def usual_measures(*, has_final_answers: bool, has_pairs: bool = True) -> list[str]:
    """Those of answers that are computed where nobody has chosen.

    Args:
        has_pairs: some expected answer has two words; of single words there is no ROUGE-2.
    """
    left_out = set() if is_installed("torchmetrics") else {*OF_TORCHMETRICS}
    left_out |= set() if has_final_answers else {FINAL_ANSWER}
    left_out |= set() if has_pairs else {ROUGE2}
    return [name for name, of in MEASURES.items() if of is Of.ROWS and name not in left_out]
