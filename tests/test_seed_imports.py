"""Every import of the specifications; `src.training` there is `infrastructure.training` here."""

import subprocess
import sys

import pytest

THERE = [
    "from infrastructure.training.trainer_factory import TrainerFactory",
    "from infrastructure.training.model_adapters import get_model_adapter",
    "from infrastructure.training.strategies import get_training_strategy",
    "from infrastructure.training.enhanced_trainer import EnhancedTrainer",
    "from infrastructure.deployment.deploy_training import TrainingDeployment, DeploymentConfig",
    "from infrastructure.training import TrainingConfig",
    "from infrastructure.training import UnifiedTrainer, TrainingConfig",
    "from infrastructure.training.unified_trainer import UnifiedTrainer, TrainingConfig",
    "from infrastructure.backup.backup_system import create_backup_system",
    "from infrastructure.optimization.gpu_optimizer import create_gpu_optimizer",
    "from infrastructure.optimization.memory_optimizer import create_memory_optimizer",
    "from infrastructure.monitoring.training_monitor import TrainingMonitor",
    "from infrastructure.testing.test_pipeline import create_test_pipeline",
    # used there without an import
    "from infrastructure.monitoring.training_monitor import TrainingMetrics",
    "from infrastructure.training import ProgressiveConfig, UnslothTrainer, DataPipeline",
    "from infrastructure.training import ModelManager, TrainingContext, initialize_training",
    "from infrastructure.training import StreamingDataset, TrainingLoop",
    "from infrastructure.training.model_adapters import StandardModelAdapter",
    "from infrastructure.training.strategies import TrainingStrategy, StandardTrainingStrategy",
    "from infrastructure.training.strategies import FinetuningStrategy",
]


@pytest.mark.parametrize("line", THERE)
def test_an_import_of_the_specifications_works(line: str) -> None:
    exec(line, {})


def test_all_that_the_package_offers_is_there() -> None:
    import infrastructure.training as training

    assert set(training.__all__) <= set(dir(training))
    for name in training.__all__:
        assert getattr(training, name).__name__ == name


def test_importing_the_package_and_its_configuration_is_light() -> None:
    probe = (
        "import sys; from infrastructure.training import TrainingConfig;"
        " assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)
