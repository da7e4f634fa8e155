"""The processor of a model that sees: loaded with it, refused where it is not whole."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import MissingPackageError
from infrastructure.models import processor as module
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.processor import has_processor, load_processor, sees_pictures
from infrastructure.models.source import find_source
from infrastructure.models.transformers_backend import LoadOptions, load_config
from tests.training.seeing_models import save_llava

OPTIONS = LoadOptions(torch.device("cpu"), torch.float32, sees=True)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("models") / "llava")


def test_template_and_end_are_in_both(llava: Path) -> None:
    loaded = load_processor(find_source(str(llava)), OPTIONS)
    assert loaded.tokenizer.chat_template == loaded.chat_template
    assert loaded.tokenizer.eos_token == "<|end|>"
    assert has_processor(llava)


def test_a_folder_without_a_processor_is_refused(llava: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llava, tmp_path / "llava")
    (folder / "processor_config.json").unlink()
    with pytest.raises(ValueError, match=r"models\.processor_missing"):
        load_processor(find_source(str(folder)), OPTIONS)


def test_what_reads_no_pictures_is_no_processor(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    whole = load_processor(find_source(str(llava)), OPTIONS)
    for tokenizer, reads in ((whole.tokenizer, None), (None, whole.image_processor)):
        made = SimpleNamespace(tokenizer=tokenizer, image_processor=reads)
        monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *_, made=made, **__: made)
        with pytest.raises(ValueError, match=r"processor_without_images\(.*name=SimpleNamespace"):
            load_processor(find_source(str(llava)), OPTIONS)


def test_a_lora_reads_images_if_its_base_does(
    llava: Path, saved_llama: Path, tmp_path: Path
) -> None:
    for base, sees in ((llava, True), (saved_llama, False)):
        facts = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
        (tmp_path / "adapter_config.json").write_text(json.dumps(facts))
        for source in (find_source(str(base)), find_source(str(tmp_path))):
            assert sees_pictures(source) is sees
    assert not sees_pictures(find_source("owner/name"))
    assert not sees_pictures(find_source("embedded"))


def test_a_damaged_one_is_named(llava: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llava, tmp_path / "llava")
    (folder / "processor_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"models\.processor_not_loaded"):
        load_processor(find_source(str(folder)), OPTIONS)


def test_a_package_that_a_processor_needs_is_named(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    def refuse(*arguments: object, **options: object) -> None:
        raise ImportError("Qwen2VLVideoProcessor requires the Torchvision library")

    monkeypatch.setattr(AutoProcessor, "from_pretrained", refuse)
    monkeypatch.setattr(module, "is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=r"models\.processor_needs_torchvision"):
        load_processor(find_source(str(llava)), OPTIONS)


def test_a_model_of_text_is_refused_by_its_name(saved_llama: Path, llava: Path) -> None:
    with pytest.raises(
        ValueError, match=r"models\.text_model_for_images.*model_class=LlamaForCausalLM"
    ):
        load_config(find_source(str(saved_llama)), OPTIONS)
    text = LoadOptions(torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError, match=r"models\.not_a_causal_model"):
        load_config(find_source(str(llava)), text)


def test_what_is_wrong_with_a_processor_is_named_with_its_place(
    llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    source = find_source(str(llava))
    given: list[Any] = []

    def fail(*names: object, **named: object) -> None:
        given.append((*names, named))
        raise ImportError(f"needs\n Torchvision {'x' * 400}")

    monkeypatch.setattr(AutoProcessor, "from_pretrained", fail)
    monkeypatch.setattr(module, "is_installed", lambda package: package == "torchvision")
    shown = f"location={llava}, reason=needs Torchvision {'x' * 281}…)"
    with pytest.raises(ValueError, match="processor_not_loaded") as refused:
        load_processor(source, replace(OPTIONS, trust_remote_code=True))
    assert str(refused.value) == f"models.processor_not_loaded({shown}"
    assert given == [(str(llava), {"trust_remote_code": True})]
    monkeypatch.setattr(module, "is_installed", lambda _: False)
    with pytest.raises(MissingPackageError, match=rf"needs_torchvision\(location={llava}\)"):
        load_processor(source, OPTIONS)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"tokenizer_missing\(folder={tmp_path}\)"):
        load_processor(find_source(str(tmp_path)), OPTIONS)
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(ValueError, match=rf"processor_missing\(location={tmp_path}\)"):
        load_processor(find_source(str(tmp_path)), OPTIONS)


@pytest.mark.parametrize(("own", "expected"), [(None, "of both"), ("own", "own")])
def test_a_tokenizer_keeps_its_template_and_gets_a_padding_token(
    llava: Path, own: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    made = load_processor(find_source(str(llava)), OPTIONS)
    made.tokenizer.chat_template, made.chat_template = own, "of both"
    made.tokenizer.pad_token = None
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *_, **__: made)
    tokenizer = load_processor(find_source(str(llava)), OPTIONS).tokenizer
    assert (tokenizer.chat_template, tokenizer.pad_token) == (expected, "<|end|>")


def test_images_need_their_package(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"data\.decode_images"):
        load_processor(find_source(str(llava)), OPTIONS)


def test_a_lora_has_a_processor_of_its_own_or_that_of_its_base(llava: Path, tmp_path: Path) -> None:
    facts = {"peft_type": "LORA", "base_model_name_or_path": str(llava)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(facts))

    def template() -> str:
        manager = ModelManager(ModelConfig(name=str(tmp_path)), device=OPTIONS.device, seed=0)
        manager.sees = True
        tokenizer: Any = manager.load_tokenizer()
        assert manager.processor.tokenizer is tokenizer
        return str(tokenizer.chat_template)

    own = load_processor(find_source(str(llava)), OPTIONS)
    assert template() == own.chat_template
    own.chat_template = own.tokenizer.chat_template = "own"
    own.save_pretrained(tmp_path)
    assert template() == "own"
