"""Preparation of the rows of a run that a TRL trainer trains.

Rows are read, interpreted, skipped if unusable, held out, and written in the form that TRL's
trainers read. This does not import torch.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.chat_format import (
    FormatError,
    TemplateFormat,
    start_of_text,
)
from infrastructure.data.encoding.row_accounting import (
    REASONING_KIND,
    Account,
    LeftOut,
    RowAccounting,
    reasoning_forms,
)
from infrastructure.data.encoding.schema_detection import SAMPLE_ROWS
from infrastructure.data.encoding.token_survival import LOST, UNCHANGED, Survivals
from infrastructure.data.encoding.tokenization import ConversationEncoder, num_common
from infrastructure.data.preparation.quarantine import Quarantine, about_template
from infrastructure.data.preparation.row_stats import SharedSystemPrompt
from infrastructure.data.readers.rows import (
    CHAT_TEMPLATE,
    LEFT_OUT,
    NO_PREFERENCE,
    NOT_IN_TOKENS,
    OVER_LONG,
    BadRow,
    Conversation,
    Row,
    excerpt,
)
from infrastructure.data.readers.sources import DataFile, about_splits, files_of
from infrastructure.data.store.fingerprints import content_number
from infrastructure.training.methods.method_rows import MethodRow, MethodShape, recognise
from infrastructure.training.methods.method_table import METHODS, OPTIONS, TOOLS, RowKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
    is_long = writer.num_cut or OVER_LONG in quarantine.counts
    about = about_template(writer.num_template_tokens() if is_long else 0, data.max_length)
    quarantine.check(
        num_read,
        data.max_bad_rows_percent,
        listed,
        max_unlearnable_percent=data.max_unlearnable_percent,
        about_length=about,
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
    if about:
        result.notes.append(f"note: {about}")
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
    if not share or len(set(numbers)) < 2:
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
        is_generated = METHODS[self.method].rows is RowKind.PROMPTS
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

    def num_template_tokens(self) -> int:
        """Return how many tokens the chat template adds around a question and its answer."""
        return self.encoder.num_template_tokens()

    def _inputs(self, row: MethodRow) -> str:
        """Return the chat template's inputs besides the messages (tools, options) as JSON.

        Raises:
            FormatError: TRL does not pass one of the inputs for this method, or there is no chat
                template.
        """
        given: JsonObject = json.loads(row.inputs) if row.inputs else {}
        method = METHODS[self.method]
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
        reads = METHODS[self.method].reads & given.keys()
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
