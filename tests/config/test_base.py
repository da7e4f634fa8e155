"""A section of the configuration names what is wrong in it."""

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.training_config import TrainingConfig


def refusal(**values: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        TrainingConfig(**values)  # type: ignore[arg-type]
    return str(caught.value)


def test_an_unknown_name_is_named_with_the_nearest_one() -> None:
    refused = refusal(batch_sise=4)
    assert "config.unknown_key_in_meant(key=batch_sise, " in refused
    assert "meant=batch_size)" in refused
    assert f"section={TrainingConfig.__name__}" in refused


def test_everything_that_is_wrong_is_named_at_once() -> None:
    refused = refusal(batch_sise=4, num_epochs="many", learning_rate=-1)
    for name in ("batch_sise", "training.num_epochs", "training.learning_rate"):
        assert refused.count(name) == 1
