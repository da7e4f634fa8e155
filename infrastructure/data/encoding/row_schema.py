"""The six known shapes of rows, and the conversion of rows of each shape to conversations.

| shape | columns |
| --- | --- |
| prompt | prompt and completion (or response, answer, ...) |
| qa | question and answer |
| alpaca | instruction, output and optionally input |
| messages | a list of {"role", "content"} |
| sharegpt | a list of {"from", "value"} |
| text | text, all of it trained on |

Every row of a known shape becomes a `Conversation`, or a `BadRow` with the reason. Whole numbers
are converted to text; values of any other type are refused. Other fields of a message than its role
and text (tool calls, thinking) are passed to the chat template, as are the columns `tools` and
`chat_template_kwargs`. A message with `weight` 0 is context only: it is not trained on. Images are
parts of messages, or in a separate column.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from infrastructure.core.json_text import parse_json
from infrastructure.core.messages import Message, phrase
from infrastructure.data.encoding.python_repr import parse_python
from infrastructure.data.readers.pictures import (
    SOURCE_KEYS,
    PictureError,
    picture_source,
)
from infrastructure.data.readers.rows import (
    BROKEN_JSON,
    EMPTY,
    HALF_CHARACTER,
    MISSING_COLUMN,
    NOT_SUPERVISED,
    PICTURE,
    PICTURE_PART,
    TEXT_ROLE,
    WRONG_TYPE,
    BadRow,
    Conversation,
    Label,
    PictureSource,
    Row,
    RowValues,
    Turn,
    excerpt,
    kind_of,
)
from infrastructure.data.readers.text_formats import has_surrogates

PROMPT, QA, ALPACA, MESSAGES, SHAREGPT, TEXT = SHAPES = (
    "prompt",
    "qa",
    "alpaca",
    "messages",
    "sharegpt",
    "text",
)
# Version of how rows are read and converted; rows prepared with another version are prepared again.
# 2: the arguments of tool calls are objects, and tables add no keys to messages. 3: calls that a
# template would leave out are refused although their names occur in the text. 4: a context is
# written even if its letters occur in the question, and also with a prompt of messages; lines that
# a stray quote joins are not a row, the types of cells decide, texts keep their white space. 5:
# tab-separated files may use quotes as text. 6: a lone carriage return is part of a cell, calls and
# tools are given in the form that the template takes, `loss` of a message decides.
ROWS_VERSION = 6
LEARNT_KEYS = ("weight", "train", "loss")  # keys of a message that decide whether it is trained on
CHAT_KEYS = {MESSAGES: ("role", "content"), SHAREGPT: ("from", "value")}
OTHER_ROLE_KEYS = ("author",)  # of messages that have neither "role" nor "from"
CONTENT_KEYS = ("content", "value", "parts", "text")
PICTURES = "pictures"  # the part of a column that holds an image, or a list of them
PICTURE_TYPES = (PICTURE_PART, "image_url", "input_image")  # of a message's parts
PICTURE_MARK = "<image>"  # position of an image in a text, with a column of images
CHOICES = "choices"  # the part of a column that lists the answers to choose from
BY_TURNS = "turns"  # the part of a column that lists texts of user and assistant in turn
HISTORY = "history"
FIRST_OF = "answers"  # a column with this name lists answers that are all right
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
    "prompter": "user",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
CALL_ROLES = ("function_call", "tool_call")  # their text is a tool call, or a list of calls


class ShapeError(Exception):
    """An error for a row that does not fit the recognized shape. The row becomes a `BadRow`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _in_column(column: str) -> Message:
    """Return the name of a column, for messages. It is rendered only if a message is shown."""
    return Message("data.place_column", {"column": column})


def _item(column: str, number: int, code: str = "data.place_message") -> Message:
    """Return the name of an item in a column, by its number from 1; see `_in_column`."""
    return Message(code, {"number": number, "column": column})


@dataclass(frozen=True)
class RowSchema:
    """A recognized row shape: the role of each column, and the reason for choosing this shape.

    Attributes:
        columns: role ("prompt", "answer", "context", "system", "chat", "text", "tools", "options",
            "history", "choices", "turns", "pictures") → column; `a.b` is b inside the object a.
    """

    name: str
    columns: dict[str, str]
    reason: str
    task_column: str | None = None

    def convert(self, row: Row) -> Conversation | BadRow:
        """Return the row as a conversation with an answer, or a `BadRow` with the reason."""
        try:
            return self.conversation(row)
        except ShapeError as error:
            shown = excerpt(json.dumps(row.values, default=str))
            return BadRow(row.source, row.line, error.reason, error.detail, shown, row.offset)

    def conversation(self, row: Row) -> Conversation:
        """Return the row as a conversation. Raise `ShapeError` if the row does not fit the
        shape.
        """
        turns, num_given = self._turns(row.values)
        pictures = self._pictures(row.values, turns)
        inputs = self.inputs(row.values)
        task = value_of(row.values, self.task_column)
        place = ("" if task is None else str(task), row.source, row.line)
        return Conversation(tuple(turns), *place, inputs, num_given, pictures)

    def _pictures(self, values: RowValues, turns: list[Turn]) -> tuple[PictureSource, ...]:
        """Return the images of a row, and make sure that messages in `turns` have a part for each
        image.

        Images from a separate column go to message parts of type image that have no content.
        Without such parts, they go where the texts contain <image>, or else before the first user
        message's text.
        """
        column = self.columns.get(PICTURES)
        listed = _listed_pictures(value_of(values, column), column) if column else []
        chats = self._chat_columns(values)
        own = [source for part in chats for source in _own_pictures(values, part)]
        if listed and not own:
            turns[:] = map(_with_marked_parts, turns)
            own = [None] * sum(turn.num_pictures for turn in turns)
        if listed and not own:
            first = next((n for n, turn in enumerate(turns) if turn.role == "user"), None)
            if first is None:
                raise ShapeError(PICTURE, phrase("data.image_without_prompt", column=column))
            text = [{"type": "text", "text": turns[first].text}]
            turns[first] = _of_parts(turns[first], [{"type": PICTURE_PART}] * len(listed) + text)
            own = [None] * len(listed)
        if own.count(None) != len(listed):
            has = (
                phrase("data.column_image_count", column=column, count=len(listed))
                if column
                else phrase("data.row_without_image_column")
            )
            detail = phrase("data.image_marks_mismatch", num_marks=own.count(None), has=has)
            raise ShapeError(PICTURE, detail)
        given = iter(listed)
        return tuple(next(given) if source is None else source for source in own)

    def _chat_columns(self, values: RowValues) -> list[str]:
        """Return the columns that contain lists of messages.

        A text column with prompts does not count, even if its texts begin like lists.
        """
        pair = [self.columns[part] for part in ("prompt", "answer") if part in self.columns]
        lists = [column for column in pair if isinstance(value_of(values, column), list)]
        return [*([self.columns["chat"]] if "chat" in self.columns else []), *lists]

    @cached_property
    def used(self) -> frozenset[str | None]:
        """The columns that have a role in this shape."""
        whole = {column.partition(".")[0] for column in self.columns.values()}
        return frozenset({*self.columns.values(), *whole, self.task_column})

    def _turns(self, values: RowValues) -> tuple[list[Turn], int]:
        """Return the messages of a row, and the number of messages that come from a separate prompt
        column.
        """
        if self.name == TEXT:
            return [Turn(TEXT_ROLE, _text(values, self.columns["text"]))], 0
        if self.name in CHAT_KEYS:
            column = self.columns["chat"]
            chat = _present(values, column)
            turns = _by_turns(chat, column) if BY_TURNS in self.columns else None
            turns = chat_turns(chat, column) if turns is None else turns
            return self._system(values, turns) + _with_answer(turns, column), 0
        answer = self.columns["answer"]
        before, after = self.prompt_turns(values), self.answers(values, answer)
        if isinstance(value_of(values, self.columns["prompt"]), list):
            return before + _with_answer(after, answer), len(before)
        if after[0].role != "assistant":
            detail = phrase("data.answer_column_begins_otherwise", column=answer)
            raise ShapeError(NOT_SUPERVISED, detail)
        return [*before, *after], 0

    def prompt_turns(self, values: RowValues, messages: Sequence[Turn] = ()) -> list[Turn]:
        """Return the messages of a row's prompt, without its answer.

        Args:
            messages: the messages with the question, if they come from a column of messages.

        Raises:
            ShapeError: the row has no question.
        """
        turns = [*_past_turns(values, self.columns.get(HISTORY))]
        turns += messages or self._question(values)
        context = _optional_text(values, self.columns.get("context"))
        listed = _listed_choices(values, self.columns[CHOICES]) if CHOICES in self.columns else ""
        if context or listed:
            last = max((n for n, turn in enumerate(turns) if turn.role == "user"), default=None)
            if last is None:
                raise ShapeError(EMPTY, phrase("data.columns_without_prompt"))
            turns[last] = _with_more_text(_with_more_text(turns[last], context), listed)
        return self._system(values, turns) + turns

    def _question(self, values: RowValues) -> list[Turn]:
        prompt = self.columns["prompt"]
        if isinstance(value_of(values, prompt), list):
            return chat_turns(_present(values, prompt), prompt)
        return [Turn("user", _text(values, prompt))]

    def answers(self, values: RowValues, column: str) -> list[Turn]:
        """Return the answer in a column, which may be a text, a choice, or messages. Raise
        `ShapeError` if invalid.
        """
        if CHOICES in self.columns:
            return [Turn("assistant", _choice(values, self.columns[CHOICES], column))]
        value = _present(values, column)
        listed = value if isinstance(value, list) else [value]
        if any(isinstance(one, Mapping) and message_keys(one)[0] in one for one in listed):
            return chat_turns(listed, column)
        text = _as_text(_first_answer(value, column), _in_column(column))
        return [Turn("assistant", text)]

    def _system(self, values: RowValues, turns: list[Turn]) -> list[Turn]:
        """Return a list with the message of the system column; [] if `turns` already have a system
        message.
        """
        system = _optional_text(values, self.columns.get("system"))
        has_own = any(turn.role == "system" for turn in turns)
        return [Turn("system", system)] if system and not has_own else []

    def inputs(self, values: RowValues) -> str:
        """Return the inputs of the chat template besides messages, in the form of
        `Conversation.inputs`.
        """
        inputs: dict[str, object] = {}
        for part, kind in (("tools", list), ("options", dict)):
            column = self.columns.get(part)
            value = from_json_text(value_of(values, column), column) if column else None
            if not column or not value:
                continue
            if not isinstance(value, kind):
                detail = phrase(
                    "data.column_of_wrong_type",
                    column=column,
                    kind=kind_of(value),
                    wanted=kind_of(kind()),
                )
                raise ShapeError(WRONG_TYPE, detail)
            if isinstance(value, list):
                inputs["tools"] = _tool_schemas(value, column)
            elif isinstance(value, dict):
                given = {key: one for key, one in value.items() if one is not None}
                inputs |= {"chat_template_kwargs": given} if given else {}
        return json.dumps(inputs, ensure_ascii=False, default=str) if inputs else ""


def value_of(values: RowValues, column: str | None) -> object:
    """Return a row's value in a column, or None. `a.b` means the key b inside the object a."""
    return _held(values, column)[0] if column else None


def _held(values: RowValues, column: str) -> tuple[object, bool]:
    """Return a row's value in a column, and whether the row has that column."""
    if column in values:
        return values[column], True
    outer, _, inner = column.partition(".")
    held = values.get(outer)
    if not isinstance(held, Mapping):
        return None, False
    return _held(held, inner)


def _present(values: RowValues, column: str) -> object:
    value, is_there = _held(values, column)
    if not is_there:
        raise ShapeError(MISSING_COLUMN, phrase("data.column_missing", column=column))
    return value


def _first_answer(value: object, column: str) -> object:
    """Return the answer as text; the first one if a row lists several correct answers."""
    if isinstance(value, Mapping):
        keys = [key for key in ("value", "text") if key in value]
        return _first_of(value[keys[0]], column) if keys else value
    is_list = column.rpartition(".")[2].strip().lower() == FIRST_OF
    return _first_of(value, column) if is_list else value


def _first_of(value: object, column: str) -> object:
    if not isinstance(value, list):
        return value
    if not value:
        raise ShapeError(EMPTY, phrase("data.column_without_answer", column=column))
    return value[0].get("text") if isinstance(value[0], Mapping) else value[0]


def _past_turns(values: RowValues, column: str | None) -> list[Turn]:
    """Return the earlier messages from a column that lists pairs of a question and an answer."""
    past = from_json_text(value_of(values, column), column) if column else None
    if not column or not past:
        return []
    if not isinstance(past, list) or not all(isinstance(p, list) and len(p) == 2 for p in past):
        raise ShapeError(WRONG_TYPE, phrase("data.history_not_pairs", column=column))
    where, texts = _in_column(column), [text for pair in past for text in pair]
    roles = ("user", "assistant") * len(past)
    return [Turn(role, _as_text(text, where)) for role, text in zip(roles, texts, strict=True)]


def _listed_choices(values: RowValues, column: str) -> str:
    """Return the answers to choose from, one per line."""
    lines = _lines_of_choices(values, column)[0]
    if not lines:
        raise ShapeError(WRONG_TYPE, phrase("data.choices_missing", column=column))
    return "\n".join(lines)


def _choice(values: RowValues, column: str, answer: str) -> str:
    """Return the line that `_listed_choices` writes for the right answer."""
    lines, labels = _lines_of_choices(values, column)
    number = chosen_number(_present(values, answer), labels)
    if number is None:
        detail = phrase("data.choice_unknown", answer=answer, column=column)
        raise ShapeError(WRONG_TYPE, detail)
    return lines[number]


def _lines_of_choices(values: RowValues, column: str) -> tuple[list[str], list[str]]:
    texts, labels = choices_in(_present(values, column))
    lines = [f"{label}. {text}" for label, text in zip(labels, texts, strict=True)]
    return lines, labels


def choices_in(value: object) -> tuple[list[str], list[str]]:
    """Return the answers to choose from, and their labels; two empty lists if there are none."""
    if isinstance(value, Mapping) and "text" not in value:  # {"A": "Two.", "B": "Three."}
        value = {"text": [*value.values()], "label": [*value]}
    texts = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return [], []
    letters = [chr(ord("A") + n) for n in range(len(texts))]
    labels = value.get("label") if isinstance(value, Mapping) else letters
    if not isinstance(labels, list) or len(labels) != len(texts):
        labels = letters
    return texts, [str(label) for label in labels]


def chosen_number(answer: object, labels: Sequence[str]) -> int | None:
    """Return the 0-based index of the right choice, given its index or label; None if invalid."""
    if isinstance(answer, Label) and answer not in labels:
        answer = answer.number
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer if 0 <= answer < len(labels) else None
    return labels.index(answer) if isinstance(answer, str) and answer in labels else None


def _by_turns(value: object, column: str) -> list[Turn] | None:
    """Return a list of texts as messages of user and assistant in turn; None for other values."""
    texts = from_json_text(value, column)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None
    return [
        Turn("assistant" if n % 2 else "user", _as_text(text, _item(column, n + 1)))
        for n, text in enumerate(texts)
    ]


def _text(values: RowValues, column: str) -> str:
    return _as_text(_present(values, column), _in_column(column))


def _optional_text(values: RowValues, column: str | None) -> str:
    if not column:
        return ""
    value = value_of(values, column)
    if isinstance(value, Mapping) and isinstance(value.get("parts"), list):
        value = value["parts"]  # as in Gemini's system instruction
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(_part(part), str) for part in value):
        value = "\n\n".join(str(_part(part)) for part in value)
    text = _as_text(value, _in_column(column), may_be_empty=True)
    return text if text.strip() else ""


def _as_text(value: object, where: Message, may_be_empty: bool = False) -> str:
    if value is None:
        raise ShapeError(EMPTY, phrase("data.value_empty", where=where))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        advice = phrase("data.quote_number") if isinstance(value, float) else ""
        detail = phrase("data.value_not_text", where=where, kind=kind_of(value), advice=advice)
        raise ShapeError(WRONG_TYPE, detail)
    if not may_be_empty and not value.strip():
        raise ShapeError(EMPTY, phrase("data.value_empty", where=where))
    if has_surrogates(value):
        raise ShapeError(HALF_CHARACTER, phrase("data.character_cut_in", where=where))
    return value


def chat_turns(value: object, column: str) -> list[Turn]:
    """Return a list of messages as turns, whatever their keys are called. Raise `ShapeError` if
    invalid.
    """
    messages = from_json_text(value, column)
    if not isinstance(messages, list):
        detail = phrase("data.column_not_list", column=column, kind=kind_of(value))
        raise ShapeError(WRONG_TYPE, detail)
    if not messages:
        raise ShapeError(EMPTY, phrase("data.column_without_messages", column=column))
    return [_turn(message, _item(column, n)) for n, message in enumerate(messages, 1)]


def from_json_text(value: object, column: str | Message) -> object:
    """Return `value`; if it is the text of a list or object in JSON or Python notation, parse it
    first.

    Args:
        column: the name of the value's column, or another position in the row, for the error.

    Raises:
        ShapeError: the text begins like a list or an object and cannot be parsed.
    """
    if not (isinstance(value, str) and value.lstrip().startswith(("[", "{"))):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        try:
            return parse_python(value)
        except ValueError as other:
            detail = phrase(
                "data.value_neither_json_nor_python",
                where=_in_column(column) if isinstance(column, str) else column,
                json_error=error,
                python_error=other,
            )
            raise ShapeError(BROKEN_JSON, detail) from error


def _turn(message: object, where: Message) -> Turn:
    if not isinstance(message, dict):
        detail = phrase("data.message_not_object", where=where, kind=kind_of(message))
        raise ShapeError(WRONG_TYPE, detail)
    keys = message_keys(message)
    if keys[0] not in message:
        raise ShapeError(MISSING_COLUMN, phrase("data.message_without_role", where=where))
    role = ROLES.get(str(message[keys[0]]).lower())
    if role is None:
        detail = phrase("data.message_role_unknown", where=where, role=message[keys[0]])
        raise ShapeError(WRONG_TYPE, detail)
    if message.get("function_call"):
        detail = phrase("data.function_call_replaced", where=where)
        raise ShapeError(WRONG_TYPE, detail)
    if str(message[keys[0]]).lower() in CALL_ROLES:
        spoken = from_json_text(
            message.get(keys[1]), Message("data.place_key", {"key": keys[1], "where": where})
        )
        listed = spoken if isinstance(spoken, list) else [spoken]
        message = {**message, keys[1]: None, "tool_calls": listed}
    if message.get("tool_calls"):
        message = {**message, "tool_calls": _calls(message["tool_calls"], where)}
    calls = message.get("tool_calls")
    known = {*keys, *_learnt_keys(message)}
    others = {key: value for key, value in message.items() if key not in known}
    fields = {key: value for key, value in others.items() if value is not None}
    content = message.get(keys[1])
    shows_pictures = isinstance(content, list) and any(map(_is_picture, content))
    if isinstance(content, list):
        parts = [one for one in content if not _is_picture(one)]
        if shows_pictures:
            fields["content"] = [_plain_part(one, where) for one in content]
        content = _joined_parts(parts, where)
    if content is None and calls:
        content, fields["content"] = "", None
    text = _as_text(content, where, may_be_empty=role != "user" or shows_pictures)
    packed = json.dumps(fields, ensure_ascii=False, default=str) if fields else ""
    return Turn(role, text, packed, _is_learnt(message, where))


def _calls(calls: object, where: Message) -> list[object]:
    """Return tool calls with their arguments as objects instead of JSON text.

    OpenAI writes arguments as JSON text, which a chat template would quote a second time.
    """
    if not (isinstance(calls, list) and all(map(_names_function, calls))):
        raise ShapeError(WRONG_TYPE, phrase("data.calls_without_names", where=where))
    return [_with_object_arguments(call, where) for call in calls]


def _with_object_arguments(call: Mapping[str, Any], where: Message) -> dict[str, Any]:
    function: Mapping[str, Any] = call.get("function", call)
    name, arguments = function["name"], function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except ValueError as error:
            detail = phrase("data.tool_arguments_not_json", name=name, where=where, reason=error)
            raise ShapeError(BROKEN_JSON, detail) from error
    if not isinstance(arguments, dict | None):
        detail = phrase(
            "data.tool_arguments_not_object", name=name, where=where, kind=kind_of(arguments)
        )
        raise ShapeError(WRONG_TYPE, detail)
    changed = dict(function) if arguments is None else {**function, "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _names_function(call: object) -> bool:
    function = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def are_tools(value: object) -> bool:
    """Return whether a value of the column `tools` is a list of tool objects, valid or not.

    Some datasets have plain words in a column of that name.
    """
    try:
        listed = from_json_text(value, "")
        schemas = (
            [from_json_text(one, "") for one in listed] if isinstance(listed, list) else [listed]
        )
    except ShapeError:
        return True  # it looks like such a list, so its errors are reported
    return any(isinstance(schema, Mapping) for schema in schemas)


def _tool_schemas(tools: Sequence[object], column: str) -> list[object]:
    """Return the tools of a row as objects with names, for a chat template.

    A tool may be given as JSON text.
    """
    schemas = [
        from_json_text(one, _item(column, n, "data.place_tool")) for n, one in enumerate(tools, 1)
    ]
    if not all(map(_names_function, schemas)):
        raise ShapeError(WRONG_TYPE, phrase("data.tools_without_names", column=column))
    return schemas


def _learnt_keys(message: Mapping[object, object]) -> list[str]:
    """Return the keys of a message that decide whether the message is trained on.

    A number under `loss` does not count: it may be a measured loss.
    """
    given = [key for key in LEARNT_KEYS if message.get(key) is not None]
    return [key for key in given if key != "loss" or isinstance(message[key], bool)]


def _is_learnt(message: Mapping[object, object], where: Message) -> bool:
    """Return whether a message is trained on, according to its key `weight`, `train` or `loss`.

    A value of 0 or false excludes the message, as in OpenAI's, Axolotl's and ms-swift's formats.
    """
    values = {key: message[key] for key in _learnt_keys(message)}
    for key, value in values.items():
        if value not in (0, 1):
            detail = phrase("data.weight_not_0_or_1", key=key, where=where, value=value)
            raise ShapeError(WRONG_TYPE, detail)
    return all(values.values())


def message_keys(message: Mapping[str, object]) -> tuple[str, str]:
    """Return the keys under which a message has its role and its text."""
    roles = ("role", *OTHER_ROLE_KEYS)
    role, content = CHAT_KEYS[SHAREGPT]
    role = next((key for key in roles if key in message), role)
    if role != "from":
        content = next((key for key in CONTENT_KEYS if key in message), "content")
    return role, content


def _part(part: object) -> object:
    return part.get("text") if isinstance(part, dict) else part


def _joined_parts(parts: Sequence[object], where: Message) -> str:
    texts = [_part(part) for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ShapeError(WRONG_TYPE, phrase("data.message_not_only_text", where=where))
    return "".join(map(str, texts))


def _is_picture(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in PICTURE_TYPES


def _plain_part(part: object, where: Message) -> dict[str, str]:
    """Return a message part in the form that chat templates expect, without the contents of
    images.
    """
    if _is_picture(part):
        return {"type": PICTURE_PART}
    return {"type": "text", "text": _joined_parts([part], where)}


def _of_parts(turn: Turn, parts: Sequence[Mapping[str, str]]) -> Turn:
    fields = json.loads(turn.fields) if turn.fields else {}
    return replace(turn, fields=json.dumps({**fields, "content": parts}, ensure_ascii=False))


def _with_marked_parts(turn: Turn) -> Turn:
    """Return a message with its text split at each <image>, as a list of text and image parts."""
    if PICTURE_MARK not in turn.text or turn.parts:
        return turn
    texts = [text.strip("\n") for text in turn.text.split(PICTURE_MARK)]
    parts: list[dict[str, str]] = []
    for number, text in enumerate(texts):
        parts += [{"type": PICTURE_PART}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return _of_parts(replace(turn, text="".join(texts)), parts)


def _listed_pictures(value: object, column: str) -> list[PictureSource]:
    value = from_json_text(value, column)
    if value in (None, "", b""):
        return []
    held = value if isinstance(value, list) else [value]
    is_alone = len(held) == 1
    return [
        _source(one, _in_column(column) if is_alone else _item(column, number, "data.place_image"))
        for number, one in enumerate(held, 1)
    ]


def _own_pictures(values: RowValues, column: str) -> list[PictureSource | None]:
    """Return the images in a list of messages, in order; None for image parts without content."""
    messages = from_json_text(value_of(values, column), column)
    sources: list[PictureSource | None] = []
    for number, message in enumerate(messages if isinstance(messages, list) else [], 1):
        content = message.get(message_keys(message)[1]) if isinstance(message, dict) else None
        for part in filter(_is_picture, content if isinstance(content, list) else []):
            has_own = any(part.get(key) is not None for key in SOURCE_KEYS)
            where = _item(column, number, "data.image_of_message")
            sources.append(_source(part, where) if has_own else None)
    return sources


def _source(value: object, where: Message) -> PictureSource:
    try:
        return picture_source(value, str(where))
    except PictureError as error:
        raise ShapeError(PICTURE, str(error)) from error


def _with_answer(turns: list[Turn], column: str) -> list[Turn]:
    """Return the messages, after checking that at least one of them is an answer with text."""
    answers = {n: turn for n, turn in enumerate(turns, 1) if turn.role == "assistant"}
    if not answers:
        raise ShapeError(NOT_SUPERVISED, phrase("data.no_assistant_message"))
    if not any(turn.text.strip() or turn.calls_tools for turn in answers.values()):
        where = _item(column, max(answers))
        raise ShapeError(EMPTY, phrase("data.value_empty", where=where))
    return turns


def with_context(question: str, context: str | None) -> str:
    """Return a question followed by its context.

    The context is written even if the question contains the same text, which may be chance.
    """
    return f"{question}\n\n{context}" if context and context.strip() else question


def _with_more_text(turn: Turn, text: str) -> Turn:
    """Return a message with one more paragraph; if the message has parts, with one more part."""
    more = with_context(turn.text, text)
    if more == turn.text:
        return turn
    added = {"type": "text", "text": more[len(turn.text) :]}
    return replace(_of_parts(turn, [*turn.parts, added]) if turn.parts else turn, text=more)
