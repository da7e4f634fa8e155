from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"model.attention": "eager", "training.memory_efficient_attention": True},
            "memory_efficient_attention true asks for sdpa attention and model.attention for eager",
        ),
        (
            {"model.attention": "sdpa", "training.memory_efficient_attention": False},
            "memory_efficient_attention false asks for eager attention and model.attention for sdp",
        ),
        (
            {"training.strategy": "standard", "training.layerwise_lr_decay": 0.9},
            "layerwise_lr_decay 0.9 would be ignored by training.strategy standard",
        ),
        (
            {"training.strategy": "standard", "training.unfreeze_interval": 1},
            "unfreeze_interval 1 would be ignored by training.strategy standard",
        ),
        ({"data.max_length": 1024}, "raise model.embedded.max_positions (512)"),
    ],
)
def test_contradictions_are_refused_when_a_run_starts(
    keywords: dict[str, Any], sentence: str
) -> None:
    config = DeploymentConfig(**keywords)
    with pytest.raises(ValueError, match=r"\w") as raised:
        config.check_supported()
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    "keywords",
    [
        {"model.attention": "flash_attention_2", "training.memory_efficient_attention": True},
        {"training.strategy": "finetune", "training.layerwise_lr_decay": 0.9},
        {"data.max_length": 1024, "model.embedded.max_positions": 1024},
        {"data.max_length": 1024, "model_name": "some/model"},
        {"cuda_visible_devices": "1"},
    ],
)
def test_what_fits_is_left_alone(keywords: dict[str, Any]) -> None:
    DeploymentConfig(**keywords).check_supported()
