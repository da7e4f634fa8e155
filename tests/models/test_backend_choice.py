"""Which library loads the model, as a machine with a CUDA GPU decides; no GPU is touched."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models import backend_choice
from infrastructure.models.backend_choice import BackendChoice, choose_backend

CUDA = torch.device("cuda")
TAKEN = "models.unsloth_chosen()"
NOT_TAKEN = "models.transformers_chosen(reason={})"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder_of(tmp_path, "llama")


def folder_of(tmp_path: Path, model_type: str) -> Path:
    folder = tmp_path / model_type
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path | None]]:
    """A machine with an Unsloth that fits; what is imported, and where its code goes."""
    calls: list[tuple[str, Path | None]] = []
    monkeypatch.setattr(backend_choice, "is_installed", lambda package: True)
    monkeypatch.setattr(backend_choice, "check_versions", lambda: None)
    monkeypatch.setattr(
        backend_choice,
        "prepare_backend",
        lambda config, cache: calls.append((config.backend, cache)),
    )
    monkeypatch.setitem(sys.modules, "unsloth", ModuleType("unsloth"))
    return calls


def chosen(name: Path | str, device: torch.device = CUDA, **training: Any) -> BackendChoice:
    options = {key: training.pop(key) for key in ("num_processes", "began_with") if key in training}
    settings = training.pop("model", {})
    config = ModelConfig(name=str(name), **settings)
    return choose_backend(config, TrainingConfig(**training), device, **options)


def test_a_gpu_takes_unsloth_where_it_supports_model_and_training(
    model: Path, prepared: list[tuple[str, Path | None]], tmp_path: Path
) -> None:
    config = ModelConfig(name=str(model), lora_config={})
    choice = choose_backend(config, TrainingConfig(), CUDA, cache_directory=tmp_path)
    assert choice.backend == "unsloth"
    assert choice.sentence == TAKEN
    assert prepared == [("unsloth", tmp_path)]  # before anything else imports transformers
    assert config.backend == "auto"  # what was configured stays


def test_without_a_choice_nothing_is_reported_or_imported(
    model: Path, prepared: list[tuple[str, Path | None]]
) -> None:
    silent = BackendChoice("transformers")
    assert chosen(model, torch.device("cpu")) == silent
    assert chosen("embedded") == silent
    assert chosen(model, model={"backend": "transformers"}) == silent
    assert chosen(model, model={"backend": "unsloth"}) == BackendChoice("unsloth")
    assert chosen(model, began_with="transformers") == silent  # a run stays with what it has
    on_cpu = chosen(model, torch.device("cpu"), began_with="unsloth")
    assert on_cpu.backend == "unsloth"
    assert "models.unsloth_on_cpu" in str(on_cpu.sentence)
    assert prepared == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"strategy": "progressive"}, "models.unsloth_strategy_unsupported(strategy=progressive)"),
        ({"mode": "blockwise"}, "models.unsloth_strategy_unsupported(strategy=progressive)"),
        ({"time_step_masking": True}, "models.unsloth_no_masked_diffusion()"),
        ({"num_processes": 2}, "models.several_processes()"),
        ({"model": {"attention": "eager"}}, "models.unsloth_own_attention()"),
        ({"memory_efficient_attention": False}, "models.unsloth_own_attention()"),
        ({"model": {"trust_remote_code": True}}, "models.model_has_own_code()"),
        ({"model": {"adapter": "dialogue"}}, "models.adapter_loads_model(adapter=dialogue)"),
        (
            {"model": {"lora_config": {"use_dora": True}}},
            "models.unsloth_no_setting(setting=model.lora_config.use_dora)",
        ),
        (
            {"model": {"quantization_aware": "int4"}},
            "models.unsloth_no_setting(setting=model.quantization_aware)",
        ),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_mode": "selective"},
            "models.unsloth_own_checkpointing()",
        ),
    ],
)
def test_a_training_that_it_does_not_support_is_named(
    model: Path, prepared: list[tuple[str, Path | None]], settings: dict[str, Any], reason: str
) -> None:
    choice = chosen(model, **settings)
    assert choice == BackendChoice("transformers", NOT_TAKEN.format(reason))
    assert prepared == []


def test_a_model_that_it_has_no_kernels_for_is_named(
    tmp_path: Path, prepared: list[tuple[str, Path | None]]
) -> None:
    no_kernels = NOT_TAKEN.format("models.unsloth_no_kernels(model_type=opt)")
    assert chosen(folder_of(tmp_path, "opt")).sentence == no_kernels
    unreadable = folder_of(tmp_path, "qwen3")
    (unreadable / "config.json").write_text("{")
    assert "models.config_unreadable_before_load" in str(chosen(unreadable).sentence)
    assert prepared == []


def test_a_lora_is_judged_by_its_base(
    tmp_path: Path, model: Path, prepared: list[tuple[str, Path | None]]
) -> None:
    lora = tmp_path / "lora"
    lora.mkdir()
    facts = {"peft_type": "LORA", "base_model_name_or_path": str(model)}
    (lora / "adapter_config.json").write_text(json.dumps(facts))
    assert chosen(lora).backend == "unsloth"


def test_a_model_of_the_hub_is_judged_by_the_version_that_is_loaded(
    model: Path, prepared: list[tuple[str, Path | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[Any, ...]] = []

    def fetch(name: str, file: str, revision: str | None) -> str:
        fetched.append((name, file, revision))
        return str(model / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    assert chosen("owner/name", model={"revision": "v2"}).backend == "unsloth"
    assert fetched == [("owner/name", "config.json", "v2")]


def test_without_unsloth_the_reason_is_how_to_get_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_choice, "is_installed", lambda package: False)
    pip = "pip install --no-deps -r requirements-unsloth.txt"
    expected = NOT_TAKEN.format(f"models.unsloth_not_installed(command={pip})")
    assert chosen(model).sentence == expected


def test_where_it_does_not_fit_or_comes_too_late_the_training_goes_on_without_it(
    model: Path, prepared: list[tuple[str, Path | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("this GPU is\n too old")

    monkeypatch.setattr(backend_choice, "prepare_backend", fail)
    expected = "models.unsloth_import_failed(error=RuntimeError: this GPU is too old)"
    assert chosen(model) == BackendChoice("transformers", NOT_TAKEN.format(expected))

    def refuse() -> None:
        raise ValueError("unsloth 1 does not work with torch 3")

    monkeypatch.setattr(backend_choice, "check_versions", refuse)
    assert "reason=unsloth 1 does not work with torch 3" in str(chosen(model).sentence)
    monkeypatch.delitem(sys.modules, "unsloth")
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    assert "models.unsloth_imported_too_late" in str(chosen(model).sentence)


@pytest.mark.parametrize("model_type", backend_choice.MODEL_TYPES)
def test_each_type_with_kernels_is_loaded_by_unsloth(
    tmp_path: Path, model_type: str, prepared: list[tuple[str, Path | None]]
) -> None:
    assert chosen(folder_of(tmp_path, model_type), strategy="finetune").backend == "unsloth"


def test_what_unsloth_supports_is_no_reason_against_it(
    model: Path, prepared: list[tuple[str, Path | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings in (
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": False, "gradient_checkpointing_mode": "selective"},
        {"memory_efficient_attention": True},
        {"model": {"attention": "sdpa", "adapter": "standard"}},
        {"num_processes": 1},
    ):
        assert chosen(model, **settings).backend == "unsloth", settings
    registered = "models.registered_model(name=tactical_mappo)"
    assert chosen("tactical_mappo", model={"adapter": "auto"}).sentence == NOT_TAKEN.format(
        registered
    )
    assert len(prepared) == 5

    def fail(*_: object) -> None:
        raise RuntimeError("x" * 300)

    monkeypatch.setattr(backend_choice, "prepare_backend", fail)
    reason = f"models.unsloth_import_failed(error=RuntimeError: {'x' * 186})"
    assert chosen(model).sentence == NOT_TAKEN.format(reason)


def test_a_lora_of_a_hub_model_is_judged_by_the_version_that_it_was_made_for(
    model: Path,
    tmp_path: Path,
    prepared: list[tuple[str, Path | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lora, fetched = tmp_path / "lora", list[str | None]()
    lora.mkdir()

    def fetch(name: str, file: str, revision: str | None) -> str:
        fetched.append(revision)
        return str(model / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    facts = {"peft_type": "LORA", "base_model_name_or_path": "owner/name"}
    for revision in ("v1", None):
        (lora / "adapter_config.json").write_text(json.dumps({**facts, "revision": revision}))
        assert chosen(lora).backend == "unsloth"
    assert fetched == ["v1", None]
    (model / "config.json").write_text('{"model_type": 7}')
    assert "models.config_unreadable_before_load" in str(chosen(model).sentence)
