"""Interpretation of rows for TRL's methods: pairs of answers, labeled answers, or prompts.

| rows | columns of the data | answers | | --- | --- | --- | | pairs | chosen, rejected; a prompt
next to them or inside both | chosen, rejected | | judged | pairs; or prompt, answer and a label
(good or bad) | chosen, rejected; or completion | | prompts | prompt and answer, or only prompts |
answer, or none |

Prompts are built by `RowSchema.prompt_turns`, as in supervised fine-tuning, so that a model gets
prompts in the form on which it was trained before. Unusable rows become `BadRow`s. This does not
import torch.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.encoding.column_names import PREFERENCE_PAIRS
from infrastructure.data.encoding.row_schema import (
    TEXT,
    RowSchema,
    ShapeError,
    value_of,
)
from infrastructure.data.encoding.schema_detection import (
    ShapeRequest,
    common_columns,
    matching,
    recognise_question,
    recognise_shape,
    shown,
)
from infrastructure.data.readers.rows import (
    EMPTY,
    NO_PREFERENCE,
    NOT_SUPERVISED,
    PICTURE,
    TEXT_ROLE,
    WRONG_TYPE,
    BadRow,
    Conversation,
    Row,
    RowValues,
    Turn,
    excerpt,
)
from infrastructure.training.methods.method_table import METHODS, RowKind

RANKED_PAIRS = (  # columns of the better and the worse answer, in this order
    ("chosen", "rejected"),
    ("preferred_output", "non_preferred_output"),
    ("response_j", "response_k"),
)
LABEL_COLUMNS = ("label", "labels", "kto_tag", "preferred", "desirable", "is_good", "thumbs_up")
TRUTH_WORDS = {
    **dict.fromkeys(("true", "1", "1.0", "yes", "good", "desirable"), True),
    **dict.fromkeys(("false", "0", "0.0", "no", "bad", "undesirable"), False),
}
PICTURE_NAMES = ("image", "images")  # TRL would show these columns to the model
NUM_VALUES_SHOWN = 3


@dataclass(frozen=True)
class MethodRow:
    """A row after its columns were interpreted.

    Attributes:
        prompt: the messages of the prompt. If the prompt was split from plain texts, a single
            message with the role "text".
        answers: messages of each answer, under the name that TRL or a reward uses for it.
        inputs: further inputs of the chat template, as in `Conversation.inputs`.
        values: further columns that TRL or a reward reads.
    """

    prompt: tuple[Turn, ...]
    answers: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict)
    inputs: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    line: int = 0

    @property
    def is_plain(self) -> bool:
        """True if the row consists of plain texts, to which no chat template is applied."""
        return self.prompt[0].role == TEXT_ROLE

    def conversation(self, name: str) -> Conversation:
        """Return the prompt with the answer called `name`. Only the answer is trained on."""
        turns, place = (*self.prompt, *self.answers[name]), (self.source, self.line)
        return Conversation(turns, "", "", *place, self.inputs, len(self.prompt))


@dataclass(frozen=True)
class MethodShape:
    """The recognized meaning of the columns of a data file.

    Attributes:
        kind: the kind of rows for TRL. Data for KTO that contains pairs is of the kind PAIRS.
        reason: text about which column is used for what.
        used: names of the columns that are used.
        convert: interprets one row; raises `ShapeError`.
        has_answers: a column contains answers.
    """

    kind: RowKind
    reason: str
    used: frozenset[str]
    convert: Callable[[RowValues], MethodRow]
    has_answers: bool = True

    def row(self, row: Row) -> MethodRow | BadRow:
        """Convert a data row to a `MethodRow`, or to a `BadRow` with the reason why it cannot be
        used.
        """
        try:
            understood = self.convert(row.values)
            turns = (
                turn for part in (understood.prompt, *understood.answers.values()) for turn in part
            )
            if any(turn.num_pictures for turn in turns):
                raise ShapeError(PICTURE, phrase("methods.row_shows_image"))
        except ShapeError as error:
            text = excerpt(json.dumps(row.values, ensure_ascii=True, default=str))
            return BadRow(row.source, row.line, error.reason, error.detail, text, row.offset)
        return replace(understood, source=row.source, line=row.line)


def recognise(rows: Sequence[Row], config: DataConfig, method: str) -> MethodShape:
    """Recognize from the first rows what a method uses each column for.

    Raises:
        ValueError: the method cannot learn from these rows. The message says what they are, and
            what to do.
    """
    columns = common_columns(rows)
    for key in ("prompt_column", "answer_column"):
        name = getattr(config, key)
        if name is not None and all(value_of(row.values, name) is None for row in rows):
            raise InputError(
                "config.setting_says",
                setting=Setting(f"data.{key}"),
                reason=unknown_name("column", name, columns),
            )
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
        raise InputError("methods.answer_column_no_effect", method=method)
    if pair is not None:
        return _pair_shape(rows, config, *pair)
    for names in PREFERENCE_PAIRS:
        if len(two := matching(names, columns)) == len(names):
            raise InputError("methods.better_answer_unknown", first=two[0], second=two[1])
    labels = _labels(rows, columns)
    if labels:
        raise InputError("methods.labels_instead_of_pairs", column=labels[0], method=method)
    raise InputError("methods.pairs_missing", method=method, columns=shown(columns))


def _pair_shape(rows: Sequence[Row], config: DataConfig, chosen: str, rejected: str) -> MethodShape:
    schema = recognise_question(rows, _request(config), (chosen, rejected))
    has_prompt = "prompt" in schema.columns
    are_texts = all(isinstance(value_of(row.values, chosen), str) for row in rows)
    if not has_prompt and are_texts and schema.columns:
        named = ", ".join(map(repr, schema.columns.values()))
        raise InputError(
            "methods.column_before_paired_texts", chosen=chosen, rejected=rejected, columns=named
        )

    def convert(values: RowValues) -> MethodRow:
        better, worse = schema.answers(values, chosen), schema.answers(values, rejected)
        if better == worse:
            detail = phrase("methods.answers_equal", chosen=chosen, rejected=rejected)
            raise ShapeError(NO_PREFERENCE, detail)
        if not has_prompt and all(isinstance(value_of(values, n), str) for n in (chosen, rejected)):
            (first,), (second,) = better, worse
            return _split_texts(first.text, second.text)
        together = zip(better, worse, strict=False)
        shared = [turn for turn, _ in takewhile(lambda two: two[0] == two[1], together)]
        if not shared and not has_prompt:
            detail = phrase("methods.conversations_without_shared_prompt")
            raise ShapeError(NOT_SUPERVISED, detail)
        prompt = _prompt_of(schema, values, shared)
        answers = {"chosen": better[len(shared) :], "rejected": worse[len(shared) :]}
        for turns in answers.values():
            if not turns or turns[0].role != "assistant" or not _has_content(turns[0]):
                raise ShapeError(NOT_SUPERVISED, phrase("methods.difference_not_an_answer"))
        named = {name: tuple(turns) for name, turns in answers.items()}
        return MethodRow(prompt, named, schema.inputs(values))

    words = (
        schema.reason
        if has_prompt
        else phrase("methods.common_beginning_is_prompt", reason=schema.reason)
    )
    reason = phrase("methods.one_is_better", reason=words, chosen=chosen, rejected=rejected)
    return MethodShape(RowKind.PAIRS, reason, _used(schema) | {chosen, rejected}, convert)


def _prompt_of(
    schema: RowSchema, values: RowValues, messages: Sequence[Turn] = ()
) -> tuple[Turn, ...]:
    """Return the messages of the prompt.

    If the prompt column contains a whole conversation, its last answer is left out.
    """
    turns = schema.prompt_turns(values, messages)
    while not messages and turns and turns[-1].role == "assistant":
        turns.pop()
    if not any(turn.role != "system" for turn in turns):
        column = schema.columns["prompt"]
        raise ShapeError(EMPTY, phrase("methods.prompt_column_empty", column=column))
    return tuple(turns)


def _has_content(answer: Turn) -> bool:
    return bool(answer.text.strip()) or answer.calls_tools


def _split_texts(better: str, worse: str) -> MethodRow:
    """Split two texts into a common prompt and two answers.

    The prompt is the beginning that both texts share, up to a word boundary.
    """
    end = next((n for n, (a, b) in enumerate(zip(better, worse, strict=False)) if a != b), None)
    end = min(len(better), len(worse)) if end is None else end
    while end > 0 and not better[end - 1].isspace():
        end -= 1
    prompt = better[:end].rstrip(" ")
    if not prompt.strip():
        raise ShapeError(NOT_SUPERVISED, phrase("methods.texts_without_shared_prompt"))
    rest = {"chosen": better[len(prompt) :], "rejected": worse[len(prompt) :]}
    if not all(text.strip() for text in rest.values()):
        raise ShapeError(EMPTY, phrase("methods.text_begins_other"))
    answers = {name: (Turn(TEXT_ROLE, text),) for name, text in rest.items()}
    return MethodRow((Turn(TEXT_ROLE, prompt),), answers)


def _labels(rows: Sequence[Row], columns: list[str]) -> list[str]:
    """Return the columns that are named like a label and contain booleans (or 1 and 0) in most
    rows.
    """
    names = matching(LABEL_COLUMNS, columns)
    return [n for n in names if 2 * sum(_is_label(row, n) for row in rows) >= len(rows)]


def _is_label(row: Row, column: str) -> bool:
    return _truth(row.values.get(column)) is not None


def _truth(value: object) -> bool | None:
    return TRUTH_WORDS.get(str(value).strip().lower())


def _no_label(rows: Sequence[Row], columns: list[str]) -> ValueError:
    """Return the error for data without a column that labels answers as good or bad."""
    for name in matching(LABEL_COLUMNS, columns):
        held = Counter(repr(row.values.get(name)) for row in rows)
        some = ", ".join(excerpt(value, 24) for value, _ in held.most_common(NUM_VALUES_SHOWN))
        return InputError("methods.label_values_unknown", name=name, values=some)
    return InputError("methods.label_column_missing", columns=shown(columns))


def _judged(
    rows: Sequence[Row], columns: list[str], config: DataConfig, pair: tuple[str, str] | None
) -> MethodShape:
    if pair is not None and config.answer_column is None:
        return _pair_shape(rows, config, *pair)
    labels = _labels(rows, columns)
    if not labels:
        raise _no_label(rows, columns)
    label = labels[0]
    without = [_without(row, label) for row in rows]
    schema = recognise_shape(without, _request(config))
    inner = _of_conversation(schema, Setting("training.method", "kto"))

    def convert(values: RowValues) -> MethodRow:
        judged = _truth(values.get(label))
        if judged is None:
            raise ShapeError(WRONG_TYPE, phrase("methods.label_not_boolean", column=label))
        return inner(values, "completion", {"label": judged})

    reason = phrase("methods.label_column_found", reason=schema.reason, column=label)
    return MethodShape(RowKind.JUDGED, reason, _used(schema) | {label}, convert)


def _without(row: Row, column: str) -> Row:
    values = {name: value for name, value in row.values.items() if name != column}
    return Row(values, row.source, row.line, row.offset)


def _request(config: DataConfig) -> ShapeRequest:
    return ShapeRequest(
        prompt_column=config.prompt_column,
        answer_column=config.answer_column,
        context_column=config.context_column,
    )


def _used(schema: RowSchema) -> frozenset[str]:
    return frozenset(name for name in schema.used if name is not None)


def _of_conversation(
    schema: RowSchema, what: str
) -> Callable[[RowValues, str, dict[str, Any]], MethodRow]:
    """Return a function that converts a row of supervised data to a prompt and a named answer."""
    if schema.name == TEXT:
        raise InputError("methods.answer_columns_unknown", method=what, reason=schema.reason)

    def convert(values: RowValues, name: str, others: dict[str, Any]) -> MethodRow:
        conversation = schema.conversation(Row(values, "", 0))
        if not conversation.prompt:
            raise ShapeError(EMPTY, phrase("methods.answer_without_prompt"))
        if not _has_content(conversation.answer):
            raise ShapeError(EMPTY, phrase("methods.answer_empty"))
        answers = {name: (conversation.answer,)}
        return MethodRow(conversation.prompt, answers, conversation.inputs, others)

    return convert


def _prompts(
    rows: Sequence[Row],
    columns: list[str],
    config: DataConfig,
    method: str,
    pair: tuple[str, str] | None,
) -> MethodShape:
    if pair is not None and config.prompt_column is None:
        raise InputError(
            "methods.pairs_instead_of_prompts", better=pair[0], worse=pair[1], method=method
        )
    schema = _with_answers(rows, config)
    if schema is None:
        return _prompts_alone(rows, columns, config, method)
    inner = _of_conversation(schema, Setting("training.method", method))

    def convert(values: RowValues) -> MethodRow:
        return inner(values, "answer", _for_rewards(values))

    return MethodShape(RowKind.PROMPTS, schema.reason, _used(schema), convert)


def _with_answers(rows: Sequence[Row], config: DataConfig) -> RowSchema | None:
    """Recognize rows of prompts with answers; return None for other rows."""
    try:
        schema = recognise_shape(rows, _request(config))
    except ValueError:
        return None
    has_answers = any(isinstance(schema.convert(row), Conversation) for row in rows)
    return schema if schema.name != TEXT and has_answers else None


def _prompts_alone(
    rows: Sequence[Row], columns: list[str], config: DataConfig, method: str
) -> MethodShape:
    schema = recognise_question(rows, _request(config))
    if "prompt" not in schema.columns or config.answer_column is not None:
        raise InputError("methods.prompt_column_missing", method=method, columns=shown(columns))

    def convert(values: RowValues) -> MethodRow:
        return MethodRow(
            _prompt_of(schema, values), {}, schema.inputs(values), _for_rewards(values)
        )

    reason = phrase("methods.no_column_answers", reason=schema.reason)
    return MethodShape(RowKind.PROMPTS, reason, _used(schema), convert, has_answers=False)


def _for_rewards(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the columns that a reward function may read: those with JSON values, except images."""
    kinds = (str, int, float, bool, list, dict)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, kinds) and name not in PICTURE_NAMES
    }
