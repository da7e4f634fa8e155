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
        ({"training.multimodal.vision_tower": None}, "config.vision_encoder_not_set"),
        ({"model.name": "embedded"}, "config.vision_encoder_on_new_model"),
        (
            {"model.quantization": "4bit"},
            r"vision_encoder_needs_full_weights\(setting=model\.quantization=4bit",
        ),
        (
            {"model.quantization_aware": "int4"},
            r"vision_encoder_needs_full_weights\(setting=model\.quantization_aware=int4",
        ),
        ({"model.backend": "unsloth"}, "config.vision_encoder_with_unsloth"),
        ({"training.method": "dpo"}, r"config\.vision_encoder_with_trl_method.*method=dpo"),
        ({"model.adapter": "dialogue"}, r"config\.adapter_without_images\(adapter=dialogue"),
        (
            {"training.strategy": "curriculum"},
            r"config\.strategy_with_projector_phase\(strategy=curriculum",
        ),
        (
            {"training.mode": "blockwise"},
            r"config\.strategy_with_projector_phase\(strategy=progressive",
        ),
        ({"training.train_extensions_only": True}, "config.extensions_only_with_projector"),
    ],
)
def test_what_cannot_be_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DeploymentConfig(**{**TOWER, **settings}).check_supported()


def test_all_else_goes_with_it() -> None:
    assert DeploymentConfig(**TOWER).problems() == []
    assert DeploymentConfig(**TOWER, **{"training.extension_learning_rate": 0.1}).problems() == []
