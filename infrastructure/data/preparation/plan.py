"""The plan for preparing data: files, row shapes and limits, and the key of the cache entry."""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.types import amount_bytes
from infrastructure.core.errors import InputError
from infrastructure.core.hardware import memory, processor
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.encoding.chat_format import (
    TemplateFormat,
    marks_without_token,
    shipped_templates,
    spelled_tags,
)
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.row_accounting import ACCOUNTING_VERSION
from infrastructure.data.encoding.row_schema import ROWS_VERSION, RowSchema
from infrastructure.data.encoding.schema_detection import (
    SAMPLE_ROWS,
    advice,
    picture_words,
    recognise_shape,
)
from infrastructure.data.encoding.token_survival import SURVIVAL_VERSION
from infrastructure.data.encoding.tokenization import LABELS_VERSION, ConversationEncoder
from infrastructure.data.preparation.preparation import PreparationPlan
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.readers.pictures import PictureError, read_picture
from infrastructure.data.readers.row_limits import in_chunks
from infrastructure.data.readers.rows import BadRow, Row, excerpt
from infrastructure.data.readers.sources import DataFile, about_splits, files_of
from infrastructure.data.store.fingerprints import (
    content_number,
    text_hash,
    tokenizer_hash,
)
from infrastructure.data.store.token_store import FORMAT_VERSION

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Starting processes takes seconds; a fast tokenizer uses threads already.
BYTES_WORTH_PROCESSES = {True: 200 * 10**6, False: 5 * 10**6}  # key: is the tokenizer fast
MAX_PROCESSES = 8
MAX_TOKENIZER_ROWS = 200_000
LONG_NAME = 40
PICTURES_TRIED = 10  # rows whose images are read before anything is loaded
MOST_BYTES_AT_ONCE = 1 << 20  # of all files; reading them takes far less time than loading torch


def plan_preparation(
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    worker_bytes: int | None = None,
    pictures: PictureTokens | None = None,
) -> PreparationPlan:
    """Inspect files and columns, and return the plan for preparing the data; nothing is tokenized
    yet.

    Args:
        worker_bytes: system memory that each process that prepares data may use.
        pictures: encoder of images into tokens; None: rows with images are refused.

    Raises:
        ValueError: the configuration contradicts itself, or the data is missing or ambiguous.
    """
    _check(config)
    train, evaluation = files_of(config)
    shape, notes = understand(train, config)
    notes += about_splits(train, evaluation)
    if shown := picture_words(_first_good_rows(train), shape):
        _check_pictures(shown, config, pictures)
    encoder = ConversationEncoder(
        tokenizer,
        max_length=config.max_length,
        over_length=config.over_length,
        train_on=config.train_on,
        pictures=pictures,
    )
    return PreparationPlan(
        files=(train, evaluation),
        shapes=(shape, find_shape(evaluation, config) if evaluation else shape),
        encoder=encoder,
        validation_split=0.0 if evaluation else config.validation_split,
        window_limits=(config.buffer_size, total_bytes_of(config.memory_limit))
        if config.streaming
        else None,
        keep_conversations=config.augmentation is not None and not config.streaming,
        num_processes=num_processes(config, train, tokenizer),
        worker_bytes=worker_bytes,
        notes=tuple(notes),
    )


def _check_pictures(shown: str, config: DataConfig, pictures: PictureTokens | None) -> None:
    """Raise ValueError if rows have images that the model or the settings do not support."""
    if pictures is None:
        raise InputError("data.images_need_vision_model", place=shown)
    for name in ("streaming", "augmentation"):
        if getattr(config, name):
            key = Setting(f"data.{name}")
            raise InputError("data.setting_without_image_support", key=key, place=shown)


def pictures_in(config: DataConfig) -> str:
    """Describe where the first rows of the training data contain images.

    Return "" if they contain none, or if no data can be read.
    """
    if config.path is None:
        return ""
    try:
        rows, schema = first_rows(config)
    except Exception:  # whatever it is, preparing the data reports it
        return ""
    return picture_words(rows, schema)


def look_at_pictures(files: list[DataFile], config: DataConfig) -> None:
    """Check that at least one of the first rows has a usable image.

    If only some images are missing or broken, their rows are skipped when the data is prepared.

    Raises:
        ValueError: no image is usable; the text names the first one and the reason.
    """
    schema, faults = find_shape(files, config), list[str]()
    folder = files[0].path if files[0].path.is_dir() else files[0].path.parent
    for row in _first_good_rows(files[:1])[:PICTURES_TRIED]:
        converted = schema.convert(row)
        if isinstance(converted, BadRow):
            faults.append(str(converted))
            continue
        try:
            if [read_picture(source, folder) for source in converted.pictures]:
                return
        except PictureError as error:
            faults.append(f"{converted.place}: {error}")
    if faults:
        rows = phrase("data.only_row")
        if len(faults) > 1:
            rows = phrase("data.first_bad_rows", count=len(faults))
        raise InputError("data.images_unusable", path=config.path, rows=rows, fault=faults[0])


def _check(config: DataConfig) -> None:
    if config.path is None:
        raise InputError("data.no_training_data")


def total_bytes_of(amount: str | None) -> int | None:
    """Return an amount of system memory in bytes. A percentage refers to this machine's total
    memory.
    """
    return None if amount is None else max(1, amount_bytes(amount, memory().total_bytes))


def num_processes(
    config: DataConfig, files: list[DataFile], tokenizer: "PreTrainedTokenizerBase"
) -> int:
    """Return the number of processes for tokenization; 0 means only the current process.

    The number does not affect the tokens.
    """
    if config.num_workers != "auto":
        return int(config.num_workers)
    num_cores = processor().num_cores
    num_bytes = sum(file.stamp()[0] for file in files)
    pays = num_bytes >= BYTES_WORTH_PROCESSES[bool(tokenizer.is_fast)] and num_cores > 2
    return min(MAX_PROCESSES, num_cores - 1) if pays else 0


def look_at_rows(files: list[DataFile], config: DataConfig) -> RowSchema:
    """Check that rows can be interpreted as examples, without a tokenizer.

    The first rows are checked; if the files are small, all of them.

    Returns:
        The shape of the rows.

    Raises:
        ValueError: the shape is ambiguous, or too many rows cannot be used.
    """
    schema = find_shape(files, config)
    if sum(file.stamp()[0] for file in files) > MOST_BYTES_AT_ONCE:
        return schema
    quarantine, num_rows = Quarantine(), 0
    for row in (row for file in files for row in file.rows()):
        num_rows += 1
        converted = row if isinstance(row, BadRow) else schema.convert(row)
        if isinstance(converted, BadRow):
            quarantine.add([converted])
    quarantine.check(num_rows, config.max_bad_rows_percent)
    return schema


def find_shape(files: list[DataFile], config: DataConfig) -> RowSchema:
    """Return the shape of the first rows of these files.

    Raises:
        ValueError: no row is readable, or the shape is ambiguous.
    """
    return understand(files, config)[0]


def understand(files: list[DataFile], config: DataConfig) -> tuple[RowSchema, list[str]]:
    """Return the shape of the first rows of these files, and advice about it for the user.

    Raises:
        ValueError: no row is readable, or the shape is ambiguous.
    """
    sample = _first_good_rows(files)
    try:
        schema = recognise_shape(sample, config)
    except ValueError as error:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        hint = _missing_header(files[0], sample[0])
        raise InputError(
            "data.unrecognized_file", file=files[0].name, more=more, reason=hint or error
        ) from error
    return schema, advice(sample, schema)


def first_rows(config: DataConfig) -> tuple[list[Row], RowSchema]:
    """Return the first readable rows of the training data, and their shape. For errors see
    `understand`.
    """
    _check(config)
    files, _ = files_of(config)
    return _first_good_rows(files), find_shape(files, config)


def chat_template_of(
    config: DataConfig, tokenizer: "PreTrainedTokenizerBase"
) -> str | dict[str, str]:
    """Return the chat template with which conversations are written.

    This is the configured template, or else the tokenizer's own, which may be a dict of several
    named templates.

    Raises:
        ValueError: there is none.
    """
    if config.chat_template is not None:
        return read_chat_template(config.chat_template)
    if not tokenizer.chat_template:
        raise InputError("data.dialogue_needs_template")
    return tokenizer.chat_template


def _missing_header(file: DataFile, row: Row) -> str:
    """Return a warning if the header line of a table looks like a row of data; otherwise ""."""
    names = [*row.values]
    is_text = any(len(name) > LONG_NAME or name.strip().endswith((".", "?", "!")) for name in names)
    if not is_text or not file.has_header:
        return ""
    return phrase("data.missing_header", first_field=excerpt(names[0], LONG_NAME))


def _first_good_rows(files: list[DataFile]) -> list[Row]:
    bad: list[BadRow] = []

    def good_rows() -> Iterator[Row]:
        for file in files:
            for row in file.rows():
                if isinstance(row, Row):
                    yield row
                elif not bad:
                    bad.append(row)

    sample = next(in_chunks(good_rows(), SAMPLE_ROWS), [])
    if not sample:
        raise InputError("data.no_readable_row", file=files[0].name, reason=_why_none(bad))
    return sample


def _why_none(bad: list[BadRow]) -> str:
    """Describe the first unreadable row, for data without any readable row, and the remedy."""
    if not bad:
        return phrase("data.file_without_rows")
    remedy = bad[0].remedy
    return f"{bad[0]}" + (f": {remedy}" if remedy else "")


def plan_key(plan: PreparationPlan) -> str:
    """Return the cache key of a plan; equal plans for files with equal content have equal keys."""
    encoder = plan.encoder
    parts = {
        "version": [FORMAT_VERSION, LABELS_VERSION, ROWS_VERSION],
        "files": [[_file_key(file) for file in files] for files in plan.files],
        "shapes": [vars(shape) for shape in plan.shapes],
        "tokenizer": tokenizer_hash(encoder.tokenizer),
        "training template": [
            one.template if one else None for one in (encoder.template, encoder.tool_template)
        ],
        "accounting": [ACCOUNTING_VERSION, SURVIVAL_VERSION],
        "length": [encoder.max_length, encoder.over_length, encoder.train_on],
        "split": plan.validation_split,
        "windows": plan.window_limits,
        "conversations": plan.keep_conversations,
    }
    if encoder.pictures is not None:  # paths of images are stored as found on this machine
        parts["pictures"] = encoder.pictures.settings()
        parts["folders"] = [str(file.path.absolute()) for files in plan.files for file in files]
    return text_hash(parts)


def _file_key(file: DataFile) -> list[str]:
    key = [file.name, file.format, file.note, file.sha256()]
    more = [file.encoding, file.split]
    return [*key, *more] if any(more) else key  # older kinds of files keep their keys


def read_chat_template(setting: str) -> str:
    """Return the Jinja text of the template that `data.chat_template` refers to.

    The setting is Jinja text, a file that contains it, or the name of a template that TRL ships.
    TRL is not imported.

    Raises:
        ValueError: the setting is none of these.
    """
    if "{" in setting:
        return setting
    shipped = shipped_templates()
    path = Path(setting)
    if not path.is_file() and setting in shipped:
        path = shipped[setting]
    if not path.is_file():
        ready = phrase("data.shipped_template_names", names=", ".join(shipped)) if shipped else ""
        is_installed = find_spec("trl") is not None
        lack = phrase(
            "data.trl_without_named_templates" if is_installed else "data.trl_not_installed"
        )
        ready = ready or phrase("data.shipped_template_unavailable", lack=lack)
        raise InputError("data.invalid_chat_template", value=setting, alternative=ready)
    return path.read_text("utf-8")


def template_notes(config: DataConfig, tokenizer: "PreTrainedTokenizerBase | None") -> list[str]:
    """Return a note if the chat template is missing or does not suit the tokenizer.

    A configured template is unsuitable if it writes tags that are not tokens of the model.
    """
    if tokenizer is None:
        return []
    if config.chat_template is not None:
        return _notes_of_given(tokenizer)
    if tokenizer.chat_template:
        return []
    path = shipped_templates().get("qwen3")
    is_known = path is not None and not marks_without_token(path.read_text("utf-8"), tokenizer)
    ready = phrase("data.template_of_known_tokens")
    if is_known:
        ready = phrase("data.such_as_template", name="qwen3")
    return [phrase("data.model_without_chat_template", example=ready)]


def _notes_of_given(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    tags, num_more = spelled_tags(TemplateFormat(tokenizer), tokenizer)
    if not tags:
        return []
    return [phrase("data.template_tags_not_tokens", tags=", ".join(tags), num_more=num_more)]


def training_texts(config: DataConfig) -> Iterator[str]:
    """Yield the text of each trained turn of the training rows, to train a tokenizer on.

    Held-out rows are left out. Rows that cannot be used are passed over;
    `DataPipeline.prepare` reports them. At most MAX_TOKENIZER_ROWS rows are read.

    Raises:
        ValueError: the data is missing, or its shape is ambiguous.
    """
    _check(config)
    files, held_out_files = files_of(config)
    shape = find_shape(files, config)
    held_out = 0.0 if held_out_files else config.validation_split * 2.0**64
    rows = (row for file in files for row in file.rows())
    for row in islice(rows, MAX_TOKENIZER_ROWS):
        conversation = shape.convert(row) if isinstance(row, Row) else row
        if isinstance(conversation, BadRow):
            continue
        if content_number(conversation.pairs()) >= held_out:
            yield from (turn.text for turn in conversation.taught)
