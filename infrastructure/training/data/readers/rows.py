"""Rows as they are read, and conversations as they are understood.

A row knows the file and the line that it came from all the way, so that whatever is wrong with it
can be told with its place.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase

EXCERPT_CHARACTERS = 120

BROKEN_JSON = "broken JSON"
INVALID_UTF8 = "invalid UTF-8"
HALF_CHARACTER = "half a character"  # one of a pair of surrogates
OTHER_ENCODING = "a byte that its encoding does not have"
WRONG_TYPE = "wrong type"
WRONG_COLUMNS = "wrong number of columns"
BROKEN_CSV = "broken CSV"
LINE_TOO_LONG = "line too long"
MISSING_COLUMN = "missing column"
EMPTY = "empty"
CHAT_TEMPLATE = "chat template"
OVER_LONG = "over-long"
NOT_SUPERVISED = "no supervised token"
KILLS_PROCESS = "kills its process"
NO_PREFERENCE = "no preference"
PICTURE = "picture"
LEFT_OUT = "text left out"  # of an answer, by what writes the row for the model
NOT_IN_TOKENS = "not in the tokenizer's tokens"  # some of an answer

# What was to be learned is not what the model would learn: few such rows are a sign of a wrong
# template or tokenizer already.
UNLEARNABLE = frozenset({LEFT_OUT, NOT_IN_TOKENS})

# What to do if many rows are skipped for one reason.
REMEDIES = {
    INVALID_UTF8: "data.set_encoding_of_common",
    OTHER_ENCODING: "data.set_encoding_of_file",
    HALF_CHARACTER: "data.write_text_whole",
    BROKEN_JSON: "data.write_with_json_dumps",
    MISSING_COLUMN: "data.give_one_file",
    NOT_IN_TOKENS: "data.take_other_tokenizer",
    WRONG_COLUMNS: "data.quote_separators",
    BROKEN_CSV: "data.quote_quotes",
}

TEXT_ROLE = "text"
ANSWER_ROLES = frozenset({"assistant", TEXT_ROLE})


RowValues = Mapping[str, object]  # column name → what the file has there, JSON or not
PictureSource = str | bytes  # a path as the row writes it, or the encoded picture
PICTURE_PART = "image"  # the type of a part of a message that stands for a picture


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        values: column name → value.
        source: the file, as people know it.
        line: 1-based line of a text file, record of a binary one.
        offset: where reading may start again at this record (bytes, or records).
    """

    values: RowValues
    source: str
    line: int
    offset: int = 0


class Label(str):
    """The name of a label that its file keeps as a number.

    Attributes:
        number: from 0, which of several choices it may mean as well.
    """

    number: int

    def __new__(cls, name: str, number: int = -1) -> "Label":
        made = super().__new__(cls, name)
        made.number = number
        return made


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The value of a cell that holds no text and no value.

    Attributes:
        what: it is, in words.
    """

    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot be used: where it is, why, and how it begins.

    Attributes:
        reason: one of the few reasons above, by which bad rows are counted.
        detail: what exactly is wrong.
        encoding: what would read a row that is no UTF-8, as far as its bytes tell; else "".
        advice: what to do about this row in particular; "": what is done about its reason.
    """

    source: str
    line: int
    reason: str
    detail: str = ""
    excerpt: str = ""
    offset: int = 0
    encoding: str = ""
    advice: str = ""

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"

    @property
    def remedy(self) -> str:
        """What to do about many rows like this; "" where there is no more to say."""
        if self.encoding:
            return phrase("data.windows_text", encoding=self.encoding)
        if self.advice or self.reason not in REMEDIES:
            return self.advice
        return phrase(REMEDIES[self.reason])

    @property
    def shown_detail(self) -> str:
        """The detail, which quotes the row; that of a long row holds numbers alone."""
        return self.detail

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" + (f" ({self.shown_detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. The role "text" marks a plain document, which is learnt as a whole.

    Attributes:
        fields: what else the message holds for a chat template (tool calls, thinking), as a JSON
            object; "" where it holds nothing.
        is_learnt: False where the data says that this message is not to be trained on.
    """

    role: str
    text: str
    fields: str = ""
    is_learnt: bool = True

    def message(self) -> dict[str, Any]:
        """The message as a chat template takes it."""
        fields: dict[str, object] = json.loads(self.fields) if self.fields else {}
        return {"role": self.role, "content": self.text, **fields}

    @property
    def parts(self) -> list[dict[str, Any]]:
        """What the message consists of, where pictures are among it; else nothing."""
        content = json.loads(self.fields).get("content") if self.fields else None
        return content if isinstance(content, list) else []

    @property
    def num_pictures(self) -> int:
        return sum(part["type"] == PICTURE_PART for part in self.parts)

    @property
    def calls_tools(self) -> bool:
        return bool(self.fields) and bool(json.loads(self.fields).get("tool_calls"))


@dataclass(frozen=True, slots=True)
class Conversation:
    """The one form that all shapes become; has an answer (or is a plain document).

    Attributes:
        task: kind of task, for results by task; "" where no column names it.
        group: value of the column that `balance_by` names.
        inputs: what else a chat template is given (tools, its own options), as a JSON object; ""
            where there is nothing.
        num_given: so many turns are the row's prompt: answers among them are not learnt.
        pictures: of the parts of messages that stand for one, in their order; not in `to_json`.
    """

    turns: tuple[Turn, ...]
    task: str = ""
    group: str = ""
    source: str = ""
    line: int = 0
    inputs: str = ""
    num_given: int = 0
    pictures: tuple[PictureSource, ...] = ()

    @property
    def num_pictures(self) -> int:
        return sum(turn.num_pictures for turn in self.turns)

    @property
    def is_text(self) -> bool:
        return self.turns[0].role == TEXT_ROLE

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"

    @property
    def last_answer(self) -> int:
        """Index of the last turn that teaches something; what follows it teaches nothing.

        Raises:
            ValueError: none does.
        """
        answers = [i for i, turn in enumerate(self.turns) if turn.role in ANSWER_ROLES]
        if not answers:
            raise InputError("data.conversation_without_answer", place=self.place)
        learnt = [i for i in answers if i >= self.num_given and self.turns[i].is_learnt]
        return (learnt or answers)[-1]

    @property
    def taught(self) -> tuple[Turn, ...]:
        """The turns up to the last answer."""
        return self.turns[: self.last_answer + 1]

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The turns before the last answer."""
        return self.turns[: self.last_answer]

    @property
    def answer(self) -> Turn:
        """The last answer."""
        return self.turns[self.last_answer]

    @property
    def with_last_answer(self) -> "Conversation":
        """The same with its last answer as the only one that is learnt: what is before is given."""
        turns = tuple(replace(turn, is_learnt=True) for turn in self.prompt)
        last = self.last_answer
        return replace(self, turns=turns + self.turns[last:], num_given=last)

    def messages(self) -> list[JsonObject]:
        """The turns as chat templates want them."""
        return [turn.message() for turn in self.turns]

    def is_learnt(self, index: int) -> bool:
        """Whether this turn is one that the data lets be trained on."""
        return index >= self.num_given and self.turns[index].is_learnt

    def pairs(self) -> list[list[str]]:
        """The turns as [role, text] up to the last answer, with what else makes it another example
        than one of the same texts: all that is taught, and nothing else."""
        pairs = [[turn.role, turn.text] for turn in self.taught]
        for index, (turn, pair) in enumerate(zip(self.taught, pairs, strict=True)):
            is_given = turn.role in ANSWER_ROLES and not self.is_learnt(index)
            pair += [turn.fields] if turn.fields else []
            pair += ["is not learnt"] if is_given else []
        return [*pairs, ["inputs", self.inputs]] if self.inputs else pairs

    def to_json(self) -> str:
        """One line of JSON."""
        turns = [[turn.role, turn.text, turn.fields, turn.is_learnt] for turn in self.turns]
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(facts | {"turns": turns, "pictures": []}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Conversation":
        """What `to_json` wrote."""
        facts = json.loads(text)
        turns = tuple(Turn(*turn) for turn in facts.pop("turns"))
        return cls(turns, **{**facts, "pictures": tuple(facts.get("pictures", ()))})


def excerpt(value: object, characters: int = EXCERPT_CHARACTERS) -> str:
    """How a value begins, on one line."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text[: 2 * characters].split())
    return text if len(text) <= characters else text[: characters - 1] + "…"


def kind_of(value: object) -> str:
    """A JSON-like value's type in words."""
    if isinstance(value, Unreadable):
        return value.what
    names = {type(None): "nothing", bool: "a truth value", int: "a number", float: "a number"}
    names |= {str: "text", list: "a list", dict: "an object", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")
