"""`temper tune` on a real small model: it measures, tells, and prints flags that can be typed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.spelling import as_flag, as_keyword
from infrastructure.core.messages import spelled_by
from infrastructure.features.tune import tuning
from infrastructure.features.tune.trials import TuningTrials
from infrastructure.features.tune.tuning import TuningResults, alternatives, describe
from infrastructure.optimization.pipeline_optimizer import Measured, Tried
from infrastructure.training.core import precision, product_choice
from tests.deployment.runs import small_settings


def test_what_somebody_gave_is_not_tried(tmp_path: Path) -> None:
    given = {"mixed_precision": "fp32", "compile_mode": "default"}
    config = DeploymentConfig(**small_settings(tmp_path, **given))
    tried = alternatives(config, TuningTrials(config).trainer({}))
    assert tried.keys() == {"training.gradient_checkpointing", "data.prefetch_factor"}


def test_trials_compute_in_the_format_that_the_run_will_train_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    trials = TuningTrials(DeploymentConfig(**small_settings(tmp_path)))
    assert trials.trainer({}).precision.name == "fp32"
    assert trials.trainer({"training.mixed_precision": "bf16"}).precision.name == "bf16"


def test_the_range_test_suggests_a_rate_that_trains(tmp_path: Path) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))
    found = TuningTrials(config).learning_rates()
    assert found.suggested is not None
    assert 1e-6 < found.suggested < 1.0


def test_a_line_of_tuning_can_be_typed() -> None:
    slow = Measured(900.0, 100)
    tried = Tried("training.gradient_checkpointing", True, slow, best=Measured(1000.0, 100))
    with spelled_by(as_flag):
        assert describe(tried).startswith("--gradient-checkpointing: 900 tokens/s")
    with spelled_by(as_keyword):
        assert describe(tried).startswith("gradient_checkpointing=True: 900 tokens/s")
    tried = Tried("data.pin_memory", False, slow, best=slow)
    with spelled_by(as_flag):
        assert describe(tried).startswith("--no-pin-memory: ")
    tried = Tried("data.prefetch_factor", 4, slow, best=slow)
    with spelled_by(as_flag):
        assert describe(tried).startswith("--prefetch-factor 4: ")


def test_a_faster_mode_that_does_not_pay_has_its_reason() -> None:
    plain, compiled = Measured(1000.0, 100), Measured(1500.0, 100, setup_seconds=20.0)
    tried = Tried("training.compile_mode", "default", compiled, best=plain, num_tokens=2000)
    assert describe(tried).endswith("tune.setup_too_slow(setup_time=20 s, run_time=2.0 s)")


def test_settings_that_are_no_faster_one_after_the_other_are_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))

    def measure(_: TuningTrials, changes: Mapping[str, object]) -> Measured:
        return Measured(900.0 if changes else 1000.0, 1)

    monkeypatch.setattr(TuningTrials, "measure", measure)
    lines: list[str] = []
    results: TuningResults = {"settings": {"training.mixed_precision": "fp32"}, "tried": []}
    assert not tuning._is_faster(TuningTrials(config), results, lines.append)
    assert "tune.not_faster" in lines[-1]
    assert "tune.compared_again(configured=1000.0, tuned=900.0, " in lines[-1]
