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
    """The settings of the data, as used by `DataPipeline`."""

    prefix: ClassVar[str] = "data"

    path: DataPath | None = Field(
        default=None,
        description="Training data: a file, a folder or a Hub dataset; none: sample data.",
    )
    eval_path: DataPath | None = Field(
        default=None, description="Held-out data; none: a share of the training data is held out."
    )
    format: Annotated[str, RegisteredName(FORMATS, ("auto",), is_late=True)] = Field(
        default="auto",
        description="File format; auto: by file extension and content.",
    )
    encoding: TextEncoding = Field(
        default="auto",
        description="Encoding of text files; auto: UTF-8, or UTF-16 if the file begins with"
        " its BOM.",
    )
    shape: str = Field(
        default="auto",
        description="Format of a row: auto, prompt, alpaca, sharegpt, messages, text, qa.",
    )
    prompt_column: str | None = Field(
        default=None, description="Column with the prompt; none: detected."
    )
    answer_column: str | None = Field(
        default=None, description="Column with the answer; none: detected."
    )
    context_column: str | None = Field(
        default=None,
        description="Column with the context of a question, which is placed below it;"
        " none: detected.",
    )
    text_column: str | None = Field(
        default=None, description="Column with plain text; none: detected."
    )
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
        default=512,
        description="Maximum length of an example, in tokens; longer ones: see"
        " {=data.over_length}.",
    )
    over_length: Literal["keep_start", "truncate", "quarantine"] = Field(
        default="keep_start",
        description="Overlong rows; keep_start: cut the end; truncate: cut the prompt"
        " start; quarantine: skip.",
    )
    packing: bool = Field(
        default=True,
        description="Pack short examples into one row, isolated from each other; faster, same"
        " result.",
    )
    train_on: Literal["answers", "last_answer", "all"] = Field(
        default="answers",
        description="Tokens to train on; last_answer: only the last answer of a row; all:"
        " also the prompts.",
    )
    validation_split: Annotated[ShareBelowOne, _WITHOUT_EVAL_PATH] = Field(
        default=0.1,
        description="Approximate share of rows to hold out (chosen by hash); unused with"
        " {=data.eval_path}.",
    )
    num_workers: Annotated[Annotated[int, Ge(0), Le(1024)] | Auto, SAME_RESULT] = Field(
        default="auto", description="Processes that prepare data; 0: the training process does it."
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
        description="Memory limit for prepared data; none: only {=cache.memory_size} applies.",
    )
    augmentation: Annotated[str | None, RegisteredName(AUGMENTATIONS, is_late=True)] = Field(
        default=None, description="Augmentation of the training rows."
    )
    max_bad_rows_percent: Annotated[Percent, SAME_RESULT] = Field(
        default=5.0,
        description="Stop above this percentage of unusable rows; not set: also if"
        " over 1% lose answer text.",
    )
    accept_small_data: Annotated[bool, SAME_RESULT] = Field(
        default=False,
        description="Allow training on a single row, or on a folder that contains only a README.",
    )
    chat_template: Annotated[str | None, PathLike] = Field(
        default=None,
        description="Chat template: Jinja text, a file, or a TRL name such as qwen3; none: the"
        " tokenizer's.",
    )

    @property
    def max_unlearnable_percent(self) -> float:
        """The maximum percentage of rows whose answers may lose text; with more, a run does not
        start.
        """
        is_set = "max_bad_rows_percent" in self.model_fields_set
        return self.max_bad_rows_percent if is_set else MAX_UNLEARNABLE_PERCENT

    @property
    def holds_out(self) -> bool:
        """True if some rows are held out for evaluation."""
        return self.eval_path is not None or self.validation_split > 0
