"""Rows with pictures are packed where the model keeps them apart, which is measured."""

import hashlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.store.examples import Picture, TokenizedExample
from infrastructure.models.model_inputs import attention_implementation, vision_tower
from infrastructure.models.packed_attention import ATTENTION_NAME
from infrastructure.training.model_adapters import MultimodalModelAdapter, multimodal_adapter
from tests.training.seeing_models import (
    QWEN_MARKS,
    idefics3_config,
    llava_config,
    qwen_vl_config,
    tiny_tokenizer,
)

FAMILIES: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "llava": (llava_config, ("<image>",), "<image>"),
    "idefics3": (idefics3_config, ("<image>",), "<image>"),
    "qwen_vl": (qwen_vl_config, QWEN_MARKS, "<|image_pad|>"),
}


class Pixels(PictureTokens):
    """Tokens and pixels of pictures without a processor, which may need packages of its own."""

    def __init__(self, family: str, mark_id: int) -> None:
        self.family, self.mark_id = family, mark_id

    def ids_of(self, image: Image.Image) -> list[int]:
        return [self.mark_id] * {"llava": 4, "idefics3": 1, "qwen_vl": self._wide(image)}[
            self.family
        ]

    def _wide(self, image: Image.Image) -> int:
        """A strip of tokens: one each for 16 pixels."""
        return image.width // 16

    def inputs(self, ids: torch.Tensor, pictures: Sequence[Picture]) -> dict[str, Any]:
        return {**(self.pixels(pictures) if pictures else {}), **self.kinds(ids)}

    def kinds(self, ids: torch.Tensor) -> dict[str, Any]:
        is_picture = (ids == self.mark_id).long()
        return {"mm_token_type_ids": is_picture} if self.family == "qwen_vl" else {}

    def pixels(self, pictures: Sequence[Picture]) -> dict[str, Any]:
        if self.family != "qwen_vl":
            shown = torch.stack([noise(picture, 3, 16, 16) for picture in pictures])
            return {"pixel_values": shown if self.family == "llava" else shown[None]}
        widths = [self._wide(Image.open(io.BytesIO(picture.content))) for picture in pictures]
        patches = [noise(p, 4 * w, 96) for p, w in zip(pictures, widths, strict=True)]
        grid = torch.tensor([[1, 2, 2 * width] for width in widths])
        return {"pixel_values": torch.cat(patches), "image_grid_thw": grid}


def noise(picture: Picture, *shape: int) -> torch.Tensor:
    """Pixels that its bytes decide."""
    generator = torch.Generator().manual_seed(int(picture.sha256[:8], 16))
    return torch.randn(shape, generator=generator)


def picture(number: int, width: int) -> Picture:
    pixels = np.random.default_rng(number).integers(0, 256, (16, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    content = file.getvalue()
    return Picture(hashlib.sha256(content).hexdigest(), len(content), content=content)


def adapter_of(family: str, **data: Any) -> MultimodalModelAdapter:
    """With a new model, before anything was measured."""
    config, marks, mark = FAMILIES[family]
    tokenizer = tiny_tokenizer(*marks)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config(tokenizer))
    settings = TrainingConfig(mixed_precision=False)
    adapter = MultimodalModelAdapter(ModelConfig(name=family), settings, torch.device("cpu"))
    adapter.data_config = DataConfig(path="rows.jsonl", max_length=256, **data)
    adapter.model, adapter.tokenizer = model, tokenizer
    adapter._pictures = Pixels(family, int(tokenizer.convert_tokens_to_ids(mark)))
    return adapter


def rows_of(adapter: MultimodalModelAdapter) -> list[TokenizedExample]:
    """Of several lengths, with one picture, none, and two."""
    draw = np.random.default_rng(5)
    rows = []
    for shown in ([(0, 48)], [], [(1, 32), (2, 64)], [(3, 16)]):
        pictures = tuple(picture(number, width) for number, width in shown)
        ids = [*draw.integers(3, 99, 4)]
        for one in pictures:
            image = Image.open(io.BytesIO(one.content))
            ids += [*adapter.pictures.ids_of(image), *draw.integers(3, 99, len(rows) + 2)]
        supervised = np.arange(len(ids)) >= len(ids) - 2
        rows.append(TokenizedExample(np.array(ids, np.int32), supervised, pictures=pictures))
    return rows


def loss_and_gradients(adapter: MultimodalModelAdapter) -> tuple[float, dict[str, torch.Tensor]]:
    assert adapter.model is not None
    adapter.model.zero_grad()
    output = adapter.compute_loss(adapter.model, adapter.prepare_batch(rows_of(adapter)))
    output.loss_sum.backward()
    parameters = adapter.model.named_parameters()
    gradients = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
    return float(output.loss_sum.detach()), gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_with_pictures_give_the_loss_and_the_gradients_of_padded_ones(
    family: str,
) -> None:
    adapter = adapter_of(family)
    assert adapter.model is not None
    tower = vision_tower(adapter.model)
    assert tower is not None
    before = attention_implementation(tower)
    adapter._probe(adapter.model)
    assert adapter.packs, adapter.notes()
    assert adapter.notes() == []
    assert attention_implementation(adapter.model) == ATTENTION_NAME
    assert attention_implementation(tower) == before == "sdpa"
    packed, gradients = loss_and_gradients(adapter)
    rows = rows_of(adapter)
    assert adapter.count_computed(rows) == adapter.size_grid.up(adapter.count_tokens(rows))
    adapter.packs = False
    padded, expected = loss_and_gradients(adapter)
    assert packed == pytest.approx(padded, rel=1e-5)
    assert gradients.keys() == expected.keys()
    assert any("projector" in name or "connector" in name or "visual" in name for name in expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-5)


def test_a_model_that_lets_rows_see_each_others_pictures_is_given_padded_ones() -> None:
    """Text alone does not show it."""
    adapter = adapter_of("llava")
    model: Any = adapter.model
    mixed = model.model.multi_modal_projector.register_forward_hook(
        lambda _module, _given, output: output + output.mean(0, keepdim=True)
    )
    adapter._probe(model)
    assert not adapter.packs
    (note,) = adapter.notes()
    assert "models.padded_not_packed" in note
    assert "models.packed_rows_not_isolated" in note
    assert attention_implementation(model) == "sdpa"
    mixed.remove()
    adapter._probe(model)
    assert adapter.packs


def test_pictures_that_are_placed_as_text_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Qwen-VL places a picture by height and width, and what follows it after those."""
    monkeypatch.setattr(multimodal_adapter, "positions_of", lambda *given: given[2])
    adapter = adapter_of("qwen_vl")
    assert adapter.model is not None
    adapter._probe(adapter.model)
    assert not adapter.packs
    assert "models.packed_rows_with_images" in " ".join(adapter.notes())


def test_without_packing_rows_are_padded() -> None:
    adapter = adapter_of("llava", packing=False)
    assert adapter.model is not None
    adapter._probe(adapter.model)
    assert not adapter.packs
    assert "cu_seq_lens" not in adapter.prepare_batch(rows_of(adapter))
