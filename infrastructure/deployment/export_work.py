"""The parts of an export in progress, including the export as a transformers folder."""

import gc
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.encoding.chat_format import PlainFormat, TemplateFormat
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.readers.rows import Turn
from infrastructure.deployment.export_comparison import (
    QUESTIONS,
    Comparer,
    logits_of,
    prompts_of,
)
from infrastructure.deployment.export_formats import Reading, in_its_words
from infrastructure.deployment.export_request import ExportRequest
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.quantization import layers_not_in_blocks, quantization_config
from infrastructure.models.quantization_aware import write_rounded
from infrastructure.models.saving import save_tokenizer, write_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WHOLE = ".whole"  # a temporary model folder, the input of exporters that need one


@dataclass
class Work:
    """An export in progress, with its model, tokenizer, request and notes.

    Attributes:
        model: the model on the CPU, merged if the request says so.
        ends: the tokens that end answers.
        notes: notes for the user.
        rounding: the kind of rounding used in training, or None if the weights are exported
            unrounded.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase | None"
    request: ExportRequest
    compare: Comparer
    ends: Sequence[str]
    notes: list[str]
    registered_name: str | None = None
    processor: Any = None
    rounding: str | None = None

    def write(self, folder: Path) -> None:
        """Write the files of the requested format, and compare them with the trained model.

        Raises:
            ValueError: if the model cannot be written in this format, or the written files cannot
                be read; the error quotes the exporter's message.
            CheckpointError: if the written model differs from the trained one.
        """
        for reading in self.request.format.write(self, folder):
            self.compare(*reading)
        if not self.compare.made and self.registered_name is None:
            raise InputError("deployment.export_not_read_back", format=self.request.form)

    def write_transformers_folder(self, folder: Path) -> Iterator[Reading]:
        """Write the model as a transformers or PEFT folder, rounded if this was requested."""
        if self.rounding is not None:  # the weights with which training computed
            with self.whole_model(folder) as whole:
                write_rounded(whole, folder, self.rounding, self.tokenizer)
        elif self.request.is_small:
            yield self._write_small(folder)
            return
        else:
            write_model(
                self.model,
                self.tokenizer,
                folder,
                registered_name=self.registered_name,
                processor=self.processor,
            )
        if self.registered_name is None:
            yield self._as_loaded(folder)

    def _as_loaded(self, folder: Path) -> Reading:
        """Load the exported model with transformers or PEFT, and return it for the comparison."""
        config = ModelConfig(name=str(folder), backend="transformers")
        manager = ModelManager(config, device=torch.device("cpu"), seed=0)
        manager.sees = self.processor is not None
        loaded = manager.load()
        loaded.model.eval()
        by = "PEFT" if hasattr(loaded.model, "peft_config") else "transformers"
        seeing = PictureTokens(manager.processor, str(folder)) if manager.sees else None
        prompts = (
            None if loaded.tokenizer is None else prompts_of(loaded.model, loaded.tokenizer, seeing)
        )
        return Reading(by, logits_of(loaded.model, seeing), prompts, folder)

    def _write_small(self, folder: Path) -> Reading:
        """Write the model in 8 or 4 bits with bitsandbytes."""
        kind = type(self.model)
        odd = layers_not_in_blocks(self.model) if self.request.bits == 4 else []
        skipped = [*odd, *_output_layer(self.model)] if odd else None  # None: bitsandbytes' default
        with self.whole_model(folder, torch.bfloat16) as whole:
            small: Any = quantization_config(f"{self.request.bits}bit", torch.bfloat16)
            if odd:
                small.llm_int8_skip_modules = skipped
                self.notes.append(
                    phrase("deployment.export_layers_kept_at_16_bits", count=len(odd), layer=odd[0])
                )
            with in_its_words("bitsandbytes"), without_progress_bars():
                model = kind.from_pretrained(whole, quantization_config=small, device_map="cpu")
                model.save_pretrained(folder)
            del model
        if self.tokenizer is not None:
            save_tokenizer(self.tokenizer, folder)
        with without_progress_bars():
            again = kind.from_pretrained(folder, device_map="cpu").eval()
        prompts = self.prompts_in(folder, again)
        return Reading("transformers and bitsandbytes", logits_of(again), prompts, folder)

    def as_function(self) -> "Logits":
        """Return the model as a function from tokens to logits."""
        return Logits(self.model)

    def logits_of(self, model: Any) -> Any:
        """Return a function that computes the logits of `model`, for `Reading.logits`."""
        return logits_of(model.eval())

    def save_beside(self, folder: Path) -> None:
        """Save the tokenizer and the model's configuration to the folder."""
        self.model.config.save_pretrained(folder)
        if self.tokenizer is not None:
            save_tokenizer(self.tokenizer, folder)

    def prompts_in(self, folder: Path, model: Any = None) -> list[torch.Tensor] | None:
        """Return the test questions, encoded by the tokenizer in `folder`; None if it contains no
        tokenizer.

        Args:
            model: the model that gets the questions, if `self.model` was freed.
        """
        if not (folder / "tokenizer_config.json").is_file():
            return None
        transformers: Any = require("transformers", "deployment.reading_tokenizer")
        return prompts_of(model or self.model, transformers.AutoTokenizer.from_pretrained(folder))

    def as_text(self, turns: Sequence[Turn]) -> str:
        """Return messages formatted as in training, without the initial BOS token."""
        tokenizer = self.tokenizer
        assert tokenizer is not None
        written = TemplateFormat(tokenizer) if tokenizer.chat_template else PlainFormat(tokenizer)
        return str(written.write_prompt(turns).text).removeprefix(tokenizer.bos_token or "")

    def questions(self) -> list[str]:
        """Return the test questions as formatted prompts, without the initial BOS token."""
        return [self.as_text([Turn("user", question)]) for question in QUESTIONS]

    @contextmanager
    def whole_model(self, folder: Path, dtype: torch.dtype | None = None) -> Iterator[Path]:
        """Write the model to a temporary transformers folder, free its memory, and yield the
        folder's path.

        Args:
            dtype: the data type of the written weights; by default, the model's own.
        """
        whole = folder / WHOLE
        whole.mkdir()
        try:
            model = self.model if dtype is None else self.model.to(dtype)
            write_model(model, self.tokenizer, whole)
            del model
            self.model = None
            gc.collect()
            yield whole
        finally:
            shutil.rmtree(whole, ignore_errors=True)


class Logits(torch.nn.Module):
    """A module that maps token ids to the logits of a language model, without a KV cache.

    Shapes: (batch, length) of int64 → (batch, length, vocabulary).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output: Any = self.model(input_ids=input_ids, use_cache=False)
        logits: torch.Tensor = output.logits
        return logits


def _output_layer(model: Any) -> list[str]:
    """Return a list with the name of the output layer, which stays unquantized.

    bitsandbytes skips this layer only as long as no other modules are listed.
    """
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if module is head]
