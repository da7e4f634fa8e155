"""A model whose weights stay on the disk: it takes no memory, and its rows are read one by one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.models import weights_on_disk
from infrastructure.models.model_change import ModelChange
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.saved_model import ModelSource, SourceKind
from infrastructure.models.transformers_backend import LoadOptions
from infrastructure.models.weights_on_disk import (
    few_blocks,
    lies_in,
    put_back,
    taken_out,
    weight_bytes,
    weights_in,
)


def manager_of(folder: Path, **settings: object) -> ModelManager:
    config = ModelConfig(name=str(folder), **settings)  # type: ignore[arg-type]
    return ModelManager(config, device=torch.device("cpu"), seed=0)


def on_disk(folder: Path, **settings: object) -> torch.nn.Module:
    manager = manager_of(folder, **settings)
    manager.on_disk = True
    return manager.load().model


def test_rows_are_those_of_the_file_and_the_model_takes_no_memory(saved_llama: Path) -> None:
    model, loaded = on_disk(saved_llama), manager_of(saved_llama).load().model
    whole = dict(loaded.named_parameters())
    assert {name for name, _ in model.named_parameters()} == set(whole)
    for name, parameter in model.named_parameters():
        stored = lies_in(parameter)
        assert stored is not None
        assert parameter.untyped_storage().nbytes() == 4
        assert torch.equal(stored.rows(1, 3), whole[name][1:4])
        assert stored.rows(0, 0).shape[0] == 0
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, loaded.get_buffer(name))
    logits = model(torch.tensor([[1, 2]])).logits
    assert bool(logits.isnan().all()), "nobody takes it for a model"


def test_a_lora_is_there_and_its_base_is_not(saved_llama: Path) -> None:
    model = on_disk(saved_llama, lora_config=LoraConfig(r=4))
    loaded = manager_of(saved_llama, lora_config=LoraConfig(r=4)).load().model
    for name, parameter in model.named_parameters():
        assert (lies_in(parameter) is None) == ("lora_" in name)
        if "lora_" in name:
            assert torch.equal(parameter, loaded.get_parameter(name))
    trains = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    sources = taken_out(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trains
    assert set(sources) == {name for name, _ in loaded.named_parameters()}


def test_what_was_trained_is_put_back_into_files(saved_llama: Path, tmp_path: Path) -> None:
    model = on_disk(saved_llama)
    name = next(name for name, _ in model.named_parameters())
    trained = torch.randn(model.get_parameter(name).shape)
    put_back(model, [(name, trained)], tmp_path)
    assert torch.equal(model.get_parameter(name), trained)
    written = model.get_parameter(name).untyped_storage().filename
    assert Path(str(written)).parent == tmp_path
    assert model.get_parameter(name).requires_grad
    others = [p for n, p in model.named_parameters() if n != name]
    assert all(parameter.is_meta and not parameter.requires_grad for parameter in others)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["lack", r"models\.stored_in_other_shape\(\)", "repeat"])
def test_files_of_other_weights_are_refused(saved_llama: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved_llama, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    if what == "lack":
        del weights["model.norm.weight"]
    elif what == "repeat":
        config = folder / "config.json"
        config.write_text(config.read_text().replace('embeddings": false', 'embeddings": true'))
    else:
        weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, file, {"format": "pt"})
    name = "model.embed_tokens.weight" if what == "repeat" else "model.norm.weight"
    refusal = rf"layers_not_readable_singly\(location={folder}, problem={what}, name={name}\)"
    with pytest.raises(ValueError, match=refusal):
        on_disk(folder)


def test_what_weights_are_computed_with_first_stays_in_memory(
    saved_llama: Path, tmp_path: Path
) -> None:
    assert manager_of(saved_llama).weight_bytes() == sum(
        4 * p.numel() for p in manager_of(saved_llama).load().model.parameters()
    )
    assert manager_of(saved_llama, lora_config=LoraConfig(r=4)).weight_bytes() is not None
    dora = LoraConfig(r=4, use_dora=True)
    assert manager_of(saved_llama, lora_config=dora).weight_bytes() is None
    for need, value in (("changes", [ModelChange()]), ("sees", True)):
        manager = manager_of(saved_llama)
        setattr(manager, need, value)
        assert manager.weight_bytes() is None
    extended = shutil.copytree(saved_llama, tmp_path / "extended")
    (extended / "extensions.json").write_text("{}")
    assert manager_of(extended).weight_bytes() is None
    assert ModelManager(ModelConfig(), device=torch.device("cpu"), seed=0).weight_bytes() is None


def test_a_small_model_of_the_same_kind_has_one_block_of_each_kind(saved_llama: Path) -> None:
    few = manager_of(saved_llama).load_few_blocks()
    assert few.config.num_hidden_layers == 1  # type: ignore[union-attr]
    assert not any(bool(p.isnan().any()) for p in few.parameters())
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "full_attention"]
    config = Gemma2Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        head_dim=8,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=kinds,
    )
    small: Any = few_blocks(config, LoadOptions(torch.device("cpu"), torch.float32))
    assert small.config.layer_types == kinds[:3]
    assert len(small.model.layers) == 3
    assert config.num_hidden_layers == 4


def test_large_blocks_go_back_at_once_before_the_first_weight_is_made(
    monkeypatch: pytest.MonkeyPatch, saved_llama: Path
) -> None:
    events: list[str] = []
    layers = weights_on_disk._layers

    def noted(*arguments: Any) -> torch.nn.Module:
        events.append("layers")
        return layers(*arguments)

    monkeypatch.setattr(weights_on_disk, "give_back_large_blocks", lambda: events.append("set"))
    monkeypatch.setattr(weights_on_disk, "_layers", noted)
    on_disk(saved_llama)
    assert events == ["set", "layers"]


def test_a_file_that_was_cut_after_it_was_looked_at_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.arange(6.0).reshape(3, 2)}, tmp_path / "w.safetensors")
    [(name, weight)] = weights_in(tmp_path / "w.safetensors")
    assert (name, weight.shape, weight.dtype) == ("a", (3, 2), torch.float32)
    assert weight.rows(1, 2).tolist() == [[2, 3], [4, 5]]
    assert weight.rows(3, 0).shape == (0, 2)
    content = weight.file.read_bytes()
    weight.file.write_bytes(content[:-1])
    assert weight.rows(0, 2).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match=r"models\.weight_file_truncated\(file=.*w\.safetensors\)"):
        weight.rows(2, 1)


def test_a_model_of_the_hub_is_fetched_in_the_version_that_is_loaded(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Any] = []

    def fetch(name: str, **named: Any) -> str:
        fetched.append((name, named["revision"]))
        assert named["allow_patterns"] == ["*.safetensors", "*.json"]
        return str(saved_llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    source = ModelSource(SourceKind.HUB, "owner/name")
    options = LoadOptions(torch.device("cpu"), torch.bfloat16, revision="v2")
    in_folder = ModelSource(SourceKind.FOLDER, str(saved_llama))
    expected = weight_bytes(in_folder, options)
    assert weight_bytes(source, options) == weight_bytes(replace(source, revision="v1"), options)
    assert weight_bytes(in_folder, replace(options, dtype=torch.float32)) == 2 * expected
    assert fetched == [("owner/name", "v2"), ("owner/name", "v1")]


def test_what_is_put_back_goes_where_it_is_used(saved_llama: Path, tmp_path: Path) -> None:
    """LoRA matrices are in memory, a base is not; a buffer keeps its place."""
    model = on_disk(saved_llama, lora_config=LoraConfig(r=4))
    name, matrix = next((n, p) for n, p in model.named_parameters() if "lora_" in n)
    buffer_name, buffer = next(iter(model.named_buffers()))
    new = {name: torch.ones(matrix.shape), buffer_name: torch.full(buffer.shape, 5.0)}
    put_back(model, new.items(), tmp_path)
    assert model.get_parameter(name) is matrix
    assert model.get_buffer(buffer_name) is buffer
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert key not in new or torch.equal(tensor, new[key])
        assert tensor.is_meta is ("lora_" not in key and "inv_freq" not in key)
        assert not tensor.is_meta or not tensor.requires_grad
    assert taken_out(torch.nn.Linear(1, 1)) == {}


def test_layers_are_made_as_they_are_loaded(saved_llama: Path) -> None:
    manager = manager_of(saved_llama, attention="eager", dtype="bf16", lora_config=LoraConfig(r=4))
    manager.on_disk = True
    model: Any = manager.load().model
    assert model.config._attn_implementation == "eager"
    frozen = [p for n, p in model.named_parameters() if "lora_" not in n]
    assert {(p.dtype, p.requires_grad) for p in frozen} == {(torch.bfloat16, False)}
    stored = [one for one in map(lies_in, frozen) if one is not None]
    assert {one.dtype for one in stored} == {torch.float32}, "as they are in the file"
    few = manager.load_few_blocks()
    assert few.config._attn_implementation == "eager"  # type: ignore[union-attr]


def test_a_tied_head_is_the_embedding_on_disk_too(saved_llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved_llama, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = folder / "config.json"
    config.write_text(config.read_text().replace('embeddings": false', 'embeddings": true'))
    model: Any = on_disk(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert lies_in(model.lm_head.weight) is not None
