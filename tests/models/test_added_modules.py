"""Modules of extensions: on any decoder, saved beside the model's own files, never among them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.features.key_value_memory.memory import KeyValueMemory
from infrastructure.models import added_modules
from infrastructure.models.added_modules import (
    ADDED_WEIGHTS,
    attach,
    attach_described,
    detach,
    is_added,
    load_added,
    register_added_module,
)
from infrastructure.models.added_modules import (
    added_modules as added_to,
)
from infrastructure.models.model_manager import LoadedModel, ModelManager, load_saved
from infrastructure.models.saved_model import EXTENSIONS_MANIFEST
from infrastructure.models.saving import save_model
from infrastructure.models.trainable_state import (
    load_trainable_state,
    trainable_state,
)
from tests.models.architectures import tiny_model as make
from tests.training.seeing_models import llava_processor, save_llava

FACTS: dict[str, Any] = {"layer": 0, "slots": 3, "heads": 2, "width": 16, "store": 5}
CPU = torch.device("cpu")
IDS = torch.tensor([[5, 9, 3, 7, 4, 8]])


def with_memory(model: torch.nn.Module, *, is_open: bool = True) -> KeyValueMemory:
    """Attach one that has stored two tokens."""
    torch.manual_seed(1)
    memory = KeyValueMemory.build(model, FACTS)
    attach(model, memory)
    hidden = memory.norm.weight.shape[0]
    memory.store(torch.randn(2, hidden), torch.tensor([3, 4]), torch.tensor([7, 8]))
    if is_open:
        torch.nn.init.ones_(memory.gate)
    return memory


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "phi", "gpt2", "bloom"])
def test_a_closed_gate_changes_no_bit_and_an_open_one_every_token(name: str) -> None:
    model = make(name).eval()
    plain = logits(model)
    memory = with_memory(model, is_open=False)
    assert torch.equal(logits(model), plain)
    torch.nn.init.ones_(memory.gate)
    assert (logits(model) != plain).any(dim=-1).all()
    detach(model, "memory")
    assert torch.equal(logits(model), plain)
    assert not any(is_added(key) for key in model.state_dict())
    assert added_to(model) == {}


def test_a_saved_model_gets_its_memory_back(saved_llama: Path, tmp_path: Path) -> None:
    model = load_saved(saved_llama, device=CPU)
    with_memory(model.model)
    expected, folder = logits(model.model), tmp_path / "saved"
    save_model(model.model, model.tokenizer, folder)
    with safe_open(folder / "model.safetensors", "pt") as own:
        assert not any(is_added(name) for name in own.keys())  # noqa: SIM118 (no dict)
    manifest = json.loads((folder / EXTENSIONS_MANIFEST).read_text())
    assert manifest["extensions"] == {"memory": FACTS}
    assert "models.extension_weights_note" in manifest["note"]
    again = load_saved(folder, device=CPU)
    assert torch.equal(logits(again.model), expected)
    assert again.description["extensions"] == {"memory": FACTS}


@pytest.mark.parametrize("quantization", [None, "4bit"])
def test_under_lora_too(saved_llama: Path, tmp_path: Path, quantization: Any) -> None:
    config = ModelConfig(
        name=str(saved_llama), lora_config=LoraConfig(r=2), quantization=quantization
    )
    loaded = ModelManager(config, device=CPU, seed=0).load()
    model = loaded.model.eval()
    with_memory(model)
    names = trainable_state(model).keys()
    assert sum(map(is_added, names)) == 12
    assert all("lora_" in name or is_added(name) for name in names)
    expected, folder = logits(model), tmp_path / "saved"
    save_model(model, loaded.tokenizer, folder)
    again = load_saved(folder, device=CPU, model_config=config)
    assert torch.equal(logits(again.model), expected)
    trained = ModelManager(config.copy_with(name=str(folder), lora_config=None), device=CPU, seed=0)
    assert not any(p.requires_grad for p in added_to(trained.load().model)["memory"].parameters())


def test_a_checkpoint_of_lora_holds_them_whether_or_not_they_train(saved: Path) -> None:
    """Whoever reads it loads a model whose memory is frozen, until its extension says otherwise."""
    config = ModelConfig(name=str(saved), lora_config=LoraConfig(r=2))
    trained = ModelManager(config, device=CPU, seed=0).load().model
    memory = added_to(trained)["memory"].requires_grad_(True)
    torch.nn.init.zeros_(memory.get_parameter("query.weight"))
    read = ModelManager(config, device=CPU, seed=0).load().model
    assert not any(p.requires_grad for p in added_to(read)["memory"].parameters())
    load_trainable_state(read, trainable_state(trained))
    assert added_to(read)["memory"].get_parameter("query.weight").count_nonzero() == 0


def test_a_kind_is_a_plain_name() -> None:
    class Dotted(KeyValueMemory):
        kind = "mine.memory"

    with pytest.raises(ValueError, match=r"models\.extension_kind_invalid.*class_name=Dotted"):
        register_added_module(Dotted)


def test_a_model_has_one_of_a_kind() -> None:
    model = make("llama")
    with_memory(model)
    with pytest.raises(ValueError, match=r"models\.extension_already_attached.*extension=memory"):
        attach(model, KeyValueMemory.build(model, FACTS))


@pytest.fixture
def saved(saved_llama: Path, tmp_path: Path) -> Path:
    """A folder of a model with a memory, its sums left out."""
    model = load_saved(saved_llama, device=CPU)
    with_memory(model.model)
    save_model(model.model, model.tokenizer, tmp_path / "saved")
    (tmp_path / "saved" / "SHA256SUMS").unlink()
    return tmp_path / "saved"


def test_damaged_files_are_named(saved: Path) -> None:
    weights, manifest = saved / ADDED_WEIGHTS, saved / EXTENSIONS_MANIFEST
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"models\.extension_weights_unreadable"):
        load_saved(saved, device=CPU)
    weights.write_bytes(whole)
    tensors = load_file(weights)
    save_file(dict(list(tensors.items())[1:]), weights)
    with pytest.raises(ValueError, match=r"models\.extension_weights_mismatch"):
        load_saved(saved, device=CPU)
    weights.write_bytes(whole)
    manifest.write_text(manifest.read_text().replace('"slots": 3', '"slots": 4'))
    with pytest.raises(ValueError, match=r"models\.extension_weights_mismatch"):
        load_saved(saved, device=CPU)
    manifest.write_text(manifest.read_text().replace('"memory"', '"memori"'))
    with pytest.raises(ValueError, match=r"models\.extension_not_registered"):
        load_saved(saved, device=CPU)
    manifest.write_text("{}")
    with pytest.raises(ValueError, match=r"models\.extension_manifest_invalid"):
        load_saved(saved, device=CPU)


def test_unsloth_is_refused_before_it_is_loaded(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_modules, "load_added", None)
    with pytest.raises(ValueError, match=r"models\.unsloth_with_extension_weights"):
        ModelManager(ModelConfig(name=str(saved), backend="unsloth"), device=CPU, seed=0).load()


def test_a_model_that_sees_gets_it_back(tmp_path: Path) -> None:
    def load(folder: Path) -> LoadedModel:
        manager = ModelManager(ModelConfig(name=str(folder)), device=CPU, seed=0)
        manager.sees = True
        return manager.load()

    loaded = load(save_llava(tmp_path / "llava"))
    memory = with_memory(loaded.model)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    llava_processor().save_pretrained(tmp_path / "saved")
    again = added_to(load(tmp_path / "saved").model)["memory"]
    assert torch.equal(again.state_dict()["store_rows"], memory.store_rows)


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"models\.layers_not_identified"):
        KeyValueMemory.build(torch.nn.Linear(2, 2), FACTS)
    load_added(torch.nn.Linear(2, 2), tmp_path)  # nothing is there


def test_modules_that_a_record_describes_are_added_beside_those_that_are_there() -> None:
    model = make("llama").eval().bfloat16()
    memory = KeyValueMemory.build(model, FACTS)
    attach(model, memory)
    assert {p.dtype for p in memory.parameters()} == {torch.float32}
    assert not memory.training, "as the model"
    described = {"extensions": added_modules.facts_of_added(model)}
    attach_described(model, described)
    assert added_to(model) == {"memory": memory}
    other = make("llama")
    attach_described(other, {})
    assert added_to(other) == {}
    attach_described(other, described)
    assert added_to(other)["memory"].facts == FACTS
    assert added_to(other)["memory"].training
    with pytest.raises(ValueError, match=r"not_registered\(source=the run, .*name=memori,"):
        attach_described(other, {"extensions": {"memori": FACTS}})


def test_each_module_gets_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(KeyValueMemory):
        kind = "memory_2"

    monkeypatch.setitem(added_modules.KINDS, "memory_2", Second)
    model = make("llama")
    for number, kind in enumerate((KeyValueMemory, Second)):
        torch.manual_seed(number)
        attach(model, kind.build(model, {**FACTS, "slots": 3 + number}))
    expected = logits(model)
    added_modules.save_added(model, tmp_path)
    again = make("llama")
    load_added(again, tmp_path)
    assert [*added_to(again)] == ["memory", "memory_2"]
    for kind, module in added_to(model).items():
        own = added_to(again)[kind].state_dict()
        assert all(torch.equal(own[n], tensor) for n, tensor in module.state_dict().items())
    detach(again, "memory")
    assert [*added_to(again)] == ["memory_2"]
    assert torch.equal(logits(model), expected)
    (tmp_path / ADDED_WEIGHTS).unlink()
    shown = rf"weights_unreadable\(file={tmp_path / ADDED_WEIGHTS}, error="
    with pytest.raises(ValueError, match=shown):
        load_added(make("llama"), tmp_path)


def test_layers_are_the_one_list_that_is_as_long_as_the_decoder() -> None:
    model: Any = make("llama")
    layers = added_modules.decoder_layers(model)
    assert layers is model.model.layers
    model.model.others = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    assert added_modules.decoder_layers(model) is layers
    assert added_modules.hidden_size(model) == 32
    model.model.others = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in layers)
    with pytest.raises(ValueError, match=r"layers_not_identified\(name=LlamaForCausalLM\)"):
        added_modules.decoder_layers(model)
