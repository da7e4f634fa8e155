import importlib.metadata
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.named_object import address_of
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.run.identity import keyed
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.resume import fingerprint
from infrastructure.training.resume.fingerprint import (
    base_facts,
    code_of_objects,
    config_facts,
    installed_versions,
    machine_facts,
    processing_facts,
    settings_of,
)
from tests.data.builders import byte_level_tokenizer
from tests.training.small_runs import small_trainer


def test_versions_are_those_installed() -> None:
    versions = installed_versions()
    assert versions["torch"] == torch.__version__
    assert versions["numpy"] == np.__version__
    assert versions["safetensors"] == safetensors.__version__
    assert versions["python"] == platform.python_version()
    recorded = "transformers peft bitsandbytes unsloth datasets tokenizers safetensors numpy"
    for name in (*recorded.split(), "unheard-of"):
        try:
            expected = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            expected = None
        assert versions.get(name) == expected
    more = installed_versions("pytest", "unheard-of")
    assert more == {**versions, "pytest": pytest.__version__}


def test_a_cpu_is_a_cpu_whatever_its_model() -> None:
    facts = machine_facts(torch.device("cpu"), 3)
    assert (facts["device"], facts["world_size"]) == ("cpu", 3)
    assert facts["deterministic"] is True  # nothing there adds up in an order of its own
    assert facts["machine"]


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("drivers", [[], ["570.1", "9"]])
def test_a_gpu_is_its_model_and_its_driver(
    monkeypatch: pytest.MonkeyPatch, drivers: list[str], is_deterministic: bool
) -> None:
    found = [SimpleNamespace(driver=driver) for driver in drivers]
    monkeypatch.setattr(fingerprint, "gpus", lambda: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: is_deterministic)
    facts = machine_facts(torch.device("cuda", 1), 2)
    assert (facts["device"], facts["driver"]) == ("GPU 1", drivers[0] if drivers else None)
    assert (facts["deterministic"], facts["world_size"]) == (is_deterministic, 2)
    assert machine_facts(torch.device("cpu"), 2)["driver"] is None
    assert facts["versions"] == installed_versions()


def test_only_what_decides_the_result_is_kept() -> None:
    training = TrainingConfig(seed=3, keep_checkpoints=9)
    trainer = EnhancedTrainer(ModelConfig(name="tactical_mappo"), training, DataConfig())
    settings = settings_of(trainer)
    assert settings["training.seed"] == 3
    assert settings["model.name"] == "tactical_mappo"
    assert "training.keep_checkpoints" not in settings
    assert not [key for key in settings if "quantum." in key]


def test_what_the_quantum_step_decides_is_kept_where_there_is_one() -> None:
    trainer = EnhancedTrainer(
        ModelConfig(),
        TrainingConfig(enabled_extensions=["quantum"]),
        DataConfig(),
        sections={
            "quantum": QuantumConfig(
                data_budget=0.5, max_overhead_percent=7, max_qubits=40, timeout=2
            )
        },
    )
    settings = settings_of(trainer)
    assert settings["quantum.data_budget"] == 0.5
    assert settings["quantum.max_qubits"] == 40
    # Whether there is time for the step decides what is trained.
    assert settings["quantum.max_overhead_percent"] == 7
    assert settings["quantum.timeout"] == 2


def test_a_base_is_known_by_its_hash_or_by_its_commit() -> None:
    assert base_facts({"base_sha256": "ab", "revision": None, "lora": {"r": 2}}) == {
        "base_model": "ab",
        "base_is_frozen": True,
    }
    assert base_facts({"base_sha256": None, "revision": "c0ffee"})["base_model"] == "c0ffee"
    second = {"base_sha256": "ab", "second_base": {"sha256": "x", "revision": "1"}}
    assert base_facts(second) == {"base_model": "ab with x", "base_is_frozen": True}
    assert base_facts({}) == {"base_model": None, "base_is_frozen": False}


def test_the_tower_of_a_model_put_together_is_known_by_its_hash_or_by_its_commit() -> None:
    """A folder has no commit; of a hub model whose weights were hashed, the weights decide."""

    def base(**tower: str | None) -> Any:
        return base_facts({"base_sha256": "ab", "revision": "c0", "second_base": tower})

    assert base(sha256="x", revision=None) == base(sha256="x", revision=None)
    assert base(sha256="x", revision=None) != base(sha256="y", revision=None)
    assert base(sha256="x", revision="1") != base(sha256="y", revision="1")
    assert base(sha256=None, revision="1") != base(sha256=None, revision="2")
    assert base(sha256="x")["base_is_frozen"]
    without = base_facts({"base_sha256": "ab", "revision": "c0"})
    assert base(sha256="x")["base_model"] != without["base_model"]
    assert not without["base_is_frozen"]


def test_the_chat_template_of_a_tokenizer_counts() -> None:
    tokenizer = byte_level_tokenizer()
    facts = []
    for template in (None, "{{ messages }}", "{{ messages[0] }}"):
        tokenizer.chat_template = template
        facts.append(processing_facts(tokenizer))
    assert facts[0]["tokenizer"] == facts[1]["tokenizer"] == facts[2]["tokenizer"]
    assert len({str(one["chat_template"]) for one in facts}) == 3


def config_of(**values: Any) -> Any:
    return SimpleNamespace(to_dict=lambda: values)


def test_of_a_configuration_what_decides_counts_however_deep_it_lies() -> None:
    names = {"_name_or_path": "x", "use_cache": True, "torch_dtype": torch.float32}
    plain: dict[Any, Any] = {"eps": 1, "rope": {"theta": 2, "kinds": ["a"]}, 3: None}
    named = {**plain, **names, "rope": {**plain["rope"], **names}}
    expected = {"eps": 1, "rope": {"theta": 2, "kinds": ["a"]}, "3": None}
    assert config_facts(config_of(**{str(k): v for k, v in plain.items()})) == expected
    assert config_facts(config_of(**{str(k): v for k, v in named.items()})) == expected
    assert config_facts(config_of()) == {}
    assert config_facts(None) is None
    assert config_facts({"eps": 1}) is None
    for name in (
        *("_name_or_path", "transformers_version", "_commit_hash", "use_cache", "auto_map"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("_attn_implementation_internal", "base_model_name_or_path", "revision", "auto_mapping"),
        *("dtype", "torch_dtype", "inference_mode", "peft_version", "architectures"),
        *("_from_model_config", "runtime_config", "init_lora_weights", "loftq_config"),
        *("corda_config", "eva_config"),
    ):
        assert config_facts(config_of(**{name: "x", "eps": 1})) == {"eps": 1}, name


class Processor:
    """As those of transformers: a tokenizer, and settings of its own."""

    def __init__(self, **values: Any) -> None:
        self.tokenizer, self.values = byte_level_tokenizer(), values

    def to_dict(self) -> dict[str, Any]:
        return self.values


def test_of_a_processor_its_tokenizer_and_its_settings_count() -> None:
    assert processing_facts(None) == {}
    tokenizer = processing_facts(byte_level_tokenizer())
    assert tokenizer.keys() == {"chat_template", "tokenizer"}
    assert tokenizer["chat_template"] is None
    one = processing_facts(Processor(size=1))
    assert one.keys() == {"chat_template", "tokenizer", "processor"}
    assert one["tokenizer"] == tokenizer["tokenizer"]
    assert one == processing_facts(Processor(size=1, _name_or_path="x", tokenizer="y"))
    assert one["processor"] != processing_facts(Processor(size=2))["processor"]
    # It writes prompts with a template of its own, whatever its tokenizer has; or with that one's.
    templates = []
    for of_processor, of_tokenizer in (("a", None), ("b", None), ("b", "a"), (None, "a")):
        processor: Any = Processor(size=1)
        processor.chat_template, processor.tokenizer.chat_template = of_processor, of_tokenizer
        templates.append(processing_facts(processor)["chat_template"])
    assert templates[0] == templates[3] != templates[1] == templates[2]
    assert None not in templates
    # A tokenizer that has a dictionary is no processor, nor is one that has none.
    alone: Any = byte_level_tokenizer()
    alone.to_dict = dict
    assert processing_facts(alone).keys() == {"chat_template", "tokenizer"}
    assert processing_facts(SimpleNamespace(tokenizer=byte_level_tokenizer())).keys() == {
        "chat_template",
        "tokenizer",
    }
    pictures_alone = SimpleNamespace(to_dict=lambda: {"size": 1})
    assert processing_facts(pictures_alone).keys() == {"chat_template"}


def test_of_a_processor_the_template_counts_that_it_writes_prompts_with() -> None:
    """Its own, whatever its tokenizer has; its tokenizer's, where it has none."""

    def fact(own: Any, of_the_tokenizer: Any) -> Any:
        processor: Any = Processor(size=1)
        processor.chat_template, processor.tokenizer.chat_template = own, of_the_tokenizer
        facts = processing_facts(processor)
        assert facts["processor"] == processing_facts(Processor(size=1))["processor"]
        return facts["chat_template"]

    assert fact("{{ one }}", "{{ three }}") != fact("{{ two }}", "{{ three }}")
    assert fact("{{ one }}", "{{ three }}") == fact("{{ one }}", None)
    assert fact({"a": "{{ one }}"}, None) != fact({"a": "{{ two }}"}, None)
    assert fact(None, "{{ one }}") == fact("{{ one }}", None) != fact(None, "{{ two }}")
    assert fact(None, None) is None


class Unnamed:
    pass


class Named:
    pass


def test_the_code_of_objects_counts_that_no_setting_names() -> None:
    named: Any = {"model": {"mine": {"address": address_of(Named), "file": "x", "sha256": "y"}}}
    objects = [Unnamed(), Named(), EnhancedTrainer, 1, []]
    found: Any = code_of_objects(objects, named)
    assert found.keys() == {"Unnamed"}
    assert found["Unnamed"]["name"] == "Unnamed"
    assert any(file.endswith("test_fingerprint.py") for file in found["Unnamed"]["files"])
    assert code_of_objects(objects, {}).keys() == {"Unnamed", "Named"}  # type: ignore[union-attr]
    assert code_of_objects([Named(), 1], named) is None


def test_what_a_resumed_run_may_repeat_is_read_each_time(saved_llama: Path, tmp_path: Path) -> None:
    trainer = small_trainer(saved_llama, tmp_path)
    before = trainer.identity()
    trainer.training_config.seed = 7
    trainer.adapter.size_grid = SizeGrid.SIXTEENTHS
    trainer.prepare().set_length(9)
    after = trainer.identity()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"size_grid", "total_steps"}
    assert after["planned_steps"] == before["total_steps"] == 6
    assert after["num_threads"] == torch.get_num_threads()


def test_a_resumed_run_has_the_key_of_the_first_session(saved_llama: Path, tmp_path: Path) -> None:
    first, again = (small_trainer(saved_llama, tmp_path) for _ in range(2))
    data = again.initialize_data().fingerprint
    was, own = first.identity(), again.identity()
    assert was["data"] != own["data"]
    again.run_identity.resume(was)
    assert again.identity()["data"] == was["data"] == keyed(was["key"], data)
    again.run_identity.resume({"key": None})  # of a run from before there were keys
    assert again.identity()["data"] == data
