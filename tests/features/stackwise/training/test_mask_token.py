"""A mask token is the tokenizer's own, or one more, and the model has a row for it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.features.stackwise.training.mask_token import MASK_TOKEN, AddedMaskToken
from infrastructure.models.model_manager import LoadedModel, ModelManager, load_saved
from infrastructure.models.saving import save_model


@pytest.fixture
def llama_folder(saved_llama: Path, tmp_path: Path) -> Path:
    """This test's own copy of the saved Llama."""
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


def load(name: object, needs_mask_token: bool = True, **settings: Any) -> LoadedModel:
    manager = ModelManager(
        ModelConfig(name=str(name), **settings),
        device=torch.device("cpu"),
        seed=0,
        tokenizer_texts=lambda: ["What is 12 + 5? 17"],
    )
    manager.changes = [AddedMaskToken()] if needs_mask_token else []
    return manager.load()


def with_rows(folder: Path, num_rows: int) -> Path:
    """The model with more rows of its embedding than its tokenizer has tokens."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(num_rows, mean_resizing=False)
    model.save_pretrained(folder)
    return folder


def test_the_tokenizers_own_mask_token_is_kept(llama_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(llama_folder)
    tokenizer.mask_token = "Q"
    tokenizer.save_pretrained(llama_folder)
    loaded = load(llama_folder)
    assert loaded.tokenizer.mask_token == "Q"
    assert loaded.model.get_input_embeddings().num_embeddings == 300  # type: ignore[operator]
    assert loaded.notes == ()


def test_a_spare_row_is_taken(llama_folder: Path) -> None:
    loaded = load(with_rows(llama_folder, 304))
    assert loaded.model.get_input_embeddings().num_embeddings == 304  # type: ignore[operator]
    assert loaded.tokenizer.mask_token_id == 300
    assert loaded.notes == (
        "stackwise.mask_token_added(mask_token=<|mask|>, token_id=300,"
        " where=stackwise.spare_embedding_row())",
    )


def test_else_the_vocabulary_grows_by_one(llama_folder: Path, tmp_path: Path) -> None:
    plain, loaded = load(llama_folder, needs_mask_token=False), load(llama_folder)
    model: Any = loaded.model
    assert plain.tokenizer.mask_token is None
    assert plain.notes == ()
    assert loaded.tokenizer.mask_token == MASK_TOKEN
    assert "stackwise.vocabulary_extended" in loaded.notes[0]
    for grown, old in zip(
        (model.get_input_embeddings(), model.get_output_embeddings()),
        (plain.model.get_input_embeddings(), plain.model.get_output_embeddings()),  # type: ignore[operator]
        strict=True,
    ):
        assert torch.equal(grown.weight[:300], old.weight)
        torch.testing.assert_close(grown.weight[300], old.weight.mean(dim=0))
    assert model.config.vocab_size == 301
    save_model(model, loaded.tokenizer, tmp_path / "final")
    again = load_saved(tmp_path / "final", device=torch.device("cpu"))
    ids = torch.tensor([[5, 300, 7]])
    assert again.tokenizer.mask_token_id == 300
    assert torch.equal(again.model(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_the_embedded_model_is_made_for_it() -> None:
    loaded = load("embedded")
    rows = loaded.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    assert loaded.tokenizer.mask_token_id == rows - 1


def test_lora_may_use_a_spare_row_and_not_add_one(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"stackwise\.mask_token_with_lora"):
        load(llama_folder, lora_config=LoraConfig())
    plain = load(llama_folder, needs_mask_token=False, lora_config=LoraConfig())
    save_model(plain.model, plain.tokenizer, llama_folder.parent / "lora")
    with pytest.raises(ValueError, match=r"stackwise\.mask_token_with_lora"):
        load(llama_folder.parent / "lora")
    loaded = load(with_rows(llama_folder, 301), lora_config=LoraConfig())
    assert loaded.tokenizer.mask_token_id == 300


def test_a_model_without_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stackwise\.masking_needs_text.*name=tactical_mappo"):
        load("tactical_mappo")
