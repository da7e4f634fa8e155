import numpy as np
import safetensors
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.quantum_config import QuantumConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.resume.fingerprint import (
    base_facts,
    installed_versions,
    machine_facts,
    processing_facts,
    settings_of,
)
from tests.training.data.builders import byte_level_tokenizer


def test_versions_are_those_installed() -> None:
    versions = installed_versions()
    assert versions["torch"] == torch.__version__
    assert versions["numpy"] == np.__version__
    assert versions["safetensors"] == safetensors.__version__
    assert "unheard-of" not in versions


def test_a_cpu_is_a_cpu_whatever_its_model() -> None:
    facts = machine_facts(torch.device("cpu"), 3)
    assert (facts["device"], facts["world_size"]) == ("cpu", 3)
    assert facts["deterministic"] is True  # nothing there adds up in an order of its own
    assert facts["machine"]


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
        quantum_config=QuantumConfig(
            data_budget=0.5, max_overhead_percent=7, max_qubits=40, timeout=2
        ),
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


def test_the_chat_template_of_a_tokenizer_counts() -> None:
    tokenizer = byte_level_tokenizer()
    facts = []
    for template in (None, "{{ messages }}", "{{ messages[0] }}"):
        tokenizer.chat_template = template
        facts.append(processing_facts(tokenizer))
    assert facts[0]["tokenizer"] == facts[1]["tokenizer"] == facts[2]["tokenizer"]
    assert len({str(one["chat_template"]) for one in facts}) == 3
