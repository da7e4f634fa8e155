"""Settings that a vision tower on a model of text cannot go with, each refused by name."""

from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig

TOWER = {
    "training.enabled_extensions": ["multimodal"],
    "training.multimodal.vision_tower": "some/tower",
    "model.name": "some/model",
}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training.multimodal.vision_tower": None}, "vision_tower names none"),
        ({"model.name": "embedded"}, "the embedded model is new and random"),
        ({"model.quantization": "4bit"}, r"model\.quantization: .* weights as they were"),
        ({"model.quantization_aware": "int4"}, r"model\.quantization_aware: .* as they were"),
        ({"model.backend": "unsloth"}, "unsloth loads models of text here"),
        ({"training.method": "dpo"}, r"training\.method = dpo is a trainer of TRL"),
        ({"model.adapter": "dialogue"}, r"model\.adapter=dialogue is not one for pictures"),
        ({"training.strategy": "curriculum"}, "curriculum has phases of its own"),
        ({"training.mode": "blockwise"}, "progressive has phases of its own"),
        ({"training.train_extensions_only": True}, "projector alone in the epochs of"),
    ],
)
def test_what_cannot_be_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DeploymentConfig(**{**TOWER, **settings}).check_supported()


def test_all_else_goes_with_it() -> None:
    assert DeploymentConfig(**TOWER).problems() == []
    assert DeploymentConfig(**TOWER, **{"training.extension_learning_rate": 0.1}).problems() == []
