"""Adapter for vision-language models (Llava, Qwen-VL, SmolVLM and others) on rows with images.

In addition to what `StandardModelAdapter` does, it loads the model's processor, which converts
images to tokens when the data is prepared, and to pixels for each micro-batch. Rows are packed only
if a measurement shows that packed rows do not attend to each other's images.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.multimodal_config import MULTIMODAL
from infrastructure.core.json_text import JsonObject
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.model_inputs import language_part
from infrastructure.models.model_manager import LoadedModel, ModelManager
from infrastructure.models.packed_attention import PICTURES
from infrastructure.models.packing_check import Measure
from infrastructure.models.saving import save_model
from infrastructure.models.vision_language import template_for_parts
from infrastructure.training.model_adapters.base_adapter import Batch
from infrastructure.training.model_adapters.picture_packing import (
    picture_differences,
    positions_of,
    probe_examples,
)
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MultimodalModelAdapter(StandardModelAdapter):
    """An adapter for any model that transformers' `AutoModelForImageTextToText` loads.

    Attributes:
        processor: the transformers processor, once tokenizer or model are loaded. It is saved with
            the model.
    """

    processor: Any = None

    def _manager(self) -> ModelManager:
        if self.training_config.hides_tokens:
            raise ConfigurationError("models.masked_diffusion_with_images")
        manager = super()._manager()
        manager.sees = True
        if self.training_config.enables(MULTIMODAL):
            manager.vision = self.training_config.multimodal
        return manager

    def initialize_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        manager = self._manager()
        tokenizer = manager.load_tokenizer()
        assert tokenizer is not None
        self._take(manager.processor)
        return tokenizer

    def _load(self) -> LoadedModel:
        manager = self._manager()
        loaded = manager.load()
        self._take(manager.processor)
        if not self.model_config.train_vision and hasattr(loaded.model, "peft_config"):
            self.lora_within = language_part(loaded.model)
        return loaded

    def _take(self, processor: Any) -> None:
        self.processor, self.tokenizer = processor, processor.tokenizer
        self._pictures = PictureTokens(
            processor,
            self.model_config.name,
            has_text_template=self.training_config.enables(MULTIMODAL),
            background=self.data_config.image_background,
        )

    @property
    def pictures(self) -> PictureTokens:
        return self._pictures

    def _prepare_packing(
        self, model: torch.nn.Module, with_pictures: Measure | None = None
    ) -> None:
        super()._prepare_packing(model, with_pictures or self._picture_differences)

    def _picture_differences(self, model: torch.nn.Module) -> tuple[float, float]:
        rows = probe_examples(self.tokenizer, self.pictures)
        return picture_differences(model, rows, self._batch_of, self.pictures.mark_id)

    def _batch_of(self, examples: Sequence[TokenizedExample], packs: bool) -> Batch:
        chosen, self.packs = self.packs, packs
        try:
            return self.prepare_batch(examples)
        finally:
            self.packs = chosen

    def _rows(self, examples: Sequence[TokenizedExample]) -> Batch:
        """Return a packed row or padded rows, and the pixels of their images."""
        batch = super()._rows(examples)
        shown = [picture for example in examples for picture in example.pictures]
        given = batch[PICTURES] = self.pictures.inputs(batch["input_ids"], shown)
        if self.packs:
            assert self.model is not None
            of_text = batch["position_ids"]
            batch["position_ids"] = positions_of(
                self.model, examples, of_text, given, self.pictures
            )
        return batch

    def prepare_batch(self, examples: Sequence[TokenizedExample]) -> Batch:
        """Return one packed row or padded rows, and the pixels of their images, on the device."""
        batch = super().prepare_batch(examples)
        given = batch[PICTURES].items()
        batch[PICTURES] = {name: self._to_device(value) for name, value in given}
        return batch

    def describe(self) -> JsonObject:
        return {**super().describe(), "sees": True}

    def save(self, directory: Path) -> None:
        assert self.model is not None
        template = self.tokenizer.chat_template
        if self.training_config.enables(MULTIMODAL):
            template = template_for_parts(template, self.pictures.mark)
        before, self.tokenizer.chat_template = self.tokenizer.chat_template, template
        self.processor.chat_template = template
        try:
            save_model(self.model, self.tokenizer, directory, processor=self.processor)
        finally:
            self.tokenizer.chat_template = before
