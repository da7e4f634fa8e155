"""`temper tune` on a real small model: it measures, tells, and prints flags that can be typed."""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.tuning import alternatives
from infrastructure.deployment.tuning_trials import TuningTrials
from tests.deployment.runs import small_settings


def test_what_somebody_gave_is_not_tried(tmp_path: Path) -> None:
    given = {"mixed_precision": "fp32", "compile_mode": "default"}
    config = DeploymentConfig(**small_settings(tmp_path, **given))
    tried = alternatives(config, TuningTrials(config).trainer({}))
    assert tried.keys() == {"training.gradient_checkpointing", "data.prefetch_factor"}


def test_the_range_test_suggests_a_rate_that_trains(tmp_path: Path) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))
    found = TuningTrials(config).learning_rates()
    assert found.suggested is not None
    assert 1e-6 < found.suggested < 1.0
