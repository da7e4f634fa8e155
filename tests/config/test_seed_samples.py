"""Every configuration sample of the specifications, as it stands there.

Each loads; each key arrives where it belongs; each is carried out or refused, never ignored.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.sources.load import load_config
from infrastructure.features.stackwise.config import ProgressiveConfig

SAMPLES = Path(__file__).parent / "samples"

# file: (every key and its value, keys refused when a run starts, keys told without effect)
YAML_SAMPLES: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "000_training": (
        {
            "training.batch_size": 32,
            "training.learning_rate": 2e-4,
            "training.num_epochs": 10,
            "training.optimization_frequency": 100,
            "training.checkpoint_frequency": 1000,
            "training.checkpoint_interval": None,
            "model.name": "phi-4",
            "model.quantization": "4bit",
            "model.lora_config": True,
            "model.lora_config.r": 8,
            "model.lora_config.alpha": 32,
            "model.lora_config.dropout": 0.1,
        },
        set(),
        set(),
    ),
    "000_resources": (
        {
            "resources.gpu.memory_limit": "40GB",
            "resources.gpu.compute_capability": 8.0,
            "quantum.solver": "azure-quantum",
            "quantum.max_qubits": 5000,
            "quantum.timeout": 300,
        },
        {"quantum.solver"},
        {"quantum.max_qubits", "quantum.timeout"},
    ),
    "003_sections": ({}, set(), set()),
    "003_cache": (
        {
            "cache.memory_size": 1000,
            "cache.disk_size": 10000,
            "cache.cleanup_interval": 3600,
            "cache.max_age_days": 7,
        },
        set(),
        set(),
    ),
    "003_data": (
        {
            "training.batch_size": 4,
            "data.max_length": 512,
            "data.num_workers": 4,
            "data.validation_split": 0.1,
        },
        set(),
        set(),
    ),
    "003_optimization": (
        {
            "training.learning_rate": 5e-5,
            "training.weight_decay": 0.01,
            "training.warmup_steps": 100,
            "training.scheduler_type": "cosine",
        },
        set(),
        set(),
    ),
    "003_processing": (
        {
            "training.mixed_precision": True,
            "training.gradient_checkpointing": True,
            "training.compile_mode": "reduce-overhead",
        },
        set(),
        set(),
    ),
    "003_pipeline": (
        {
            "data.memory_limit": "90%",
            "training.batch_size": "auto",
            "training.gradient_accumulation": 4,
            "training.mixed_precision": True,
            "training.gradient_checkpointing": True,
            "training.memory_efficient_attention": True,
            "data.num_workers": "auto",
            "data.prefetch_factor": 2,
            "data.pin_memory": True,
        },
        set(),
        set(),
    ),
    "003_memory": (
        {
            "memory.gpu_memory_fraction": 0.9,
            "memory.gpu_cache_size": "8GB",
            "memory.cpu_memory_limit": "85%",
            "memory.worker_memory": "2GB",
            "memory.cache_size": "10GB",
            "memory.cache_ttl": 3600,
        },
        set(),
        set(),
    ),
    "003_example": (
        {
            "training.batch_size": "auto",
            "training.gradient_accumulation": 4,
            "training.mixed_precision": True,
            "training.gradient_checkpointing": True,
            "training.memory_efficient_attention": True,
            "data.num_workers": "auto",
            "data.prefetch_factor": 2,
        },
        set(),
        set(),
    ),
}


def given_keys(config: DeploymentConfig) -> set[str]:
    return {key for key, source in config.sources().items() if source.layer != "default"}


def refused_keys(config: DeploymentConfig) -> set[str]:
    return unused_keys(config.problems())


def noted_keys(config: DeploymentConfig) -> set[str]:
    return unused_keys(config.notes())


def unused_keys(messages: list[str]) -> set[str]:
    """The settings that have no effect: what else is wrong depends on the machine."""
    unused = r"^config\.setting_without_effect\(setting=([\w.]+)="
    return {*re.findall(unused, "\n".join(messages), re.MULTILINE)}


def test_no_sample_is_left_out() -> None:
    assert {path.stem for path in SAMPLES.glob("*.yaml")} == set(YAML_SAMPLES)


@pytest.mark.parametrize("name", YAML_SAMPLES)
def test_a_yaml_sample_loads_as_it_stands(name: str) -> None:
    values, refused, noted = YAML_SAMPLES[name]
    config = load_config(SAMPLES / f"{name}.yaml", environment={})
    assert {key: config.value(key) for key in values} == values
    assert given_keys(config) == set(values)
    assert refused_keys(config) == refused
    assert noted_keys(config) == noted


def test_the_rhythm_of_000_switches_the_quantum_step_on(tmp_path: Path) -> None:
    """There it stands beside the solver, and nothing else asks for one."""
    path = tmp_path / "all.yaml"
    names = ("000_training", "000_resources")
    path.write_text("\n".join((SAMPLES / f"{name}.yaml").read_text() for name in names))
    config = load_config(path, environment={})
    assert config.training.extensions == ["quantum"]
    assert refused_keys(config) == noted_keys(config) == set()


def test_the_sections_of_both_specifications_in_one_file(tmp_path: Path) -> None:
    names = [
        "000_resources",
        "003_cache",
        "003_data",
        "003_optimization",
        "003_processing",
        "003_memory",
    ]
    path = tmp_path / "all.yaml"
    path.write_text("\n".join((SAMPLES / f"{name}.yaml").read_text() for name in names))
    config = load_config(path, environment={})
    assert config.training.batch_size == 4
    assert config.memory.cache_size == "10GB"


FLAT_002: dict[str, Any] = {
    "model_name": "tactical_mappo",
    "batch_size": 32,
    "learning_rate": 0.001,
    "num_epochs": 100,
    "checkpoint_interval": 10,
    "validation_interval": 5,
    "enable_mixed_precision": True,
    "enable_gpu_optimization": True,
    "enable_memory_optimization": True,
    "enable_monitoring": True,
    "enable_backups": True,
    "enable_testing": True,
    "max_memory_percent": 85.0,
    "log_level": "INFO",
    "output_dir": "/path/to/output",
    "data_path": "/path/to/data",
}


def test_the_flat_names_are_keywords_and_read_back() -> None:
    config = DeploymentConfig(**FLAT_002)
    assert {name: getattr(config, name) for name in FLAT_002} == FLAT_002
    config.check_supported()
    assert noted_keys(config) == set()


@pytest.mark.parametrize("name", FLAT_002)
def test_each_flat_name_by_itself_is_the_same_thing(name: str) -> None:
    config = DeploymentConfig(**{name: FLAT_002[name]})
    assert getattr(config, name) == FLAT_002[name]
    assert len(given_keys(config) - {"training.checkpoint_frequency"}) <= 2


def test_the_python_sample_of_002() -> None:
    config = DeploymentConfig(
        model_name="tactical_mappo",
        batch_size=32,
        learning_rate=0.001,
        num_epochs=100,
        enable_gpu_optimization=True,
        enable_monitoring=True,
    )
    assert config.model.name == "tactical_mappo"
    assert config.training.num_epochs == 100


def test_the_environment_sample_of_002() -> None:
    environment = {
        "MODEL_NAME": "tactical_mappo",
        "BATCH_SIZE": "32",
        "LEARNING_RATE": "0.001",
        "NUM_EPOCHS": "100",
        "DISABLE_GPU": "false",
        "DISABLE_MONITORING": "false",
        "DISABLE_BACKUPS": "false",
        "DISABLE_TESTING": "false",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LOG_LEVEL": "INFO",
        "OUTPUT_DIR": "/path/to/output",
    }
    config = load_config(environment=environment)
    assert {key: config.value(key) for key in given_keys(config)} == {
        "model.name": "tactical_mappo",
        "training.batch_size": 32,
        "training.learning_rate": 0.001,
        "training.num_epochs": 100,
        "enable_monitoring": True,
        "enable_backups": True,
        "enable_testing": True,
        "cuda_visible_devices": "0,1",
        "log_level": "INFO",
        "output_dir": "/path/to/output",
    }
    assert refused_keys(config) == set()


# name: (keywords of the sample, keys that its stack-wise part will carry out)
KEYWORD_SAMPLES_004: dict[str, dict[str, Any]] = {
    "quick start": {
        "mode": "blockwise",
        "block_size": 4,
        "time_step_masking": True,
        "quantization_enabled": True,
        "qlora_enabled": True,
    },
    "progressive": {
        "strategy": "progressive",
        "progressive": ProgressiveConfig(
            target_stacks=8, trunk_strategy="frozen", new_stack_precision="full"
        ),
    },
    "stackwise": {
        "strategy": "end_to_end",
        "end_to_end_scope": "stackwise",
        "time_step_masking": False,
    },
    "rackwise": {
        "strategy": "end_to_end",
        "end_to_end_scope": "rackwise",
        "time_step_masking": True,
        "quantization_enabled": True,
        "qlora_enabled": True,
    },
    "time steps": {
        "time_step_masking": True,
        "num_time_steps": 10,
        "time_step_bins": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        "time_step_mask_fractions": {0: 0.15, 5: 0.50, 9: 0.90},
        "store_all_time_steps": False,
        "time_step_cache_size": 1,
    },
    "qlora": {
        "quantization_enabled": True,
        "quantization_type": "nf_fp8",
        "mixed_precision": True,
        "backbone_quantized": True,
        "adapters_full_precision": True,
        "qlora_enabled": True,
        "qlora_rank": 16,
        "qlora_alpha": 32,
    },
    "options": {
        "cache_mode": "rack",
        "cache_dir": "/path/to/cache",
        "save_stacks": False,
        "save_rack": True,
        "qlora_dropout": 0.1,
        "qlora_lr": 1e-4,
        "qlora_progressive_enabled": True,
        "qlora_strategy": "variable",
        "quantization_type": "fp32",
    },
}


@pytest.mark.parametrize("name", KEYWORD_SAMPLES_004)
def test_a_keyword_sample_of_004(name: str) -> None:
    keywords = KEYWORD_SAMPLES_004[name]
    training = TrainingConfig(**keywords)
    assert {key: getattr(training, key) for key in keywords} == keywords
    config = DeploymentConfig(training=training)
    assert config.training.model_dump() == training.model_dump()
    if name != "options":  # which stand here without what they belong to
        assert refused_keys(config) == set()


def test_the_nested_qlora_names_of_004_are_a_view_of_the_flat_ones() -> None:
    nested = {
        "enabled": True,
        "rank": 8,
        "alpha": 16,
        "dropout": 0.05,
        "lr": 3e-4,
        "progressive_enabled": True,
        "strategy": "progressive",
    }
    training = TrainingConfig(qlora=nested)
    assert training.qlora_rank == 8
    assert {name: getattr(training.qlora, name) for name in nested} == nested
    training.qlora_rank = 4
    assert training.qlora.rank == 4
    assert TrainingConfig(qlora=training.qlora).qlora_rank == 4


def test_assigning_extensions_as_001_does() -> None:
    training_config = TrainingConfig()
    training_config.enabled_extensions = ["memory", "quantum"]
    assert refused_keys(DeploymentConfig(training=training_config)) == set()
