"""The checks know a masked objective: a healthy one passes them, and its own faults are seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.testing.preflight import INTEGRATION, UNIT, run_check
from infrastructure.testing.results import lines_of
from infrastructure.testing.subject import Subject
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.testing.check_models import all_checks, save_model_of, settings_of, trainer_of


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model_of("llama", tmp_path_factory.mktemp("masked") / "llama")


def subject_of(folder: Path, model_folder: Path, **training: Any) -> Subject:
    model = {"name": str(model_folder)}
    config = DeploymentConfig(**settings_of(folder, model, **training))

    def masked_trainer() -> EnhancedTrainer:
        trainer = trainer_of(config)
        trainer.adapter.training_config = trainer.adapter.training_config.copy_with(
            time_step_masking=True
        )
        return trainer

    return Subject(masked_trainer(), masked_trainer)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "time_step_masking": True,
            "time_interpretation": "input",
            "corruption": "uniform",
            "mask_weighting": "none",
        },
    ],
)
def test_no_check_fires_on_a_healthy_one(
    settings: dict[str, Any], tmp_path: Path, model_folder: Path
) -> None:
    results = all_checks(subject_of(tmp_path, model_folder, **settings))
    bad = [result for result in results if result.status in ("warn", "fail")]
    assert bad == [], "\n".join(lines_of(bad))
    assert {r.name for r in results if r.status == "skipped"} <= {"start of LoRA"}


def shows_what_is_hidden(adapter: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The tokens that are to be predicted stand where they were."""
    ids = batch["input_ids"].clone()
    ids.view(-1)[batch["target_positions"]] = batch["targets"]
    return batch | {"input_ids": ids}


def predicts_the_next_token(adapter: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"target_positions": (batch["target_positions"] - 1).clamp_min(0)}


def forgets_its_weights(adapter: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"target_weights": torch.ones_like(batch["target_weights"])}


def looks_back_only(adapter: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"is_bidirectional": False}


def never_hides_the_end(adapter: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return batch


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        (shows_what_is_hidden, "labels", "testing.targets_not_hidden"),
        (predicts_the_next_token, "labels", "testing.wrong_prediction_targets"),
        (predicts_the_next_token, "loss", "testing.loss_differs_from_logits"),
        (forgets_its_weights, "loss", "testing.loss_differs_from_logits"),
        (looks_back_only, "causality", "testing.attends_to_one_side"),
        (never_hides_the_end, "ends", "testing.end_token_never_hidden"),
    ],
)
def test_a_fault_is_seen(
    fault: Any, check: str, message: str, tmp_path: Path, model_folder: Path
) -> None:
    subject = subject_of(tmp_path, model_folder, mixed_precision="fp32")
    adapter: Any = subject.adapter
    given = adapter.prepare_batch
    adapter.prepare_batch = lambda examples: fault(adapter, given(examples))
    if fault is never_hides_the_end:
        objective = adapter.objective
        ends = [token for one in subject.candidates for token in one.input_ids[-2:]]
        ordinary = np.setdiff1d(objective.vocabulary.ordinary, ends)
        objective.vocabulary = replace(objective.vocabulary, ordinary=ordinary)
    [function] = [c for c in (*UNIT, *INTEGRATION) if c.__name__ == f"check_{check}"]
    result = run_check(function, subject, "unit")
    assert result.status == "fail", result
    assert message in result.text
