"""Check that the tokenizer keeps trained text: the tokens are decoded and compared with the text.

A tokenizer may have no token for a character, convert text to lower case, remove accents, or turn a
line break into a space. The comparison finds one of three kinds of change:

| | |
| --- | --- |
| lost | a character is gone, or one unknown token stands for many: the row cannot be used |
| letters | the same letters except for case, accents and other spellings of a character |
| white space | the same letters, with other line breaks, indentation or tabs |

In the parts of a row that are not trained, only lost text is detected. Such a row is used anyway,
because at inference its prompt is tokenized in the same way.

Single spaces do not count, because some tokenizers add or remove them by rule. Neither do two
spellings of a character that Unicode calls equal. Hashes of the text before and after tokenization
show which different answers have become equal.
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
from infrastructure.data.encoding.chat_format import Written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SURVIVAL_VERSION = 2  # of the facts that are stored with prepared rows
LOST, LETTERS, WHITE_SPACE = "lost", "letters", "white space"
KINDS = {
    LETTERS: "data.learned_in_other_letters",
    WHITE_SPACE: "data.learned_in_other_layout",
}
UNREAD = "unread"  # rows that lose text that is not trained on
# A line break and characters of several scripts: a tokenizer that has tokens for these has tokens
# for all, byte by byte.
PROBE = "a\nb \u5b57 \U0001f600 \u01c2 \u03a9"
LAYOUT = re.compile(r"\s{2,}|[^\S ]")  # any white space other than a single space
SPACE = "▁"  # some tokenizers write it for a space, and always decode it as one
HALF = "\N{REPLACEMENT CHARACTER}"  # decoded from incomplete bytes of a character
SHOWN_BEFORE, SHOWN = 12, 40  # characters of an example
IGNORED = ("Mn", "Cc", "Cf", "Zs", "Zl", "Zp")  # accents, control characters, white space


@dataclass(frozen=True, slots=True)
class Survival:
    """The changes that the tokenizer makes to the trained text of one row.

    Attributes:
        kind: LOST, LETTERS or WHITE_SPACE; "": nothing changed.
        example: the first change, in words.
        given, learned: hashes of the text's letters, before and after it is tokenized and decoded.
        unread: lost text in the parts that are not trained, in words; "" if there is none.
    """

    kind: str = ""
    example: str = ""
    given: int = 0
    learned: int = 0
    unread: str = ""


UNCHANGED = Survival()


class TokenSurvival:
    """A comparison of texts with their decoded tokens.

    Args:
        tokenizer: a transformers tokenizer, fast or slow.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer

    def of_rows(
        self, written: Sequence[Written], learned: Sequence[Sequence[int]]
    ) -> list[Survival]:
        """Compare the trained parts of some rows with their decoded tokens.

        Args:
            learned: the trained tokens of each row.

        Returns:
            The changes in each row, in order.
        """
        return self.compare([_learned_parts(one) for one in written], learned)

    def lost_of(self, texts: Iterable[str], written: str, ids: Sequence[int]) -> str:
        """Describe which of the `texts` in `written` the tokenizer loses.

        Args:
            ids: the tokens of `written`.

        Returns:
            The description, or "" if nothing is lost.
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
        """True if the tokenizer has no tokens for some characters."""
        ids = self.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        return self.compare([[PROBE]], [ids])[0].kind == LOST

    def compare(
        self, texts: Sequence[Sequence[str]], ids: Sequence[Sequence[int]]
    ) -> list[Survival]:
        """Compare each text with its tokens, which may also contain tokens of text before and
        after.

        Args:
            texts: each text as a list of consecutive parts.
        """
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
        return ""  # a character of several tokens at the edge of the trained text
    if _holds(_letters(read_back), map(_letters, parts)):
        gone = Counter(LAYOUT.findall(text.strip())) - Counter(LAYOUT.findall(read_back))
        return WHITE_SPACE if gone else ""
    return LETTERS if _holds(_folded(read_back), map(_folded, parts)) else LOST


def _holds(text: str, parts: Iterable[str]) -> bool:
    """Return whether the text contains all parts, in this order."""
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
    """Return a text without case, accents and white space, with plain variants of characters."""
    spelled = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = (one for one in spelled if unicodedata.category(one) not in IGNORED)
    return "".join(kept).replace(SPACE, "")


def _difference(text: str, read_back: str) -> str:
    """Describe the first difference between a text and its decoded tokens.

    Spaces are ignored, unless they are the only difference.
    """
    start = back = 0
    while start < len(text) and back < len(read_back) and text[start] == read_back[back]:
        start, back = _after_spaces(text, start + 1), _after_spaces(read_back, back + 1)
    if start == len(text) and back == len(read_back):  # they differ only in spaces
        start = back = next(n for n, one in enumerate(text) if one != read_back[n : n + 1])
    shown = _excerpt(text, start), _excerpt(read_back, back)
    return phrase("data.text_decoded_differently", text=shown[0], decoded=shown[1])


def _after_spaces(text: str, position: int) -> int:
    while text[position : position + 1] == " ":
        position += 1
    return position


def _excerpt(text: str, position: int) -> str:
    """Return a few words of a text, starting just before `position`."""
    start = max(0, position - SHOWN_BEFORE)
    shown = text[start : start + SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + SHOWN < len(text) else ''}"


@dataclass
class Survivals:
    """Counts of the changes that the tokenizer makes to the trained texts of a dataset.

    They take eight bytes of memory per row, and more for each changed row.

    Attributes:
        rows: kind of change → number of rows.
        firsts: kind of change → the first such row: its position, and the change.
        num_equal: number of rows whose answer is different from another row's answer in the data
            but equal after tokenizing.
        equal_example: one of these rows, in words.
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
        """After the last `add`, count the rows whose answers became equal to different answers."""
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
            given[number].add(number)  # an unchanged text: both hashes are equal
        equal = {number for number, texts in given.items() if len(texts) > 1}
        is_equal = np.isin(learned, np.fromiter(equal, np.uint64))
        self.num_equal = int(is_equal.sum())
        shown = (shown for number, _, shown in self._changed.values() if number in equal)
        self.equal_example = next(shown, "")

    def check(self, num_rows: int, max_percent: float) -> None:
        """Raise if different answers have become equal in too many rows.

        Raises:
            ValueError: there are too many such rows; the message has their number and says what to
                do.
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
        """Return a sentence for each kind of change, with its first example."""
        lines = [
            phrase(
                "data.tokenizer_changed_answers",
                count=count,
                difference=phrase(KINDS[kind]),
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
        """Return the counts and examples as JSON values, without the hashes of rows."""
        return {
            "rows": {**self.rows},
            "firsts": {kind: [*first] for kind, first in self.firsts.items()},
            "num_equal": self.num_equal,
            "equal_example": self.equal_example,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        """Restore the counts from the result of `to_json`; an empty mapping gives no counts."""
        if not facts:
            return cls()
        firsts = {kind: (place, example) for kind, (place, example) in facts["firsts"].items()}
        rows = Counter[str](facts["rows"])
        return cls(rows, firsts, facts["num_equal"], facts["equal_example"])
