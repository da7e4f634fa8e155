r"""DataPipeline: from the path in the configuration to batches of examples.

    pipeline = DataPipeline(config.data, tokenizer, cache_config=config.cache, seed=0)
    print(*pipeline.prepare().lines(), sep="\n")
    for batch in pipeline.train_batches(epoch=0, start_example=0, batch_size=8): ...

The content and order of an epoch are a pure function of data, settings, seed and epoch, so training
can resume at any example without reading the earlier ones. There is one exception: with a
`memory_limit` in percent, the windows of a stream, and so its order and fingerprint, depend on the
machine's memory.
"""

import copy
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.core.checksums import text_hash
from infrastructure.core.errors import InputError
from infrastructure.data.encoding.augmentation import Augmentation, get_augmentation
from infrastructure.data.encoding.chat_format import special_tokens
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.token_survival import Survivals
from infrastructure.data.encoding.tokenization import KEEP_START, ConversationEncoder
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.preparation.plan import (
    chat_template_of,
    first_rows,
    plan_key,
    plan_preparation,
    read_chat_template,
    total_bytes_of,
    training_texts,
)
from infrastructure.data.preparation.preparation import (
    CONVERSATION_ENDS,
    EVALUATION_FILE,
    QUARANTINE_FILE,
    ROW_FILES,
    ROW_LINES,
    TRAIN,
    Preparation,
    PreparationPlan,
)
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.readers.rows import Conversation
from infrastructure.data.serving.example_order import Indices, random_selection
from infrastructure.data.serving.example_sources import (
    AugmentedExamples,
    Order,
    StoredConversations,
    StoredExamples,
    StreamedExamples,
    TextTokenizer,
)
from infrastructure.data.serving.prefetch import prefetch
from infrastructure.data.serving.streaming_dataset import StreamingDataset
from infrastructure.data.store.examples import (
    EvaluationRow,
    GenerationPrompt,
    Picture,
    TokenizedExample,
)
from infrastructure.data.store.fingerprints import ExampleHash
from infrastructure.data.store.stream_index import WindowIndex
from infrastructure.data.store.token_cache import CacheEntry, TokenCache
from infrastructure.data.store.token_store import CONVERSATIONS_FILE, TokenStore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DataPipeline", "chat_template_of", "first_examples", "first_rows", "training_texts"]

LOOKED_THROUGH = 100  # to find different examples to show


@dataclass(frozen=True)
class _Prepared:
    """The parts of `DataPipeline` that exist only after the data is prepared."""

    entry: CacheEntry
    report: DataReport
    encoder: ConversationEncoder
    source: StoredExamples | AugmentedExamples | StreamedExamples
    held_out: Indices


class DataPipeline:
    """The data of one run, from the configured path to batches of examples.

    Args:
        data_config: the data section of the configuration.
        tokenizer: a transformers tokenizer; `data_config.chat_template` becomes its chat template,
            so that it is saved with the model.
        cache_config: where prepared data is cached, and how much space it may take.
        seed: seed of the random order of the examples.
        memory_config: memory limits of the processes that prepare data.
        pictures: encoder of images into tokens; None: rows with images are refused.

    Raises:
        ValueError: the chat template is neither a template nor a file.
    """

    def __init__(
        self,
        data_config: DataConfig,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        cache_config: CacheConfig | None = None,
        seed: int = 0,
        memory_config: MemoryConfig | None = None,
        pictures: PictureTokens | None = None,
    ) -> None:
        self.memory_config = memory_config or MemoryConfig()
        self.config = data_config
        self.tokenizer = tokenizer
        self.pictures = pictures
        self.cache_config = cache_config or CacheConfig()
        self.seed = seed
        self._prepared: _Prepared | None = None
        self._num_selected: int | None = None
        self._held_out_identity: str | None = None
        if data_config.chat_template is not None:
            tokenizer.chat_template = read_chat_template(data_config.chat_template)

    def prepare(self) -> DataReport:
        """Read, check and tokenize the data, or open it if it has been prepared before.

        A second call is a no-op.

        Raises:
            ValueError: the data is missing or ambiguous, or too much of it cannot be used.
            DataError: a process that prepares data died.
        """
        return self._ready().report

    def _ready(self) -> "_Prepared":
        if self._prepared is None:
            name = self.config.augmentation
            augment = get_augmentation(name) if name is not None else None
            worker_bytes = total_bytes_of(self.memory_config.worker_memory)
            plan = plan_preparation(self.config, self.tokenizer, worker_bytes, self.pictures)
            cache = TokenCache(self.cache_config, total_bytes_of(self.config.memory_limit))
            entry = cache.open(plan_key(plan), lambda folder: Preparation(plan, folder).run())
            try:
                report = self._checked_report(entry)
                source = self._make_source(plan, entry.store, augment)
                held_out: Indices = entry.store.array("evaluation_rows.npy")
            except BaseException:
                entry.close()
                raise
            self._prepared = _Prepared(entry, report, plan.encoder, source, held_out)
        return self._prepared

    @property
    def report(self) -> DataReport:
        """The report on the data; prepares the data if necessary."""
        return self._ready().report

    @property
    def store(self) -> TokenStore:
        """The store of the prepared examples. For a stream, it has only the held-out ones.

        The data is prepared first if necessary.
        """
        return self._ready().entry.store

    @property
    def num_examples(self) -> int:
        """The number of training examples in one epoch."""
        return self.report.num_train if self._num_selected is None else self._num_selected

    @property
    def fingerprint(self) -> str:
        """A hash of the training examples in file order, and of how epochs are drawn from them.

        If only a selection of the examples is trained on, the hash covers the size of the
        selection, but not which examples it contains, because training chooses them.
        """
        limit = [] if self._num_selected is None else [self._num_selected]
        changes = [self.config.augmentation, *limit]
        fingerprint = self.report.fingerprint
        return text_hash([fingerprint, *changes]) if any(changes) else fingerprint

    @property
    def held_out_identity(self) -> str | None:
        """A hash of the held-out examples in their order; None if there are none."""
        if self._held_out_identity is None and len(self._ready().held_out):
            examples = ExampleHash()
            for row in self._ready().held_out:
                examples.add(self.store.example(int(row)))
            self._held_out_identity = examples.hexdigest()
        return self._held_out_identity

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end answers in this data. Generation must stop at them."""
        ends = {*self.report.end_tokens, self.tokenizer.eos_token}
        special = special_tokens(self.tokenizer)  # a cut answer ends with any token
        return sorted(number for number, token in special.items() if token in ends)

    @property
    def num_candidates(self) -> int:
        """The number of training examples to select from; their ids count from 0."""
        return self.report.num_train

    @property
    def selected(self) -> Indices:
        """The ids of the examples that are currently trained on, in ascending order.

        Raises:
            ValueError: the data is a stream, whose examples cannot be selected.
        """
        return self._order().selected

    def limit_to(self, num_examples: int) -> None:
        """Train on only `num_examples` examples from now on. They are random until `select` is
        called.

        Raises:
            ValueError: there are fewer examples, or the data is a stream, whose examples cannot be
                selected.
        """
        self._order()  # raises for a stream
        if not 1 <= num_examples <= self.num_candidates:
            raise InputError(
                "data.selection_out_of_range",
                num_examples=num_examples,
                num_candidates=self.num_candidates,
            )
        self._num_selected = num_examples
        self.unselect()

    def unselect(self) -> None:
        """Undo `select`: train on all examples again, or on random ones if `limit_to` has set a
        limit.

        Raises:
            ValueError: the data is a stream, whose examples cannot be selected.
        """
        order = self._order()
        order.select(random_selection(self.num_candidates, self.num_examples, self.seed))

    def select(self, ids: Sequence[int] | Indices) -> None:
        """Train only on the examples with these ids, in all epochs that begin from now on.

        If `limit_to` has set a limit, the number of ids must equal it. Otherwise any number is
        allowed, and an epoch keeps its length: selected examples are repeated in place of the
        others.

        Raises:
            ValueError: an id is unknown or repeated, or the number of ids is not the limit.
        """
        self._order().select(self.check_selection(ids), is_filled=self._num_selected is None)

    def check_selection(self, ids: Sequence[int] | Indices) -> Indices:
        """Check ids as `select` does, and return them in ascending order.

        Raises:
            ValueError: in the same cases as `select`.
        """
        chosen = np.unique(np.asarray(ids, dtype=np.int64))
        is_known = len(chosen) == 0 or (chosen[0] >= 0 and chosen[-1] < self.num_candidates)
        wanted = self._num_selected or max(1, len(chosen))
        if len(chosen) != wanted or len(chosen) != len(ids) or not is_known:
            number = "any number" if self._num_selected is None else wanted
            raise InputError(
                "data.invalid_selection",
                num_ids=len(ids),
                num_distinct=len(chosen),
                wanted=number,
                num_candidates=self.num_candidates,
            )
        return chosen

    def examples(self, ids: Sequence[int] | Indices) -> list[TokenizedExample]:
        """Return the training examples with these ids, without augmentation."""
        rows = self._order().all_rows
        return [self.store.example(int(rows[number])) for number in ids]

    def places_of(self, ids: Sequence[int] | Indices) -> list[str]:
        """Return the source position (file:line) of each training example with one of these ids."""
        return _places(self.store, [int(self._order().all_rows[number]) for number in ids])

    def candidate_lengths(self) -> Indices:
        """Return the length in tokens of each training example, by id, before augmentation."""
        return self.store.lengths()[self._order().all_rows]

    def lengths_of_selection(self, ids: Indices, epoch: int) -> Indices:
        """Return the length in tokens of each example of an epoch, in order, for a selection of
        `ids`.

        Lengths are those before augmentation.
        """
        now = self._order()
        order = Order(now.all_rows, now.seed)
        order.select(ids, is_filled=self._num_selected is None)
        return self.store.lengths()[order.of(epoch)]

    @property
    def is_stored(self) -> bool:
        """True if the examples have ids; streamed examples have none."""
        return isinstance(self._ready().source, StoredExamples | AugmentedExamples)

    def _order(self) -> Order:
        source = self._ready().source
        if not isinstance(source, StoredExamples | AugmentedExamples):
            raise InputError("data.stream_not_selectable")
        return source.order

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[list[TokenizedExample], None, None]:
        """Yield the batches of one epoch from `start_example` on; the last one may be smaller.

        A thread builds the next `prefetch_factor` batches ahead. Close the generator to end the
        thread.
        """
        prepared = self._ready()
        examples = prepared.source.iterate(epoch, start_example)
        batches = _batches(examples, batch_size, prepared.entry)
        return prefetch(batches, self.config.prefetch_factor)

    def lengths(self) -> Indices | None:
        """Return the length in tokens of each training example, in the order of the first epoch.

        Return None for a stream and for augmented data, whose lengths are not known in advance.
        """
        source = self._ready().source
        return source.lengths(0) if isinstance(source, StoredExamples) else None

    def places(self, epoch: int, start_example: int, num_examples: int) -> list[str]:
        """Return the source position (file:line) of `num_examples` examples, in the order of an
        epoch.

        Raises:
            DataError: the files, or the prepared data, have changed.
        """
        return self._ready().source.places(epoch, start_example, num_examples)

    def evaluation_batches(self, batch_size: int) -> Generator[list[TokenizedExample], None, None]:
        """Yield batches of the held-out examples, always in the order of the files."""
        prepared = self._ready()
        examples = (prepared.entry.store.example(int(row)) for row in prepared.held_out)
        batches = _batches(examples, batch_size, prepared.entry)
        return prefetch(batches, self.config.prefetch_factor)

    def evaluation_places(self) -> list[str]:
        """Return the source position (file:line) of each held-out example, in evaluation order."""
        return _places(self.store, [int(row) for row in self._ready().held_out])

    def contents(self, *, held_out: bool) -> npt.NDArray[np.uint64] | None:
        """Return a content hash for each training row, or for each held-out row; shape (rows,).

        Rows with the same content have the same hash, whatever file they are in. Return None if a
        version of Temper without these hashes prepared the data.
        """
        name = "evaluation_contents.npy" if held_out else "train_contents.npy"
        is_there = (self.store.folder / name).is_file()
        return self.store.array(name).view(np.uint64) if is_there else None

    def evaluation_tasks(self) -> list[str]:
        """Return the task of each held-out example, ordered as in `evaluation_batches`.

        A task is "" if there is no column with tasks.
        """
        return [self.store.task(int(row)) for row in self._ready().held_out]

    def evaluation_rows(self, max_rows: int | None = None) -> list[EvaluationRow]:
        """Return, as text, the held-out rows that have a prompt and no images.

        If there are more than `max_rows`, they are spread evenly over the held-out data.
        """
        return [_as_text(c) for c in self._held_out(max_rows) if not c.num_pictures]

    def rows_with_questions(self, max_rows: int) -> list[tuple[EvaluationRow, GenerationPrompt]]:
        """Return at most `max_rows` held-out rows, each as text and as a prompt for generation.

        Rows with images or without a usable prompt are left out.
        """
        return [
            (_as_text(conversation), question)
            for conversation in self._held_out(max_rows)
            if not conversation.num_pictures  # text cannot show images
            for question in self._questions([conversation])
        ]

    def questions(self, max_questions: int | None = None) -> list[GenerationPrompt]:
        """Return the prompts of held-out rows, tokenized as in training, to generate answers to.

        With `over_length: keep_start`, prompts that leave no room for an answer are left out.
        """
        return self._questions(self._held_out(max_questions))

    def _questions(self, conversations: Sequence[Conversation]) -> list[GenerationPrompt]:
        encoder = self._ready().encoder
        shown = self._held_out_pictures() if any(c.num_pictures for c in conversations) else {}
        questions = []
        for conversation in conversations:
            pictures = shown.get(conversation.place, ())
            images = self.pictures.images(pictures) if self.pictures else []
            prompt, inputs = conversation.prompt, conversation.inputs
            questions.append(
                GenerationPrompt(
                    prompt=encoder.prompt_text(prompt, inputs),
                    prompt_ids=encoder.prompt_ids(prompt, inputs, images),
                    expected=conversation.answer.text,
                    expected_length=encoder.num_tokens(conversation.answer.text),
                    task=conversation.task,
                    place=conversation.place,
                    pictures=pictures,
                )
            )
        if encoder.over_length != KEEP_START:
            return questions
        return [q for q in questions if len(q.prompt_ids) < encoder.max_length]

    def release_memory(self, unused_seconds: float = 0.0) -> int:
        """Free prepared data from memory if it has not been used for `unused_seconds`.

        Afterwards, the data is read from disk.

        Returns:
            The number of freed bytes of system memory.
        """
        return 0 if self._prepared is None else self.store.release_memory(unused_seconds)

    def close(self) -> None:
        """Close the pipeline for good, so that the cache may delete its data."""
        if self._prepared is not None:
            self._prepared.entry.close()

    def _held_out_pictures(self) -> dict[str, tuple[Picture, ...]]:
        """Return file:line → images, for the held-out rows that have images."""
        if self.pictures is None:
            return {}
        rows = [int(row) for row in self._ready().held_out]
        pairs = zip(_places(self.store, rows), map(self.store.example, rows), strict=True)
        return {place: example.pictures for place, example in pairs if example.pictures}

    def _held_out(self, max_rows: int | None) -> list[Conversation]:
        lines = self.store.lines(EVALUATION_FILE)
        questions = [c for c in map(Conversation.from_json, lines) if _is_question(c)]
        if max_rows is None or len(questions) <= max_rows:
            return questions
        return [questions[int(i)] for i in np.linspace(0, len(questions) - 1, max_rows)]

    def _checked_report(self, entry: CacheEntry) -> DataReport:
        facts = entry.store.meta["report"]
        entry.store.lines(QUARANTINE_FILE)
        listed = entry.store.folder / QUARANTINE_FILE
        quarantine = Quarantine.read(listed, facts["quarantined"])
        report = DataReport.from_dict(facts, quarantine)
        report.from_cache = entry.was_there
        quarantine.check(
            report.rows_read,
            self.config.max_bad_rows_percent,
            listed,
            max_unlearnable_percent=self.config.max_unlearnable_percent,
        )
        survivals = Survivals.from_json(report.survivals)
        survivals.check(report.rows_read, self.config.max_unlearnable_percent)
        if not report.num_train:
            raise report.quarantine.none_left(str(self.config.path))
        return report

    def _make_source(
        self, plan: PreparationPlan, store: TokenStore, augment: Augmentation | None
    ) -> StoredExamples | AugmentedExamples | StreamedExamples:
        if self.config.streaming:
            return StreamedExamples(self._stream(plan, store), self._texts(plan, augment))
        rows: Indices = store.array("train_rows.npy")
        order = Order(rows, self.seed)
        if augment is None:
            return StoredExamples(store, order, lambda rows: _places(store, rows))
        kept = StoredConversations(store, CONVERSATIONS_FILE, CONVERSATION_ENDS)
        return AugmentedExamples(kept, order, self._texts(plan, augment))

    def _texts(self, plan: PreparationPlan, augment: Augmentation | None) -> TextTokenizer:
        """Return a text tokenizer with its own copy of the encoder.

        The copy is needed because the text tokenizer runs in another thread, and tokenizers cannot
        be shared between threads.
        """
        return TextTokenizer(copy.deepcopy(plan.encoder), self.seed, augment)

    def _stream(self, plan: PreparationPlan, store: TokenStore) -> StreamingDataset:
        return StreamingDataset(
            plan.files[TRAIN],
            self.config.buffer_size,
            total_bytes_of(self.config.memory_limit),
            seed=self.seed,
            convert=plan.shapes[TRAIN].convert,
            index=WindowIndex(store.array("windows.npy"), store.array("is_used.npy")),
        )


@dataclass(frozen=True)
class ShownExample:
    """An example for display, with descriptions of texts of its row that the model does not
    read.
    """

    example: TokenizedExample
    left_out: tuple[str, ...] = ()


def first_examples(data: DataPipeline, count: int) -> list[ShownExample]:
    """Return at most `count` different training examples for display.

    They are the first examples of the data; for a stream, the first that are trained on.
    """
    if data.is_stored:
        ids = range(min(LOOKED_THROUGH, data.num_candidates))
        looked_at, places = data.examples(ids), data.places_of(ids)
    else:
        with closing(data.train_batches(0, 0, count)) as batches:
            looked_at = next(batches)
        places = data.places(0, 0, len(looked_at))
    losses = data.report.losses
    different: dict[bytes, ShownExample] = {}
    for example, place in zip(looked_at, places, strict=True):
        shown = ShownExample(example, tuple(losses.get(place, ())))
        different.setdefault(example.input_ids.tobytes(), shown)
    return [*different.values()][:count]


def _is_question(conversation: Conversation) -> bool:
    """Return whether a conversation has a prompt, and a last answer of text without tool calls."""
    answer = conversation.answer
    return bool(conversation.prompt) and bool(answer.text.strip()) and not answer.calls_tools


def _as_text(conversation: Conversation) -> EvaluationRow:
    messages = [turn.message() for turn in conversation.prompt]
    return EvaluationRow(messages, conversation.answer.text, conversation.task, conversation.inputs)


def _places(store: TokenStore, rows: list[int]) -> list[str]:
    files, lines = store.array(ROW_FILES), store.array(ROW_LINES)
    names = [file["name"] for file in store.meta["report"]["files"]]
    return [f"{names[files[row]]}:{lines[row]}" for row in rows]


def _batches(
    examples: Iterable[TokenizedExample], batch_size: int, _entry: CacheEntry
) -> Iterator[list[TokenizedExample]]:
    """Yield batches of examples. The unused argument `_entry` keeps the cache entry open until the
    end.
    """
    iterator = iter(examples)
    while batch := list(itertools.islice(iterator, batch_size)):
        yield batch
