"""Adapter for vision-language models (Llava, Qwen-VL, SmolVLM and others) on rows with images.

In addition to what `StandardModelAdapter` does, it loads the model's processor, which converts
images to tokens when the data is prepared, and to pixels for each micro-batch. Rows are packed only
if a measurement shows that packed rows do not attend to each other's images.
"""

import inspect
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.optional import require
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.readers.pictures import PictureError
from infrastructure.data.serving.collate import pad
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.model_inputs import (
    call_model,
    language_part,
    logits_of,
    probing,
    relative_difference,
)
from infrastructure.models.model_manager import LoadedModel, ModelManager
from infrastructure.models.packed_attention import PICTURES, model_arguments
from infrastructure.models.packing_check import Measure
from infrastructure.models.saving import save_model
from infrastructure.models.token_loss import backbone
from infrastructure.training.model_adapters.base_adapter import Batch
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
            has_text_template=any(change.makes_processor for change in self.changes),
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
        for change in self.changes:
            template = change.template(template, self.processor)
        before, self.tokenizer.chat_template = self.tokenizer.chat_template, template
        self.processor.chat_template = template
        try:
            save_model(self.model, self.tokenizer, directory, processor=self.processor)
        finally:
            self.tokenizer.chat_template = before


# Packing of rows with images: their position IDs, and a check that packed rows stay isolated.
#
# A comparison of packed and unpacked text would not show whether packed rows attend to each other's
# images. So rows with images are also compared.

# Width and height. Processors that cut images into squares make the fewest tokens of wide ones.
FIRST, SECOND = (64, 16), (48, 16)
QUESTION, ANSWER = "What is on it?", "Nothing but noise."


class MakeBatch(Protocol):
    """A function that makes a batch of examples: one packed row, or padded rows."""

    def __call__(self, examples: Sequence[TokenizedExample], packs: bool) -> Batch: ...


def picture_differences(
    model: torch.nn.Module,
    rows: Sequence[TokenizedExample],
    make_batch: MakeBatch,
    mark_id: int,
) -> tuple[float, float]:
    """Measure how much packing changes the logits of rows with images, and how much one row affects
    another.

    The leak is the relative change of the second row's logits when the image of the first row
    changes. Only the logits of text tokens are compared. An image may have a thousand tokens, whose
    gradients might not fit into memory.

    Args:
        rows: as `probe_examples` returns them.
        make_batch: makes a batch of examples, packed or not.
        mark_id: the token that stands for images.

    Returns:
        The relative difference, and the leak.
    """
    first, second, other = rows

    def logits_of_text(examples: Sequence[TokenizedExample], packs: bool) -> list[torch.Tensor]:
        batch = make_batch(examples, packs)
        logits = logits_of(call_model(model, model_arguments(model, batch)))[0]
        ids = [torch.from_numpy(example.input_ids) for example in examples]
        parts = logits[: sum(map(len, ids))].split([*map(len, ids)])
        return [part[(i != mark_id).to(part.device)] for part, i in zip(parts, ids, strict=True)]

    with probing(model), torch.no_grad():
        packed = logits_of_text([first, second], True)
        changed = logits_of_text([other, second], True)
        alone = [logits_of_text([row], False)[0] for row in (first, second)]
    difference = max(map(relative_difference, packed, alone))
    return difference, relative_difference(changed[1], packed[1])


def probe_examples(
    tokenizer: "PreTrainedTokenizerBase", pictures: PictureTokens
) -> list[TokenizedExample]:
    """Return two rows with text and an image, and a copy of the first row with another image.

    Raises:
        ValueError: the processor rejects the images.
    """
    before, after = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in (QUESTION, ANSWER)
    )
    sizes = (FIRST, SECOND, FIRST)
    return [_example(pictures, before, after, size, seed) for seed, size in enumerate(sizes)]


def _example(
    pictures: PictureTokens,
    before: list[int],
    after: list[int],
    size: tuple[int, int],
    seed: int,
) -> TokenizedExample:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    require("PIL.Image", "data.decode_images").fromarray(noise).save(file, "PNG")
    try:
        ((picture,), (image,)) = pictures.read([file.getvalue()], Path())
        inside = pictures.ids_of(image)
    except PictureError as error:
        raise InputError(str(error)) from error
    ids = np.array([*before, *inside, *after], dtype=np.int32)
    return TokenizedExample(ids, np.arange(len(ids)) > len(ids) - len(after), pictures=(picture,))


def positions_of(
    model: torch.nn.Module,
    examples: Sequence[TokenizedExample],
    positions: torch.Tensor,
    given: dict[str, Any],
    pictures: PictureTokens,
) -> torch.Tensor:
    """Return the position IDs of the tokens of a packed row, as this model expects them.

    Most models count tokens one by one. Some (Qwen-VL) give images positions by time, height and
    width. The function of the model that computes them is called here for each example separately.

    Args:
        positions: (1, T), starting at 0 in each example.
        given: the model's inputs for the images.

    Returns:
        `positions`, or (1 + axes, 1, T): `positions`, from which masks are made, and the positions
        along each axis.
    """
    place = getattr(backbone(model), "get_rope_index", None)
    if place is None:
        return positions
    rows = pad(examples, 0)
    offered = {**given, **rows, **pictures.kinds(rows["input_ids"])}
    known = inspect.signature(place).parameters
    by_axis, _ = place(**{name: value for name, value in offered.items() if name in known})
    own = by_axis[:, rows["attention_mask"].bool()]
    axes = positions.expand(len(own), -1).clone()
    axes[:, : own.shape[1]] = own
    return torch.cat([positions, axes]).unsqueeze(1)
