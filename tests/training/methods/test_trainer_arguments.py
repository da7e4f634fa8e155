"""Each setting that becomes an argument of TRL's does, under the name that the table says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.training.methods.settings_table import Use, treatment_of
from infrastructure.training.methods.trainer_arguments import (
    Defaults,
    arguments_of,
    defaults_of,
)
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


@pytest.mark.parametrize(
    ("setting", "value", "argument", "expected"),
    [
        ("optimizer", "adamw", "optim", "adamw_torch"),
        ("optimizer", "adamw_8bit", "optim", "adamw_bnb_8bit"),
        ("optimizer", "paged_adamw", "optim", "paged_adamw_32bit"),
        ("optimizer", "paged_adamw_8bit", "optim", "paged_adamw_8bit"),
        ("optimizer", "sgd", "optim", "sgd"),
        ("scheduler_type", "cosine", "lr_scheduler_type", "cosine"),
        ("scheduler_type", "linear", "lr_scheduler_type", "linear"),
        ("scheduler_type", "constant", "lr_scheduler_type", "constant_with_warmup"),
        ("max_grad_norm", None, "max_grad_norm", 0.0),
        ("max_grad_norm", 0.5, "max_grad_norm", 0.5),
        ("max_steps", None, "max_steps", -1),
        ("seed", 7, "seed", 7),
        ("seed", 7, "data_seed", 7),
        ("learning_rate", 0.25, "learning_rate", 0.25),
        ("num_epochs", 2, "num_train_epochs", 2.0),
        ("mixed_precision", "bf16", "fp16", False),
        ("mixed_precision", "fp32", "fp16", False),
        ("method_settings", {"logging_steps": 3}, "logging_steps", 3),
    ],
)
def test_a_value_is_the_one_that_trl_means(
    setting: str, value: object, argument: str, expected: object
) -> None:
    assert arguments(training={setting: value})[argument] == expected


def test_fp16_is_computed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    given = arguments(device="cuda", training={"mixed_precision": "fp16"})
    assert (given["fp16"], given["bf16"], given["use_cpu"], given["tf32"]) == (
        True,
        False,
        False,
        None,
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for is_on in (True, False):
        given = arguments(device="cuda", enable_gpu_optimization=is_on)
        assert given["tf32"] is is_on


def test_versions_evaluation_and_reports_are_left_to_temper() -> None:
    kept = ("output_dir", "save_strategy", "eval_strategy", "logging_strategy", "report_to")
    given = arguments()
    assert [given[name] for name in kept] == ["runs/a", "no", "no", "steps", []]


def test_auto_is_what_trl_takes_and_ten_times_that_for_lora() -> None:
    assert arguments()["learning_rate"] == 1e-6
    lora = {"lora_config": True}
    assert arguments(model=lora)["learning_rate"] == pytest.approx(1e-5)
    assert arguments(model=lora, training={"learning_rate": 0.25})["learning_rate"] == 0.25
    assert arguments()["num_train_epochs"] == 3
    assert arguments()["num_generations"] == 8
    assert "beta" not in arguments()


def test_lengths_are_those_that_a_method_has() -> None:
    for method in ("dpo", "kto", "orpo", "reward"):
        pairs = arguments(training={"method": method}, data={"max_length": 99})
        assert pairs["max_length"] == 99
        assert not {"max_completion_length", "temperature"} & pairs.keys()
    for method in ("grpo", "rloo", "distillation"):
        written = arguments(training={"method": method, "max_completion_length": 9})
        assert written["max_completion_length"] == 9
        assert "max_length" not in written
    assert arguments()["per_device_eval_batch_size"] == 32
    assert arguments(training={"batch_size": 12})["per_device_eval_batch_size"] == 8


def test_the_defaults_are_those_of_trl_s_configuration() -> None:
    @dataclass
    class Config:
        learning_rate: float = 5e-5
        num_train_epochs: float = 3.0
        num_generations: int = 6

    @dataclass
    class Other:
        learning_rate: float = 1e-4
        num_train_epochs: int = 1

    assert defaults_of(Config) == Defaults(5e-5, 3.0, 6)
    assert defaults_of(Other) == Defaults(1e-4, 1.0, None)
