"""Notes on stored weights that are not loaded, and on a head that is not tied."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from infrastructure.models.loading_notes import _module, _untie_config
from infrastructure.models.saving import save_model
from tests.models.test_model_manager import edit_json, load

DRAFT = "mtp.layers.0.mlp.up_proj.weight"  # as Qwen3.5 and others store it
OTHER_LAYER = "model.layers.7.mlp.up_proj.weight"
PIXELS = "model.visual.blocks.0.weight"


def copied(folder: Path, to: Path, **more: torch.Tensor) -> Path:
    """A copy of a model's folder with these weights, too."""
    shutil.copytree(folder, to)
    weights = load_file(folder / "model.safetensors") | more
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.mark.parametrize(
    ("names", "ignored", "unused"),
    [
        ((), (), []),
        ((DRAFT,), (), [DRAFT]),
        ((DRAFT,), ("^mtp.*",), [DRAFT]),
        ((OTHER_LAYER, DRAFT), ("^mtp.*", r"layers\.7\."), [DRAFT, OTHER_LAYER]),
        ((PIXELS,), ("^model.visual.*",), [PIXELS]),
        # a buffer of a layer that the model has is none of its weights
        (("model.layers.1.self_attn.rotary_emb.inv_freq",), (), []),
        (("layers.1.attn.bias",), ("attn.bias",), []),
    ],
)
def test_weights_that_are_not_loaded_are_named(
    llama_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    ignored: tuple[str, ...],
    unused: list[str],
) -> None:
    folder = copied(llama_folder, tmp_path / "base", **{name: torch.ones(4, 4) for name in names})
    monkeypatch.setattr(LlamaForCausalLM, "_keys_to_ignore_on_load_unexpected", list(ignored))
    given = f"name={folder}, count={len(unused)}, first={min(unused, default='')}"
    assert load(folder).notes == ((f"models.weights_not_used({given})",) if unused else ())


def test_layers_beyond_those_of_the_configuration_are_named(
    llama_folder: Path, tmp_path: Path
) -> None:
    """The trained model would have fewer layers than its base."""
    folder = copied(llama_folder, tmp_path / "base")
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    edit_json(folder / "config.json", num_hidden_layers=layers - 1)
    (note,) = load(folder).notes
    assert f"count=9, first=model.layers.{layers - 1}.input_layernorm.weight" in note


@pytest.mark.parametrize("is_own", [False, True])
def test_the_saved_configuration_ties_no_separate_head(
    llama_folder: Path, tmp_path: Path, input_ids: torch.Tensor, is_own: bool
) -> None:
    """transformers keeps such a head; a program that ties it, as config.json says, would not."""
    head = load_file(llama_folder / "model.safetensors")["model.embed_tokens.weight"]
    other = {"lm_head.weight": head.flip(0).contiguous() if is_own else head.clone()}
    folder = copied(llama_folder, tmp_path / "base", **other)
    edit_json(folder / "config.json", tie_word_embeddings=True)
    loaded = load(folder)
    noted = (f"models.head_not_tied(name={folder}, setting=tie_word_embeddings)",)
    assert loaded.notes == (noted if is_own else ())
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    is_tied = json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"]
    assert is_tied is not is_own
    assert ("lm_head.weight" in load_file(tmp_path / "saved" / "model.safetensors")) is is_own
    with torch.no_grad():
        logits = loaded.model.eval()(input_ids).logits
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()(input_ids).logits
    assert torch.equal(logits, again)


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_the_part_of_a_configuration_that_is_about_text_ties_no_separate_head_either(
    outer: bool, inner: bool
) -> None:
    text = LlamaConfig(tie_word_embeddings=inner)
    config = SimpleNamespace(tie_word_embeddings=outer, get_text_config=lambda: text)
    embeddings, head = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3)
    seeing: Any = SimpleNamespace(
        config=config,
        get_output_embeddings=lambda: head,
        get_input_embeddings=lambda: embeddings,
    )
    assert _untie_config(seeing) is (outer or inner)
    assert not config.tie_word_embeddings
    assert not text.tie_word_embeddings
    config.tie_word_embeddings = text.tie_word_embeddings = True
    head.weight = embeddings.weight
    assert not _untie_config(seeing)
    assert config.tie_word_embeddings
    assert text.tie_word_embeddings


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("model.layers.10.mlp.weight", "model.layers.10"),
        ("mtp.fc.weight", "mtp.fc"),
        ("score", "score"),
    ],
)
def test_the_module_of_a_weight(name: str, module: str) -> None:
    assert _module(name) == module
