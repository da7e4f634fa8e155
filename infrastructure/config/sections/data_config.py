"""The settings of the data: where it is and how it becomes batches. No data is read."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.registries import AUGMENTATIONS, FORMATS
from infrastructure.config.types import (
    SAME_RESULT,
    Auto,
    Colour,
    Count,
    DataPath,
    MemoryAmount,
    PathLike,
    Percent,
    RegisteredName,
    ShareBelowOne,
    TextEncoding,
    UsedWhen,
)

MAX_UNLEARNABLE_PERCENT = 1.0
_WITHOUT_EVAL_PATH = UsedWhen(
    lambda config: config.data.eval_path is None or not config.data.validation_split,
    "config.unused_eval_path_is_held_out",
)
_STREAMING = UsedWhen(
    lambda config: config.data.streaming,
    "config.unused_streaming_is_off",
    "config.unused_switch_it_on",
)


class DataConfig(ConfigSection):
    """The settings of `DataPipeline`."""

    prefix: ClassVar[str] = "data"

    path: DataPath | None = Field(
        default=None, description="Training data: a file, a folder or a Hub dataset."
    )
    eval_path: DataPath | None = Field(
        default=None, description="Held-out data; none: a share of the training data is held out."
    )
    format: Annotated[str, RegisteredName(FORMATS, ("auto",), is_late=True)] = Field(
        default="auto",
        description="File format: auto, json, jsonl, csv, text, ..., a plug-in or module:function.",
    )
    encoding: TextEncoding = Field(
        default="auto",
        description="Encoding of text files: auto (UTF-8, or UTF-16 by its BOM), cp1252,"
        " latin-1, ...",
    )
    shape: str = Field(
        default="auto",
        description="Format of a row: auto, prompt, alpaca, sharegpt, messages, text, qa.",
    )
    prompt_column: str | None = Field(default=None, description="Column with the prompt.")
    answer_column: str | None = Field(default=None, description="Column with the answer.")
    context_column: str | None = Field(
        default=None,
        description="Column with the context of a question; it is placed below the question.",
    )
    text_column: str | None = Field(default=None, description="Column with plain text.")
    image_column: str = Field(
        default="auto",
        description="Column with images; auto: detected by name and content; none: not used.",
    )
    image_background: Colour = Field(
        default="white", description="Color behind the transparent parts of an image."
    )
    task_column: str | None = Field(
        default=None, description="Column with the kind of task; results are shown by task."
    )
    max_length: Annotated[int, Ge(2), Le(1 << 20)] = Field(
        default=512, description="Longest example, in tokens."
    )
    over_length: Literal["keep_start", "truncate", "quarantine"] = Field(
        default="keep_start",
        description="If an example is too long: cut its end, cut the start of its prompt, or"
        " skip it.",
    )
    packing: bool = Field(
        default=True,
        description="Pack short examples into one row, isolated from each other; faster, same"
        " result.",
    )
    train_on: Literal["answers", "last_answer", "all"] = Field(
        default="answers",
        description="Tokens to train on: of all answers, of the last answer in each row, or all"
        " tokens.",
    )
    validation_split: Annotated[ShareBelowOne, _WITHOUT_EVAL_PATH] = Field(
        default=0.1,
        description="Share of the training data that is held out if there is no eval_path.",
    )
    num_workers: Annotated[Annotated[int, Ge(0), Le(1024)] | Auto, SAME_RESULT] = Field(
        default="auto", description="Processes that prepare data; 0: in the training process."
    )
    prefetch_factor: Annotated[Count, SAME_RESULT] = Field(
        default=2, description="Batches prepared ahead in a thread while the model computes."
    )
    pin_memory: Annotated[bool, SAME_RESULT] = Field(
        default=True, description="Use page-locked memory for batches if there is a GPU."
    )
    streaming: bool = Field(
        default=False,
        description="Read data while training, through a bounded buffer; for very large data.",
    )
    buffer_size: Annotated[Count, _STREAMING] = Field(
        default=1000, description="Examples in the streaming buffer."
    )
    memory_limit: MemoryAmount | None = Field(
        default=None,
        description='Memory limit for prepared data: "8GB", or "90%" of the machine\'s memory.',
    )
    balance_by: str | None = Field(
        default=None, description='Sample equally from the values of this column; "task" for tasks.'
    )
    augmentation: Annotated[str | None, RegisteredName(AUGMENTATIONS, is_late=True)] = Field(
        default=None, description="Name of an augmentation plug-in."
    )
    max_bad_rows_percent: Annotated[Percent, SAME_RESULT] = Field(
        default=5.0,
        description="Percentage of unusable rows that stops a run; unset: 1 % if answers lose"
        " text.",
    )
    accept_small_data: Annotated[bool, SAME_RESULT] = Field(
        default=False,
        description="Train on a single row, or on the readme of a folder, without asking.",
    )
    chat_template: Annotated[str | None, PathLike] = Field(
        default=None,
        description="Chat template: Jinja text, a file, or a TRL name such as qwen3; none: the"
        " tokenizer's.",
    )

    @property
    def max_unlearnable_percent(self) -> float:
        """The highest percentage of rows whose answers would lose text. Above it, no run starts."""
        is_set = "max_bad_rows_percent" in self.model_fields_set
        return self.max_bad_rows_percent if is_set else MAX_UNLEARNABLE_PERCENT

    @property
    def holds_out(self) -> bool:
        """True if some rows are used for evaluation and not trained on."""
        return self.eval_path is not None or self.validation_split > 0
