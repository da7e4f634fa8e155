import pytest

from infrastructure.config.auto import (
    attention_for,
    learning_rate_for,
    num_epochs_for,
    trains_from_scratch,
)
from infrastructure.config.sections.model_config import EmbeddedModelConfig, LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig

EMBEDDED, HUB = ModelConfig(), ModelConfig(name="some/model")
LORA = ModelConfig(name="some/model", lora_config=LoraConfig())


@pytest.mark.parametrize(
    ("model", "learning_rate", "num_epochs"),
    [(EMBEDDED, 1.5e-3, 4), (HUB, 2e-5, 3), (LORA, 2e-4, 3)],
)
def test_auto(model: ModelConfig, learning_rate: float, num_epochs: int) -> None:
    is_new = trains_from_scratch(model)
    assert learning_rate_for(TrainingConfig(), model, is_new) == learning_rate
    assert num_epochs_for(TrainingConfig(), is_new, num_steps_per_epoch=10) == num_epochs


def test_a_wider_new_model_learns_slower() -> None:
    wide = ModelConfig(embedded=EmbeddedModelConfig(hidden_size=384, num_heads=6))
    assert learning_rate_for(TrainingConfig(), wide, True) == pytest.approx(5e-4)


def test_what_is_given_stays() -> None:
    given = TrainingConfig(learning_rate=0.5, num_epochs=7, max_steps=1000)
    assert learning_rate_for(given, EMBEDDED, True) == 0.5
    assert num_epochs_for(given, True, num_steps_per_epoch=10) == 7


def test_the_caller_may_know_that_a_model_is_new() -> None:
    assert learning_rate_for(TrainingConfig(), HUB, True) == 1e-3


@pytest.mark.parametrize(("max_steps", "num_epochs"), [(1, 1), (10, 1), (11, 2), (500, 50)])
def test_epochs_enough_for_the_steps(max_steps: int, num_epochs: int) -> None:
    given = TrainingConfig(max_steps=max_steps)
    assert num_epochs_for(given, True, num_steps_per_epoch=10) == num_epochs


@pytest.mark.parametrize(
    ("attention", "efficient", "resolved"),
    [
        ("auto", None, "auto"),
        ("auto", True, "sdpa"),
        ("auto", False, "eager"),
        ("eager", None, "eager"),
        ("eager", False, "eager"),
        ("sdpa", True, "sdpa"),
        ("flash_attention_2", True, "flash_attention_2"),
    ],
)
def test_attention(attention: str, efficient: bool | None, resolved: str) -> None:
    model = ModelConfig.model_validate({"attention": attention})
    training = TrainingConfig(memory_efficient_attention=efficient)
    assert attention_for(model, training) == resolved
