"""What rows mean to TRL's methods: pairs, judged answers, prompts; and how one of each becomes the
columns that its trainer reads. Loads no torch.

| rows | columns of the data | columns for TRL |
| --- | --- | --- |
| pairs | chosen, rejected; a prompt beside or inside both | prompt, chosen, rejected |
| judged | pairs; or prompt, answer and a truth value | prompt, completion, label |
| prompts | prompt and answer, or prompts alone | prompt, answer, what else is a plain value |

Prompts and answers are texts or lists of messages; rows that do not fit become `BadRow`s.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.json_text import JsonObject
from infrastructure.core.lookup import unknown_name
from infrastructure.training.data.encoding.column_names import PREFERENCE_PAIRS
from infrastructure.training.data.encoding.row_schema import (
    TEXT,
    RowSchema,
    ShapeError,
    chat_turns,
    value_of,
)
from infrastructure.training.data.encoding.schema_detection import (
    CHAT_COLUMNS,
    PROMPT_NAMES,
    ShapeRequest,
    common_columns,
    matching,
    recognise_shape,
    shown,
)
from infrastructure.training.data.readers.rows import (
    EMPTY,
    MISSING_COLUMN,
    NO_PREFERENCE,
    NOT_SUPERVISED,
    WRONG_TYPE,
    BadRow,
    Conversation,
    Row,
    RowValues,
    Turn,
    excerpt,
    kind_of,
)
from infrastructure.training.methods.method_table import METHODS, RowKind

RANKED_PAIRS = (  # of a better and a worse answer, in this order
    ("chosen", "rejected"),
    ("preferred_output", "non_preferred_output"),
    ("response_j", "response_k"),
)
LABEL_COLUMNS = ("label", "labels", "kto_tag", "preferred", "desirable", "is_good", "thumbs_up")
WITHOUT_ANSWER = (PROMPT_NAMES, CHAT_COLUMNS)

MethodRow = dict[str, Any]
Text = str | list[JsonObject]  # a text, or messages of role and content


@dataclass(frozen=True)
class MethodShape:
    """A recognised shape of rows.

    Attributes:
        kind: what the rows of TRL are; JUDGED data that comes as pairs is PAIRS.
        reason: which columns were taken for what.
        used: those columns.
        convert: the columns for TRL of one row; raises `ShapeError`.
    """

    kind: RowKind
    reason: str
    used: frozenset[str]
    convert: Callable[[RowValues], MethodRow]

    def row(self, row: Row) -> MethodRow | BadRow:
        """The columns for TRL, or why the row cannot be used."""
        try:
            return self.convert(row.values)
        except ShapeError as error:
            text = excerpt(json.dumps(row.values, ensure_ascii=True, default=str))
            return BadRow(row.source, row.line, error.reason, error.detail, text, row.offset)


def recognise(rows: Sequence[Row], config: DataConfig, method: str) -> MethodShape:
    """What the first rows are for a method.

    Raises:
        ValueError: they are not what it learns from; says what they are, and what to do.
    """
    columns = common_columns(rows)
    for key in ("prompt_column", "answer_column"):
        name = getattr(config, key)
        if name is not None and all(value_of(row.values, name) is None for row in rows):
            raise ValueError(f"data.{key}: {unknown_name('column', name, columns)}")
    wanted = METHODS[method].rows
    pair = _pair_in(columns)
    if wanted is RowKind.PAIRS:
        return _pairs(rows, columns, config, method, pair)
    if wanted is RowKind.JUDGED:
        return _judged(rows, columns, config, pair)
    return _prompts(rows, columns, config, method, pair)


def _pair_in(columns: list[str]) -> tuple[str, str] | None:
    for pair in RANKED_PAIRS:
        if len(names := matching(pair, columns)) == len(pair):
            return names[0], names[1]
    return None


def _pairs(
    rows: Sequence[Row],
    columns: list[str],
    config: DataConfig,
    method: str,
    pair: tuple[str, str] | None,
) -> MethodShape:
    if config.answer_column is not None:
        raise ValueError(
            f"data.answer_column has no effect with training.method = {method}, which reads two"
            " answers: call them chosen and rejected"
        )
    if pair is not None:
        return _pair_shape(columns, config, *pair)
    for names in PREFERENCE_PAIRS:
        if len(two := matching(names, columns)) == len(names):
            raise ValueError(
                f"columns {two[0]!r} and {two[1]!r} hold two answers, and nothing says which is"
                " better: call the better one chosen and the worse one rejected"
            )
    labels = _labels(rows, columns)
    if labels:
        raise ValueError(
            f"column {labels[0]!r} says which answers are good, and training.method = {method}"
            " compares two answers to one prompt: training.method = kto learns from such labels"
        )
    raise ValueError(
        f"training.method = {method} learns from a better and a worse answer, and there are no"
        f" columns chosen and rejected (there are: {shown(columns)}): training.method = sft learns"
        " from answers alone"
    )


def _pair_shape(columns: list[str], config: DataConfig, chosen: str, rejected: str) -> MethodShape:
    prompt = config.prompt_column
    if prompt is None:
        prompt = next(iter(matching((*PROMPT_NAMES, *CHAT_COLUMNS), columns)), None)
    words = f"column {prompt!r} asks" if prompt else "what both begin with asks"

    def convert(values: RowValues) -> MethodRow:
        better, worse = _answer(values, chosen), _answer(values, rejected)
        if better == worse:
            raise ShapeError(NO_PREFERENCE, f"{chosen!r} and {rejected!r} say the same")
        if isinstance(better, str) != isinstance(worse, str):
            raise ShapeError(
                WRONG_TYPE, f"{chosen!r} is a text or messages, {rejected!r} the other"
            )
        if not isinstance(better, str) and not isinstance(worse, str):
            return _pair_of_messages(values, prompt, better, worse)
        if prompt is None:
            return _split_texts(str(better), str(worse))
        return {"prompt": _prompt(values, prompt), "chosen": better, "rejected": worse}

    used = frozenset({chosen, rejected, *([prompt] if prompt else [])})
    reason = f"{words}, {chosen!r} is better than {rejected!r}"
    return MethodShape(RowKind.PAIRS, reason, used, convert)


def _pair_of_messages(
    values: RowValues, prompt: str | None, better: list[Turn], worse: list[Turn]
) -> MethodRow:
    """Messages that hold the prompt too, or answers alone beside it."""
    num_shared = 0
    for one, other in zip(better, worse, strict=False):
        if one != other:
            break
        num_shared += 1
    shared, better, worse = better[:num_shared], better[num_shared:], worse[num_shared:]
    question: Text = _messages(shared)
    if not shared:
        if prompt is None:
            raise ShapeError(NOT_SUPERVISED, "the two conversations share no prompt")
        question = _prompt(values, prompt)
    for turns in (better, worse):
        if not turns or turns[0].role != "assistant" or not turns[0].text.strip():
            raise ShapeError(NOT_SUPERVISED, "what differs does not begin with an answer")
    return {"prompt": question, "chosen": _messages(better), "rejected": _messages(worse)}


def _split_texts(better: str, worse: str) -> MethodRow:
    """Two texts that begin alike: what both begin with is the prompt, up to the end of a word."""
    end = next((n for n, (a, b) in enumerate(zip(better, worse, strict=False)) if a != b), None)
    end = min(len(better), len(worse)) if end is None else end
    while end > 0 and not better[end - 1].isspace():
        end -= 1
    prompt = better[:end].rstrip(" ")
    if not prompt.strip():
        raise ShapeError(NOT_SUPERVISED, "the two texts share no prompt")
    rest = {"chosen": better[len(prompt) :], "rejected": worse[len(prompt) :]}
    if not all(text.strip() for text in rest.values()):
        raise ShapeError(EMPTY, "one of the two texts is the other's beginning")
    return {"prompt": prompt, **rest, "is_plain": True}


def _labels(rows: Sequence[Row], columns: list[str]) -> list[str]:
    """Columns that are true or false (or 1 and 0) and named as a judgement."""
    names = matching(LABEL_COLUMNS, columns)
    return [n for n in names if all(_truth(row.values.get(n)) is not None for row in rows)]


def _truth(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    words = {"true": True, "false": False, "1": True, "0": False}
    return words.get(str(value).strip().lower())


def _judged(
    rows: Sequence[Row], columns: list[str], config: DataConfig, pair: tuple[str, str] | None
) -> MethodShape:
    if pair is not None and config.answer_column is None:
        return _pair_shape(columns, config, *pair)
    labels = _labels(rows, columns)
    if not labels:
        raise ValueError(
            "training.method = kto learns from answers that are good or bad, and there is no column"
            f" label with true and false (there are: {shown(columns)}), nor chosen and rejected"
        )
    label = labels[0]
    without = [_without(row, label) for row in rows]
    schema = recognise_shape(without, _request(config))
    inner = _of_conversation(schema, "training.method = kto")

    def convert(values: RowValues) -> MethodRow:
        judged = _truth(values.get(label))
        if judged is None:
            raise ShapeError(WRONG_TYPE, f"column {label!r} is neither true nor false")
        row = inner(values)
        answer = row.pop("answer_messages")
        return {"prompt": row["prompt"], "completion": answer, "label": judged}

    reason = f"{schema.reason}, column {label!r} says whether it is good"
    return MethodShape(RowKind.JUDGED, reason, _used(schema) | {label}, convert)


def _without(row: Row, column: str) -> Row:
    values = {name: value for name, value in row.values.items() if name != column}
    return Row(values, row.source, row.line, row.offset)


def _request(config: DataConfig) -> ShapeRequest:
    return ShapeRequest(prompt_column=config.prompt_column, answer_column=config.answer_column)


def _used(schema: RowSchema) -> frozenset[str]:
    return frozenset(name for name in schema.used if name is not None)


def _of_conversation(schema: RowSchema, what: str) -> Callable[[RowValues], MethodRow]:
    """Rows of any shape that `temper train` knows, as a prompt and an answer."""
    if schema.name == TEXT:
        raise ValueError(
            f"{what} answers prompts, and {schema.reason}: name the columns with data.prompt_column"
            " and data.answer_column"
        )
    is_chat = "chat" in schema.columns

    def convert(values: RowValues) -> MethodRow:
        conversation = schema.convert(Row(values, "", 0))
        if isinstance(conversation, BadRow):
            raise ShapeError(conversation.reason, conversation.detail)
        if not conversation.prompt:
            raise ShapeError(EMPTY, "nothing is asked before the answer")
        plain = not is_chat and len(conversation.prompt) == 1 and not conversation.inputs
        answer = conversation.answer
        if not answer.text.strip():
            raise ShapeError(EMPTY, "the answer says nothing")
        return {
            "prompt": conversation.prompt[0].text if plain else _prompt_messages(conversation),
            "answer": answer.text,
            "answer_messages": answer.text if plain else [answer.message()],
        }

    return convert


def _prompt_messages(conversation: Conversation) -> list[JsonObject]:
    return _messages(conversation.prompt)


def _prompts(
    rows: Sequence[Row],
    columns: list[str],
    config: DataConfig,
    method: str,
    pair: tuple[str, str] | None,
) -> MethodShape:
    if pair is not None and config.prompt_column is None:
        raise ValueError(
            f"columns {pair[0]!r} and {pair[1]!r} hold a better and a worse answer, and"
            f" training.method = {method} writes answers itself: training.method = dpo learns from"
            " such pairs, and data.prompt_column takes the prompts alone"
        )
    schema = _with_answers(rows, config)
    if schema is None:
        alone = _prompt_alone(columns, config)
        if alone is None:
            raise ValueError(
                f"training.method = {method} answers prompts, and no column of prompts is known"
                f" (there are: {shown(columns)}): name it with data.prompt_column"
            )
        return alone
    inner = _of_conversation(schema, f"training.method = {method}")

    def convert(values: RowValues) -> MethodRow:
        row = inner(values)
        return {**_plain_values(values), "prompt": row["prompt"], "answer": row["answer"]}

    return MethodShape(RowKind.PROMPTS, schema.reason, _used(schema), convert)


def _with_answers(rows: Sequence[Row], config: DataConfig) -> RowSchema | None:
    """The shape of prompts with answers; None: they are of none."""
    try:
        schema = recognise_shape(rows, _request(config))
    except ValueError:
        return None
    return schema if schema.name != TEXT else None


def _prompt_alone(columns: list[str], config: DataConfig) -> MethodShape | None:
    if config.answer_column is not None:
        return None
    prompt = config.prompt_column
    if prompt is None:
        prompt = next(iter(matching((*PROMPT_NAMES, *CHAT_COLUMNS), columns)), None)
    if prompt is None:
        return None
    name = prompt

    def convert(values: RowValues) -> MethodRow:
        return {**_plain_values(values), "prompt": _prompt(values, name)}

    reason = f"column {name!r} asks, and no column answers"
    return MethodShape(RowKind.PROMPTS, reason, frozenset({name}), convert)


def _plain_values(values: Mapping[str, object]) -> MethodRow:
    """What a reward function may read besides: columns of texts and numbers."""
    kinds = (str, int, float, bool)
    return {name: value for name, value in values.items() if isinstance(value, kinds)}


def _messages(turns: Sequence[Turn]) -> list[JsonObject]:
    return [turn.message() for turn in turns]


def _prompt(values: RowValues, column: str) -> Text:
    """A prompt that is a text, or messages of which the last is no answer."""
    value = value_of(values, column)
    if isinstance(value, list):
        turns = chat_turns(value, column)
        while turns and turns[-1].role == "assistant":
            turns.pop()
        if not turns:
            raise ShapeError(EMPTY, f"column {column!r} asks nothing")
        return _messages(turns)
    return _text(value, column)


def _answer(values: RowValues, column: str) -> str | list[Turn]:
    """An answer that is a text, a message or messages."""
    value = value_of(values, column)
    if isinstance(value, Mapping):
        value = [dict(value)]
    return chat_turns(value, column) if isinstance(value, list) else _text(value, column)


def _text(value: object, column: str) -> str:
    if value is None:
        raise ShapeError(MISSING_COLUMN, f"no column {column!r}")
    if not isinstance(value, str):
        raise ShapeError(WRONG_TYPE, f"column {column!r} is {kind_of(value)}, not text")
    if not value.strip():
        raise ShapeError(EMPTY, f"column {column!r} is empty")
    return value
