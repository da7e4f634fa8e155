"""What is saved is whole, is what plain transformers and PEFT read, and gives the same logits."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.core.checksums import damaged_files
from infrastructure.models.lora import apply_lora
from infrastructure.models.model_manager import LoadedModel, ModelManager, load_saved
from infrastructure.models.quantization import quantized_layers
from infrastructure.models.saved_model import code_of_quantization, words_of_quantization
from infrastructure.models.saving import (
    load_registered,
    save_model,
    save_tokenizer,
    save_whole,
    write_lora_card,
)
from infrastructure.models.trainable_state import trainable_state
from tests.models.architectures import tiny_model

CPU = torch.device("cpu")
TINY = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_positions": 64,
}


def load(name: object, **settings: Any) -> LoadedModel:
    config = ModelConfig(name=str(name), **settings)
    texts = ["1 + 1 = 2", "2 + 2 = 4"]
    return ModelManager(config, device=CPU, seed=0, tokenizer_texts=lambda: texts).load()


def train_a_little(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, tensor in trainable_state(model).items():
            tensor.add_(
                torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))) * 0.05
            )


@torch.no_grad()
def logits(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
    return model.eval()(input_ids).logits


def no_pickle(directory: Path) -> bool:
    return not [p for p in directory.rglob("*") if p.suffix in (".bin", ".pt", ".pth", ".pkl")]


@pytest.mark.parametrize("tied", [False, True])
def test_a_full_model_in_plain_transformers(
    llama_folder: Path, tmp_path: Path, input_ids: torch.Tensor, tied: bool
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=300, intermediate_size=48, tie_word_embeddings=tied, **sizes)
    LlamaForCausalLM(config).save_pretrained(llama_folder)
    loaded = load(llama_folder)
    train_a_little(loaded.model)
    target = tmp_path / "run" / "final"
    save_model(loaded.model, loaded.tokenizer, target)
    assert {path.name for path in target.iterdir()} == {
        "SHA256SUMS",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert ("lm_head.weight" in load_file(target / "model.safetensors")) is not tied
    plain = AutoModelForCausalLM.from_pretrained(target)
    expected = logits(loaded.model, input_ids)
    assert torch.equal(logits(plain, input_ids), expected)
    assert torch.equal(logits(load_saved(target.parent, device=CPU).model, input_ids), expected)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer("12 + 5").input_ids == loaded.tokenizer("12 + 5").input_ids
    assert tokenizer.pad_token == "<pad>"


def test_a_lora_in_plain_peft(llama_folder: Path, tmp_path: Path, input_ids: torch.Tensor) -> None:
    from peft import AutoPeftModelForCausalLM

    loaded = load(llama_folder, lora_config=LoraConfig(r=2))
    train_a_little(loaded.model)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "final")
    assert {path.name for path in (tmp_path / "final").iterdir()} == {
        "README.md",
        "SHA256SUMS",
        "adapter_config.json",
        "adapter_model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    written = json.loads((tmp_path / "final" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(llama_folder)
    assert written["task_type"] == "CAUSAL_LM"
    plain = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "final")
    expected = logits(loaded.model, input_ids)
    assert torch.equal(logits(plain, input_ids), expected)
    again = load_saved(tmp_path / "final", device=CPU)
    assert torch.equal(logits(again.model, input_ids), expected)


def test_a_lora_on_a_base_that_is_nowhere_else(
    tmp_path: Path, input_ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import AutoPeftModelForCausalLM

    loaded = load("embedded", embedded=TINY, lora_config=LoraConfig(r=2))
    train_a_little(loaded.model)
    monkeypatch.chdir(tmp_path)
    save_model(loaded.model, loaded.tokenizer, Path("final"))
    expected = logits(loaded.model, input_ids)
    assert no_pickle(tmp_path)
    # the LoRA is still beside the layers of the living model, and the pair may be moved together
    assert torch.equal(logits(loaded.model, input_ids), expected)
    (tmp_path / "final").rename(tmp_path / "moved")
    again = load_saved(tmp_path / "moved", device=CPU)
    assert torch.equal(logits(again.model, input_ids), expected)
    assert str(tmp_path) not in (tmp_path / "moved/adapter_config.json").read_text()
    assert torch.equal(logits(loaded_by_card(tmp_path / "moved"), input_ids), expected)
    assert (tmp_path / "moved/base/tokenizer.json").is_file()
    monkeypatch.chdir(tmp_path / "moved")
    plain = AutoPeftModelForCausalLM.from_pretrained(".")
    assert torch.equal(logits(plain, input_ids), expected)


def test_the_base_beside_a_lora_has_its_own_weights_and_no_others(
    tmp_path: Path, input_ids: torch.Tensor
) -> None:
    """Of a Trainer, PEFT may train copies of whole modules, which belong to the adapter."""
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=300, intermediate_size=48, **sizes))
    own = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = peft.get_peft_model(base, settings)
    train_a_little(model)
    save_model(model, None, tmp_path / "final")
    written = load_file(tmp_path / "final/base/model.safetensors")
    assert written.keys() == own.keys()
    assert all(torch.equal(written[name], own[name]) for name in own)
    assert torch.equal(
        logits(loaded_by_card(tmp_path / "final"), input_ids), logits(model, input_ids)
    )


def test_a_tokenizer_is_written_the_same_wherever_it_was_loaded_from(
    llama_folder: Path, tmp_path: Path
) -> None:
    tokenizer = load(llama_folder).tokenizer
    assert tokenizer is not None
    save_tokenizer(tokenizer, tmp_path / "here")
    tokenizer.init_kwargs |= {"is_local": True, "local_files_only": True}
    save_tokenizer(tokenizer, tmp_path / "elsewhere")
    assert tokenizer.init_kwargs["is_local"] is tokenizer.init_kwargs["local_files_only"] is True
    written = [tmp_path / name / "tokenizer_config.json" for name in ("here", "elsewhere")]
    assert written[0].read_bytes() == written[1].read_bytes()
    assert "is_local" not in json.loads(written[0].read_text())


def loaded_by_card(folder: Path, base: str | None = None) -> Any:
    """What the code in the README.md of a LoRA gives, run as it is typed by somebody elsewhere.

    Args:
        base: where its base lies, in place of the one that the card names; None: as it stands.
    """
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    code = code.replace('folder = "."', f"folder = {str(folder)!r}")
    if base is not None:
        code = re.sub(r"^base = .*$", f"base = {base!r}", code, flags=re.M)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["model"]


def test_the_copy_of_a_lora_is_loaded_where_its_base_lies_elsewhere(
    llama_folder: Path, tmp_path: Path, input_ids: torch.Tensor
) -> None:
    """The machine that trained it is gone, and with it the folder that the LoRA names."""
    dead, here = tmp_path / "dead", tmp_path / "here"
    shutil.copytree(llama_folder, dead / "llama")
    loaded = load(dead / "llama", lora_config=LoraConfig(r=2))
    train_a_little(loaded.model)
    save_model(loaded.model, loaded.tokenizer, dead / "final")
    expected = logits(loaded.model, input_ids)
    assert torch.equal(logits(loaded_by_card(dead / "final"), input_ids), expected)
    shutil.copytree(dead / "final", here / "final")
    shutil.copytree(dead / "llama", here / "my base")
    shutil.rmtree(dead)
    text = (here / "final/README.md").read_text()
    assert f"{dead / 'llama'}" in text
    assert "base_model:" not in text
    plain = loaded_by_card(here / "final", str(here / "my base"))
    assert torch.equal(logits(plain, input_ids), expected)


def test_the_card_of_a_lora_names_its_base_on_the_hub(tmp_path: Path) -> None:
    written = {"peft_type": "LORA", "base_model_name_or_path": "owner/name"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(written))
    write_lora_card(tmp_path, torch.nn.Module())
    text = (tmp_path / "README.md").read_text()
    assert "base_model: owner/name\n" in text
    assert 'base = "owner/name"\n' in text
    assert "models.lora_card(where=models.card_base_on_hub(base=owner/name))" in text
    assert "AutoModelForCausalLM.from_pretrained(base)\n" in text
    assert "GenerationConfig" not in text
    (tmp_path / "generation_config.json").write_text("{}")
    write_lora_card(tmp_path, torch.nn.Module(), sees=True)
    text = (tmp_path / "README.md").read_text()
    assert "AutoModelForImageTextToText.from_pretrained(base)\n" in text
    assert "import AutoModelForImageTextToText, GenerationConfig\n" in text
    assert "generation_config = GenerationConfig.from_pretrained(folder)\n" in text


@pytest.mark.parametrize("base", ["./base", "~/base", "/dead/base", None])
def test_the_card_of_a_lora_names_no_folder_as_a_model_of_the_hub(
    tmp_path: Path, base: str | None
) -> None:
    written = {"peft_type": "LORA", "base_model_name_or_path": base}
    (tmp_path / "adapter_config.json").write_text(json.dumps(written))
    config = SimpleNamespace(output_router_logits=True)
    config.get_text_config = lambda: config
    model = torch.nn.Module()
    model.config = config  # type: ignore[assignment]
    write_lora_card(tmp_path, model)
    text = (tmp_path / "README.md").read_text()
    shown = base or "?"
    assert "base_model:" not in text
    assert f"models.lora_card(where=models.card_base_elsewhere(base={shown}))" in text
    assert f'base = "{shown}"  # models.card_base_path()\n' in text
    assert "from_pretrained(base, output_router_logits=False)\n" in text
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    write_lora_card(tmp_path, torch.nn.Module())
    text = (tmp_path / "README.md").read_text()
    assert "models.lora_card(where=models.card_base_in_folder(base=base))" in text
    assert 'base = f"{folder}/base"\n' in text


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_the_card_of_a_lora_loads_its_base_as_in_training(
    kind: str, llama_folder: Path, tmp_path: Path, input_ids: torch.Tensor
) -> None:
    loaded = load(llama_folder, lora_config=LoraConfig(r=2), quantization=kind)
    save_model(loaded.model, None, tmp_path / "final")
    plain = loaded_by_card(tmp_path / "final")
    assert len(quantized_layers(plain)) == len(quantized_layers(loaded.model)) > 0
    expected = logits(loaded.model, input_ids)
    # On a CPU, bitsandbytes computes with another layout of the same weights where none trains.
    assert torch.allclose(logits(plain, input_ids), expected, atol=5e-3)


def test_a_compiled_model_is_saved_plain(llama_folder: Path, tmp_path: Path) -> None:
    loaded = load(llama_folder)
    save_model(torch.compile(loaded.model, backend="eager"), None, tmp_path / "final")
    assert not [k for k in load_file(tmp_path / "final" / "model.safetensors") if "_orig_mod" in k]


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_whole_state_is_written_as_it_is_given(
    llama_folder: Path, tmp_path: Path, is_plain: bool
) -> None:
    """Which need not be what the model holds: that may be quantised."""
    model = torch.nn.LSTM(3, 2) if is_plain else load(llama_folder).model
    state = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    save_whole(model, None, tmp_path / "rack", state)
    written = load_file(tmp_path / "rack" / "model.safetensors")
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name]) for name in state)
    assert (tmp_path / "rack" / "config.json").is_file() is not is_plain
    assert damaged_files(tmp_path / "rack") == []
    (tmp_path / "rack" / "model.safetensors").write_bytes(b"")
    assert damaged_files(tmp_path / "rack") == ["model.safetensors"]


def test_a_registered_module(tmp_path: Path) -> None:
    loaded = load("tactical_mappo")
    train_a_little(loaded.model)
    name = loaded.description["registered_name"]
    save_model(loaded.model, None, tmp_path / "final", registered_name=name)
    assert {p.name for p in (tmp_path / "final").iterdir()} == {
        "SHA256SUMS",
        "model.safetensors",
        "temper_model.json",
    }
    again = load_saved(tmp_path, device=CPU)
    assert again.description["registered_name"] == "tactical_mappo"
    assert again.tokenizer is None
    saved, loaded_again = trainable_state(loaded.model), trainable_state(again.model)
    assert all(torch.equal(saved[key], loaded_again[key]) for key in saved)


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (
            {"model": "tactical_mapo"},
            r"what=registered model, name=tactical_mapo,.*\(meant=tactical_mappo\)",
        ),
        ({}, "what=registered model, name=None,"),
    ],
)
def test_a_module_that_is_not_registered_here(
    tmp_path: Path, manifest: dict[str, Any], sentence: str
) -> None:
    loaded = load("tactical_mappo")
    save_model(loaded.model, None, tmp_path / "m", registered_name="tactical_mappo")
    (tmp_path / "m" / "temper_model.json").write_text(json.dumps(manifest))
    (tmp_path / "m" / "SHA256SUMS").unlink()
    with pytest.raises(ValueError, match=sentence):
        load_saved(tmp_path / "m", device=CPU)


def test_weights_of_another_version_of_a_module(tmp_path: Path) -> None:
    save_model(torch.nn.Linear(2, 2), None, tmp_path / "m", registered_name="tactical_mappo")
    with pytest.raises(ValueError, match=r"models\.registered_code_mismatch.*name=tactical_mappo"):
        load_saved(tmp_path / "m", device=CPU)


def test_a_module_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"models\.not_a_transformers_model.*name=Linear"):
        save_model(torch.nn.Linear(2, 2), None, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_saving_again_replaces_the_whole_directory(llama_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "final"
    loaded = load(llama_folder)
    save_model(loaded.model, loaded.tokenizer, target)
    (target / "left_over").touch()
    save_model(loaded.model, None, target)
    assert not (target / "left_over").exists()
    assert not (target / "tokenizer.json").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name != "llama"] == ["final"]


class Own(torch.nn.Linear):
    """A model of one's own that is saved as transformers saves its models."""

    config = None

    def save_pretrained(self, folder: Path, **named: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.saved = named


def test_what_is_for_training_only_is_not_saved(tmp_path: Path) -> None:
    model = Own(2, 2)
    save_model(model, None, tmp_path / "plain")
    assert model.saved == {}, "what needs no change is left to transformers"
    model.training_only = torch.nn.Linear(1, 1)
    model.inner = torch.nn.ModuleDict({"training_only": torch.nn.Linear(1, 1)})
    save_model(model, None, tmp_path / "final")
    assert model.saved["state_dict"].keys() == {"weight", "bias"}
    given = {name: torch.ones(1) for name in ("weight", "training_only.weight", "my_training_only")}
    save_whole(model, None, tmp_path / "whole", given)
    assert model.saved["state_dict"].keys() == {"weight", "my_training_only"}


def test_a_tokenizer_is_written_beside_each_kind_of_model(
    llama_folder: Path, tmp_path: Path
) -> None:
    loaded = load(llama_folder)
    state = dict(loaded.model.state_dict())
    save_whole(loaded.model, loaded.tokenizer, tmp_path / "whole", state)
    assert (tmp_path / "whole/tokenizer.json").is_file()
    custom: Any = SimpleNamespace(encode=ord)
    save_whole(torch.nn.Linear(1, 1), custom, tmp_path / "custom", {"w": torch.ones(2, 2).t()})
    assert load_file(tmp_path / "custom/model.safetensors")["w"].tolist() == [[1, 1], [1, 1]]

    class Processor:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "processor_config.json").touch()

    save_model(loaded.model, loaded.tokenizer, tmp_path / "seeing", processor=Processor())
    assert (tmp_path / "seeing/processor_config.json").is_file()
    embedded = load("embedded", embedded=TINY, lora_config=LoraConfig(r=2))
    save_model(embedded.model, embedded.tokenizer, tmp_path / "lora", processor=Processor())
    for folder in ("lora", "lora/base"):
        assert (tmp_path / folder / "processor_config.json").is_file()
    assert "AutoModelForImageTextToText" in (tmp_path / "lora/README.md").read_text()


def test_a_registered_module_is_described_and_loaded_by_its_name(tmp_path: Path) -> None:
    model = load("tactical_mappo").model
    save_model(model, None, tmp_path / "m", registered_name="tactical_mappo")
    manifest = json.loads((tmp_path / "m/temper_model.json").read_text())
    total = sum(p.numel() for p in model.parameters())
    assert manifest == {"model": "tactical_mappo", "num_parameters": total}
    assert load_registered(tmp_path / "m")[0] == "tactical_mappo"
    save_model(torch.nn.Linear(2, 2), None, tmp_path / "m", registered_name="tactical_mappo")
    shown = rf"code_mismatch\(directory={tmp_path / 'm'}, name=tactical_mappo, reason=Error"
    with pytest.raises(ValueError, match=shown) as refused:
        load_registered(tmp_path / "m")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
@pytest.mark.parametrize("base", ["owner/name", "here"])
def test_the_card_names_the_quantization_and_the_whole_path(
    kind: str, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    written = {"peft_type": "LORA", "base_model_name_or_path": base}
    (tmp_path / "adapter_config.json").write_text(json.dumps(written))
    model: Any = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    form = {f"load_in_{name}": name == kind for name in ("4bit", "8bit")}
    model.config = SimpleNamespace(quantization_config=SimpleNamespace(**form))
    write_lora_card(tmp_path, model)
    text = (tmp_path / "README.md").read_text()
    words = words_of_quantization(kind)
    assert f"models.card_base_quantized(form={words})" in text
    assert f",\n    {code_of_quantization(kind, 'bfloat16')}\n)\n" in text
    assert "import AutoModelForCausalLM, BitsAndBytesConfig\n" in text
    assert (f'base = "{tmp_path / base}"  #' in text) is (base == "here")
    assert ("base_model: owner/name\n" in text) is (base == "owner/name")


def test_a_saved_model_has_no_router_logits_and_the_living_one_keeps_them(tmp_path: Path) -> None:
    model = tiny_model("qwen3_moe_balanced")
    save_model(model, None, tmp_path / "full")
    tuned = apply_lora(model, LoraConfig(r=2, target_modules=["q_proj"]))
    save_model(tuned, None, tmp_path / "lora")
    for folder in ("full", "lora/base"):
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert config["output_router_logits"] is False
    assert "from_pretrained(base, output_router_logits=False)" in (
        (tmp_path / "lora/README.md").read_text()
    )
    assert model.config.output_router_logits is True
