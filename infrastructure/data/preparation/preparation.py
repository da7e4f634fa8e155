"""The pass over the data that reads, tokenizes, skips or holds out, stores and counts every row.

Memory use is limited to a few chunks of rows plus about forty bytes per row of the data.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import numpy.typing as npt

from infrastructure.core.checksums import text_hash
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.chat_format import TemplateFormat
from infrastructure.data.encoding.row_accounting import (
    CAUSE,
    REASONING_KIND,
    LeftOut,
)
from infrastructure.data.encoding.row_schema import TEXT, RowSchema
from infrastructure.data.encoding.token_survival import Survivals
from infrastructure.data.encoding.tokenization import ConversationEncoder, begins_with
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.preparation.row_encoder import (
    CHUNK_ROWS,
    PreparedChunk,
    PreparedRow,
    RowChunk,
    RowWorker,
    work_on,
)
from infrastructure.data.preparation.row_stats import RowFacts, SharedSystemPrompt
from infrastructure.data.readers.pictures import decisions_in_words
from infrastructure.data.readers.row_limits import in_chunks
from infrastructure.data.readers.rows import BadRow, Conversation, excerpt
from infrastructure.data.readers.sources import DataFile
from infrastructure.data.store.fingerprints import ExampleHash
from infrastructure.data.store.stream_index import (
    WindowIndex,
    WindowIndexBuilder,
    estimated_bytes,
)
from infrastructure.data.store.token_store import (
    CONVERSATIONS_FILE,
    ArrayWriter,
    TokenStoreWriter,
)

TRAIN, EVALUATION = 0, 1
QUARANTINE_FILE = "quarantine.jsonl"
EVALUATION_FILE = "evaluation.jsonl"
CONVERSATION_ENDS = "conversation_ends.npy"
ROW_FILES, ROW_LINES = "row_files.npy", "row_lines.npy"
NUM_PLACES = 3
NUM_LOSSES = 100  # rows whose lost texts are kept for inspection
NUM_UNUSED_SHOWN = 12
NUM_PROMPTS_CHECKED = 20
UNUSUAL_SPLIT = 4.0  # standard deviations from the configured share


@dataclass(frozen=True)
class PreparationPlan:
    """A plan of which data to read, and how to prepare it.

    Attributes:
        files: the files for training, and those for evaluation; without the latter, a share of the
            training rows is held out.
        shapes: the row shapes of the training files and of the evaluation files.
        window_limits: rows and bytes of a streaming window; None stores all tokens.
        keep_conversations: keep the texts as well, for augmentation.
        worker_bytes: system memory that each process may use; None: no limit.
        notes: sentences about the files, in addition to what is found in their rows.
    """

    files: tuple[list[DataFile], list[DataFile]]
    shapes: tuple[RowSchema, RowSchema]
    encoder: ConversationEncoder
    validation_split: float
    window_limits: tuple[int, int | None] | None = None
    keep_conversations: bool = False
    num_processes: int = 0
    worker_bytes: int | None = None
    notes: tuple[str, ...] = ()


class Preparation:
    """A preparation of data, which writes examples and report into the folder of a cache entry."""

    def __init__(self, plan: PreparationPlan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.started = monotonic()
        self.store = TokenStoreWriter(folder, len(plan.encoder.tokenizer))
        self.quarantine = Quarantine()
        self.report = DataReport(quarantine=self.quarantine)
        self.facts = RowFacts()
        self.hash = ExampleHash()
        self.rows_of_file: Counter[int] = Counter()
        self.windows = WindowIndexBuilder(*plan.window_limits) if plan.window_limits else None
        self.evaluation = (folder / EVALUATION_FILE).open("w+", encoding="utf-8")
        self.least: PreparedRow | None = None  # held out if chance holds out no row
        self.checked_prompts = self.differing_prompts = 0
        self.noted: Counter[str] = Counter()  # code of a note → rows or answers
        self.system_prompts = SharedSystemPrompt()
        self.decided: Counter[str] = Counter()  # decisions about images → rows
        self.unused_columns: Counter[str] = Counter()
        self.unused_fields: Counter[str] = Counter()
        self.left_out = LeftOut(
            CAUSE if plan.encoder.own_template else phrase("data.needs_chat_template")
        )
        self.prompts_left_out = LeftOut()
        self.survivals = Survivals()
        self.undetermined: list[str] = []
        self.conversations = (folder / CONVERSATIONS_FILE).open("wb")
        self.conversation_ends = ArrayWriter(folder / CONVERSATION_ENDS, np.int64)
        self.row_files = ArrayWriter(folder / ROW_FILES, np.int32)
        self.row_lines = ArrayWriter(folder / ROW_LINES, np.int64)

    @property
    def files(self) -> list[DataFile]:
        return [*self.plan.files[TRAIN], *self.plan.files[EVALUATION]]

    def run(self) -> None:
        """Read and prepare all rows, and write the finished cache entry."""
        folders = [file.path if file.path.is_dir() else file.path.parent for file in self.files]
        worker = RowWorker(
            self.plan.encoder, list(self.plan.shapes), self.plan.worker_bytes, folders
        )
        arrays = (self.conversation_ends.file, self.row_files.file, self.row_lines.file)
        with ExitStack() as opened:
            for file in (self.store, self.evaluation, self.conversations, *arrays):
                opened.enter_context(file)
            for chunk in work_on(self._chunks(), worker, self.plan.num_processes):
                self._take(chunk)
            self._finish()

    def _chunks(self) -> Iterator[RowChunk]:
        for number, file in enumerate(self.files):
            shape = TRAIN if number < len(self.plan.files[TRAIN]) else EVALUATION
            for rows in in_chunks(file.rows(), CHUNK_ROWS):
                yield RowChunk(number, shape, rows)

    def _take(self, chunk: PreparedChunk) -> None:
        self.rows_of_file[chunk.file] += len(chunk.rows)
        self.unused_columns.update(chunk.unused_columns)
        self.unused_fields.update(chunk.unused_fields)
        stored = []
        for row in chunk.rows:
            if isinstance(row, BadRow):
                self.quarantine.add([row])
                self._index(chunk.file, row.offset, row, False)
                continue
            is_evaluation = chunk.shape == EVALUATION or self._is_held_out(row)
            self._note(row, is_evaluation)
            if is_evaluation or self.windows is None:
                stored.append(row)
            if chunk.shape == TRAIN:
                self._index(chunk.file, row.offset, row.conversation, not is_evaluation)
        self.store.append([row.encoded.example for row in stored])
        self.row_files.append(np.full(len(stored), chunk.file))
        self.row_lines.append(np.array([row.conversation.line for row in stored]))
        if self.plan.keep_conversations:
            self._keep(stored)

    def _is_held_out(self, row: PreparedRow) -> bool:
        share = 0.0 if self.plan.files[EVALUATION] else self.plan.validation_split
        if share and (self.least is None or row.content < self.least.content):
            self.least = row
        return row.content < share * 2.0**64

    def _index(self, file: int, offset: int, row: Conversation | BadRow, is_used: bool) -> None:
        if self.windows is not None:
            size = 0 if isinstance(row, BadRow) else estimated_bytes(row.pairs())
            self.windows.add(file, offset, row.line, size, is_used)

    def _note(self, row: PreparedRow, is_evaluation: bool) -> None:
        self.facts.add(row, is_evaluation)
        self.report.special_text_rows += row.holds_special_text
        self._note_account(row)
        self.decided.update({kind for one in row.encoded.example.pictures for kind in one.decided})
        first = row.conversation.turns[0]
        is_read = all(one.message != 1 for one in row.encoded.account.missing)
        self.system_prompts.add(first.text if first.role == "system" and is_read else "")
        answers = [turn for turn in row.conversation.turns if turn.role == "assistant"]
        unlearnt = sum(not turn.is_learnt for turn in answers)
        empty = sum(not turn.text.strip() and not turn.fields for turn in answers)
        self.noted.update({"data.answers_with_zero_weight": unlearnt, "data.empty_answers": empty})
        if row.encoded.is_truncated:
            self.report.truncated += 1
            self.report.truncated_examples += [row.conversation.place]
            del self.report.truncated_examples[NUM_PLACES:]
        elif (
            self.checked_prompts < NUM_PROMPTS_CHECKED
            and len(row.conversation.turns) > 1
            and not row.encoded.example.pictures  # the chat template does not write their tokens
        ):
            self._check_prompt(row)
        if is_evaluation:
            self.evaluation.write(row.conversation.to_json() + "\n")
        else:
            self.hash.add(row.encoded.example)

    def _note_account(self, row: PreparedRow) -> None:
        place, account = row.conversation.place, row.encoded.account
        self.survivals.add(place, row.encoded.survival)
        self.left_out.add(place, account.missing)
        if account.missing and len(self.report.losses) < NUM_LOSSES:
            self.report.losses[place] = [str(one) for one in account.missing]
        self.noted["data.reasoning_rewritten"] += row.encoded.is_rewritten
        if account.undetermined:
            self.report.undetermined_rows += 1
            self.undetermined = self.undetermined or [f"{account.undetermined[0]} of {place}"]

    def _check_prompt(self, row: PreparedRow) -> None:
        """Count whether a row's tokens begin with those of the model's prompt at generation."""
        conversation = row.conversation
        template = self.plan.encoder.template_for(conversation.inputs)
        self._note_prompt(row)
        has_history = any(turn.role == "assistant" for turn in conversation.prompt)
        if template and template.origin and has_history:
            return  # reported once, for the template
        prompt = self.plan.encoder.prompt_ids(conversation.prompt, conversation.inputs)
        self.checked_prompts += 1
        tokenizer = self.plan.encoder.tokenizer
        self.differing_prompts += not begins_with(tokenizer, row.encoded.example.input_ids, prompt)

    def _note_prompt(self, row: PreparedRow) -> None:
        """Record texts that the model reads in training but not in the prompt at generation.

        Reasoning in earlier answers is not counted, because chat templates leave it out on purpose.
        """
        conversation = row.conversation
        account = self.plan.encoder.prompt_account(conversation.prompt, conversation.inputs)
        known = {REASONING_KIND, *(one.kind for one in row.encoded.account.missing)}
        missing = [one for one in account.missing if one.kind not in known]
        self.prompts_left_out.add(conversation.place, missing)

    def _keep(self, rows: list[PreparedRow]) -> None:
        for row in rows:
            self.conversations.write(row.conversation.to_json().encode() + b"\n")
            self.conversation_ends.append(np.array([self.conversations.tell()]))

    def _finish(self) -> None:
        self.conversations.close()
        for array in (self.conversation_ends, self.row_files, self.row_lines):
            array.close()
        is_evaluation = self._with_a_row_on_both_sides()
        self.evaluation.close()
        if self.windows is None:
            train, evaluation = np.flatnonzero(~is_evaluation), np.flatnonzero(is_evaluation)
        else:
            train, evaluation = np.zeros(0, dtype=np.int64), np.arange(int(is_evaluation.sum()))
        self._save("train_rows", train)
        self._save("evaluation_rows", evaluation)
        contents = np.array(self.facts.content, dtype=np.uint64)
        self._save("train_contents", contents[~is_evaluation])
        self._save("evaluation_contents", contents[is_evaluation])
        self.quarantine.write(self.folder / QUARANTINE_FILE)
        index = self._save_windows()
        self.report.rows_read = self.rows_of_file.total()
        self.report.max_length = self.plan.encoder.max_length
        self.report.system_prompt = self.system_prompts.text
        self.report.has_context = any("context" in shape.columns for shape in self.plan.shapes)
        self.facts.fill(self.report, is_evaluation, self.plan.encoder.tokenizer)
        self._report_sources()
        layout = index.layout_hash() if index else ""
        trained_on = self.facts.content_hash(~is_evaluation)
        self.report.fingerprint = text_hash([self.hash.hexdigest(), trained_on, layout])
        self.report.seconds = monotonic() - self.started
        self.store.finish({"report": self.report.to_dict()})

    def _with_a_row_on_both_sides(self) -> npt.NDArray[np.bool_]:
        """Return the mask of evaluation rows, changed if necessary so that neither split is empty.

        If chance has put all rows into one split, a row and its duplicates are moved. If all rows
        are equal, none is held out.
        """
        chosen = np.array(self.facts.is_evaluation, dtype=bool)
        content = np.array(self.facts.content, dtype=np.uint64)
        if self.least is None or self.windows is not None:
            return chosen
        if len(np.unique(content)) < 2:
            self._rewrite_evaluation([])
            return np.zeros(len(content), dtype=bool)
        if not chosen.any():
            sides = content == content.min()
            self._rewrite_evaluation([self.least.conversation.to_json() + "\n"] * int(sides.sum()))
            return sides
        if chosen.all():
            sides = content != content.max()
            self.evaluation.seek(0)
            kept = zip(self.evaluation.readlines(), sides, strict=True)
            self._rewrite_evaluation([line for line, stays in kept if stays])
            return sides
        return chosen

    def _rewrite_evaluation(self, lines: list[str]) -> None:
        self.evaluation.seek(0)
        self.evaluation.truncate()
        self.evaluation.writelines(lines)

    def _save(self, name: str, values: npt.NDArray[np.generic]) -> None:
        np.save(self.folder / f"{name}.npy", values.astype(np.int64), allow_pickle=False)

    def _save_windows(self) -> WindowIndex | None:
        if self.windows is None:
            return None
        index = self.windows.finish()
        self._save("windows", index.windows)
        np.save(self.folder / "is_used.npy", index.is_used, allow_pickle=False)
        return index

    def _report_sources(self) -> None:
        report, shape = self.report, self.plan.shapes[TRAIN]
        report.files = [
            {"name": file.name, "format": file.format, "rows": self.rows_of_file[number]}
            for number, file in enumerate(self.files)
        ]
        report.shape, report.shape_reason = shape.name, shape.reason
        report.notes += [file.note for file in self.files if file.note]
        report.notes += self.plan.notes
        report.unused_columns = _listed(self.unused_columns)
        report.unread = self._unread()
        report.left_out = self.left_out.to_json()
        self.survivals.finish()
        report.survivals = self.survivals.to_json()
        other = self.plan.shapes[EVALUATION]
        if (other.name, other.columns) != (shape.name, shape.columns):
            report.notes.append(
                phrase("data.held_out_shape_differs", shape=other.name, reason=other.reason)
            )
        if self.plan.validation_split and not report.num_evaluation:
            report.notes.append(phrase("data.nothing_held_out"))
        report.notes += _uneven_split(
            self.plan.validation_split, report.num_evaluation, report.num_train
        )
        if pictures := self.plan.encoder.pictures:
            report.notes += decisions_in_words(self.decided, pictures.background)
        report.notes += [phrase(code, count=count) for code, count in self.noted.items() if count]
        report.notes += [
            phrase("data.lost_in_generation_prompt", line=line)
            for line in self.prompts_left_out.lines()
        ]
        if self.undetermined:
            report.notes.append(
                phrase(
                    "data.template_output_undetermined",
                    count=report.undetermined_rows,
                    example=self.undetermined[0],
                )
            )
        if self.plan.encoder.template and shape.name != TEXT:
            report.notes += self._about_template(self.plan.encoder.template)
        if self.differing_prompts:
            report.notes.append(
                phrase(
                    "data.prompts_differ_in_training",
                    num_differing=self.differing_prompts,
                    num_checked=self.checked_prompts,
                )
            )

    def _unread(self) -> str:
        """Return a sentence about message fields that the chat template does not read; "" if there
        are none.
        """
        if fields := _listed(self.unused_fields):
            reader = phrase("data.template_ignores_field")
            if self.plan.encoder.template is None:
                reader = phrase("data.field_needs_chat_template")
            return phrase("data.unused_fields", fields=fields, reader=reader)
        return ""

    def _about_template(self, template: TemplateFormat) -> list[str]:
        """Return notes on text that the chat template adds to the text of the rows."""
        own = []
        if template.preamble:
            text = excerpt(template.preamble)
            own.append(phrase("data.template_adds_preamble", text=text))
        if template.writes_date:
            own.append(phrase("data.template_adds_date"))
        if template.own_end:
            own.append(phrase("data.template_adds_answer_end", end=template.own_end))
        learned = template.learned_of_prompt if self.plan.encoder.train_on != "all" else ""
        learns_prompt = phrase("data.template_trains_prompt_part", text=learned)
        if learned and not template.origin:
            own.append(learns_prompt)
        notes = [phrase("data.template_adds", additions="; ".join(own))] if own else []
        if template.origin and self.plan.encoder.train_on != "all":
            notes.append(
                phrase(
                    "data.training_template_used",
                    origin=template.origin,
                    marks=phrase("data.marks_learned", learned=learns_prompt) if learned else "",
                )
            )
        return notes


def _listed(names: Counter[str]) -> str:
    """Return the most frequent names as a comma-separated text, most frequent first."""
    shown = [name for name, _ in names.most_common(NUM_UNUSED_SHOWN)]
    more = len(names) - len(shown)
    listed = ", ".join(shown)
    return phrase("data.more_names", names=listed, count=more) if more > 0 else listed


def _uneven_split(wanted: float, num_evaluation: int, num_train: int) -> list[str]:
    """Return a note if the share of held-out rows is far from the wanted one; otherwise []."""
    num_rows = num_evaluation + num_train
    if not wanted or not num_evaluation:
        return []
    share, chance = num_evaluation / num_rows, math.sqrt(wanted * (1 - wanted) / num_rows)
    if abs(share - wanted) <= UNUSUAL_SPLIT * chance + 1 / num_rows:
        return []
    return [phrase("data.uneven_split", percent=100 * share, wanted=100 * wanted)]
