"""A model of image and text is trained on what only the pictures say; resumed, saved."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from infrastructure.backup.format.retention import Retention
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import DataError
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.store.examples import Picture, TokenizedExample
from infrastructure.models.model_inputs import attention_implementation, call_model, vision_tower
from infrastructure.models.packed_attention import ATTENTION_NAME, model_arguments
from infrastructure.models.registry import MODELS, ModelEntry
from infrastructure.testing.subject import shortened
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters import (
    MultimodalModelAdapter,
    StandardModelAdapter,
    adapter_name,
    get_model_adapter,
    multimodal_adapter,
)
from tests.training.seeing_models import (
    COLOURS,
    QWEN_MARKS,
    idefics3_config,
    llava_config,
    picture,
    qwen_vl_config,
    save_idefics3,
    save_llava,
    save_qwen_vl,
    tiny_tokenizer,
    write_colours,
)
from tests.training.usable_torchvision import has_torchvision

LEARNT = 0.2  # of a token; who guesses the colour has more than log(2) for each three tokens


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("models") / "llava")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("rows"))


def trainer_of(model: Path, data: Path, folder: Path, **settings: Any) -> EnhancedTrainer:
    values = {
        "batch_size": 6,
        "num_epochs": 3,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "mixed_precision": False,
        "checkpoint_frequency": 2,
        "keep_checkpoints": 9,
        "early_stopping_patience": None,
    }
    of_model = {
        key: settings.pop(key) for key in ("lora_config", "train_vision") if key in settings
    }
    return EnhancedTrainer(
        ModelConfig(name=str(model), **of_model),
        TrainingConfig(**{**values, **settings}),
        DataConfig(path=str(data), max_length=256, validation_split=0.25, num_workers=0),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        checkpoint_directory=folder / "checkpoints",
    )


def weights_of(trainer: EnhancedTrainer) -> dict[str, torch.Tensor]:
    model = trainer.initialize_model()
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def held_out_of(trainer: EnhancedTrainer) -> list[TokenizedExample]:
    data = trainer.initialize_data()
    return [example for batch in data.evaluation_batches(9) for example in batch]  # type: ignore


def loss_of(trainer: EnhancedTrainer, examples: list[TokenizedExample]) -> float:
    model = trainer.initialize_model().eval()
    with torch.no_grad():
        output = trainer.adapter.compute_loss(model, trainer.adapter.prepare_batch(examples))
    return float(output.loss_sum) / output.num_items


def exchanged(examples: list[TokenizedExample]) -> list[TokenizedExample]:
    """Each with the picture of the next one, which is often of another colour."""
    shown = [example.pictures for example in examples]
    pairs = zip(examples, [*shown[1:], *shown[:1]], strict=True)
    return [replace(example, pictures=other) for example, other in pairs]


def same_answers_in_transformers(trainer: EnhancedTrainer, folder: Path) -> None:
    """What is saved gives the same logits by the processor's own way from text to tensors."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    trainer.adapter.save(folder)
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    (example,) = held_out_of(trainer)[:1]
    batch = trainer.adapter.prepare_batch([example])
    ours_model = trainer.initialize_model().eval()
    with torch.no_grad():
        ours = call_model(ours_model, model_arguments(ours_model, batch)).logits
    assert ATTENTION_NAME not in (folder / "config.json").read_text()
    messages = [
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "Which colour is it?"}],
        }
    ]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    image = picture(*_colour_of(trainer, example))
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    with torch.no_grad():
        theirs = model(**inputs).logits
    length = inputs["input_ids"].shape[1]
    assert inputs["input_ids"][0].tolist() == batch["input_ids"][0, :length].tolist()
    torch.testing.assert_close(theirs[0], ours[0, :length], rtol=1e-4, atol=1e-4)


def _colour_of(trainer: EnhancedTrainer, example: TokenizedExample) -> tuple[str, int]:
    number = int(Path(example.pictures[0].path).stem)
    return [*COLOURS][number % 3], number


def test_what_the_picture_alone_shows_is_learned_and_resumed(
    llava: Path, data: Path, tmp_path: Path
) -> None:
    whole = trainer_of(llava, data, tmp_path / "whole", num_epochs=20)
    assert isinstance(whole.adapter, MultimodalModelAdapter)
    before = weights_of(whole)
    whole.train()
    examples = held_out_of(whole)
    assert loss_of(whole, examples) < LEARNT < loss_of(whole, exchanged(examples))
    after = weights_of(whole)
    moved = {n.split(".")[1] for n in after if not torch.equal(before[n], after[n])}
    assert moved == {"language_model", "multi_modal_projector"} or moved >= {
        "multi_modal_projector"
    }
    assert not any("vision_tower" in n for n in after if not torch.equal(before[n], after[n]))

    again = trainer_of(llava, data, tmp_path / "again", num_epochs=20)
    saved = CheckpointManager(tmp_path / "whole" / "checkpoints", Retention(9))
    again.restore(saved.checkpoints()[-4])
    assert again.state.step < whole.state.step - 4
    again.train()
    resumed = weights_of(again)
    assert all(torch.equal(resumed[name], after[name]) for name in after)
    same_answers_in_transformers(whole, tmp_path / "final")


def test_a_lora_is_beside_the_language_part_alone_unless_vision_is_chosen(
    llava: Path, data: Path, tmp_path: Path
) -> None:
    lora = {"lora_config": LoraConfig(r=2, alpha=4), "max_steps": 2}
    trainer = trainer_of(llava, data, tmp_path, **lora)
    trainer.train()
    trained = [n for n, p in trainer.initialize_model().named_parameters() if p.requires_grad]
    assert trained
    assert all("language_model" in name and "lora_" in name for name in trained)
    seeing = trainer_of(llava, data, tmp_path / "seeing", train_vision=True, **lora)
    names = [n for n, p in seeing.initialize_model().named_parameters() if p.requires_grad]
    assert any("vision_tower" in name for name in names)
    assert (trainer.adapter.lora_within, seeing.adapter.lora_within) == (
        "model.language_model",
        None,
    )

    trainer.adapter.save(tmp_path / "final")
    more = trainer_of(tmp_path / "final", data, tmp_path / "more", **lora)
    assert isinstance(more.adapter, MultimodalModelAdapter)
    loaded = {n: p for n, p in more.initialize_model().named_parameters() if "lora_" in n}
    mine = dict(trainer.initialize_model().named_parameters())
    assert loaded
    assert all(torch.equal(p, mine[name]) for name, p in loaded.items())
    assert "AutoModelForImageTextToText" in (tmp_path / "final" / "README.md").read_text()


def test_tokens_of_pictures_are_those_of_the_processor_and_never_learnt(
    llava: Path, data: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(llava, data, tmp_path)
    trainer.initialize_model()
    assert trainer.adapter.describe()["packing"]
    assert trainer.adapter.describe()["sees"] is True
    assert trainer.adapter.notes() == []
    source = trainer.initialize_data()
    assert isinstance(source, DataPipeline)
    (batch,) = list(source.train_batches(0, 0, 99))
    adapter = trainer.adapter
    assert isinstance(adapter, MultimodalModelAdapter)
    adapter.data_config = adapter.data_config.copy_with(image_background="#8090ff")
    adapter._take(adapter.processor)
    assert adapter.pictures.background == "#8090ff"
    mark = adapter.pictures.mark_id
    for example in batch:
        assert (example.input_ids == mark).sum() == 4
        assert not example.supervised[example.input_ids == mark].any()
        learnt = adapter.tokenizer.decode(example.input_ids[example.supervised])
        assert learnt == f"{_colour_of(trainer, example)[0]}<|end|>"
    assert shortened(batch[0], 5) is batch[0]  # of its picture no token may be missing
    whole = adapter.compute_loss(trainer.initialize_model().eval(), adapter.prepare_batch(batch))
    halves = [
        adapter.compute_loss(trainer.initialize_model(), adapter.prepare_batch(part))
        for part in (batch[:5], batch[5:])
    ]
    together = sum(half.loss_sum.item() for half in halves)
    assert whole.loss_sum.item() == pytest.approx(together, rel=1e-5)
    assert whole.num_items == sum(half.num_items for half in halves)


def test_a_picture_that_was_changed_after_the_preparation_is_noticed(
    llava: Path, tmp_path: Path
) -> None:
    data = write_colours(tmp_path / "rows", 8)
    trainer = trainer_of(llava, data, tmp_path)
    examples = held_out_of(trainer)
    Path(examples[0].pictures[0].path).write_bytes(b"another")
    with pytest.raises(DataError, match=r"data\.image_changed"):
        trainer.adapter.prepare_batch(examples)


def test_the_rows_choose_the_adapter(
    llava: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(name=str(llava))
    assert adapter_name(model, DataConfig(path=str(data))) == "multimodal"
    text = tmp_path / "text.jsonl"
    text.write_text('{"prompt": "a", "completion": "b"}\n')
    assert adapter_name(model, DataConfig(path=str(text))) == "standard"
    assert adapter_name(model, DataConfig(path=str(data), image_column="none")) == "standard"
    made = get_model_adapter("multimodal", model, TrainingConfig())
    assert isinstance(made, MultimodalModelAdapter)
    for name in ("standard", "dialogue"):
        with pytest.raises(
            ValueError,
            match=rf"models\.text_adapter_for_images\(name={name}, .*\(column=image\)\)",
        ):
            adapter_name(model.copy_with(adapter=name), DataConfig(path=str(data)))
    assert isinstance(get_model_adapter("auto", model, TrainingConfig()), StandardModelAdapter)
    monkeypatch.setitem(MODELS, "own", ModelEntry(lambda: torch.nn.Linear(1, 1), "standard"))
    assert adapter_name(ModelConfig(name="own"), DataConfig(path=str(data))) == "standard"


@pytest.mark.parametrize("save", [save_qwen_vl, save_idefics3])
def test_other_families_train_and_are_the_same_in_transformers(
    save: Callable[[Path], Path], data: Path, tmp_path: Path
) -> None:
    """Their processors need torchvision, of the build of torch that is there."""
    if not has_torchvision():
        pytest.skip("torchvision is not installed")
    trainer = trainer_of(save(tmp_path / "model"), data, tmp_path, max_steps=2)
    before = weights_of(trainer)
    trainer.train()
    after = weights_of(trainer)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved
    assert not any("visual.blocks" in name or "vision_model" in name for name in moved)
    examples = held_out_of(trainer)
    parts = [loss_of(trainer, examples[:3]), loss_of(trainer, examples[3:6])]
    assert loss_of(trainer, examples[:6]) == pytest.approx(sum(parts) / 2, rel=0.2)
    same_answers_in_transformers(trainer, tmp_path / "final")


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


def noise_picture(number: int, width: int) -> Picture:
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
        pictures = tuple(noise_picture(number, width) for number, width in shown)
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


def test_rows_that_are_probed_differ_in_their_pictures_alone() -> None:
    adapter = adapter_of("qwen_vl")
    rows = multimodal_adapter.probe_examples(adapter.tokenizer, adapter.pictures)
    question, answer = (
        adapter.tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (multimodal_adapter.QUESTION, multimodal_adapter.ANSWER)
    )
    marks = [[adapter.pictures.mark_id] * width for width in (4, 3, 4)]
    assert [row.input_ids.tolist() for row in rows] == [[*question, *m, *answer] for m in marks]
    assert len({row.pictures[0].sha256 for row in rows}) == 3


@pytest.mark.parametrize("changed", [0, -1])
def test_the_row_that_packing_changes_most_is_measured(changed: int) -> None:
    adapter = adapter_of("llava")
    assert adapter.model is not None

    def batch_of(examples: Any, packs: bool) -> Any:
        batch = adapter._batch_of(examples, packs)
        if packs:  # one token of the first row, or of the second one
            batch["input_ids"][0, changed] += 1
        return batch

    rows = multimodal_adapter.probe_examples(adapter.tokenizer, adapter.pictures)
    mark = adapter.pictures.mark_id
    given = adapter.model, rows
    intact = multimodal_adapter.picture_differences(*given, adapter._batch_of, mark)
    difference, leak = multimodal_adapter.picture_differences(*given, batch_of, mark)
    assert max(*intact, leak) < 1e-4 < 1e-2 < difference


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
