"""Models from every source come ready to train; what cannot be trained is refused in a sentence."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.core.errors import DamagedFileError
from infrastructure.models import model_manager
from infrastructure.models.fitting import choose_dtype
from infrastructure.models.lora import apply_lora
from infrastructure.models.model_manager import (
    LoadedModel,
    ModelManager,
    extensions_folder,
    load_saved,
)
from infrastructure.models.registry import MODELS, ModelEntry
from infrastructure.models.saved_model import (
    weight_files,
    weights_sha256,
)
from infrastructure.models.saving import save_model
from infrastructure.models.source import find_source
from infrastructure.models.trainable_state import trainable_state
from tests.models.architectures import tiny_model

CPU = torch.device("cpu")
TEXTS = [f"{a} + {b} = {a + b}" for a in range(30) for b in range(30)]
TINY = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_positions": 64,
}


def load(name: str | Path, *, seed: int = 0, **settings: Any) -> LoadedModel:
    options = {
        key: settings.pop(key)
        for key in (
            "max_length",
            "gradient_checkpointing",
            "memory_efficient_attention",
            "tokenizer_texts",
            "tokenizer_directory",
        )
        if key in settings
    }
    config = ModelConfig(name=str(name), **settings)
    return ModelManager(config, device=CPU, seed=seed, **options).load()


def load_embedded(**settings: Any) -> LoadedModel:
    return load("embedded", embedded=TINY, tokenizer_texts=lambda: TEXTS, **settings)


def plain_logits(folder: Path, input_ids: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(input_ids).logits


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (path.parent / "SHA256SUMS").unlink(missing_ok=True)  # as whoever changes it is told


def test_a_folder_gives_the_model_that_plain_transformers_gives(
    llama_folder: Path, input_ids: torch.Tensor
) -> None:
    loaded = load(llama_folder)
    assert loaded.model.training
    assert torch.equal(loaded.model.eval()(input_ids).logits, plain_logits(llama_folder, input_ids))
    assert loaded.tokenizer.decode(loaded.tokenizer("12 + 5").input_ids) == "12 + 5"
    assert all(p.requires_grad for p in loaded.model.parameters())
    total = sum(p.numel() for p in loaded.model.parameters())
    assert loaded.description == {
        "name": str(llama_folder),
        "kind": "folder",
        "backend": "transformers",
        "architecture": "LlamaForCausalLM",
        "num_parameters": total,
        "num_trainable": total,
        "dtype": "float32",
        "quantization": None,
        "attention": "sdpa",
        "lora": None,
        "base_sha256": weights_sha256(weight_files(llama_folder)),
        "revision": None,
    }
    json.dumps(loaded.description)


def test_the_embedded_model_depends_on_the_seed_alone() -> None:
    first, again, other = load_embedded(), load_embedded(), load_embedded(seed=1)
    pairs = zip(first.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.model.parameters()), next(other.model.parameters()))
    assert first.tokenizer.get_vocab() == again.tokenizer.get_vocab()
    assert first.description["kind"] == "embedded"


def test_an_earlier_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    first = load_embedded()
    first.tokenizer.save_pretrained(tmp_path)
    again = load(
        "embedded", embedded=TINY, tokenizer_texts=lambda: ["other"], tokenizer_directory=tmp_path
    )
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()


def test_the_embedded_model_has_a_position_for_each_token() -> None:
    load_embedded(max_length=64)
    with pytest.raises(
        ValueError, match=r"models\.max_length_beyond_positions.*max_length=65.*num_positions=64"
    ):
        load_embedded(max_length=65)


def test_the_embedded_model_needs_texts() -> None:
    with pytest.raises(ValueError, match=r"models\.embedded_without_texts"):
        load("embedded", embedded=TINY)


def test_loading_leaves_the_random_state_alone(llama_folder: Path) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    load(llama_folder, lora_config=LoraConfig(r=2))
    load("tactical_mappo")
    load_embedded()
    assert torch.equal(torch.get_rng_state(), state)


def test_lora_on_a_folder(llama_folder: Path, input_ids: torch.Tensor) -> None:
    lora = LoraConfig(r=2, alpha=4, dropout=0.1, target_modules=["q_proj", "v_proj"])
    loaded = load(llama_folder, lora_config=lora, seed=3)
    assert loaded.description["lora"] == {
        "r": 2,
        "alpha": 4,
        "dropout": 0.1,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert 0 < loaded.description["num_trainable"] < loaded.description["num_parameters"] / 10
    # the second matrix starts at zero: an untrained LoRA changes nothing
    base = plain_logits(llama_folder, input_ids)
    assert torch.allclose(loaded.model.eval()(input_ids).logits, base, atol=1e-6)
    again = trainable_state(load(llama_folder, lora_config=lora, seed=3).model)
    assert all(torch.equal(t, again[n]) for n, t in trainable_state(loaded.model).items())


def test_a_saved_lora_goes_on_training(llama_folder: Path, tmp_path: Path) -> None:
    first = load(llama_folder, lora_config=LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for tensor in trainable_state(first.model).values():
            tensor.normal_()
    save_model(first.model, first.tokenizer, tmp_path / "lora")
    again = load(tmp_path / "lora")
    assert again.description["kind"] == "lora folder"
    assert again.description["base_sha256"] == first.description["base_sha256"]
    assert again.description["num_trainable"] == first.description["num_trainable"]
    saved, loaded = trainable_state(first.model), trainable_state(again.model)
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    same = LoraConfig(r=2, target_modules=["q_proj"])
    load(tmp_path / "lora", lora_config=same)
    for change in (
        {"r": 4},
        {"alpha": 7},
        {"dropout": 0.5},
        {"use_dora": True},
        {"use_rslora": True},
        {"target_modules": "all-linear"},
    ):
        changed = rf"models\.lora_settings_differ\(.*differences={next(iter(change))}="
        with pytest.raises(ValueError, match=changed):
            load(tmp_path / "lora", lora_config=same.copy_with(**change))


def test_a_lora_that_was_saved_recomputes_and_keeps_its_own_tokenizer(
    llama_folder: Path, tmp_path: Path
) -> None:
    first = load(llama_folder, lora_config=LoraConfig(r=2))
    first.tokenizer.chat_template = "of the LoRA"
    save_model(first.model, first.tokenizer, tmp_path / "lora")
    again = load(tmp_path / "lora", gradient_checkpointing=True)
    assert again.model.get_base_model().is_gradient_checkpointing  # type: ignore[operator]
    config = ModelConfig(name=str(tmp_path / "lora"))
    alone = ModelManager(config, device=CPU, seed=0).load_tokenizer()
    assert again.tokenizer.chat_template == alone.chat_template == "of the LoRA"  # type: ignore[union-attr]
    for file in (tmp_path / "lora").glob("tokenizer*"):
        file.unlink()
    (tmp_path / "lora" / "SHA256SUMS").unlink()
    assert load(tmp_path / "lora").tokenizer.chat_template is None  # its base's


def test_a_base_that_was_changed_below_its_lora_is_refused(
    llama_folder: Path, tmp_path: Path
) -> None:
    plain = load(llama_folder)
    save_model(plain.model, plain.tokenizer, tmp_path / "base")
    first = load(tmp_path / "base", lora_config=LoraConfig(r=2))
    save_model(first.model, first.tokenizer, tmp_path / "lora")
    load(tmp_path / "lora")
    change_tensors(tmp_path / "base", lambda t: t["model.norm.weight"].add_(1))
    with pytest.raises(DamagedFileError):
        load(tmp_path / "lora")


def test_the_format_of_weights_that_train_is_fp32_and_of_others_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert choose_dtype("auto", trains_all=True, device=gpu) is torch.float32
    assert choose_dtype("auto", trains_all=False, device=gpu) is torch.bfloat16
    assert choose_dtype("auto", trains_all=False, device=CPU) is torch.float32
    assert choose_dtype("fp16", trains_all=False, device=gpu) is torch.float16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert choose_dtype("auto", trains_all=False, device=gpu) is torch.float16


def test_a_lora_whose_base_has_moved(llama_folder: Path, tmp_path: Path) -> None:
    first = load(llama_folder, lora_config=LoraConfig(r=2))
    save_model(first.model, first.tokenizer, tmp_path / "lora")
    llama_folder.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"models\.lora_base_missing"):
        load(tmp_path / "lora")
    config = tmp_path / "lora" / "adapter_config.json"
    edit_json(config, base_model_name_or_path=str(tmp_path / "moved"))
    load(tmp_path / "lora")
    edit_json(config, peft_type="PREFIX_TUNING")
    with pytest.raises(ValueError, match=r"models\.adapter_is_not_lora.*peft_type=PREFIX_TUNING"):
        load(tmp_path / "lora")
    for name in ("", ["its", "base"]):
        edit_json(config, peft_type="LORA", base_model_name_or_path=name)
        with pytest.raises(ValueError, match=r"models\.lora_names_no_base"):
            load(tmp_path / "lora")


def test_a_lora_of_another_base(llama_folder: Path, tmp_path: Path) -> None:
    first = load_embedded(lora_config=LoraConfig(r=2))
    save_model(first.model, first.tokenizer, tmp_path / "lora")
    shutil.rmtree(tmp_path / "lora" / "base")
    edit_json(tmp_path / "lora" / "adapter_config.json", base_model_name_or_path=str(llama_folder))
    with pytest.raises(ValueError, match=r"models\.lora_base_mismatch"):
        load(tmp_path / "lora")


@pytest.mark.parametrize(
    ("recorded", "is_changed", "is_refused"),
    [("", False, False), ("", True, True), ("none", True, False), ("no run", True, False)],
)
def test_a_lora_of_a_run_whose_base_has_other_weights_now(
    llama_folder: Path, tmp_path: Path, recorded: str, is_changed: bool, is_refused: bool
) -> None:
    """It would answer and be measured as a model that was never trained."""
    made = load(llama_folder, lora_config=LoraConfig(r=2))
    final = tmp_path / "run" / "final"
    save_model(made.model, made.tokenizer, final)
    if recorded != "no run":
        sha256 = None if recorded else made.description["base_sha256"]
        (final.parent / "run.json").write_text(json.dumps({"model": {"base_sha256": sha256}}))
    if is_changed:
        change_tensors(llama_folder, lambda tensors: tensors["lm_head.weight"].mul_(2))
    if is_refused:
        about = rf"folder={final}, name={llama_folder}"
        with pytest.raises(ValueError, match=rf"models\.lora_base_changed\({about}\)"):
            load(final)
        return
    assert hasattr(load(final).model, "peft_config")


OTHER_PREFIX = "base_model.model.model.language_model."


@pytest.mark.parametrize(
    ("rename", "code", "first"),
    [
        (lambda name: name, None, ""),
        # PEFT's name of the adapter is no part of the name of a matrix
        (lambda name: name.replace(".weight", ".default.weight"), None, ""),
        (
            lambda name: name.replace("base_model.model.model.", OTHER_PREFIX),
            "lora_lacks_tensors",
            "count=28, name=base_model.model.model.layers.0.mlp.down_proj.lora_A.default.weight",
        ),
        (
            lambda name: name * ("layers.0.mlp.up_proj" not in name),
            "lora_lacks_tensors",
            "count=2, name=base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight",
        ),
    ],
)
def test_a_lora_is_loaded_whole_or_not_at_all(
    llama_folder: Path,
    tmp_path: Path,
    rename: Callable[[str], str],
    code: str | None,
    first: str,
) -> None:
    """Matrices without a place in the model would leave the base as it is."""
    made = load(llama_folder, lora_config=LoraConfig(r=2))
    for parameter in trainable_state(made.model).values():
        torch.nn.init.normal_(parameter)
    save_model(made.model, made.tokenizer, tmp_path / "lora")
    file = tmp_path / "lora" / "adapter_model.safetensors"
    matrices = load_file(file)
    save_file({rename(n): t for n, t in matrices.items() if rename(n)}, file)
    (tmp_path / "lora" / "SHA256SUMS").unlink()
    if code is not None:
        with pytest.raises(ValueError, match=rf"models\.{code}\(file={file}, {first}\)"):
            load(tmp_path / "lora")
        return
    again = trainable_state(load(tmp_path / "lora").model)
    assert len(again) == len(matrices)
    for name, matrix in trainable_state(made.model).items():
        assert torch.equal(again[name], matrix)


def test_a_lora_for_more_layers_than_its_base_has(llama_folder: Path, tmp_path: Path) -> None:
    made = load(llama_folder, lora_config=LoraConfig(r=2))
    save_model(made.model, made.tokenizer, tmp_path / "lora")
    edit_json(llama_folder / "config.json", num_hidden_layers=1)
    unused = r"count=14, name=base_model\.model\.model\.layers\.1\.mlp\.down_proj\.lora_A"
    with pytest.raises(ValueError, match=rf"models\.lora_tensors_unused\(file=.*, {unused}"):
        load(tmp_path / "lora")


def test_gradient_checkpointing_changes_no_gradient(
    llama_folder: Path, input_ids: torch.Tensor
) -> None:
    gradients = []
    for checkpointing in (False, True):
        lora = LoraConfig(r=2)
        model = load(llama_folder, lora_config=lora, gradient_checkpointing=checkpointing).model
        base = model.get_base_model()  # type: ignore[operator]
        assert base.is_gradient_checkpointing is checkpointing
        model(input_ids, labels=input_ids, use_cache=False).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*gradients, strict=True))
    assert any(g.abs().sum() > 0 for g in gradients[1])


@pytest.mark.parametrize(
    ("settings", "implementation"),
    [
        ({"attention": "eager"}, "eager"),
        ({"memory_efficient_attention": False}, "eager"),
        ({"memory_efficient_attention": True}, "sdpa"),
    ],
)
def test_attention_is_what_was_requested(
    llama_folder: Path, settings: dict[str, Any], implementation: str
) -> None:
    assert load(llama_folder, **settings).description["attention"] == implementation
    assert load_embedded(**settings).description["attention"] == implementation


def test_weights_in_bf16(llama_folder: Path) -> None:
    loaded = load(llama_folder, dtype="bf16", lora_config=LoraConfig(r=2))
    formats = {p.dtype: p.requires_grad for p in loaded.model.parameters()}
    assert formats == {torch.bfloat16: False, torch.float32: True}
    embedded = load_embedded(dtype="bf16", lora_config=LoraConfig(r=2)).model
    assert {p.dtype: p.requires_grad for p in embedded.parameters()} == formats


def test_a_missing_padding_token_costs_no_end_token(llama_folder: Path) -> None:
    file = llama_folder / "tokenizer_config.json"
    values = json.loads(file.read_text())
    del values["pad_token"]
    file.write_text(json.dumps(values))
    tokenizer = load(llama_folder).tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2
    del values["eos_token"]
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"models\.no_end_of_text_token"):
        load(llama_folder)


Break = Callable[[Path], object]
NOT_CAUSAL = r"models\.not_a_causal_model\(.*model_class"


def save_other(folder: Path, kind: str) -> None:
    import transformers

    config_class, model_class = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "bert-lm": (transformers.BertConfig, transformers.BertLMHeadModel),
        "llama-classifier": (transformers.LlamaConfig, transformers.LlamaForSequenceClassification),
    }[kind]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = config_class(vocab_size=300, intermediate_size=32, pad_token_id=0, **sizes)
    model_class(config).save_pretrained(folder)


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / "config.json").write_text("{"), "models.invalid_json"),
        (lambda f: (f / "config.json").write_text("[]"), "models.json_not_an_object"),
        (lambda f: (f / "config.json").write_text("{}"), "models.no_model_type"),
        (lambda f: edit_json(f / "config.json", model_type="lama"), "does not recognize"),
        (
            lambda f: edit_json(
                f / "config.json", model_type="own", auto_map={"AutoConfig": "m.C"}
            ),
            "models.remote_code_not_trusted",
        ),
        (lambda f: save_other(f, "bert"), f"{NOT_CAUSAL}=BertForMaskedLM"),
        (lambda f: save_other(f, "bert-lm"), f"{NOT_CAUSAL}=BertLMHeadModel"),
        (
            lambda f: save_other(f, "llama-classifier"),
            f"{NOT_CAUSAL}=LlamaForSequenceClassification",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), "models.tokenizer_missing"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "models.tokenizer_not_loaded"),
        (lambda f: (f / "model.safetensors").unlink(), "models.weights_missing"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "models.weights_are_pickled",
        ),
        (
            lambda f: change_tensors(f, lambda t: t.pop("model.norm.weight")),
            r"models\.weights_lack_tensors\(.*count=1, name=model\.norm\.weight",
        ),
        (
            lambda f: change_tensors(f, lambda t: t.update({"model.norm.weight": torch.ones(3)})),
            r"weight_shape_mismatch.*name=model\.norm\.weight, stored=\[3\], expected=\[\d+\]",
        ),
        (
            lambda f: edit_json(f / "config.json", vocab_size=300, hidden_size=128),
            r"models\.weight_shape_mismatch.*stored=\[.*\], expected=\[.*128\], "
            r"more=models\.more_weights_differ\(count=\d+\)\)",
        ),
    ],
)
def test_a_spoilt_folder_is_refused(llama_folder: Path, spoil: Break, sentence: str) -> None:
    spoil(llama_folder)
    with pytest.raises(ValueError, match=sentence) as caught:
        load(llama_folder)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_model(llama_folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=200, intermediate_size=32, **sizes)
    LlamaForCausalLM(config).save_pretrained(llama_folder)
    with pytest.raises(ValueError, match=r"models\.tokenizer_larger_than_model.*num_tokens=200"):
        load(llama_folder)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"quantization": "4bit"}, r"models\.quantized_without_lora\(quantization=4bit\)"),
        ({"dtype": "fp16"}, r"models\.fp16_full_fine_tuning"),
        (
            {"max_length": 129},
            r"models\.max_length_beyond_positions\(max_length=129, num_positions=128,",
        ),
        ({"attention": "flash_attention_2"}, "models.flash_attention_unavailable"),
        (
            {"attention": "eager", "memory_efficient_attention": True},
            r"models\.attention_settings_conflict\(memory_efficient=True, attention=eager\)",
        ),
        (
            {"lora_config": LoraConfig(target_modules=["wq"])},
            r"models\.not_a_linear_layer\(layer=wq\)",
        ),
    ],
)
def test_what_a_language_model_cannot_do(
    llama_folder: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(llama_folder, **settings)


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        (
            {"quantization": "4bit", "lora_config": LoraConfig()},
            "quantization",
            "no_trained_weights",
        ),
        ({"backend": "unsloth"}, "backend", "not_loaded_by_unsloth"),
        ({"revision": "main"}, "revision", "not_a_hub_model"),
        ({"trust_remote_code": True}, "trust_remote_code", "comes_without_code"),
        (
            {"name": "embedded", "trust_remote_code": True},
            "trust_remote_code",
            "comes_without_code",
        ),
        ({"name": "embedded", "revision": "main"}, "revision", "not_a_hub_model"),
        ({"train_vision": True}, "train_vision", "not_trained_on_images"),
        ({"name": "embedded", "train_vision": True}, "train_vision", "not_trained_on_images"),
        ({"lora_config": LoraConfig()}, "lora_config", "not_a_language_model"),
        ({"dtype": "bf16"}, "dtype", "not_a_language_model"),
        ({"attention": "sdpa"}, "attention", "not_a_language_model"),
        ({"memory_efficient_attention": True}, "attention", "not_a_language_model"),
        ({"name": "embedded", "backend": "unsloth"}, "backend", "not_loaded_by_unsloth"),
        (
            {"name": "embedded", "quantization": "8bit", "lora_config": LoraConfig()},
            "quantization",
            "no_trained_weights",
        ),
    ],
)
def test_what_a_module_that_is_made_here_cannot_do(
    settings: dict[str, Any], key: str, reason: str
) -> None:
    given = {"name": "tactical_mappo"} | settings
    about = rf"key=model\.{key}, name={given['name']}, reason=models\.{reason}\("
    with pytest.raises(ValueError, match=rf"models\.setting_no_effect\({about}"):
        load(**given)


def test_a_registered_module_has_no_gradient_checkpointing() -> None:
    refusal = r"optimization\.no_gradient_checkpointing\(model=TacticalMappo\)"
    with pytest.raises(ValueError, match=refusal):
        load("tactical_mappo", gradient_checkpointing=True)


def test_a_name_that_is_nowhere_is_reported_quickly() -> None:
    with pytest.raises(
        ValueError,
        match=r"models\.model_not_found\(name=someone/some-model, .*models\.hub_unreachable",
    ):
        load("someone/some-model")
    with pytest.raises(ValueError, match=r"models\.model_not_found.*meant=tactical_mappo\)"):
        load("tactical_mapo")


def test_a_cached_hub_model_is_pinned_to_its_commit(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    cached = tmp_path / "hub" / "models--someone--some-model"
    shutil.copytree(saved_llama, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    loaded = load("someone/some-model", lora_config=LoraConfig(r=2))
    assert loaded.description["kind"] == "hub"
    assert loaded.description["revision"] == commit
    save_model(loaded.model, loaded.tokenizer, tmp_path / "lora")
    (cached / "refs" / "main").write_text("b" * 40)
    again = load(tmp_path / "lora")
    assert again.description["revision"] == commit
    with pytest.raises(ValueError, match=r"models\.model_not_found"):
        load("someone/some-model", revision="no-such-branch")


def test_load_saved_is_for_looking_only(llama_folder: Path, input_ids: torch.Tensor) -> None:
    config = ModelConfig(lora_config=LoraConfig(r=2), quantization_aware="int4", dtype="fp32")
    loaded = load_saved(llama_folder, device=CPU, model_config=config)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert torch.equal(loaded.model(input_ids).logits, plain_logits(llama_folder, input_ids))


def lora_of(base: Path, folder: Path) -> Path:
    """A folder that says that it has a LoRA of this base."""
    folder.mkdir(parents=True)
    facts = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder


def test_weights_of_extensions_lie_beside_a_lora_or_beside_its_base(
    llama_folder: Path, tmp_path: Path
) -> None:
    lora = lora_of(llama_folder, tmp_path / "lora")
    sources = [find_source(str(name)) for name in (llama_folder, lora)]
    assert [*map(extensions_folder, sources)] == [None, None]
    (llama_folder / "extensions.json").touch()
    assert [*map(extensions_folder, sources)] == [llama_folder, llama_folder]
    (lora / "extensions.json").touch()
    assert [*map(extensions_folder, sources)] == [llama_folder, lora]
    assert extensions_folder(find_source("embedded")) is None
    of_hub = find_source(str(lora_of(Path("owner/name"), tmp_path / "of hub")))
    assert extensions_folder(of_hub) is None


def test_each_kind_of_a_saved_model_is_compared_with_its_sums(
    llama_folder: Path, tmp_path: Path
) -> None:
    full = load(llama_folder)
    save_model(full.model, full.tokenizer, tmp_path / "full")
    save_model(load("tactical_mappo").model, None, tmp_path / "m", registered_name="tactical_mappo")
    loaded = load(tmp_path / "m")
    assert loaded.description["kind"] == "registered folder"
    assert loaded.description["base_sha256"] == weights_sha256(weight_files(tmp_path / "m"))
    for file in ("full/generation_config.json", "m/temper_model.json"):
        (tmp_path / file).write_text((tmp_path / file).read_text() + " ")
        with pytest.raises(DamagedFileError, match=rf"files={Path(file).name}"):
            load((tmp_path / file).parent)


def test_all_weights_train_in_32_bits_and_those_below_a_lora_need_not(
    llama_folder: Path, tmp_path: Path
) -> None:
    """Also before anything is loaded."""

    def manager(name: object, dtype: str = "fp16", **settings: Any) -> ModelManager:
        given = {"name": str(name), "dtype": dtype, **settings}
        return ModelManager(ModelConfig(**given), device=CPU, seed=0, tokenizer_texts=lambda: TEXTS)

    of_lora = load(llama_folder, lora_config=LoraConfig(r=2))
    save_model(of_lora.model, of_lora.tokenizer, tmp_path / "lora")
    total = sum(p.numel() for p in load(llama_folder).model.parameters())
    for name, lora in ((llama_folder, LoraConfig(r=2)), (tmp_path / "lora", None)):
        halved = manager(name, lora_config=lora)
        assert halved.weight_bytes() == 2 * total
        assert next(halved.load_few_blocks().parameters()).dtype is torch.float16
        assert halved.load().description["dtype"] == "float16"
    for name in (llama_folder, "embedded"):
        trained = manager(name, embedded=TINY)
        assert trained.load_tokenizer() is not None, "which has no such weights"
        with pytest.raises(ValueError, match=r"models\.fp16_full_fine_tuning"):
            trained.load()
    with pytest.raises(ValueError, match=r"models\.fp16_full_fine_tuning"):
        manager(llama_folder).weight_bytes()
    assert (
        ModelManager(ModelConfig(name="tactical_mappo"), device=CPU, seed=0).load_tokenizer()
        is None
    )


def test_few_blocks_are_drawn_from_the_seed(llama_folder: Path) -> None:
    def blocks(seed: int) -> torch.Tensor:
        manager = ModelManager(ModelConfig(name=str(llama_folder)), device=CPU, seed=seed)
        return next(manager.load_few_blocks().parameters())

    state = torch.get_rng_state()
    assert torch.equal(blocks(1), blocks(1))
    assert not torch.equal(blocks(1), blocks(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_known_tokenizer_is_read_instead_of_trained(tmp_path: Path) -> None:
    first: Any = load_embedded()
    first.tokenizer.backend_tokenizer.save(str(tmp_path / "known.json"))
    first.tokenizer.save_pretrained(tmp_path / "saved")
    config = ModelConfig(name="embedded", embedded=TINY)
    for folder in (None, tmp_path / "saved"):
        manager = ModelManager(
            config,
            device=CPU,
            seed=0,
            tokenizer_texts=lambda: pytest.fail("it was trained"),
            tokenizer_directory=folder,
        )
        manager.known_tokenizer = tmp_path / "known.json" if folder is None else tmp_path
        tokenizer: Any = manager.load_tokenizer()
        assert tokenizer.get_vocab() == first.tokenizer.get_vocab()
        assert tokenizer.chat_template == first.tokenizer.chat_template


class Blocks(torch.nn.Linear):
    supports_gradient_checkpointing = True


def test_each_model_recomputes_in_the_mode_that_is_set(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = load(llama_folder, lora_config=LoraConfig(r=2))
    save_model(tuned.model, tuned.tokenizer, tmp_path / "lora")
    monkeypatch.setitem(MODELS, "blocks", ModelEntry(lambda: Blocks(1, 1), "standard"))
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(
        model_manager,
        "checkpoint_gradients",
        lambda model, mode: found.append((type(model).__name__, mode)),
    )
    for is_on in (False, True):
        for name in ("blocks", "embedded", llama_folder, tmp_path / "lora"):
            manager = ModelManager(
                ModelConfig(name=str(name), embedded=TINY),
                device=CPU,
                seed=0,
                gradient_checkpointing=is_on,
                checkpointing_mode="selective",
                tokenizer_texts=lambda: TEXTS,
            )
            manager.load()
        assert bool(found) is is_on
    assert found == [("Blocks", "selective"), *[("LlamaForCausalLM", "selective")] * 3]


def test_a_tokenizer_that_does_not_fit_is_refused_before_the_weights_are_read(
    llama_folder: Path,
) -> None:
    edit_json(llama_folder / "config.json", vocab_size=299)
    (llama_folder / "model.safetensors").unlink()
    shown = rf"tokenizer_larger_than_model\(name={llama_folder}, largest=299, num_tokens=299\)"
    with pytest.raises(ValueError, match=shown):
        load(llama_folder)


def test_what_is_changed_about_a_model_at_loading(llama_folder: Path) -> None:
    """Generation settings that could not be saved, and router logits, which end `generate`."""
    model = tiny_model("qwen3_moe_balanced", vocab_size=300)
    model.save_pretrained(llama_folder)
    (llama_folder / "generation_config.json").write_text('{"do_sample": false, "top_p": 0.5}')
    for lora in (None, LoraConfig(r=2, target_modules=["q_proj"])):
        loaded = load(llama_folder, lora_config=lora)
        inner = loaded.model if lora is None else loaded.model.get_base_model()  # type: ignore[operator]
        assert len(inner._forward_pre_hooks) == 1
        shown = "generation_settings_removed(file=generation_config.json, names=top_p 0.5)"
        assert loaded.notes == (f"models.{shown}",)


class FakeUnsloth:
    """Loads by plain transformers and PEFT what Unsloth would load, and notes what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        monkeypatch.setattr(model_manager, "prepare_backend", self.calls.append)
        monkeypatch.setattr(model_manager, "load_unsloth", self.load)
        monkeypatch.setattr(model_manager, "apply_unsloth_lora", self.apply)

    def load(self, source: Any, options: Any, **named: Any) -> Any:
        self.calls.append((source.location, named))
        self.plain = load(source.location)
        self.plain.tokenizer.pad_token = None  # type: ignore[union-attr]
        return self.plain.model, self.plain.tokenizer

    def apply(self, model: torch.nn.Module, lora: LoraConfig, **named: Any) -> torch.nn.Module:
        self.calls.append(named)
        return apply_lora(model, lora)


def test_unsloth_loads_as_it_is_configured(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeUnsloth(monkeypatch)
    options = {"backend": "unsloth", "max_length": 77, "gradient_checkpointing": True, "seed": 9}
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    tuned = load(llama_folder, lora_config=lora, **options)
    save_model(tuned.model, tuned.tokenizer, tmp_path / "lora")
    full, again = load(llama_folder, **options), load(tmp_path / "lora", **options)
    named = {"max_length": 77, "train_all": False, "gradient_checkpointing": True}
    assert [call for call in fake.calls if not isinstance(call, ModelConfig)] == [
        (str(llama_folder), named),
        {"seed": 9, "gradient_checkpointing": True},
        (str(llama_folder), {**named, "train_all": True}),
        (str(tmp_path / "lora"), named),
    ]
    prepared = [isinstance(call, ModelConfig) for call in fake.calls]
    assert prepared == [True, False, False, True, False, True, False], "before it loads"
    for loaded in (tuned, full, again):
        assert loaded.description["backend"] == "unsloth"
        assert loaded.tokenizer.pad_token == "</s>"  # type: ignore[union-attr]
    other = lora.copy_with(r=4)
    with pytest.raises(ValueError, match=r"models\.lora_settings_differ\(.*r=4 \(there 2\)"):
        load(tmp_path / "lora", lora_config=other, **options)
    fake.calls.clear()
    with pytest.raises(ValueError, match=r"models\.not_a_linear_layer\(layer=wq\)"):
        load(llama_folder, lora_config=LoraConfig(target_modules=["wq"]), **options)
    assert len(fake.calls) == 1, "it is refused before the weights are read"


def test_a_model_that_cannot_see_reads_no_images(llama_folder: Path) -> None:
    for name, backend, refusal in (
        ("embedded", "auto", "adapter, name=embedded, reason=models.reads_no_images()"),
        ("tactical_mappo", "auto", "adapter, name=tactical_mappo, reason=models.reads_no_images()"),
        (llama_folder, "unsloth", "models.unsloth_with_images()"),
        (llama_folder, "auto", "models.text_model_for_images("),
    ):
        config = ModelConfig(name=str(name), backend=backend, embedded=TINY)
        manager = ModelManager(config, device=CPU, seed=0, tokenizer_texts=lambda: TEXTS)
        manager.sees = True
        with pytest.raises(ValueError, match=re.escape(refusal)):
            manager.load()


def test_the_hub_is_left_alone_while_it_cannot_be_reached(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to the files of a model begins with that question; a folder needs no answer."""
    entered: list[str] = []

    @contextmanager
    def noting() -> Iterator[None]:
        entered.append("entered")
        yield

    monkeypatch.setattr(model_manager, "offline_where_unreachable", noting)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, num_entered in ((llama_folder, 0), ("owner/name", 1)):
        manager = ModelManager(ModelConfig(name=str(name)), device=CPU, seed=0)
        for way in ("load", "load_tokenizer", "load_few_blocks", "weight_bytes"):
            with contextlib.suppress(ValueError, OSError):
                getattr(manager, way)()
            assert len(entered) == num_entered, way
            entered.clear()
