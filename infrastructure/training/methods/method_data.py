"""The rows of a training by TRL: read, understood, set aside with their places, held out, and
written as its trainer reads them. Loads no torch.

With a chat template every row becomes messages, as `temper train` writes answers too; without one
every row becomes text, with a line break after the prompt. So a model that was trained on
answers first meets the same prompts here.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.json_text import JsonObject
from infrastructure.core.user_text import note_user_values
from infrastructure.training.data.encoding.schema_detection import SAMPLE_ROWS
from infrastructure.training.data.preparation.data_report import rows_in_words
from infrastructure.training.data.preparation.quarantine import Quarantine, about_template
from infrastructure.training.data.preparation.row_stats import SharedSystemPrompt
from infrastructure.training.data.readers.rows import (
    CHAT_TEMPLATE,
    OVER_LONG,
    BadRow,
    Row,
    excerpt,
)
from infrastructure.training.data.readers.sources import DataFile, files_of
from infrastructure.training.data.store.fingerprints import content_number
from infrastructure.training.methods.method_rows import MethodRow, MethodShape, Text, recognise
from infrastructure.training.methods.method_table import METHODS, RowKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWERS = ("chosen", "rejected", "completion")
GOOD_ANSWERS = ("chosen", "completion", "answer")  # what a row is known by elsewhere


@dataclass
class MethodData:
    """What a trainer of TRL is given.

    Attributes:
        train, held_out: rows of plain values, texts and messages.
        num_cut: rows whose ends TRL will cut off.
        system_prompt: what every row begins with; None: they have none, or several.
    """

    shape: MethodShape
    train: list[MethodRow]
    held_out: list[MethodRow]
    quarantine: Quarantine
    num_read: int
    num_cut: int = 0
    system_prompt: str | None = None
    notes: list[str] = field(default_factory=list)

    def contents(self) -> npt.NDArray[np.uint64]:
        """Numbers of prompts with good answers that are trained on, as `temper train` numbers its
        rows; without messages that hold more than a text."""
        rows = (row for row in self.train if row.get("label") is not False)
        named = ((row, next((n for n in GOOD_ANSWERS if n in row), None)) for row in rows)
        turns = (_turns(row["prompt"], row[name]) for row, name in named if name is not None)
        return np.array([content_number(each) for each in turns if each], dtype=np.uint64)

    def lines(self) -> list[str]:
        """For people: what was read, and what becomes of it."""
        counts = f"{rows_in_words(self.num_read)} read: {self.shape.reason}"
        parts = [f"{len(self.train):,} are trained on", f"{len(self.held_out):,} held out"]
        if self.quarantine.total:
            first = self.quarantine.examples[0]
            parts.append(f"{self.quarantine.total:,} set aside (first: {first})")
        if self.num_cut:
            parts.append(f"the ends of {self.num_cut:,} are cut off")
        return [f"{counts}; {', '.join(parts)}", *self.notes]


def _turns(prompt: Text, answer: object) -> list[list[str]]:
    """A prompt and its answer as a conversation has them; empty where they are none of texts."""
    if not isinstance(answer, str | list):
        return []
    question = prompt.removesuffix("\n") if isinstance(prompt, str) else prompt
    messages = [*_as_messages(question, "user"), *_as_messages(answer, "assistant")]
    is_plain = all(isinstance(one, dict) and one.keys() == {"role", "content"} for one in messages)
    return [[str(one["role"]), str(one["content"])] for one in messages] if is_plain else []


def sample(files: Sequence[DataFile]) -> list[Row]:
    """The first rows that can be read.

    Raises:
        ValueError: there are none.
    """
    readable = (row for file in files for row in file.rows() if isinstance(row, Row))
    rows = list(islice(readable, SAMPLE_ROWS))
    if not rows:
        raise ValueError(f"{files[0].name}: no row can be read")
    return rows


def understand(files: Sequence[DataFile], config: DataConfig, method: str) -> MethodShape:
    """What the first rows of some files are for a method.

    Raises:
        ValueError: they are not what it learns from; begins with the file.
    """
    rows = sample(files)
    try:
        return recognise(rows, config, method)
    except ValueError as error:
        note_user_values(row.values for row in rows)
        raise ValueError(f"{files[0].name}: {error}") from error


def read_data(
    config: DeploymentConfig, tokenizer: "PreTrainedTokenizerBase", listed: Path
) -> MethodData:
    """All rows, as TRL reads them.

    Args:
        listed: file for the rows that are set aside, where they are too many.

    Raises:
        ValueError: they are not what the method learns from, or too many cannot be used.
    """
    method, data = config.training.method, config.data
    writer = RowWriter(config, tokenizer)
    train_files, held_out_files = files_of(data)
    quarantine = Quarantine()
    shape = understand(train_files, data, method)
    places, num_read = _written(train_files, shape, writer, quarantine)
    held_out: list[MethodRow] = []
    if held_out_files:
        other = understand(held_out_files, data, method)
        if other.kind is not shape.kind:
            raise ValueError(
                f"{held_out_files[0].name}: held-out rows are {other.kind.value}, and those to"
                f" train on {shape.kind.value}: bring them into one shape"
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
        num_read, data.max_bad_rows_percent, listed, about_length=about, cuts_prompts=False
    )
    if not train:
        raise ValueError(f"{data.path}: no row is left to train on")
    system = writer.system_prompts.text
    result = MethodData(shape, train, held_out, quarantine, num_read, writer.num_cut, system)
    if shape.kind is RowKind.PROMPTS:
        result.notes += _of_equal_columns(result)
    if about:
        result.notes.append(f"note: {about}")
    if any(row.pop("is_plain", False) for row in [*train, *held_out]) and writer.has_template:
        result.notes.append(
            "note: texts that hold their prompt themselves are learnt as they stand, without the"
            " chat template; give a column prompt to have it used"
        )
    return result


def _written(
    files: Iterable[DataFile], shape: MethodShape, writer: "RowWriter", quarantine: Quarantine
) -> tuple[list[MethodRow], int]:
    """Rows for TRL, and how many were read."""
    rows: list[MethodRow] = []
    count = 0
    for row in (row for file in files for row in file.rows()):
        count += 1
        understood = row if isinstance(row, BadRow) else shape.row(row)
        if isinstance(row, Row) and not isinstance(understood, BadRow):
            understood = writer.write(understood, row)
        if isinstance(understood, BadRow):
            quarantine.add([understood])
        else:
            rows.append(understood)
    return rows, count


def _split(rows: list[MethodRow], share: float) -> tuple[list[MethodRow], list[MethodRow]]:
    """Held out is by the prompt: all answers to one prompt lie on one side."""
    numbers = [content_number([["prompt", _spelt(row["prompt"])]]) for row in rows]
    if not share or len(set(numbers)) < 2:
        return rows, []
    limit = max(int(share * 2.0**64), min(numbers) + 1)  # one prompt at least
    if limit > max(numbers):
        limit = max(numbers)
    chosen = [number < limit for number in numbers]
    train = [row for row, is_held_out in zip(rows, chosen, strict=True) if not is_held_out]
    return train, [row for row, is_held_out in zip(rows, chosen, strict=True) if is_held_out]


def _spelt(text: Text) -> str:
    return text if isinstance(text, str) else json.dumps(text, sort_keys=True, default=str)


def _of_equal_columns(data: MethodData) -> Iterator[str]:
    """Leave out columns that not every row has, or that hold values of several kinds."""
    rows = [*data.train, *data.held_out]
    names = {name for row in rows for name in row} - {"prompt", "is_plain"}
    kept = {n for n in names if len({type(row.get(n)) for row in rows}) == 1}
    for row in rows:
        for name in names - kept:
            row.pop(name, None)
    if left_out := sorted(names - kept):
        yield f"note: rewards are not given columns that differ in kind: {', '.join(left_out)}"


class RowWriter:
    """Writes rows for TRL, and refuses those that it would leave out, or learn nothing from.

    Attributes:
        num_cut: rows that are longer than allowed.
        system_prompts: of the rows.
    """

    def __init__(self, config: DeploymentConfig, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self.has_template = bool(tokenizer.chat_template)
        self.max_length = config.data.max_length
        self.keeps_start = config.data.over_length == "keep_start"
        self.method = config.training.method
        is_generated = METHODS[self.method].rows is RowKind.PROMPTS
        self.reserved = config.training.max_completion_length if is_generated else 0
        self.num_cut = 0
        self.system_prompts = SharedSystemPrompt()

    def write(self, row: MethodRow, place: Row) -> MethodRow | BadRow:
        """One row, or why it cannot be used."""
        try:
            written = self._written(row)
            prompt, longest = self._lengths(written)
        except Exception as error:  # whatever a chat template raises
            return _bad(place, CHAT_TEMPLATE, str(error))
        if self.reserved:
            longest = prompt + self.reserved
            if longest > self.max_length:
                return _bad(place, OVER_LONG, f"{prompt} tokens, with {self.reserved} to answer")
            self.system_prompts.add(_system_of(row["prompt"]))
            return written
        if longest > self.max_length and (self.method == "reward" or not self.keeps_start):
            return _bad(place, OVER_LONG, f"{longest} tokens, {self.max_length} allowed")
        if prompt >= self.max_length:
            return _bad(place, OVER_LONG, f"its prompt alone has {prompt} tokens")
        self.num_cut += longest > self.max_length
        self.system_prompts.add(_system_of(row["prompt"]))
        return written

    def num_template_tokens(self) -> int:
        """Tokens that the chat template itself writes around one question and its answer."""
        if not self.has_template:
            return 0
        messages = [{"role": role, "content": "a"} for role in ("user", "assistant")]
        text = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        return self._num_tokens(messages) - len(messages) * len(text)

    def _written(self, row: MethodRow) -> MethodRow:
        if row.get("is_plain"):
            return row
        if self.has_template:
            messages = {n: _as_messages(row[n], "assistant") for n in ANSWERS if n in row}
            return {**row, "prompt": _as_messages(row["prompt"], "user"), **messages}
        answers = {n: _as_answer(row[n]) for n in ANSWERS if n in row}
        return {**row, "prompt": _as_question(row["prompt"]), **answers}

    def _lengths(self, row: MethodRow) -> tuple[int, int]:
        """Tokens of the prompt, and of the prompt with its longest answer."""
        prompt = self._num_tokens(row["prompt"], True)
        wholes = [self._num_tokens(row["prompt"] + row[name]) for name in ANSWERS if name in row]
        return prompt, max(wholes, default=prompt)

    def _num_tokens(self, text: Any, adds_prompt: bool = False) -> int:
        if isinstance(text, str):
            return len(self.tokenizer(text)["input_ids"]) + (not adds_prompt)  # its end token
        rendered = self.tokenizer.apply_chat_template(
            text, tokenize=False, add_generation_prompt=adds_prompt
        )
        return len(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])


def _as_messages(text: Text, role: str) -> list[JsonObject]:
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def _system_of(prompt: Text) -> str:
    """The system prompt that it begins with; "" where there is none."""
    if isinstance(prompt, str) or not prompt or prompt[0]["role"] != "system":
        return ""
    return str(prompt[0]["content"])


def _as_question(text: Text) -> str:
    """As the plain format of `temper train` writes it."""
    messages = _as_messages(text, "user")
    if any(message["role"] == "assistant" for message in messages):
        raise ValueError(
            "an answer before the prompt needs a chat template: set data.chat_template"
        )
    return "".join(f"{message['content']}\n" for message in messages)


def _as_answer(text: Text) -> str:
    if isinstance(text, str):
        return text
    if len(text) != 1:
        raise ValueError("an answer of several messages needs a chat template")
    return str(text[0]["content"])


def _bad(row: Row, reason: str, detail: str) -> BadRow:
    shown = excerpt(json.dumps(row.values, ensure_ascii=True, default=str))
    return BadRow(row.source, row.line, reason, excerpt(detail), shown, row.offset)
