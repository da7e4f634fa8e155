"""Each setting that becomes an argument of TRL's does, under the name that the table says."""

from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.training.methods.settings_table import Use, treatment_of
from infrastructure.training.methods.trainer_arguments import Defaults, arguments_of
from tests.config.field_values import other_value

FIELDS = schema_of(DeploymentConfig).fields
ARGUMENTS = [
    key
    for key in FIELDS
    if (treatment := treatment_of(key)) is not None and treatment.use is Use.ARGUMENT
]
DEFAULTS = Defaults(learning_rate=1e-6, num_epochs=3.0, num_generations=8)
VALUES: dict[str, object] = {
    "training.optimizer": "paged_adamw_8bit",
    "training.mixed_precision": "bf16",
    "training.method_settings": {"loss_type": "dapo"},
}
NEED_A_GPU = {"device": "use_cpu", "enable_gpu_optimization": "tf32"}


def arguments(*, device: str = "cpu", **sections: Any) -> dict[str, object]:
    training = {"method": "grpo", **sections.pop("training", {})}
    config = DeploymentConfig(training=training, **sections)
    return arguments_of(config, torch.device(device), DEFAULTS, Path("runs/a"))


@pytest.mark.parametrize("key", [key for key in ARGUMENTS if key not in NEED_A_GPU])
def test_a_setting_becomes_the_argument(key: str) -> None:
    treatment, (section, _, name) = treatment_of(key), key.rpartition(".")
    assert treatment is not None
    value = VALUES.get(key, other_value(FIELDS[key]))
    before, after = arguments(), arguments(**{section: {name: value}})
    changed = {k for k in {*before, *after} if before.get(k) != after.get(k)}
    named = treatment.words if key != "training.method_settings" else "loss_type"
    if key == "training.mixed_precision":
        before = arguments(training={"mixed_precision": "fp32"})
        assert (before["bf16"], after["bf16"]) == (False, True)
        return
    allowed = {named, "data_seed"} if named == "seed" else {named}
    if named in ("per_device_train_batch_size", "num_generations"):
        allowed = allowed | {"per_device_eval_batch_size"}
    assert named in changed <= allowed


def test_the_device_decides_where() -> None:
    assert arguments()["use_cpu"] is True
    assert arguments()["tf32"] is None


def test_auto_is_what_trl_takes_and_ten_times_that_for_lora() -> None:
    assert arguments()["learning_rate"] == 1e-6
    assert arguments(model={"lora_config": True})["learning_rate"] == pytest.approx(1e-5)
    assert arguments()["num_train_epochs"] == 3
    assert arguments()["num_generations"] == 8
    assert "beta" not in arguments()


def test_lengths_are_those_that_a_method_has() -> None:
    pairs = arguments(training={"method": "dpo"}, data={"max_length": 99})
    assert pairs["max_length"] == 99
    assert "max_completion_length" not in pairs
    assert "max_length" not in arguments()
    assert arguments()["per_device_eval_batch_size"] == 32
    assert arguments(training={"batch_size": 12})["per_device_eval_batch_size"] == 8
