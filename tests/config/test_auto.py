from pathlib import Path

import pytest

from infrastructure.config.auto import (
    added_learning_rate_for,
    attention_for,
    learning_rate_for,
    num_epochs_for,
    trains_from_scratch,
    trains_lora,
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


@pytest.mark.parametrize(
    ("given", "of_model", "expected"), [("auto", 2e-5, 1e-3), ("auto", 0.5, 0.5), (0.1, 0.5, 0.1)]
)
def test_added_weights_learn_no_slower_than_new_ones(
    given: float | str, of_model: float, expected: float
) -> None:
    training = TrainingConfig(extension_learning_rate=given)
    assert added_learning_rate_for(training, of_model) == expected


def test_a_saved_lora_is_trained_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (tmp_path / "lora", tmp_path / "run" / "final"):
        folder.mkdir(parents=True)
        assert not trains_lora(ModelConfig(name=str(folder)))
        (folder / "adapter_config.json").touch()
        assert trains_lora(ModelConfig(name=str(folder)))
        assert trains_lora(ModelConfig(name=f"~/{folder.relative_to(tmp_path)}"))
    of_run = ModelConfig(name=str(tmp_path / "run"))
    assert learning_rate_for(TrainingConfig(), of_run, False) == 2e-4
    assert trains_lora(LORA)
    assert not trains_lora(HUB)
