"""What is wrong with a model's configuration is told in one sentence, whatever raised it."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from infrastructure.models.saved_model import ModelSource, SourceKind
from infrastructure.models.source import (
    find_source,
)
from infrastructure.models.transformers_backend import (
    LoadOptions,
    _check_causal,
    _placement,
    base_of_lora,
    choose_attention,
    hub_arguments,
    load_causal_lm,
    load_config,
    load_lora,
    load_tokenizer,
    load_weights,
    shortened,
    without_weights,
)
from tests.training.seeing_models import llava_config, tiny_tokenizer

WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    (
        {"hidden_size": "big"},
        r"models\.config_value_invalid\(.*'hidden_size' expected int, got str",
    ),
    ({"hidden_size": None}, r"models\.config_value_invalid\(.*'hidden_size' expected int"),
    (
        {"num_attention_heads": 3},
        r"models\.config_value_invalid\(.*not a multiple of the number of attention",
    ),
    ({"num_attention_heads": 0}, r"models\.config_value_invalid\(.*error=ZeroDivisionError: "),
    ({"dtype": "nope"}, r"models\.config_value_invalid\(.*error=AttributeError: .*'nope'"),
    ({"hidden_act": "nope"}, r"models\.model_not_loaded\(.*reason=KeyError: 'nope'"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG_VALUES)
def test_a_wrong_value_is_named(llama_folder: Path, values: dict[str, Any], sentence: str) -> None:
    path = llama_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    options = LoadOptions(torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError, match=sentence) as raised:
        load_causal_lm(find_source(str(llama_folder)), options)
    assert f"(location={llama_folder}, " in str(raised.value)
    assert "\n" not in str(raised.value)


CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
OPTIONS = LoadOptions(CPU, torch.float32)
HUB = ModelSource(SourceKind.HUB, "owner/name")


@pytest.mark.parametrize(
    ("attention", "memory_efficient", "device", "expected"),
    [
        ("auto", None, CPU, None),
        ("auto", True, CPU, "sdpa"),
        ("auto", False, CPU, "eager"),
        ("eager", None, CPU, "eager"),
        ("eager", False, CPU, "eager"),
        ("sdpa", True, CPU, "sdpa"),
        ("flash_attention_2", True, GPU, "flash_attention_2"),
        ("flash_attention_2", None, CPU, "flash_attention_unavailable"),
        ("flash_attention_2", False, GPU, "memory_efficient=False, attention=flash_attention_2"),
        ("sdpa", False, CPU, "memory_efficient=False, attention=sdpa"),
        ("eager", True, CPU, "memory_efficient=True, attention=eager"),
    ],
)
def test_attention_follows_from_two_settings_that_agree(
    attention: str,
    memory_efficient: bool | None,
    device: torch.device,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infrastructure.models.refusals.is_installed", lambda _: True)
    if expected is None or "_" not in expected or expected == attention:
        assert choose_attention(attention, memory_efficient, device) == expected
        return
    with pytest.raises(ValueError, match=expected):
        choose_attention(attention, memory_efficient, device)


@pytest.mark.parametrize(
    ("given", "stored", "expected"),
    [
        ({}, None, {}),
        ({"attention": "eager"}, None, {"attn_implementation": "eager"}),
        ({"device": GPU}, None, {"device_map": {"": GPU}}),
        ({"quantization": "8bit"}, None, {"device_map": {"": CPU}}),
        ({"quantization": "8bit"}, {"load_in_8bit": True}, {"device_map": {"": CPU}}),
        ({"quantization": "4bit", "device": GPU}, None, {"device_map": {"": GPU}}),
        ({"quantization": "4bit"}, {"load_in_8bit": True}, "already_quantized(quantization=4bit)"),
        ({"quantization": "4bit"}, None, "width_for_4bit_on_cpu(multiple=64, width=96)"),
    ],
)
def test_weights_go_to_their_device_at_once(given: Any, stored: Any, expected: Any) -> None:
    config: Any = LlamaConfig(hidden_size=96, num_attention_heads=2)
    if stored is not None:
        config.quantization_config = stored
    options = replace(OPTIONS, **given)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=re.escape(expected)):
            _placement(config, options)
        return
    placed = _placement(config, options)
    made = placed.pop("quantization_config", None)
    assert (made is not None) is (options.quantization is not None and stored is None)
    assert placed == expected


def test_the_version_of_a_model_is_its_own_or_the_configured_one() -> None:
    given = replace(OPTIONS, revision="v2", trust_remote_code=True)
    for source, options, revision in (
        (replace(HUB, revision="v1"), given, "v1"),
        (HUB, given, "v2"),
        (HUB, OPTIONS, "main"),
    ):
        expected = {"trust_remote_code": options.trust_remote_code, "revision": revision}
        assert hub_arguments(source, options) == expected
    folder = ModelSource(SourceKind.FOLDER, "/a")
    assert hub_arguments(folder, given) == {"trust_remote_code": True}


@pytest.mark.parametrize(
    ("error", "is_offline", "shown"),
    [
        (OSError("this is a gated repo"), False, "models.model_is_gated(location=owner/name)"),
        (RuntimeError("gated"), False, "model_not_loaded(location=owner/name, reason=gated)"),
        (OSError("no such repo"), False, "name=owner/name, reason=models.not_on_hub()"),
        (OSError("no such repo"), True, "name=owner/name, reason=models.hub_unreachable()"),
        (
            RuntimeError(f"no\n {'x' * 400}"),
            True,
            f"models.model_not_loaded(location=owner/name, reason=no {'x' * 296}…)",
        ),
    ],
)
def test_a_model_that_the_hub_lacks_is_no_model_that_it_refuses(
    error: Exception, is_offline: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ValueError, match=re.escape(shown)) as refused:
        load_weights("AutoModelForCausalLM", HUB, LlamaConfig(), OPTIONS)
    assert refused.value.__cause__ is (error if isinstance(error, RuntimeError) else None)


def test_a_long_message_is_cut_where_it_does_not_fit() -> None:
    assert shortened("x" * 300) == "x" * 300
    assert shortened("x" * 301) == f"{'x' * 299}…"


def test_the_first_of_several_other_shapes_is_shown(llama_folder: Path) -> None:
    weights = load_file(llama_folder / "model.safetensors")
    for name in ("model.norm.weight", "lm_head.weight"):
        weights[name] = torch.ones(3)
    save_file(weights, llama_folder / "model.safetensors", {"format": "pt"})
    shown = r"name=lm_head\.weight, stored=\[3\], expected=\[300, 64\], more=.*\(count=1\)\)"
    with pytest.raises(ValueError, match=shown):
        load_causal_lm(find_source(str(llama_folder)), OPTIONS)
    for name in ("model.norm.weight", "lm_head.weight"):
        del weights[name]
    save_file(weights, llama_folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lack_tensors\(.*count=2, name=lm_head\.weight\)"):
        load_causal_lm(find_source(str(llama_folder)), OPTIONS)


@pytest.mark.parametrize(
    ("values", "given", "refusal"),
    [
        ({"auto_map": {"AutoConfig": "m.C"}}, {}, None),  # of a kind that transformers knows
        ({"architectures": None}, {}, None),
        ({"architectures": []}, {}, None),
        ({"architectures": ["Own"]}, {}, "not_a_causal_model(location={}, model_class=Own, hint=)"),
        ({"architectures": ["Own"]}, {"trust_remote_code": True}, "model_class=Own"),
        (
            {"architectures": ["LlavaForConditionalGeneration"]},
            {},
            "model_class=LlavaForConditionalGeneration, hint=;models.hint_text_rows())",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "m.C"}},
            {},
            "remote_code_not_trusted(folder={})",
        ),
        ({"model_type": None}, {}, "no_model_type(path={}/config.json)"),
        ({}, {"sees": True}, "text_model_for_images(location={}, model_class=LlamaForCausalLM)"),
        (
            {"architectures": None},
            {"sees": True},
            "text_model_for_images(location={}, model_class=llama)",
        ),
        (
            {"model_type": "llava", "architectures": ["Own"]},
            {"sees": True},
            "text_model_for_images(location={}, model_class=Own)",
        ),
        ({"model_type": "llava", "architectures": None}, {"sees": True}, None),
    ],
)
def test_a_model_of_another_kind_is_seen_in_its_configuration(
    llama_folder: Path, values: dict[str, Any], given: dict[str, Any], refusal: str | None
) -> None:
    path = llama_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    source, options = find_source(str(llama_folder)), replace(OPTIONS, **given)
    if refusal is None:
        load_config(source, options)
        return
    with pytest.raises(ValueError, match=re.escape(refusal.format(llama_folder))):
        load_config(source, options)


@pytest.mark.parametrize(
    ("has_map", "is_trusted", "is_refused"),
    [(True, True, False), (True, False, True), (False, True, True)],
)
def test_code_that_comes_with_a_model_may_be_of_any_class_if_it_is_trusted(
    has_map: bool, is_trusted: bool, is_refused: bool
) -> None:
    config: Any = LlamaConfig(architectures=["Own"], auto_map={"a": "b"} if has_map else None)
    options = replace(OPTIONS, trust_remote_code=is_trusted)
    refused = pytest.raises(ValueError, match="not_a_causal_model")
    with refused if is_refused else nullcontext():
        _check_causal(config, HUB, options)


@pytest.mark.parametrize(
    ("ends", "expected"), [(None, 2), (7, [2, 7]), ([2, 9, 7], [2, 7, 9]), ("no file", 2)]
)
def test_a_lora_brings_the_ends_that_it_was_trained_with(
    llama_folder: Path, tmp_path: Path, ends: Any, expected: Any
) -> None:
    import peft

    def base() -> Any:
        return load_causal_lm(find_source(str(llama_folder)), OPTIONS)

    lora = peft.LoraConfig(r=2, target_modules=["q_proj"])
    peft.get_peft_model(base(), lora).save_pretrained(tmp_path)
    if ends != "no file":
        values = {} if ends is None else {"eos_token_id": ends}
        (tmp_path / "generation_config.json").write_text(json.dumps(values))
    model: Any = load_lora(tmp_path, base())
    assert model.get_base_model().generation_config.eos_token_id == expected
    assert all(p.requires_grad is ("lora_" in name) for name, p in model.named_parameters())


def test_the_base_of_a_lora_is_beside_it_or_at_its_recorded_place(tmp_path: Path) -> None:
    facts = {"peft_type": "LORA", "base_model_name_or_path": "owner/name", "revision": 5}
    (tmp_path / "adapter_config.json").write_text(json.dumps(facts))
    assert base_of_lora(tmp_path) == replace(HUB, revision="5")
    (tmp_path / "adapter_config.json").write_text(json.dumps({**facts, "revision": None}))
    assert base_of_lora(tmp_path) == HUB
    (tmp_path / "base").mkdir()
    assert base_of_lora(tmp_path) == HUB
    (tmp_path / "base/config.json").touch()
    assert base_of_lora(tmp_path) == ModelSource(SourceKind.FOLDER, str(tmp_path / "base"))


def test_a_tokenizer_that_cannot_be_read_is_named_with_the_reason(llama_folder: Path) -> None:
    (llama_folder / "tokenizer.json").write_text("{")
    shown = rf"models\.tokenizer_not_loaded\(location={llama_folder}, reason=\S.*\)$"
    with pytest.raises(ValueError, match=shown):
        load_tokenizer(find_source(str(llama_folder)), OPTIONS)


def test_layers_without_weights_are_those_of_the_kind_that_is_loaded() -> None:
    config = llava_config(tiny_tokenizer("<image>"))
    seeing = without_weights(config, replace(OPTIONS, sees=True))
    assert type(seeing).__name__ == "LlavaForConditionalGeneration"
    assert all(parameter.is_meta for parameter in seeing.parameters())


@pytest.mark.parametrize("dropout", [None, 0.0, 0.1])
def test_a_tokenizer_that_splits_at_random_is_refused(
    llama_folder: Path, dropout: float | None
) -> None:
    path = llama_folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["dropout"] = dropout
    path.write_text(json.dumps(values))
    source = find_source(str(llama_folder))
    options = LoadOptions(torch.device("cpu"), torch.float32)
    if not dropout:
        assert load_tokenizer(source, options)("a")["input_ids"]
        return
    about = rf"location={llama_folder}, dropout=0\.1"
    with pytest.raises(ValueError, match=rf"models\.tokenizer_is_random\({about}"):
        load_tokenizer(source, options)


def test_all_options_reach_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    tokenizer = SimpleNamespace(eos_token_id=2, eos_token="</s>", pad_token_id=None)
    config, model = LlamaConfig(), torch.nn.Linear(1, 1)
    report = {"mismatched_keys": [], "missing_keys": [], "unexpected_keys": []}
    for auto, made in (
        (AutoConfig, config),
        (AutoTokenizer, tokenizer),
        (AutoModelForCausalLM, (model, report)),
    ):

        def load(name: str, made: Any = made, **named: Any) -> Any:
            calls.append((name, named))
            return made

        monkeypatch.setattr(auto, "from_pretrained", load)
    options = LoadOptions(CPU, torch.bfloat16, "eager", trust_remote_code=True, revision="v2")
    assert load_tokenizer(HUB, options) is tokenizer
    assert tokenizer.pad_token == "</s>"
    assert load_causal_lm(HUB, options) is model
    place = {"trust_remote_code": True, "revision": "v2"}
    whole = {
        **{"config": config, "dtype": torch.bfloat16, "attn_implementation": "eager"},
        **{"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True},
    }
    named = [place, place, {**whole, **place}]
    assert calls == [("owner/name", given) for given in named]
    tokenizer.eos_token_id = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"no_end_of_text_token\(name=owner/name\)"):
        load_tokenizer(HUB, options)
