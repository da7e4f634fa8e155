"""Settings that weights of extensions cannot go with, each refused by name."""

from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.added_weights import (
    added_weights_refusals,
    saved_weights_refusals,
)

MEMORY = {"training.enabled_extensions": ["memory"]}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training.method": "dpo"}, "config.added_weights_with_trl"),
        ({"model.backend": "unsloth"}, "config.added_weights_with_unsloth"),
        ({"training.strategy": "progressive"}, "stackwise.added_weights_with_stacks"),
        ({"training.mode": "blockwise"}, "stackwise.added_weights_with_stacks"),
        ({"training.compile_mode": "default"}, "config.added_weights_with_compile"),
        ({"training.time_step_masking": True}, "stackwise.added_weights_with_masking"),
        ({"model.quantization_aware": "int4"}, "quantization_aware.with_added_weights"),
        ({"training.mixed_precision": "fp8"}, "config.added_weights_with_fp8"),
    ],
)
def test_what_cannot_be_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"{sentence}\(key=training\.enabled_extensions=memory"):
        DeploymentConfig(**MEMORY, **settings).check_supported()
    plain = DeploymentConfig(**settings)
    assert not [one for one in plain.problems() if "enabled_extensions" in one or sentence in one]
    assert list(added_weights_refusals([], plain.model, plain.training)) == []


def test_all_else_goes_with_them() -> None:
    assert DeploymentConfig(**MEMORY).problems() == []


def test_all_extensions_that_add_weights_are_named() -> None:
    config = DeploymentConfig(**{"model.backend": "unsloth"})
    [refusal] = added_weights_refusals(["memory", "multimodal"], config.model, config.training)
    assert "(key=training.enabled_extensions=memory,multimodal" in refusal


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model.backend": "unsloth"}, "config.added_weights_with_unsloth"),
        ({"training.mixed_precision": "fp8"}, "config.added_weights_with_fp8"),
        ({"training.mixed_precision": "fp16"}, ""),
        ({"training.compile_mode": "default"}, ""),  # nothing is trained with them
        ({"training.method": "dpo"}, ""),
    ],
)
def test_a_saved_model_with_such_weights_cannot_be_used_with_all_settings(
    settings: dict[str, Any], sentence: str
) -> None:
    config = DeploymentConfig(**{"model.name": "a/b", **settings})
    found = [*saved_weights_refusals(["memory", "tower"], config.model, config.training)]
    assert [one.partition("(")[0] for one in found] == [sentence] * bool(sentence)
    assert all("(key=memory, tower in model a/b" in one for one in found)
    assert [*saved_weights_refusals([], config.model, config.training)] == []
