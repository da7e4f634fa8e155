"""The types of rows as read from files, and of the conversations that they are converted to.

A row always carries the file and line that it came from, so that every problem can be reported
with its position.
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
HALF_CHARACTER = "half a character"  # half a surrogate pair
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
NO_PREFERENCE = "no preference"
PICTURE = "picture"
LEFT_OUT = "text left out"  # of an answer, by the chat template
NOT_IN_TOKENS = "not in the tokenizer's tokens"  # a part of an answer

# The model would not learn the answer that the row contains: even a few such rows indicate a wrong
# template or tokenizer.
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


RowValues = Mapping[str, object]  # column name → value in the file, JSON or not
PictureSource = str | bytes  # a path as written in the row, or the encoded image
PICTURE_PART = "image"  # the type of a message part that stands for an image


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        values: column name → value.
        source: the name of the file in messages.
        line: 1-based line of a text file, or record of a binary one.
        offset: where reading can start again at this record (in bytes or records).
    """

    values: RowValues
    source: str
    line: int
    offset: int = 0


class Label(str):
    """A label's name as a text, for a label that the file stores as a number.

    Attributes:
        number: the 0-based number; it may also be the index of one of several choices.
    """

    number: int

    def __new__(cls, name: str, number: int = -1) -> "Label":
        made = super().__new__(cls, name)
        made.number = number
        return made


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A placeholder for a cell whose value cannot be converted to a Python value.

    Attributes:
        what: a description of the cell's content.
    """

    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot be used, with its position, the reason, and its first characters.

    Attributes:
        reason: one of this module's constants; bad rows are counted by reason.
        detail: a precise description of the error.
        encoding: the likely encoding of a row that is not UTF-8; "" for other rows, or if unknown.
        advice: the remedy for this row in particular; "" means that the remedy for its reason
            applies.
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
        """The remedy for this row and others with the same reason; "" if there is none."""
        if self.encoding:
            return phrase("data.windows_text", encoding=self.encoding)
        if self.advice or self.reason not in REMEDIES:
            return self.advice
        return phrase(REMEDIES[self.reason])

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation; with the role "text", a plain document to train on as a whole.

    Attributes:
        fields: other content of the message for a chat template (tool calls, thinking), as a JSON
            object; "" if there is none.
        is_learnt: False if the data excludes this message from the loss.
    """

    role: str
    text: str
    fields: str = ""
    is_learnt: bool = True

    def message(self) -> dict[str, Any]:
        """Return the message in the form that chat templates expect."""
        fields: dict[str, object] = json.loads(self.fields) if self.fields else {}
        return {"role": self.role, "content": self.text, **fields}

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of a message that has images; empty for a message without images."""
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
    """The form that rows of all shapes are converted to. It has an answer, or is a plain document.

    Attributes:
        task: the kind of task, by which results are grouped; "" if no column names it.
        inputs: other inputs of a chat template (tools, its own options), as a JSON object; "" if
            there are none.
        num_given: the number of turns that come from the row's prompt, in which answers are not
            trained on.
        pictures: the images, in the order of the image parts of the messages; not part of
            `to_json`.
    """

    turns: tuple[Turn, ...]
    task: str = ""
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
        """The index of the last trained answer, or of the last answer if none is trained.

        Raises:
            ValueError: there is no answer.
        """
        answers = [i for i, turn in enumerate(self.turns) if turn.role in ANSWER_ROLES]
        if not answers:
            raise InputError("data.conversation_without_answer", place=self.place)
        learnt = [i for i in answers if i >= self.num_given and self.turns[i].is_learnt]
        return (learnt or answers)[-1]

    @property
    def taught(self) -> tuple[Turn, ...]:
        """The messages up to and including the last answer, which are used for training."""
        return self.turns[: self.last_answer + 1]

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The messages before the last answer."""
        return self.turns[: self.last_answer]

    @property
    def answer(self) -> Turn:
        """The last answer."""
        return self.turns[self.last_answer]

    @property
    def with_last_answer(self) -> "Conversation":
        """A copy of the conversation in which only the last answer is trained on."""
        turns = tuple(replace(turn, is_learnt=True) for turn in self.prompt)
        last = self.last_answer
        return replace(self, turns=turns + self.turns[last:], num_given=last)

    def messages(self) -> list[JsonObject]:
        """Return the messages in the form that chat templates expect."""
        return [turn.message() for turn in self.turns]

    def is_learnt(self, index: int) -> bool:
        """Return whether the data allows training on the message at `index`."""
        return index >= self.num_given and self.turns[index].is_learnt

    def pairs(self) -> list[list[str]]:
        """Return everything that identifies the content of an example: [role, text] of each message
        up to the last answer, and anything else that affects training.

        Two examples have equal pairs only if they train the model in the same way.
        """
        pairs = [[turn.role, turn.text] for turn in self.taught]
        for index, (turn, pair) in enumerate(zip(self.taught, pairs, strict=True)):
            is_given = turn.role in ANSWER_ROLES and not self.is_learnt(index)
            pair += [turn.fields] if turn.fields else []
            pair += ["is not learnt"] if is_given else []
        return [*pairs, ["inputs", self.inputs]] if self.inputs else pairs

    def to_json(self) -> str:
        """Return the conversation as one line of JSON."""
        turns = [[turn.role, turn.text, turn.fields, turn.is_learnt] for turn in self.turns]
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(facts | {"turns": turns, "pictures": []}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Conversation":
        """Read a conversation that `to_json` wrote."""
        facts = json.loads(text)
        turns = tuple(Turn(*turn) for turn in facts.pop("turns"))
        return cls(turns, **{**facts, "pictures": tuple(facts.get("pictures", ()))})


def excerpt(value: object, characters: int = EXCERPT_CHARACTERS) -> str:
    """Return the beginning of a value, on one line."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text[: 2 * characters].split())
    return text if len(text) <= characters else text[: characters - 1] + "…"


def kind_of(value: object) -> str:
    """Return the name of a JSON value's type for messages, such as "a list"."""
    if isinstance(value, Unreadable):
        return value.what
    names = {type(None): "nothing", bool: "a truth value", int: "a number", float: "a number"}
    names |= {str: "text", list: "a list", dict: "an object", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")
