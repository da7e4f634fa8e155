"""Rows as they are read, and conversations as they are understood.

A row knows the file and the line that it came from all the way, so that whatever is wrong with it
can be told with its place.
"""

import json
from dataclasses import dataclass
from typing import Any

EXCERPT_CHARACTERS = 120

BROKEN_JSON = "broken JSON"
INVALID_UTF8 = "invalid UTF-8"
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

TEXT_ROLE = "text"
ANSWER_ROLES = frozenset({"assistant", TEXT_ROLE})


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        values: column name → value.
        source: the file, as people know it.
        line: 1-based line of a text file, record of a binary one.
        offset: where reading may start again at this record (bytes, or records).
    """

    values: dict[str, Any]
    source: str
    line: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot be used: where it is, why, and how it begins.

    Attributes:
        reason: one of the few reasons above, by which bad rows are counted.
        detail: what exactly is wrong.
    """

    source: str
    line: int
    reason: str
    detail: str = ""
    excerpt: str = ""
    offset: int = 0

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. The role "text" marks a plain document, which is learnt as a whole."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """The one form that all shapes become; ends with an answer (or is a plain document).

    Attributes:
        task: kind of task, for results by task; "" where no column names it.
        group: value of the column that `balance_by` names.
    """

    turns: tuple[Turn, ...]
    task: str = ""
    group: str = ""
    source: str = ""
    line: int = 0

    @property
    def is_text(self) -> bool:
        return self.turns[0].role == TEXT_ROLE

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"

    def messages(self) -> list[dict[str, str]]:
        """The turns as chat templates want them."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns]

    def pairs(self) -> list[list[str]]:
        """The turns as [role, text]: all that is said, and nothing else."""
        return [[turn.role, turn.text] for turn in self.turns]

    def to_json(self) -> str:
        """One line of JSON."""
        facts: dict[str, Any] = {"turns": self.pairs(), "task": self.task, "group": self.group}
        return json.dumps(facts | {"source": self.source, "line": self.line}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Conversation":
        """What `to_json` wrote."""
        facts = json.loads(text)
        turns = tuple(Turn(role, text) for role, text in facts.pop("turns"))
        return cls(turns, **facts)


def excerpt(value: Any) -> str:
    """How a value begins, on one line."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text[: 2 * EXCERPT_CHARACTERS].split())
    return text if len(text) <= EXCERPT_CHARACTERS else text[: EXCERPT_CHARACTERS - 1] + "…"


def kind_of(value: Any) -> str:
    """A JSON-like value's type in words."""
    names = {type(None): "nothing", bool: "a truth value", int: "a number", float: "a number"}
    names |= {str: "text", list: "a list", dict: "an object", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")
