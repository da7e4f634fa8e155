"""A Llava is put together of a model of text and a vision tower, or refused by name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GPT2Config,
    LlavaForConditionalGeneration,
    PhiConfig,
)

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.core.checksums import text_hash
from infrastructure.features.vision_tower import tower as tower_module
from infrastructure.features.vision_tower.tower import (
    AddedTower,
    find_tower,
    template_for_parts,
    tower_facts,
)
from infrastructure.models.model_inputs import vision_tower
from infrastructure.models.model_manager import LoadedModel, ModelManager
from infrastructure.models.saved_model import SourceKind
from infrastructure.models.saving import save_model
from infrastructure.models.transformers_backend import LoadOptions
from tests.slow import slow_but
from tests.training.seeing_models import (
    TEXT,
    picture,
    save_llava,
    save_text_model,
    save_tower,
    tiny_tokenizer,
)

CPU = torch.device("cpu")
OPTIONS = LoadOptions(CPU, torch.float32)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("models") / "text")


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tower(tmp_path_factory.mktemp("models") / "tower")


def manager_of(text: Path, tower: Path, **settings: Any) -> ModelManager:
    manager = ModelManager(ModelConfig(name=str(text), **settings), device=CPU, seed=0)
    manager.sees = True
    manager.changes = [AddedTower(str(tower))]
    return manager


def saved_and_loaded(manager: ModelManager, made: LoadedModel, folder: Path) -> None:
    """What transformers loads gives the logits of the model in memory."""
    processor = manager.processor
    mark = processor.image_token
    given = processor(text=[f"user: {mark}red"], images=[picture("red")], return_tensors="pt")
    save_model(made.model, made.tokenizer, folder, processor=processor)
    again = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(made.model.eval()(**given).logits, again(**given).logits)


KINDS = [("clip", 1), ("clip of both", 1), ("siglip", 0), ("vit", 1), ("dinov2", 5)]


@pytest.mark.parametrize(
    ("kind", "extra"), slow_but([("clip of both", 1), ("siglip", 0), ("dinov2", 5)], KINDS)
)
def test_what_towers_give_for_a_picture(kind: str, extra: int, text: Path, tmp_path: Path) -> None:
    folder = save_tower(tmp_path / "tower", kind)
    tower = find_tower(str(folder), OPTIONS)
    assert (tower.num_patches, tower.num_features) == (4, 4 + extra)
    assert tower.strategy == ("default" if extra else "full")
    assert type(tower.image_processor).__name__.endswith("Pil")
    manager = manager_of(text, folder)
    made = manager.load()
    saved_and_loaded(manager, made, tmp_path / "final")
    assert {p.requires_grad for p in vision_tower(made.model).parameters()} == {False}  # type: ignore[union-attr]
    assert made.model.config.vision_feature_layer == tower.layer == -2  # type: ignore[union-attr]
    facts = tower_facts(tower)
    folder.joinpath("preprocessor_config.json").write_text(
        folder.joinpath("preprocessor_config.json").read_text().replace("0.", "0.9", 1)
    )
    other = tower_facts(find_tower(str(folder), OPTIONS))
    assert facts.keys() == other.keys() == {"processor", "sha256"}
    assert facts["sha256"] == other["sha256"]
    assert facts["processor"] != other["processor"]


def test_the_text_model_stays_what_it_was_and_its_vocabulary_grows_by_the_mark(
    text: Path, tower: Path
) -> None:
    manager = manager_of(text, tower)
    before = AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32)
    made = manager.load()
    assert isinstance(made.model, LlavaForConditionalGeneration)
    assert made.model.generation_config.to_dict() == before.generation_config.to_dict()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(made.model.eval()(ids).logits, before.eval()(ids).logits)
    assert made.description["second_base"]["sha256"]  # type: ignore[index,call-overload]
    again = manager_of(text, tower).load().model
    same = zip(made.model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)

    full = manager_of(save_text_model(text.parent / "full", vocab_size=294), tower)
    grown = full.load()
    mark = full.processor.image_token_id
    assert grown.model.get_input_embeddings().weight.shape[0] == mark + 1 == 295  # type: ignore[operator]


def test_a_lora_is_beside_the_text_model_and_the_projector_trains_in_full(
    text: Path, tower: Path, tmp_path: Path
) -> None:
    for train_vision in (False, True):
        manager = manager_of(text, tower, lora_config=LoraConfig(r=2), train_vision=train_vision)
        made = manager.load()
        trained = [n for n, p in made.model.named_parameters() if p.requires_grad]
        projector = [n for n in trained if "multi_modal_projector" in n]
        assert len(projector) == 4
        assert not any("lora_" in name for name in projector)
        assert any("vision_tower" in name for name in trained) == train_vision
    save_model(made.model, made.tokenizer, tmp_path / "final", processor=manager.processor)
    loaded = ModelManager(ModelConfig(name=str(tmp_path / "final")), device=CPU, seed=1)
    loaded.sees = True
    again = dict(loaded.load().model.named_parameters())
    mine = dict(made.model.named_parameters())
    assert set(again) == set(mine)
    assert all(torch.equal(again[name], mine[name]) for name in trained)


def saved_as(folder: Path, config: Any) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_gpt2_gets_an_output_layer_of_its_own(tower: Path, tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 400, "n_positions": 128}
    folder = saved_as(tmp_path / "gpt2", GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    manager = manager_of(folder, tower)
    saved_and_loaded(manager, manager.load(), tmp_path / "final")


def test_what_cannot_be_put_together_is_refused_by_name(
    text: Path, tower: Path, tmp_path: Path
) -> None:
    sizes = {**TEXT, "pad_token_id": 0}
    phi = saved_as(tmp_path / "phi", PhiConfig(**sizes))
    llava = save_llava(tmp_path / "llava")
    torn = save_tower(tmp_path / "torn")
    (torn / "preprocessor_config.json").unlink()
    free = save_tower(tmp_path / "free")
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    CLIPImageProcessorPil(size={"shortest_edge": 16}, do_center_crop=False).save_pretrained(free)
    large = save_tower(tmp_path / "large")
    CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(large)
    as_tower = save_text_model(tmp_path / "as_tower")
    CLIPImageProcessorPil().save_pretrained(as_tower)
    for model, seeing, sentence in (
        (text, tmp_path / "nowhere", "vision_tower.unusable"),
        (text, as_tower, "vision_tower.without_patches"),
        (text, torn, "vision_tower.image_processor_missing"),
        (text, free, "vision_tower.image_size_varies"),
        (text, large, "vision_tower.probe_failed"),
        (phi, tower, "vision_tower.text_model_not_llava_like"),
        (llava, tower, "vision_tower.model_reads_images"),
        (Path("embedded"), tower, "vision_tower.needs_text_model"),
    ):
        with pytest.raises(ValueError, match=sentence):
            manager_of(model, seeing).load()


@pytest.mark.parametrize(
    ("patch_size", "num_features", "num_states", "layer", "strategy"),
    [
        (16, 6, 3, -2, "full"),
        ([16, 8], 7, 3, -2, "default"),
        (16, 6, 2, -1, "full"),
        (16, 5, 3, -2, None),
        (64, 6, 3, -2, None),
    ],
)
def test_a_tower_has_as_many_patches_as_its_pixels(
    patch_size: Any,
    num_features: int,
    num_states: int,
    layer: int,
    strategy: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, options = SimpleNamespace(location="here"), SimpleNamespace()
    config = SimpleNamespace(patch_size=patch_size, image_size=32)
    shape = (1, num_features, 8)
    states = [torch.zeros(1, 1)] * num_states
    states[layer] = torch.zeros(shape)
    monkeypatch.setattr(tower_module, "tower_source", lambda name: source)
    monkeypatch.setattr(
        tower_module, "load_any_config", lambda *_: SimpleNamespace(vision_config=config)
    )
    monkeypatch.setattr(tower_module, "load_image_processor", lambda *_: "processor")
    monkeypatch.setattr(tower_module, "_pixels", lambda *_: torch.zeros(1, 3, 32, 48))
    monkeypatch.setattr(tower_module, "_hidden_states", lambda *_: tuple(states))
    if strategy is None:
        num_patches = 0 if patch_size == 64 else 6
        shapes = rf"shape_of_features\(location=here, shape=\[1, {num_features}, 8\], "
        with pytest.raises(ValueError, match=rf"{shapes}num_patches={num_patches}, remedy="):
            find_tower("it", options)  # type: ignore[arg-type]
        return
    found = find_tower("it", options)  # type: ignore[arg-type]
    assert (found.source, found.config, found.image_processor) == (source, config, "processor")
    assert (found.num_features, found.num_patches, found.patch_size, found.layer) == (
        *(num_features, 6, 16, layer),
    )
    assert found.strategy == strategy


def test_a_mark_that_is_split_and_other_logits_are_refused(text: Path, tower: Path) -> None:
    class Splits:
        chat_template = None

        def get_vocab(self) -> list[str]:
            return ["<image>"]

        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            assert (text, add_special_tokens) == ("a<image>b", False)
            return {"input_ids": [1, 2, 3]}

        def convert_tokens_to_ids(self, mark: str) -> int:
            return 9

    splits: Any = Splits()
    with pytest.raises(ValueError, match=r"image_token_is_split\(token=<image>\)"):
        tower_module.make_processor(splits, find_tower(str(tower), OPTIONS))
    model, other = (AutoModelForCausalLM.from_pretrained(text) for _ in range(2))
    tower_module._check_same_text(model, other, "mine")
    with torch.no_grad():
        other.get_output_embeddings().weight.mul_(1.5)
    differ = r"text_logits_differ\(name=mine, difference=0\.[3-6]\d*, model_class=Llama"
    with pytest.raises(ValueError, match=differ):
        tower_module._check_same_text(model, other, "mine")


def test_a_lora_is_merged_before_a_tower_is_added() -> None:
    for kind, reason in (
        (SourceKind.LORA_FOLDER, r"vision_tower\.is_unmerged_lora\(\)"),
        (SourceKind.REGISTERED, "is not one"),
    ):
        source: Any = SimpleNamespace(kind=kind)
        with pytest.raises(ValueError, match=rf"needs_text_model\(name=mine, reason={reason}\)"):
            AddedTower("tower").check_source(source, "mine")
    source.kind = SourceKind.HUB
    AddedTower("tower").check_source(source, "mine")
    training = SimpleNamespace(enables=lambda name: name == "multimodal")
    training.multimodal = SimpleNamespace(vision_tower="~/tower")
    made = tower_module.change(SimpleNamespace(training=training))
    assert made is not None
    assert made.name == "~/tower"
    training.multimodal.vision_tower = None
    with pytest.raises(ValueError, match=r"vision_tower\.not_set"):
        tower_module.change(SimpleNamespace(training=training))
    training.enables = lambda name: False
    assert tower_module.change(SimpleNamespace(training=training)) is None


def test_a_tower_of_the_hub_is_known_by_its_revision() -> None:
    tower: Any = SimpleNamespace(
        image_processor=SimpleNamespace(to_dict=lambda: {"size": 32}),
        source=SimpleNamespace(kind=SourceKind.HUB),
        config=SimpleNamespace(_commit_hash="abc"),
    )
    assert tower_facts(tower) == {"processor": text_hash({"size": 32}), "revision": "abc"}


def test_a_template_of_texts_takes_parts(text: Path) -> None:
    tokenizer = tiny_tokenizer("<image>")
    own = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}|{% endfor %}"
    template = template_for_parts(own, "<image>")
    assert template_for_parts(template, "<image>") == template
    assert template_for_parts(None, "<image>") is None
    parts = [{"type": "image"}, {"type": "text", "text": "what?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "red"}]
    written = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert written == "user: <image>what?|assistant: red|"
