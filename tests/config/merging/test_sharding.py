"""Settings that a model that is sharded over processes cannot have."""

from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.sharding import sharding_refusals, why_not_spread


def reasons(**settings: Any) -> list[str]:
    config = DeploymentConfig(**{"model.name": "a/b", **settings})
    return [*why_not_spread(config.model, config.training)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        *(
            ({"training.optimizer": name}, f"config.shard_with_8bit_optimizer(optimizer={name})")
            for name in ("adamw_8bit", "paged_adamw", "paged_adamw_8bit")
        ),
        *(({"training.optimizer": name}, None) for name in ("adamw", "sgd")),
        *(({"model.adapter": name}, None) for name in ("auto", "standard", "dialogue")),
        *(({"training.strategy": name}, None) for name in ("auto", "standard", "finetune")),
        ({"training.mixed_precision": "bf16"}, None),
        ({"training.method": "sft"}, None),
        ({"model.lora_config": True}, None),
        ({"training.best_metric": "perplexity"}, None),
        ({"model.quantization": "8bit"}, "config.shard_with_quantization(quantization=8bit)"),
    ],
)
def test_what_a_sharded_model_may_have(settings: dict[str, Any], reason: str | None) -> None:
    assert reasons(**settings) == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("shard", "has_others", "refused"),
    [
        ("yes", False, ["config.shard_on_one_process(name=training.shard=yes)"]),
        ("offload", False, ["config.shard_on_one_process(name=training.shard=offload)"]),
        ("offload", True, ["(setting=training.shard=offload, reason=config.shard_with_fp8("]),
        ("auto", True, []),
        ("auto", False, []),
    ],
)
def test_only_who_wants_a_sharded_model_is_refused(
    shard: str, has_others: bool, refused: list[str]
) -> None:
    settings = {"training.shard": shard, "training.mixed_precision": "fp8"}
    config = DeploymentConfig(**settings)
    found = [*sharding_refusals(config.model, config.training, has_others=has_others)]
    assert len(found) == len(refused)
    assert all(text in line for text, line in zip(refused, found, strict=True))
