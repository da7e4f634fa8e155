"""Whether what is to be learned survives the tokenizer: its tokens are read back as text and
compared with the text that they were made from.

A tokenizer may have no token for a character, write it in lower case, take its accent off, or make
a space of a line break. What the comparison finds is one of three things:

| | |
| --- | --- |
| lost | a character is gone, or one unknown token stands for many: the row is no use |
| letters | the same letters but for case, accents and other spellings of one character |
| white space | the same letters, and other line breaks, indentation or tabs |

Of the rest of a row only what is lost is looked for, and such a row is used: it is asked as it was
trained.

Single spaces do not count, since some tokenizers write them by rule, and neither do two spellings
of one character that Unicode calls equal. The numbers of what is given and of what is learned tell
which different answers have become one.
"""

import hashlib
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.training.data.encoding.chat_format import Written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SURVIVAL_VERSION = 2  # of what is kept of it with prepared rows
LOST, LETTERS, WHITE_SPACE = "lost", "letters", "white space"
KINDS = {
    LETTERS: "learned in other letters than the data has",
    WHITE_SPACE: "learned with other line breaks, tabs or indentation than the data has",
}
UNREAD = "unread"  # rows of which something that is not learned is lost
# A line break and characters of several scripts: a tokenizer that has tokens for them has some for
# all, byte by byte.
PROBE = "a\nb \u5b57 \U0001f600 \u01c2 \u03a9"
LAYOUT = re.compile(r"\s{2,}|[^\S ]")  # white space that is more than a space between two words
SPACE = "▁"  # what some tokenizers write for one, and read back as one wherever it stands
HALF = "\N{REPLACEMENT CHARACTER}"  # what is read back of some of a character's bytes
SHOWN_BEFORE, SHOWN = 12, 40  # characters of an example
IGNORED = ("Mn", "Cc", "Cf", "Zs", "Zl", "Zp")  # accents, control characters, white space


@dataclass(frozen=True, slots=True)
class Survival:
    """What became of the learned text of one row.

    Attributes:
        kind: LOST, LETTERS or WHITE_SPACE; "": nothing changed.
        example: where it changed first, in words.
        given, learned: numbers of the letters that the data has and of those that are learned.
        unread: what is lost of the rest of the row, in words; "": nothing.
    """

    kind: str = ""
    example: str = ""
    given: int = 0
    learned: int = 0
    unread: str = ""


UNCHANGED = Survival()


class TokenSurvival:
    """Compares texts with what their tokens read back as.

    Args:
        tokenizer: a transformers tokenizer, fast or slow.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer

    def of_rows(
        self, written: Sequence[Written], learned: Sequence[Sequence[int]]
    ) -> list[Survival]:
        """What became of the learned parts of some rows.

        Args:
            learned: the tokens of each that are learned.
        """
        return self.compare([_learned_parts(one) for one in written], learned)

    def lost_of(self, texts: Iterable[str], written: str, ids: Sequence[int]) -> str:
        """What the tokenizer loses of the texts that stand in what is written, in words; "" where
        nothing is lost.

        Args:
            ids: the tokens of `written`.
        """
        if not self._loses:
            return ""
        read_back = _folded(self._read_back([[*map(int, ids)]])[0])
        for text in texts:
            if text.strip() in written and _folded(text) not in read_back:
                alone = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                return _difference(text, self._read_back([alone])[0])
        return ""

    @cached_property
    def _loses(self) -> bool:
        """Whether there are characters that the tokenizer has no tokens for."""
        ids = self.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        return self.compare([[PROBE]], [ids])[0].kind == LOST

    def compare(
        self, texts: Sequence[Sequence[str]], ids: Sequence[Sequence[int]]
    ) -> list[Survival]:
        """What became of each text, which is given in parts; tokens may hold more around them."""
        read_back = self._read_back([[*map(int, one)] for one in ids])
        return [self._survival(*both) for both in zip(texts, read_back, strict=True)]

    def _survival(self, parts: Sequence[str], read_back: str) -> Survival:
        text = "".join(parts)
        given = _number(text)
        kind = "" if text == read_back else _kind(parts, text, read_back)
        learned = _number(read_back) if kind == LETTERS else given
        return Survival(kind, _difference(text, read_back) if kind else "", given, learned)

    def _read_back(self, ids: list[list[int]]) -> list[str]:
        if not self.tokenizer.is_fast:
            options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
            return [str(self.tokenizer.decode(one, **options)) for one in ids]
        read_back: list[str] = self.tokenizer.backend_tokenizer.decode_batch(
            ids, skip_special_tokens=False
        )
        return read_back


def _learned_parts(written: Written) -> list[str]:
    end_of_last = len(written.given)
    parts = []
    for (start, end), is_learnt in zip(written.spans, written.is_learnt, strict=True):
        if is_learnt and start >= len(written.given):
            parts.append(written.text[max(start, end_of_last) : end])
            end_of_last = max(end, end_of_last)
    return parts


def _kind(parts: Sequence[str], text: str, read_back: str) -> str:
    if HALF in read_back and HALF not in text:
        return ""  # a character of several tokens at the edge of what is learned
    if _holds(_letters(read_back), map(_letters, parts)):
        gone = Counter(LAYOUT.findall(text.strip())) - Counter(LAYOUT.findall(read_back))
        return WHITE_SPACE if gone else ""
    return LETTERS if _holds(_folded(read_back), map(_folded, parts)) else LOST


def _holds(text: str, parts: Iterable[str]) -> bool:
    """Whether a text holds these parts, one after the other."""
    end = 0
    for part in parts:
        start = text.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return True


def _number(text: str) -> int:
    letters = _letters(text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(letters, digest_size=8).digest())


def _letters(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).replace(SPACE, " ").split())


def _folded(text: str) -> str:
    """A text without case, accents and white space, in the plainest spelling of each character."""
    spelled = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = (one for one in spelled if unicodedata.category(one) not in IGNORED)
    return "".join(kept).replace(SPACE, "")


def _difference(text: str, read_back: str) -> str:
    """Where two texts differ first, but for spaces; where spaces alone differ, at the first."""
    start = back = 0
    while start < len(text) and back < len(read_back) and text[start] == read_back[back]:
        start, back = _after_spaces(text, start + 1), _after_spaces(read_back, back + 1)
    if start == len(text) and back == len(read_back):  # they differ in spaces alone
        start = back = next(n for n, one in enumerate(text) if one != read_back[n : n + 1])
    shown = _excerpt(text, start), _excerpt(read_back, back)
    return phrase("data.text_decoded_differently", text=shown[0], decoded=shown[1])


def _after_spaces(text: str, position: int) -> int:
    while text[position : position + 1] == " ":
        position += 1
    return position


def _excerpt(text: str, position: int) -> str:
    """A few words of a text from just before a position, on one line."""
    start = max(0, position - SHOWN_BEFORE)
    shown = text[start : start + SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + SHOWN < len(text) else ''}"


@dataclass
class Survivals:
    """What became of the learned texts of a data set; eight bytes a row, and some more for each
    that is changed.

    Attributes:
        rows: kind → rows of it.
        firsts: kind → the first of them: its place, and what changed.
        num_equal: rows whose answers are learned as the same as other answers.
        equal_example: one of them, in words.
    """

    rows: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, tuple[str, str]] = field(default_factory=dict)
    num_equal: int = 0
    equal_example: str = ""
    _learned: "array[int]" = field(default_factory=lambda: array("Q"))
    _changed: dict[int, tuple[int, int, str]] = field(default_factory=dict)

    def add(self, place: str, survival: Survival) -> None:
        """Count the row at `place`."""
        if survival.kind in KINDS:
            self.rows[survival.kind] += 1
            self.firsts.setdefault(survival.kind, (place, survival.example))
        if survival.unread:
            self.rows[UNREAD] += 1
            self.firsts.setdefault(UNREAD, (place, survival.unread))
        if survival.kind == LETTERS:
            shown = f"{survival.example} ({place})"
            self._changed[len(self._learned)] = survival.learned, survival.given, shown
        self._learned.append(survival.learned)

    def finish(self) -> None:
        """Count the rows whose answers have become equal to other ones."""
        if not self._changed:
            return
        changed = np.fromiter(self._changed, np.int64)
        learned = np.array(self._learned)
        given: dict[int, set[int]] = {}
        for number, text, _ in self._changed.values():
            given.setdefault(number, set()).add(text)
        untouched = np.ones(len(learned), dtype=bool)
        untouched[changed] = False
        for number in np.unique(learned[untouched & np.isin(learned, learned[changed])]).tolist():
            given[number].add(number)  # what it was given is what it has learned
        equal = {number for number, texts in given.items() if len(texts) > 1}
        is_equal = np.isin(learned, np.fromiter(equal, np.uint64))
        self.num_equal = int(is_equal.sum())
        shown = (shown for number, _, shown in self._changed.values() if number in equal)
        self.equal_example = next(shown, "")

    def check(self, num_rows: int, max_percent: float) -> None:
        """Refuse to start where different answers have become equal in too many rows.

        Raises:
            ValueError: says how many, and what to do.
        """
        percent = 100 * self.num_equal / max(1, num_rows)
        if percent > max_percent:
            raise InputError(
                "data.answers_equal_to_tokenizer",
                num_equal=self.num_equal,
                num_rows=num_rows,
                percent=percent,
                example=self.equal_example,
                max_percent=max_percent,
            )

    def lines(self) -> list[str]:
        """A sentence for each kind, with its first example."""
        lines = [
            phrase(
                "data.tokenizer_changed_answers",
                count=count,
                answers_are="answer is" if count == 1 else "answers are",
                difference=KINDS[kind],
                example=self.firsts[kind][1],
                place=self.firsts[kind][0],
            )
            for kind, count in self.rows.most_common()
            if kind in KINDS
        ]
        if count := self.rows[UNREAD]:
            example, place = self.firsts[UNREAD][1], self.firsts[UNREAD][0]
            lines.append(
                phrase(
                    "data.text_without_tokens",
                    count=count,
                    rows_hold="row holds" if count == 1 else "rows hold",
                    example=example,
                    place=place,
                )
            )
        if self.num_equal:
            lines.append(
                phrase(
                    "data.answers_learned_as_same",
                    num_equal=self.num_equal,
                    example=self.equal_example,
                )
            )
        return lines

    def to_json(self) -> JsonObject:
        """JSON-ready facts; without the numbers of rows."""
        return {
            "rows": {**self.rows},
            "firsts": {kind: [*first] for kind, first in self.firsts.items()},
            "num_equal": self.num_equal,
            "equal_example": self.equal_example,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        """What `to_json` gave; of nothing, nothing."""
        if not facts:
            return cls()
        firsts = {kind: (place, example) for kind, (place, example) in facts["firsts"].items()}
        rows = Counter[str](facts["rows"])
        return cls(rows, firsts, facts["num_equal"], facts["equal_example"])
