"""Settings that weights of extensions cannot go with, each refused by name."""

from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.added_weights import added_weights_refusals

MEMORY = {"training.enabled_extensions": ["memory"]}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training.method": "dpo"}, "TRL's trainers .* neither train nor save"),
        ({"model.backend": "unsloth"}, "layers that model.backend unsloth has patched"),
        ({"training.strategy": "progressive"}, "strategy progressive trains a stack"),
        ({"training.mode": "blockwise"}, "trains a stack of layers at a time"),
        ({"training.compile_mode": "default"}, "torch.compile would not see"),
        ({"training.time_step_masking": True}, "time_step_masking hides tokens"),
        ({"model.quantization_aware": "int4"}, "saves a second, rounded model"),
        ({"training.mixed_precision": "fp8"}, "mixed_precision fp8 has no such layers"),
    ],
)
def test_what_cannot_be_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"enabled_extensions memory.*{sentence}"):
        DeploymentConfig(**MEMORY, **settings).check_supported()
    plain = DeploymentConfig(**settings)
    assert not [one for one in plain.problems() if "enabled_extensions" in one]
    assert list(added_weights_refusals([], plain.model, plain.training)) == []


def test_all_else_goes_with_them() -> None:
    assert DeploymentConfig(**MEMORY).problems() == []
