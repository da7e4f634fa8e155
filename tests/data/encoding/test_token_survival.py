"""What is read back of tokens, against what they were made from; by texts, without a model."""

from collections.abc import Sequence
from typing import Any

import pytest

from infrastructure.data.encoding.chat_format import Written
from infrastructure.data.encoding.token_survival import (
    KINDS,
    LETTERS,
    LOST,
    WHITE_SPACE,
    Survival,
    Survivals,
    TokenSurvival,
)
from tests.data.builders import byte_level_tokenizer, metaspace_tokenizer


class Reader:
    """Stands for a slow tokenizer that reads these texts back, one a number."""

    is_fast = False

    def __init__(self, *read_back: str) -> None:
        self.read_back = read_back

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(self.read_back[number] for number in ids)


def survival(parts: Sequence[str], read_back: str) -> Survival:
    reader: Any = Reader(read_back)
    (found,) = TokenSurvival(reader).compare([parts], [[0]])
    assert bool(found.kind) == bool(found.example)
    return found


@pytest.mark.parametrize(
    ("text", "read_back", "kind"),
    [
        ("a", "a", ""),
        ("a", "xax", ""),
        ("ab", "a", LOST),
        ("", "a", ""),
        # single spaces, and equal spellings of a character
        ("a b", "ab", ""),
        ("ab", "a b", ""),
        ("a b", "a▁b", ""),
        ("e\u0301", "\u00e9", ""),
        ("a b", "a\n\nb", ""),
        # layout, of which each piece counts
        ("a\nb", "a b", WHITE_SPACE),
        ("a  b", "a b", WHITE_SPACE),
        ("a\tb", "a b", WHITE_SPACE),
        ("a\u00a0b", "a b", WHITE_SPACE),
        ("a\nb\nc", "a\nb c", WHITE_SPACE),
        ("a\n\nb", "a\nb", WHITE_SPACE),
        ("\na\n", "a", ""),
        # letters
        ("A", "a", LETTERS),
        ("\u00e9", "e", LETTERS),
        ("\u00df", "SS", LETTERS),
        ("™", "tm", LETTERS),
        ("ﬁ", "fi", LETTERS),
        ("a\u200bb", "ab", LETTERS),
        ("a\x07b", "ab", LETTERS),
        ("A b", "ab", LETTERS),
        ("A\u2028b", "ab", LETTERS),
        ("A\u2029b", "ab", LETTERS),
        ("A\nb", "a b", LETTERS),
        ("A b", "a▁b", LETTERS),
        ("a-b", "ab", LOST),
        ("a1", "a", LOST),
        # half a character at the edge
        ("aé", "a\ufffd", ""),
        ("\ufffda", "\ufffd", LOST),
    ],
)
def test_a_change_is_of_a_kind(text: str, read_back: str, kind: str) -> None:
    assert survival([text], read_back).kind == kind


@pytest.mark.parametrize(
    ("parts", "read_back", "kind"),
    [
        (["a", "b"], "a, then b.", ""),
        (["a", "b"], "ba", LOST),
        (["ab", "bc"], "abc", LOST),
        (["ab", "ba"], "ab ba", ""),
        (["A", "b"], "a, then b.", LETTERS),
        (["A", "a"], "a", LOST),
        (["a", "b\nc"], "a; b c", WHITE_SPACE),
    ],
)
def test_parts_are_read_back_one_after_the_other(
    parts: list[str], read_back: str, kind: str
) -> None:
    assert survival(parts, read_back).kind == kind


def test_numbers_differ_by_letters_and_not_by_spaces() -> None:
    plain, capital = survival(["a b"], "a b"), survival(["A b"], "ab")
    assert plain.given == plain.learned == capital.learned != capital.given
    assert survival(["a\nb"], "a b").learned == plain.given
    assert survival(["a▁b"], "a▁b").given == plain.given
    other = survival(["c"], "")
    assert other.kind == LOST
    assert other.learned == other.given != plain.given
    numbers = [survival([str(n)], str(n)).given for n in range(64)]
    assert 2**60 < max(numbers) < 2**64


def test_a_fast_tokenizer_reads_back_its_special_tokens_and_each_text_by_itself() -> None:
    tokenizer = byte_level_tokenizer()
    texts = ["The sum is 42.<|im_end|>", "Jörg"]
    kinds = [
        one.kind
        for one in TokenSurvival(tokenizer).compare(
            [[t] for t in texts], [tokenizer(text)["input_ids"] for text in texts]
        )
    ]
    assert kinds == ["", ""]
    swapped = [tokenizer(text)["input_ids"] for text in reversed(texts)]
    found = TokenSurvival(tokenizer).compare([[text] for text in texts], swapped)
    assert [one.kind for one in found] == [LOST, LOST]


LONG = "abcdefghijklmnopqrstuvwxyz" * 3


@pytest.mark.parametrize(
    ("text", "read_back", "expected"),
    [
        ("Paris", "paris", ("Paris", "paris")),
        ("in A", "ina", ("in A", "ina")),
        (LONG[:12] + "Z", LONG[:12] + "z", (LONG[:12] + "Z", LONG[:12] + "z")),
        (LONG[:13] + "Z", LONG[:13] + "z", (f"…{LONG[1:13]}Z", f"…{LONG[1:13]}z")),
        ("Z" + LONG[:39], "z" + LONG[:40], ("Z" + LONG[:39], f"z{LONG[:39]}…")),
        ("a " * 15 + "Z", "a" * 15 + "z", ("…" + "a " * 6 + "Z", "…" + "a" * 12 + "z")),
        ("a" * 15 + "Z", "a " * 15 + "z", ("…" + "a" * 12 + "Z", "…" + "a " * 6 + "z")),
        # one of them ends
        ("a " * 15 + "Z", "a" * 15, ("…" + "a " * 6 + "Z", "…" + "a" * 12)),
        ("a  " + LONG[:20], f"a {LONG[:20]}Z", ("…" + LONG[8:20], f"…{LONG[8:20]}Z")),
        # spaces alone
        ("a  b  " + LONG, "a b  " + LONG, (f"a  b  {LONG[:34]}…", f"a b  {LONG[:35]}…")),
        (LONG[:20] + "  Z", LONG[:20] + " Z", (f"…{LONG[9:20]}  Z", f"…{LONG[9:20]} Z")),
        ("a\n" + LONG, "a " + LONG, (f"a\n{LONG[:38]}…", f"a {LONG[:38]}…")),
    ],
)
def test_the_first_change_is_shown(text: str, read_back: str, expected: tuple[str, str]) -> None:
    example = survival([text], read_back).example
    text, decoded = expected
    assert example == f"data.text_decoded_differently(text={text}, decoded={decoded})"


def test_the_learned_parts_of_a_row_are_compared() -> None:
    """Overlapping spans count once, and what is given is not learned."""
    text = "ask: yes. no"
    spans = ((0, 4), (5, 8), (5, 9), (7, 10), (10, 12))
    for is_learnt, learned in (
        ((True, True, False, False, True), "yesno"),
        ((True, True, True, True, False), "yes. "),
        ((False, False, False, True, True), "s. no"),
    ):
        written = Written((), text, spans, is_learnt, given=text[:5])
        reader: Any = Reader(learned)
        (found,) = TokenSurvival(reader).of_rows([written], [[0]])
        assert found == Survival(given=found.given, learned=found.given)
        assert found.given == survival([learned], learned).given


def test_what_begins_in_the_given_part_is_not_learned() -> None:
    text = "ask: yes. no"
    written = Written((), text, ((3, 8), (10, 12)), (True, True), given=text[:5])
    reader: Any = Reader("no")
    (found,) = TokenSurvival(reader).of_rows([written], [[0]])
    assert found == Survival(given=found.given, learned=found.given)
    assert found.given == survival(["no"], "no").given


def changed(given: int, learned: int, example: str = "") -> Survival:
    return Survival(LETTERS, example or f"{given}", given, learned)


def same(number: int) -> Survival:
    return Survival(given=number, learned=number)


TOP = 2**64 - 1


@pytest.mark.parametrize(
    ("rows", "num_equal", "example"),
    [
        ([same(5), same(5)], 0, ""),
        ([changed(1, 5), same(6)], 0, ""),
        ([changed(1, 5), changed(1, 5)], 0, ""),
        ([changed(1, 5), changed(2, 6)], 0, ""),
        ([changed(1, 5), same(5)], 2, "1 (row 0)"),
        ([same(5), same(7), same(5), changed(1, 5)], 3, "1 (row 3)"),
        ([changed(1, 5), changed(2, 5)], 2, "1 (row 0)"),
        ([changed(3, 4), changed(1, 5), changed(2, 5), changed(1, 5)], 3, "1 (row 1)"),
        ([changed(1, 5), changed(2, 6), same(5), same(6), same(8)], 4, "1 (row 0)"),
        ([changed(1, TOP), same(TOP), same(0)], 2, "1 (row 0)"),
        ([Survival(WHITE_SPACE, "x", 5, 5), changed(1, 5)], 2, "1 (row 1)"),
        ([changed(5, 5), same(5)], 0, ""),
        # each bit counts
        ([changed(1, 2**62 + 1), same(2**62 + 1), same(2**62)], 2, "1 (row 0)"),
    ],
)
def test_answers_that_become_equal_are_counted(
    rows: list[Survival], num_equal: int, example: str
) -> None:
    survivals = Survivals()
    for number, row in enumerate(rows):
        survivals.add(f"row {number}", row)
    survivals.finish()
    assert (survivals.num_equal, survivals.equal_example) == (num_equal, example)
    assert Survivals.from_json(survivals.to_json()).lines() == survivals.lines()
    same_to_model = [line for line in survivals.lines() if "data.answers_learned_as_same" in line]
    assert [f"(num_equal={num_equal}," in line for line in same_to_model] == [True] * (
        num_equal > 0
    )


def test_kinds_are_counted_with_their_first_example() -> None:
    survivals = Survivals()
    layout = Survival(WHITE_SPACE, "x", 1, 1)
    for number, one in enumerate([changed(1, 2, "first"), layout, layout, Survival(LOST, "z")]):
        survivals.add(f"row {number}", one)
    assert survivals.rows == {LETTERS: 1, WHITE_SPACE: 2}
    assert survivals.firsts == {LETTERS: ("row 0", "first"), WHITE_SPACE: ("row 1", "x")}
    spaces, letters = survivals.lines()  # the most first
    assert spaces.startswith("data.tokenizer_changed_answers(count=2,")
    assert f"difference={KINDS[WHITE_SPACE]}(), example=x, place=row 1" in spaces
    assert letters.startswith("data.tokenizer_changed_answers(count=1,")
    assert f"difference={KINDS[LETTERS]}(), example=first, place=row 0" in letters
    read = Survivals.from_json(survivals.to_json())
    assert (read.rows, read.firsts) == (survivals.rows, survivals.firsts)
    assert Survivals.from_json({}) == Survivals()


def test_equal_answers_are_refused_above_a_share() -> None:
    survivals = Survivals(num_equal=2, equal_example="x")
    survivals.check(100, 2.0)
    survivals.check(0, 200.0)
    with pytest.raises(
        ValueError, match=r"data\.answers_equal_to_tokenizer.*num_equal=1.*num_rows=1"
    ):
        Survivals(num_equal=1, equal_example="x").check(1, 99.0)
    for num_rows, percent in ((99, "2.0"), (8, "25.0")):
        with pytest.raises(
            ValueError, match=rf"num_equal=2, num_rows={num_rows}, percent={percent}.*max_percent=2"
        ):
            survivals.check(num_rows, 2.0)
    Survivals().check(0, 0.0)


def test_rows_that_lose_text_that_is_only_read_are_counted_apart() -> None:
    survivals = Survivals()
    for number, unread in enumerate(["", "first", "second"]):
        survivals.add(f"row {number}", Survival(unread=unread, given=number, learned=number))
        count = max(1, number)
        lost = f"count={count}, example=first, place=row 1"
        assert survivals.lines() == ([f"data.text_without_tokens({lost})"] if number else [])
    survivals.add("row 3", Survival(LETTERS, "x", 1, 2, "third"))
    letters, unread = survivals.lines()
    answers = f"difference={KINDS[LETTERS]}(), example=x, place=row 3"
    assert letters == f"data.tokenizer_changed_answers(count=1, {answers})"
    assert "count=3," in unread
    assert Survivals.from_json(survivals.to_json()).lines() == survivals.lines()


def test_text_is_missed_where_a_tokenizer_loses_characters() -> None:
    losing = TokenSurvival(metaspace_tokenizer())
    written = "user: Ω is\nhere"
    ids = metaspace_tokenizer()(written, add_special_tokens=False)["input_ids"]
    for texts, lost in (
        (["\tΩ is \n"], True),  # a template strips it
        (["here", "Ω is"], True),
        (["here", "user"], False),
        (["Ω was"], False),  # not written at all
        ([], False),
    ):
        assert bool(losing.lost_of(texts, written, ids)) is lost
    shown = losing.lost_of(["here", "Ω is"], written, ids)
    assert shown == "data.text_decoded_differently(text=Ω is, decoded=<unk> is)"
    keeping = TokenSurvival(byte_level_tokenizer())
    assert keeping.lost_of(["Ω is"], written, []) == ""  # it has tokens for each byte
