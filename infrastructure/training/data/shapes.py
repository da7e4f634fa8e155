"""What a row means: six known shapes, and how a row of each becomes a conversation.

| shape | columns |
| --- | --- |
| prompt | prompt and completion (or response, answer, ...) |
| qa | question and answer |
| alpaca | instruction, output and perhaps input |
| messages | a list of {"role", "content"} |
| sharegpt | a list of {"from", "value"} |
| text | text, learnt as a whole |

Every row of a known shape becomes a `Conversation`, or a `BadRow` that says why not. Whole numbers
are taken as text; any other type is refused rather than guessed at.
"""

import json
from dataclasses import dataclass
from typing import Any

from infrastructure.training.data.rows import (
    BROKEN_JSON,
    EMPTY,
    INVALID_UTF8,
    MISSING_COLUMN,
    NOT_SUPERVISED,
    TEXT_ROLE,
    WRONG_TYPE,
    BadRow,
    Conversation,
    Row,
    Turn,
    excerpt,
    kind_of,
)
from infrastructure.training.data.text_formats import has_surrogates

PROMPT, QA, ALPACA, MESSAGES, SHAREGPT, TEXT = SHAPES = (
    "prompt",
    "qa",
    "alpaca",
    "messages",
    "sharegpt",
    "text",
)
CHAT_KEYS = {MESSAGES: ("role", "content"), SHAREGPT: ("from", "value")}
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


class ShapeError(Exception):
    """One row does not fit; becomes a `BadRow`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Shape:
    """A recognised shape: which column plays which part, and why it was taken.

    Attributes:
        columns: part ("prompt", "answer", "context", "system", "chat", "text") → column.
        unused: columns that play no part.
    """

    name: str
    columns: dict[str, str]
    reason: str
    task_column: str | None = None
    group_column: str | None = None
    unused: tuple[str, ...] = ()

    def convert(self, row: Row) -> Conversation | BadRow:
        """The row as a conversation that ends with an answer."""
        try:
            turns = tuple(self._turns(row.values))
        except ShapeError as error:
            shown = excerpt(json.dumps(row.values, ensure_ascii=True, default=str))
            return BadRow(row.source, row.line, error.reason, error.detail, shown, row.offset)
        task, group = self._label(row, self.task_column), self._label(row, self.group_column)
        return Conversation(turns, task, group, row.source, row.line)

    def _label(self, row: Row, column: str | None) -> str:
        value = row.values.get(column) if column else None
        return "" if value is None else str(value)

    def _turns(self, values: dict[str, Any]) -> list[Turn]:
        if self.name == TEXT:
            return [Turn(TEXT_ROLE, _text(values, self.columns["text"]))]
        if self.name in CHAT_KEYS:
            column = self.columns["chat"]
            return _up_to_last_answer(_chat_turns(_present(values, column), column))
        return self._pair_turns(values)

    def _pair_turns(self, values: dict[str, Any]) -> list[Turn]:
        prompt, answer = self.columns["prompt"], self.columns["answer"]
        if isinstance(values.get(prompt), list):  # conversational prompt and completion
            before = _chat_turns(values[prompt], prompt)
            after = _present(values, answer)
            last = _chat_turns(after, answer) if isinstance(after, list) else None
            last = last or [Turn("assistant", _text(values, answer))]
            return _up_to_last_answer(before + last)
        turns = []
        system = _optional_text(values, self.columns.get("system"))
        if system:
            turns.append(Turn("system", system))
        context = _optional_text(values, self.columns.get("context"))
        question = _text(values, prompt)
        turns.append(Turn("user", f"{question}\n\n{context}" if context else question))
        turns.append(Turn("assistant", _text(values, answer)))
        return turns


def _present(values: dict[str, Any], column: str) -> Any:
    if column not in values:
        raise ShapeError(MISSING_COLUMN, f"no column {column!r}")
    return values[column]


def _text(values: dict[str, Any], column: str) -> str:
    return _as_text(_present(values, column), f"column {column!r}")


def _optional_text(values: dict[str, Any], column: str | None) -> str:
    value = values.get(column) if column else None
    if value is None or value == "":
        return ""
    return _as_text(value, f"column {column!r}", may_be_empty=True).strip()


def _as_text(value: Any, where: str, may_be_empty: bool = False) -> str:
    if value is None:
        raise ShapeError(EMPTY, f"{where} is empty")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ShapeError(WRONG_TYPE, f"{where} is {kind_of(value)}, not text")
    if not may_be_empty and not value.strip():
        raise ShapeError(EMPTY, f"{where} is empty")
    if has_surrogates(value):
        raise ShapeError(INVALID_UTF8, f"{where} holds half a surrogate pair")
    return value


def _chat_turns(value: Any, column: str) -> list[Turn]:
    messages = from_json_text(value, column)
    if not isinstance(messages, list):
        raise ShapeError(WRONG_TYPE, f"column {column!r} is {kind_of(value)}, not a list")
    if not messages:
        raise ShapeError(EMPTY, f"column {column!r} has no messages")
    return [_turn(message, f"message {n} of {column!r}") for n, message in enumerate(messages, 1)]


def from_json_text(value: Any, column: str) -> Any:
    if not (isinstance(value, str) and value.lstrip().startswith("[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ShapeError(BROKEN_JSON, f"column {column!r}: {error}") from error


def _turn(message: Any, where: str) -> Turn:
    if not isinstance(message, dict):
        raise ShapeError(WRONG_TYPE, f"{where} is {kind_of(message)}, not an object")
    keys = CHAT_KEYS[MESSAGES] if "role" in message else CHAT_KEYS[SHAREGPT]
    if keys[0] not in message:
        raise ShapeError(MISSING_COLUMN, f"{where} names no role")
    role = ROLES.get(str(message[keys[0]]).lower())
    if role is None:
        raise ShapeError(WRONG_TYPE, f"{where} has the unknown role {message[keys[0]]!r}")
    if message.get("tool_calls"):
        raise ShapeError(WRONG_TYPE, f"{where} calls tools, which is not supported")
    content = message.get(keys[1])
    if isinstance(content, list):
        content = _joined_parts(content, where)
    return Turn(role, _as_text(content, where, may_be_empty=role in ("system", "tool")))


def _joined_parts(parts: list[Any], where: str) -> str:
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ShapeError(WRONG_TYPE, f"{where} holds more than text")
    return "".join(map(str, texts))


def _up_to_last_answer(turns: list[Turn]) -> list[Turn]:
    """Leave out what follows the last answer: it teaches nothing."""
    answers = [index for index, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        raise ShapeError(NOT_SUPERVISED, "no message of the assistant")
    return turns[: answers[-1] + 1]
