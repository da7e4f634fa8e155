import pytest

from infrastructure.config.data_config import DataConfig
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.training import unsloth_trainer
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.trainer_factory import TrainerFactory
from infrastructure.training.unsloth_trainer import UnslothTrainer


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("auto", EnhancedTrainer), ("transformers", EnhancedTrainer), ("unsloth", UnslothTrainer)],
)
def test_the_backend_chooses_the_trainer(
    backend: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsloth_trainer, "prepare_backend", lambda *arguments: None)
    config = ModelConfig(name="some/model", backend=backend)
    trainer = TrainerFactory().create_trainer(
        config, TrainingConfig(seed=7), DataConfig(), device="cpu"
    )
    assert type(trainer) is kind
    assert trainer.model_config.backend == backend
    assert trainer.training_config.seed == 7
