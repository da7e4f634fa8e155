"""Bad rows are counted whole, kept up to a bound, written down, and too many refuse the start."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.preparation import quarantine as module
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.readers.rows import (
    EMPTY,
    LEFT_OUT,
    NOT_IN_TOKENS,
    OVER_LONG,
    WRONG_TYPE,
    BadRow,
)


def bad(line: int, reason: str = EMPTY) -> BadRow:
    return BadRow("a.jsonl", line, reason, f"detail {line}", "be\u2028gin", 100 * line)


def test_examples_show_each_reason_once() -> None:
    quarantine = Quarantine()
    quarantine.add([bad(1), bad(2), bad(3), bad(4, WRONG_TYPE)])
    assert [row.line for row in quarantine.examples] == [1, 4]
    assert quarantine.counts == {EMPTY: 3, WRONG_TYPE: 1}
    assert quarantine.total == 4


def test_written_and_read_again(tmp_path: Path) -> None:
    quarantine = Quarantine()
    quarantine.add([bad(1), bad(2)])
    quarantine.write(tmp_path / "q.jsonl")
    text = (tmp_path / "q.jsonl").read_text("utf-8")
    assert text.count("be\u2028gin") == 2  # to be read by people
    first = json.loads(text.split("\n")[0])
    assert first == {
        "source": "a.jsonl",
        "line": 1,
        "reason": "empty",
        "detail": "detail 1",
        "excerpt": "be\u2028gin",
    }
    again = Quarantine.read(tmp_path / "q.jsonl", dict(quarantine.counts))
    assert [str(row) for row in again.bad_rows] == [str(row) for row in quarantine.bad_rows]
    assert again.counts == quarantine.counts


def test_memory_is_bounded_and_counts_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 5)
    quarantine = Quarantine()
    quarantine.add(bad(line) for line in range(12))
    assert (len(quarantine.bad_rows), quarantine.total) == (5, 12)
    quarantine.write(tmp_path / "q.jsonl")
    last = json.loads((tmp_path / "q.jsonl").read_text().split("\n")[-2])
    assert last == {"left_out": 7, "counts": {"empty": 12}}
    assert Quarantine.read(tmp_path / "q.jsonl", {"empty": 12}).total == 12


def test_where_all_rows_are_bad_nothing_is_left_to_train_on() -> None:
    quarantine = Quarantine()
    quarantine.add([bad(line, OVER_LONG) for line in range(3)])
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows") as refused:
        quarantine.check(3, 5.0)
    assert "data.skip_bad_rows" not in str(refused.value)
    with pytest.raises(ValueError, match=r"data\.skip_bad_rows"):
        quarantine.check(4, 5.0)


def test_a_reason_is_shown_to_its_end() -> None:
    """There it may say what to do."""
    refusal = "the template refuses the conversation: messages must begin with user, then alternate"
    quarantine = Quarantine()
    quarantine.add([BadRow("a.jsonl", 1, WRONG_TYPE, refusal, "", 0)])
    with pytest.raises(ValueError, match=f"a.jsonl:1, {refusal}\\)"):
        quarantine.check(2, 5.0)
    for length, shown in ((200, "x" * 200), (201, "x" * 199 + "…")):
        quarantine = Quarantine()
        quarantine.add([BadRow("a.jsonl", 1, WRONG_TYPE, "x" * length)])
        with pytest.raises(ValueError, match=rf"a\.jsonl:1, {shown}\)"):
            quarantine.check(2, 5.0)


def test_too_large_a_share_is_refused_with_examples_and_remedy() -> None:
    quarantine = Quarantine()
    quarantine.add([bad(3), bad(9)])
    quarantine.check(40, 5.0, Path("q.jsonl"))  # exactly the limit
    about = r"num_bad=2, num_rows=39, percent=5\.1.*, reasons=2 empty \(a\.jsonl:3, detail 3\),"
    sentence = rf"data\.too_many_bad_rows\({about}.*now=5.*q\.jsonl"
    with pytest.raises(ValueError, match=sentence):
        quarantine.check(39, 5.0, Path("q.jsonl"))
    quarantine.add([bad(number, f"reason {number}") for number in range(9)])
    with pytest.raises(ValueError) as caught:
        quarantine.check(39, 5.0, Path("q.jsonl"))
    assert "data.more_reasons" in str(caught.value)
    assert ", count=8)" in str(caught.value)
    assert len(str(caught.value)) <= 300
    quarantine.add([bad(1, OVER_LONG)] * 3)
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows"):
        quarantine.check(39, 5.0, Path("q.jsonl"))


def test_rows_that_would_not_be_learned_have_a_limit_of_their_own() -> None:
    quarantine = Quarantine()
    quarantine.add([bad(1), bad(2, LEFT_OUT), bad(3, NOT_IN_TOKENS)])
    quarantine.check(40, 50.0, max_unlearnable_percent=5.0)  # exactly the limit
    for limit, most in ((4.9, 50.0), (None, 7.4), (9.0, 7.4), (2.0, 7.4), (0.0, 50.0)):
        with pytest.raises(
            ValueError, match=r"data\.too_many_bad_rows.*num_bad=3.*num_rows=40"
        ) as caught:
            quarantine.check(40, most, max_unlearnable_percent=limit)
        now = most if limit is None else min(limit, most)
        assert f"data.skip_bad_rows(now={now})" in str(caught.value)
    quarantine.check(40, 7.5)
    with pytest.raises(ValueError, match=r"data\.skip_bad_rows\(now=7\.4\)"):
        quarantine.check(21, 7.4, max_unlearnable_percent=9.0)  # both are too many
    quarantine.add([bad(4)] * 3)
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows") as caught:
        quarantine.check(6, 5.0, max_unlearnable_percent=5.0)
    assert "data.max_bad_rows_percent" not in str(caught.value)  # nothing would be left


def test_the_advice_of_a_row_is_that_of_all_like_it() -> None:
    quarantine = Quarantine()
    quarantine.add([BadRow("a.jsonl", 1, "chat template", advice="give one")])
    why = r"reasons=1 chat template \(a\.jsonl:1\), remedy=give one, "
    with pytest.raises(ValueError, match=why):
        quarantine.check(2, 5.0, None)
    quarantine.add([bad(2)])
    with pytest.raises(ValueError, match=r"\(a\.jsonl:1\); 1 empty \(a\.jsonl:2, detail 2\), rem"):
        quarantine.check(9, 5.0)


def test_a_reason_of_which_no_row_was_kept_counts_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 1)
    quarantine = Quarantine()
    quarantine.add([bad(1), bad(2, NOT_IN_TOKENS), bad(3, NOT_IN_TOKENS)])
    shown = r"reasons=data\.more_reasons\(reasons=1 empty \(a\.jsonl:1, detail 1\), count=1\)"
    with pytest.raises(ValueError, match=rf"num_bad=3, .*{shown}, remedy=data\.fix_rows\(\)"):
        quarantine.check(9, 5.0)


def test_the_most_frequent_reasons_are_shown_by_their_first_rows() -> None:
    quarantine = Quarantine()
    reasons = ["a", "b", "c", "d", "b", "c", "c", "d", "d", "d"]
    quarantine.add(bad(line, reason) for line, reason in enumerate(reasons, 1))
    assert [(row.reason, row.line) for row in quarantine.examples] == [("d", 4), ("c", 3), ("b", 2)]
    why = "reasons=data.more_reasons(reasons=4 d (a.jsonl:4, detail 4); 3 c (a.jsonl:3, detail 3)"
    with pytest.raises(ValueError, match=re.escape(f"{why}, count=2)")):
        quarantine.check(20, 5.0)
    none_left = str(quarantine.none_left("rows"))
    reason = "data.no_rows_because(count=10, reasons=data.more_reasons("
    assert none_left.startswith(f"data.no_rows_left(path=rows, reason={reason}")
    assert str(Quarantine().none_left("rows")) == "data.no_rows_left(path=rows, reason=)"


@pytest.mark.parametrize(
    ("reason", "options", "remedy"),
    [
        (EMPTY, {}, "data.fix_rows()"),
        (NOT_IN_TOKENS, {}, "data.take_other_tokenizer()"),
        (OVER_LONG, {}, "data.raise_max_length()data.truncate_instead()"),
        (OVER_LONG, {"cuts_prompts": False}, "data.raise_max_length()"),
    ],
)
def test_the_remedy_is_that_of_the_most_frequent_reason(
    reason: str, options: dict[str, Any], remedy: str
) -> None:
    quarantine = Quarantine()
    quarantine.add([bad(1, WRONG_TYPE), bad(2, reason), bad(3, reason)])
    with pytest.raises(ValueError) as caught:
        quarantine.check(9, 5.0, **options)
    assert f"remedy={remedy}, skip_hint=" in str(caught.value)
    assert str(caught.value).endswith("listing=)")


def test_one_of_the_rows_that_would_not_be_learned_decides_the_remedy() -> None:
    quarantine = Quarantine()
    quarantine.add([bad(1)] * 5 + [bad(6, NOT_IN_TOKENS)])
    for limit, remedy in ((5.0, "data.take_other_tokenizer()"), (50.0, "data.fix_rows()")):
        with pytest.raises(ValueError) as caught:
            quarantine.check(10, 20.0, max_unlearnable_percent=limit)
        assert f"remedy={remedy}, " in str(caught.value)


def test_what_is_written_of_a_row_holds_its_own_advice_and_encoding(tmp_path: Path) -> None:
    quarantine = Quarantine()
    rows = [
        BadRow("a", 1, EMPTY, "", "", 7),
        BadRow("a", 2, EMPTY, "d", "e", 8, encoding="cp1252"),
        BadRow("a", 3, EMPTY, "d", "e", 9, advice="do it"),
    ]
    quarantine.add(rows)
    quarantine.write(tmp_path / "q.jsonl")
    plain, encoded, advised = map(json.loads, (tmp_path / "q.jsonl").read_text().splitlines())
    assert plain == {"source": "a", "line": 1, "reason": EMPTY, "detail": "", "excerpt": ""}
    assert (encoded["encoding"], advised["advice"]) == ("cp1252", "do it")
    again = Quarantine.read(tmp_path / "q.jsonl", {EMPTY: 3}).bad_rows
    assert again == [replace(row, offset=0) for row in rows]
