"""Preparation of the rows of a run that a TRL trainer trains.

Rows are read, interpreted, skipped if unusable, held out, and written in the form that TRL's
trainers read. This does not import torch.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import OPTIONS, TOOLS, RowKind
from infrastructure.config.registries import METHODS
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject, parse_json
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.encoding.chat_format import (
    FormatError,
    TemplateFormat,
    start_of_text,
)
from infrastructure.data.encoding.column_names import PREFERENCE_PAIRS
from infrastructure.data.encoding.row_accounting import (
    REASONING_KIND,
    Account,
    LeftOut,
    RowAccounting,
    reasoning_forms,
)
from infrastructure.data.encoding.row_schema import (
    TEXT,
    RowSchema,
    ShapeError,
    value_of,
)
from infrastructure.data.encoding.schema_detection import (
    SAMPLE_ROWS,
    common_columns,
    matching,
    recognise_question,
    recognise_shape,
    shown,
)
from infrastructure.data.encoding.token_survival import LOST, UNCHANGED, Survivals
from infrastructure.data.encoding.tokenization import ConversationEncoder, num_common
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.preparation.row_stats import SharedSystemPrompt
from infrastructure.data.readers.rows import (
    CHAT_TEMPLATE,
    EMPTY,
    LEFT_OUT,
    NO_PREFERENCE,
    NOT_IN_TOKENS,
    NOT_SUPERVISED,
    OVER_LONG,
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
from infrastructure.data.readers.sources import DataFile, about_splits, files_of
from infrastructure.data.store.fingerprints import content_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Interpretation of rows for TRL's methods: pairs of answers, labeled answers, or prompts.
#
# | rows | columns of the data | answers | | --- | --- | --- | | pairs | chosen, rejected; a prompt
# next to them or inside both | chosen, rejected | | judged | pairs; or prompt, answer and a label
# (good or bad) | chosen, rejected; or completion | | prompts | prompt and answer, or only prompts |
# answer, or none |
#
# Prompts are built by `RowSchema.prompt_turns`, as in supervised fine-tuning, so that a model gets
# prompts in the form on which it was trained before. Unusable rows become `BadRow`s. This does not
# import torch.

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
        return Conversation(turns, "", *place, self.inputs, len(self.prompt))


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
    wanted = METHODS.get(method).rows
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
        if (
            has_prompt
            and shared
            and _contradicts(value_of(values, schema.columns["prompt"]), shared)
        ):
            detail = phrase("methods.prompt_column_differs", column=schema.columns["prompt"])
            raise ShapeError(NOT_SUPERVISED, detail)
        prompt = _prompt_of(schema, values, shared, [better[0], worse[0]])
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
    schema: RowSchema,
    values: RowValues,
    messages: Sequence[Turn] = (),
    answers: Sequence[Turn] = (),
) -> tuple[Turn, ...]:
    """Return the messages of the prompt.

    If the prompt column contains a whole conversation, its last answer is left out.

    Args:
        answers: the answers of a pair. One of them must be the last answer in the prompt column.
    """
    turns = schema.prompt_turns(values, messages)
    while not messages and turns and turns[-1].role == "assistant":
        last = turns.pop()
        if answers and last.text.strip() not in [answer.text.strip() for answer in answers]:
            detail = phrase("methods.prompt_ends_with_answer", column=schema.columns["prompt"])
            raise ShapeError(NOT_SUPERVISED, detail)
    if not any(turn.role != "system" for turn in turns):
        column = schema.columns["prompt"]
        raise ShapeError(EMPTY, phrase("methods.prompt_column_empty", column=column))
    return tuple(turns)


def _contradicts(value: object, shared: Sequence[Turn]) -> bool:
    """Return whether a prompt column holds other texts than the conversations of a pair.

    It may hold more, less or none of their texts, as a text, as messages, or as JSON text of these.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = parse_json(value)
    messages = value if isinstance(value, list) else [{"content": value}]
    texts = [
        " ".join(text.split())
        for message in messages
        if isinstance(message, Mapping)
        and isinstance(text := message.get("content", message.get("value")), str)
    ]
    ours = [" ".join(turn.text.split()) for turn in shared]
    return any(texts) and not any(one in other or other in one for one in ours for other in texts)


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
    truths = {name: [_truth(row.values.get(name)) for row in rows] for name in names}
    return [name for name in names if 2 * truths[name].count(None) <= len(rows)]


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


def _request(config: DataConfig) -> DataConfig:
    return DataConfig(
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
    if any(_ends_with_answer(schema, row.values) for row in rows):
        reason = phrase("methods.last_answers_left_out", reason=reason)
    return MethodShape(RowKind.PROMPTS, reason, _used(schema), convert, has_answers=False)


def _ends_with_answer(schema: RowSchema, values: RowValues) -> bool:
    try:
        return schema.prompt_turns(values)[-1].role == "assistant"
    except ShapeError:
        return False


def _for_rewards(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the columns that a reward function may read: those with JSON values, except images."""
    kinds = (str, int, float, bool, list, dict)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, kinds) and name not in PICTURE_NAMES
    }


TRAINED = ("chosen", "rejected", "completion")
GOOD_ANSWERS = ("chosen", "completion", "answer")  # identifies a row, as in `temper train`

TrlRow = dict[str, Any]


@dataclass(frozen=True)
class WrittenRow:
    """A row in the form that a TRL trainer reads.

    Attributes:
        content: hash that identifies the prompt with its good answer, the same as in supervised
            fine-tuning. None if there is no good answer.
        is_plain: True if prompt and answers were split from texts that contain both.
    """

    columns: TrlRow
    content: int | None
    is_plain: bool


@dataclass
class MethodData:
    """The training and held-out rows for a TRL trainer.

    Attributes:
        train, held_out: the rows.
        num_cut: number of rows that TRL will truncate.
        system_prompt: the system prompt of every row. None if no row has one, or if rows have
            different ones.
        unused: columns that are not read.
    """

    shape: MethodShape
    train: list[TrlRow]
    held_out: list[TrlRow]
    quarantine: Quarantine
    num_read: int
    num_cut: int = 0
    system_prompt: str | None = None
    notes: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def contents(self) -> npt.NDArray[np.uint64]:
        """Return the hashes that identify the trained prompts with good answers.

        They are the same as in supervised fine-tuning.
        """
        return np.array(self.numbers, dtype=np.uint64)

    @property
    def num_good(self) -> int:
        """Number of training rows whose answer is labeled as good."""
        return sum(row.get("label") is True for row in self.train)

    def lines(self) -> list[str]:
        """Return lines for the user: what was read, and how it is used."""
        counts = phrase("methods.rows_read", count=self.num_read, reason=self.shape.reason)
        if self.unused and self.shape.kind is not RowKind.PROMPTS:  # rewards may read them
            unused = ", ".join(self.unused)
            counts = phrase("data.columns_unused_too", shape=counts, columns=unused)
        trained = phrase("methods.rows_trained", count=len(self.train))
        if self.shape.kind is RowKind.JUDGED:
            num_bad = len(self.train) - self.num_good
            trained = phrase(
                "methods.rows_judged",
                count=len(self.train),
                num_good=self.num_good,
                num_bad=num_bad,
            )
        parts = [trained, phrase("methods.rows_held_out", count=len(self.held_out))]
        if self.quarantine.total:
            first = self.quarantine.examples[0]
            total = self.quarantine.total
            parts.append(phrase("methods.rows_skipped", count=total, first=first))
        if self.num_cut:
            parts.append(phrase("methods.rows_truncated", count=self.num_cut))
        return [phrase("methods.rows_used", read=counts, uses=", ".join(parts)), *self.notes]


def sample(files: Sequence[DataFile]) -> list[Row]:
    """Return the first readable rows of the files, for recognizing their columns.

    Raises:
        ValueError: no row can be read.
    """
    readable = (row for file in files for row in file.rows() if isinstance(row, Row))
    rows = list(islice(readable, SAMPLE_ROWS))
    if not rows:
        raise InputError("methods.no_readable_row", file=files[0].name)
    return rows


def understand(files: Sequence[DataFile], config: DataConfig, method: str) -> MethodShape:
    """Recognize from the first rows of some files what a method uses each column for.

    Raises:
        ValueError: the method cannot learn from these rows. The message begins with the file.
    """
    rows = sample(files)
    try:
        return recognise(rows, config, method)
    except ValueError as error:
        raise InputError("methods.data_file_unusable", file=files[0].name, error=error) from error


def read_data(
    config: DeploymentConfig, tokenizer: "PreTrainedTokenizerBase", listed: Path
) -> MethodData:
    """Read all rows in the form that TRL's trainers read.

    Args:
        listed: file for the list of skipped rows.

    Raises:
        ValueError: the method cannot learn from the rows, or too many of them cannot be used.
    """
    method, data = config.training.method, config.data
    writer = RowWriter(config, tokenizer)
    train_files, held_out_files = files_of(data)
    quarantine = Quarantine()
    shape = understand(train_files, data, method)
    places, num_read = _written(train_files, shape, writer, quarantine)
    held_out: list[WrittenRow] = []
    if held_out_files:
        other = understand(held_out_files, data, method)
        if other.kind is not shape.kind:
            raise InputError(
                "methods.held_out_kind_differs",
                file=held_out_files[0].name,
                held_out_kind=phrase(other.kind.value),
                train_kind=phrase(shape.kind.value),
            )
        held_out, more = _written(held_out_files, other, writer, quarantine)
        train, num_read = places, num_read + more
    else:
        train, held_out = _split(places, data.validation_split)
    if quarantine.total:
        listed.parent.mkdir(parents=True, exist_ok=True)
        quarantine.write(listed)
    quarantine.check(
        num_read,
        data.max_bad_rows_percent,
        listed,
        max_unlearnable_percent=data.max_unlearnable_percent,
        cuts_prompts=False,
    )
    writer.survivals.finish()
    writer.survivals.check(num_read, data.max_unlearnable_percent)
    if not train:
        raise quarantine.none_left(str(data.path))
    result = MethodData(
        shape,
        [row.columns for row in train],
        [row.columns for row in held_out],
        quarantine,
        num_read,
        writer.num_cut,
        writer.system_prompts.text,
        numbers=[row.content for row in train if row.content is not None],
        unused=[*writer.unused],
    )
    _fill_inputs([*result.train, *result.held_out])
    if shape.kind is RowKind.PROMPTS:
        _fill_columns([*result.train, *result.held_out])
    files = [*train_files, *held_out_files]
    about_files = [file.note for file in files if file.note]
    about_files += about_splits(train_files, held_out_files)
    result.notes += [f"note: {sentence}" for sentence in about_files]
    result.notes += [*writer.left_out.lines(), *writer.survivals.lines()]
    if writer.plain is None and any(row.is_plain for row in [*train, *held_out]):
        result.notes.append(phrase("methods.texts_without_template"))
    result.notes += _of_one_label(result)
    return result


def _written(
    files: Iterable[DataFile], shape: MethodShape, writer: "RowWriter", quarantine: Quarantine
) -> tuple[list[WrittenRow], int]:
    """Convert files to rows for TRL. Return these rows and the number of rows that were read.

    Unusable rows are added to `quarantine`.
    """
    rows: list[WrittenRow] = []
    count = 0
    for row in (row for file in files for row in file.rows()):
        count += 1
        written: WrittenRow | MethodRow | BadRow = (
            row if isinstance(row, BadRow) else shape.row(row)
        )
        if isinstance(row, Row) and isinstance(written, MethodRow):
            given = (name for name, value in row.values.items() if value is not None)
            writer.unused.update(dict.fromkeys(n for n in given if n not in shape.used))
            written = writer.write(written, row)
        if isinstance(written, WrittenRow):
            rows.append(written)
        elif isinstance(written, BadRow):
            quarantine.add([written])
    return rows, count


def _of_one_label(data: MethodData) -> Iterator[str]:
    """Yield a warning if all rows have the same label, because then KTO has nothing to compare."""
    if data.shape.kind is RowKind.JUDGED and data.num_good in (0, len(data.train)):
        kind, lacking = ("good", "bad") if data.num_good else ("bad", "good")
        yield (phrase("methods.labels_all_same", kind=kind, lacking=lacking))


def _split(rows: list[WrittenRow], share: float) -> tuple[list[WrittenRow], list[WrittenRow]]:
    """Split rows into training and held-out rows, so that all answers to a prompt are in the same
    part.
    """
    numbers = [content_number([["prompt", _spelt(row.columns["prompt"])]]) for row in rows]
    if not share or not rows:
        return rows, []
    limit = max(int(share * 2.0**64), min(numbers) + 1)  # at least one prompt
    if limit > max(numbers):
        limit = max(numbers)
    chosen = [number < limit for number in numbers]
    train = [row for row, is_held_out in zip(rows, chosen, strict=True) if not is_held_out]
    return train, [row for row, is_held_out in zip(rows, chosen, strict=True) if is_held_out]


def _spelt(prompt: str | list[JsonObject]) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)


def _fill_inputs(rows: list[TrlRow]) -> None:
    """If any row has inputs of the chat template (tools, options), add these columns to all rows.

    A table has the same columns in all rows. TRL ignores the added values.
    """
    for name, nothing in ((TOOLS, None), (OPTIONS, {})):
        for row in rows if any(name in row for row in rows) else []:
            row.setdefault(name, nothing)


def _fill_columns(rows: list[TrlRow]) -> None:
    """Add to each row the columns that it lacks and other rows have, with the value None."""
    names = dict.fromkeys(name for row in rows for name in row)
    for row in rows:
        for name in names:
            row.setdefault(name, None)


class RowWriter:
    """A converter of rows to the form that TRL's trainers read.

    It rejects rows that TRL would drop or learn nothing from, and rows whose answer is at a
    position where the model would never generate an answer.

    With a chat template, every row becomes messages. Without one, every row becomes text in the
    plain format. Supervised fine-tuning uses the same forms.

    Attributes:
        num_cut: number of rows that are longer than allowed.
        system_prompts: the system prompts of the rows.
        left_out: texts of usable rows that the chat template leaves out.
        survivals: changes that the tokenizer makes to the answers.
        unused: columns of the rows that are not read, in order.
    """

    def __init__(self, config: DeploymentConfig, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self.encoder = ConversationEncoder(tokenizer, max_length=config.data.max_length)
        self.plain = self.encoder.plain
        self.start = start_of_text(tokenizer)  # TRL's tokenization adds it before texts
        self.accounting = RowAccounting(self._text_of, self.encoder.template_sources)
        self.max_length = config.data.max_length
        self.keeps_start = config.data.over_length == "keep_start"
        self.method = config.training.method
        self.options = config.training.method_settings.get(OPTIONS)
        is_generated = METHODS.get(self.method).rows is RowKind.PROMPTS
        self.reserved = config.training.max_completion_length if is_generated else 0
        self.num_cut = 0
        self.system_prompts = SharedSystemPrompt()
        self.left_out, self.survivals = LeftOut(), Survivals()
        self.unused: dict[str, None] = {}

    def write(self, row: MethodRow, place: Row) -> WrittenRow | BadRow:
        """Convert one row for TRL, or return a `BadRow` with the reason why it cannot be used."""
        try:
            inputs = self._inputs(row)
            row, accounts = self._accounted(row, inputs)
            prompt_text, answers = self._texts(row, inputs)
        except FormatError as error:
            return _bad(place, CHAT_TEMPLATE, str(error), error.advice)
        for name, account in accounts.items():
            if lost := account.unlearnable:
                detail = phrase("methods.template_omits_trained_text", part=lost[0])
                conversation = replace(row.conversation(name), inputs=inputs)
                return _bad(place, LEFT_OUT, detail, self.encoder.advice_for(conversation))
        is_text = self.plain is not None or row.is_plain
        texts = [prompt_text, *(prompt_text + answer for answer in answers.values())]
        prompt, *wholes = self._ids(texts, is_text)
        if len(wholes) > 1 and all(whole == wholes[0] for whole in wholes):
            detail = phrase("methods.answers_tokenize_equally", answers=" and ".join(answers))
            return _bad(place, NO_PREFERENCE, detail)
        learned = [whole[num_common(prompt, whole) :] for whole in wholes]
        survivals = self.encoder.survival.compare([[a] for a in answers.values()], learned)
        if lost_in := next((one for one in survivals if one.kind == LOST), None):
            return _bad(place, NOT_IN_TOKENS, lost_in.example)
        num_prompt = len(prompt)
        longest = max((len(whole) + is_text for whole in wholes), default=num_prompt)  # end token
        if self.reserved:
            if num_prompt + self.reserved > self.max_length:
                detail = phrase(
                    "methods.prompt_and_answer_too_long",
                    prompt_tokens=num_prompt,
                    reserved=self.reserved,
                )
                return _bad(place, OVER_LONG, detail)
        elif longest > self.max_length and (self.method == "reward" or not self.keeps_start):
            return _bad(place, OVER_LONG, f"{longest} tokens, {self.max_length} allowed")
        elif num_prompt >= self.max_length:
            return _bad(place, OVER_LONG, phrase("methods.prompt_too_long", count=num_prompt))
        kept = [whole[: self.max_length] for whole in wholes]
        if len(kept) > 1 and all(one == kept[0] for one in kept):
            detail = phrase(
                "methods.answers_equal_after_cut", longest=longest, max_length=self.max_length
            )
            return _bad(place, OVER_LONG, detail)
        self.num_cut += not self.reserved and longest > self.max_length
        where = f"{place.source}:{place.line}"
        self.left_out.add(where, chain.from_iterable(one.missing for one in accounts.values()))
        read = [turn.text for turn in row.prompt]
        unread = self.encoder.survival.lost_of(read, prompt_text, prompt)
        for survival in survivals or [UNCHANGED]:
            self.survivals.add(where, replace(survival, unread=unread))
            unread = ""  # count a row once
        first = row.prompt[0]
        self.system_prompts.add(first.text if first.role == "system" else "")
        columns = dict(row.values)
        if is_text:
            columns |= {"prompt": prompt_text, **answers}
        else:
            columns |= self._messages(row, inputs)
        if "answer" in row.answers:
            columns["answer"] = row.answers["answer"][0].text
        return WrittenRow(columns, _content(row), row.is_plain)

    def _inputs(self, row: MethodRow) -> str:
        """Return the chat template's inputs besides the messages (tools, options) as JSON.

        Raises:
            FormatError: TRL does not pass one of the inputs for this method, or there is no chat
                template.
        """
        given: JsonObject = json.loads(row.inputs) if row.inputs else {}
        method = METHODS.get(self.method)
        for name in given:
            if name in method.reads or (name == OPTIONS and given[name] == self.options):
                continue
            advice = phrase("methods.move_column_into_prompt")
            if name == OPTIONS and method.rows is RowKind.PROMPTS:
                advice = phrase("methods.set_options_for_all_rows", options=OPTIONS)
            raise FormatError(
                phrase("methods.option_not_passed", name=name, method=method.title),
                advice,
            )
        if given and self.plain is not None:
            raise FormatError(
                phrase("methods.option_needs_chat_template", names=", ".join(given)),
                phrase("data.no_chat_template"),
            )
        if self.options:
            given = {OPTIONS: self.options, **given}
        return json.dumps(given, ensure_ascii=False) if given else ""

    def _texts(self, row: MethodRow, inputs: str) -> tuple[str, dict[str, str]]:
        """Return the text of the prompt as used for generation, and the text of each answer.

        Raises:
            FormatError: the template renders the prompt differently when an answer follows, or an
                answer needs a chat template and there is none.
        """
        names = [name for name in row.answers if name in TRAINED]
        if row.is_plain:
            prompt = row.prompt[0].text.removeprefix(self.start)
            return prompt, {name: row.answers[name][0].text for name in names}
        if self.plain is not None:
            prompt = self.plain.write_prompt(row.prompt).text.removeprefix(self.start)
            return prompt, _plain_answers(row, names)
        prompt = self.encoder.prompt_written(row.prompt, inputs).text
        answers = {}
        for name in names:
            whole = self._text_of(replace(row.conversation(name), inputs=inputs))
            if not whole.startswith(prompt):
                raise FormatError(
                    phrase(
                        "methods.prompt_written_differently", where=_where_unlike(prompt, whole)
                    ),
                    phrase("data.template_writing_alike"),
                )
            answers[name] = whole[len(prompt) :]
        return prompt, answers

    def _accounted(self, row: MethodRow, inputs: str) -> tuple[MethodRow, dict[str, Account]]:
        """Find the texts that the chat template leaves out of each answer, or of the prompt.

        If the template would leave out reasoning that is to be trained, the returned row contains
        the reasoning in another form that the template keeps, if there is one.
        """
        if self.plain is not None or row.is_plain:
            return row, {}
        names = [name for name in row.answers if name in TRAINED]
        if not names:
            return row, {"prompt": self.encoder.prompt_account(row.prompt, inputs)}
        accounts, written = {}, dict(row.answers)
        for name in names:
            conversation = replace(row.conversation(name), inputs=inputs)
            accounts[name] = self._account(conversation)
            if not any(one.kind == REASONING_KIND for one in accounts[name].unlearnable):
                continue
            for other in reasoning_forms(conversation, self._template(inputs).template):
                answer = other.turns[len(row.prompt) :]
                account = self._account(replace(conversation, turns=(*row.prompt, *answer)))
                if not account.unlearnable:
                    accounts[name], written[name] = account, answer
                    break
        return replace(row, answers=written), accounts

    def _account(self, conversation: Conversation) -> Account:
        return self.accounting.account(conversation, self._text_of(conversation))

    def _text_of(self, conversation: Conversation) -> str:
        return self._template(conversation.inputs).text_of(conversation)

    def _template(self, inputs: str) -> TemplateFormat:
        """Return the format of the tokenizer's own chat template, which TRL uses."""
        template = self.encoder.own_template_for(inputs)
        assert template is not None
        return template

    def _ids(self, texts: list[str], is_text: bool = False) -> list[list[int]]:
        """Tokenize texts as TRL does. If a chat template renders them, it has added the special
        tokens.
        """
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=is_text, verbose=False)[
            "input_ids"
        ]
        return ids

    def _messages(self, row: MethodRow, inputs: str) -> TrlRow:
        """Return the columns of a row that TRL passes to the chat template."""
        template = self._template(inputs)
        columns: TrlRow = {"prompt": [template.message(turn) for turn in row.prompt]}
        for name, turns in row.answers.items():
            columns[name] = [template.message(turn) for turn in turns]
        given: JsonObject = json.loads(row.inputs) if row.inputs else {}
        reads = METHODS.get(self.method).reads & given.keys()
        for name in reads:
            listed = name == TOOLS
            columns[name] = json.dumps(template.tools(given[name])) if listed else given[name]
        return columns


def _plain_answers(row: MethodRow, names: Sequence[str]) -> dict[str, str]:
    answers = {}
    for name in names:
        answer, *more = row.answers[name]
        if more or answer.calls_tools:
            raise FormatError(
                phrase("methods.answer_needs_chat_template"),
                phrase("data.no_chat_template"),
            )
        answers[name] = answer.text
    return answers


def _where_unlike(prompt: str, whole: str) -> str:
    """Describe where a prompt first differs from the beginning of the whole text."""
    both = zip(prompt, whole, strict=False)
    start = next((n for n, (a, b) in enumerate(both) if a != b), len(whole))
    at_inference, in_training = excerpt(prompt[start:], 40), excerpt(whole[start:], 40)
    return f"{at_inference!r} at inference, {in_training!r} in training"


def _content(row: MethodRow) -> int | None:
    """Return a hash of a row's prompt with its good answer; None if there is no good answer."""
    name = next((name for name in GOOD_ANSWERS if name in row.answers), None)
    if name is None or row.values.get("label") is False:
        return None
    return content_number(replace(row.conversation(name), num_given=0).pairs())


def _bad(row: Row, reason: str, detail: str, advice: str = "") -> BadRow:
    shown = excerpt(json.dumps(row.values, ensure_ascii=True, default=str))
    place = (row.source, row.line)
    return BadRow(*place, reason, detail, shown, row.offset, advice=advice)
