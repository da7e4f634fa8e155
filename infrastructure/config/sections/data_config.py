"""Where the training data is and how it becomes batches. Reads no data."""

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
    """What `DataPipeline` needs to know."""

    prefix: ClassVar[str] = "data"

    path: DataPath | None = Field(
        default=None, description="Training data: a file, a folder or a hub data set."
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
        description="Encoding of text: auto (UTF-8, or UTF-16 by its mark), cp1252, latin-1, ...",
    )
    shape: str = Field(
        default="auto",
        description="Shape of a row: auto, prompt, alpaca, sharegpt, messages, text, qa.",
    )
    prompt_column: str | None = Field(default=None, description="Column that holds the prompt.")
    answer_column: str | None = Field(default=None, description="Column that holds the answer.")
    context_column: str | None = Field(
        default=None, description="Column that a question is about; it is written below it."
    )
    text_column: str | None = Field(default=None, description="Column that holds plain text.")
    image_column: str = Field(
        default="auto",
        description="Column of pictures; auto: by its name and what it holds, none: not used.",
    )
    image_background: Colour = Field(
        default="white", description="Colour behind the transparent parts of a picture."
    )
    task_column: str | None = Field(
        default=None, description="Column that names the kind of task; results are shown by task."
    )
    max_length: Annotated[int, Ge(2), Le(1 << 20)] = Field(
        default=512, description="Longest example, in tokens."
    )
    over_length: Literal["keep_start", "truncate", "quarantine"] = Field(
        default="keep_start",
        description="A longer example: its end is cut, its prompt's beginning, or it is set aside.",
    )
    packing: bool = Field(
        default=True,
        description="Lay short examples in one row, isolated; faster, the same result.",
    )
    train_on: Literal["answers", "last_answer", "all"] = Field(
        default="answers",
        description="Which tokens are learnt: those of answers, of the last one of each row, or"
        " all.",
    )
    validation_split: Annotated[ShareBelowOne, _WITHOUT_EVAL_PATH] = Field(
        default=0.1, description="Share of the training data held out where there is no eval_path."
    )
    num_workers: Annotated[Annotated[int, Ge(0), Le(1024)] | Auto, SAME_RESULT] = Field(
        default="auto", description="Processes that prepare data; 0: in the training process."
    )
    prefetch_factor: Annotated[Count, SAME_RESULT] = Field(
        default=2, description="Batches made ahead, in a thread, while the model is busy."
    )
    pin_memory: Annotated[bool, SAME_RESULT] = Field(
        default=True, description="Page-locked batches where there is a GPU."
    )
    streaming: bool = Field(
        default=False,
        description="Read while training, through a bounded buffer; for very large data.",
    )
    buffer_size: Annotated[Count, _STREAMING] = Field(
        default=1000, description="Examples in the streaming buffer."
    )
    memory_limit: MemoryAmount | None = Field(
        default=None,
        description='Memory that prepared data may take: "8GB", or "90%" of the machine.',
    )
    balance_by: str | None = Field(
        default=None, description='Draw equally from the values of this column; "task" for tasks.'
    )
    augmentation: Annotated[str | None, RegisteredName(AUGMENTATIONS, is_late=True)] = Field(
        default=None, description="Name of an augmentation plug-in."
    )
    max_bad_rows_percent: Annotated[Percent, SAME_RESULT] = Field(
        default=5.0,
        description="Share of unusable rows that stops a training;"
        " unset: 1 % if answers lose text.",
    )
    accept_small_data: Annotated[bool, SAME_RESULT] = Field(
        default=False,
        description="Train on a single row, or on the readme of a folder, without a question.",
    )
    chat_template: Annotated[str | None, PathLike] = Field(
        default=None,
        description="Jinja text, a file, or a name of TRL's, as qwen3; none: the tokenizer's own.",
    )

    @property
    def max_unlearnable_percent(self) -> float:
        """Share of rows whose answers would lose text above which training does not start."""
        is_set = "max_bad_rows_percent" in self.model_fields_set
        return self.max_bad_rows_percent if is_set else MAX_UNLEARNABLE_PERCENT

    @property
    def holds_out(self) -> bool:
        """Whether there are rows that are measured and not trained on."""
        return self.eval_path is not None or self.validation_split > 0
