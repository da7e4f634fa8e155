"""Which checkpoint is best, by numbers of what the model writes or of single tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.optional import is_installed
from infrastructure.run.directory import find_run
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.deployment.runs import deploy, losses, small_config
from tests.slow import slow_but


def evaluations(run: Path, key: str) -> dict[int, float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {r["step"]: r[key] for r in records if key in r}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(tmp_path_factory.mktemp("plain"), validation_frequency=2, max_steps=6)
    run, _ = deploy(config)
    return run


@pytest.mark.parametrize("metric", slow_but(["rouge1"], ["token_accuracy", "rouge1"]))
def test_the_best_checkpoint_is_that_of_the_metric(
    metric: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if metric == "rouge1" and not is_installed("torchmetrics"):
        pytest.skip("torchmetrics is not installed")
    config = small_config(
        tmp_path,
        validation_frequency=2,
        max_steps=6,
        validation_prompts=3,
        best_metric=metric,
        early_stopping_patience=9,
    )
    run, _ = deploy(config)
    assert losses(run) == losses(plain)  # measuring leaves no trace
    values = evaluations(run, f"eval_{metric}")
    assert len(values) >= 3
    assert all(0 <= value <= 1 for value in values.values())
    _, best = find_run(f"{run}@best", tmp_path)
    assert best is not None
    manifest = Store(run / "checkpoints").read(best.stem)
    assert -manifest.score == max(values.values()) == values[manifest.step]
    assert main(["checkpoints", "list", str(run), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    rows = listed["checkpoints"]
    scores = {row["step"]: row["score"] for row in rows if row["score"] is not None}
    assert scores == {row["step"]: values[row["step"]] for row in rows if row["step"] in values}
    assert listed["metric"] == metric


def test_a_metric_of_answers_needs_who_can_write_them(tmp_path: Path) -> None:
    config = small_config(tmp_path, best_metric="exact_match", validation_prompts=3)
    trainer = EnhancedTrainer(config.model, config.training, config.data, device="cpu")
    with pytest.raises(
        ValueError, match=r"training\.best_metric_needs_answers.*best_metric=exact_match"
    ):
        trainer.prepare()


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"best_metric": "exact_mtch"}, "core.did_you_mean(meant=exact_match)"),
        ({"best_metric": "a:b", "metrics": ["a:b"]}, "config.best_metric_without_mode(name=a:b)"),
        ({"best_metric": "f1", "validation_prompts": 0}, "config.best_metric_needs_answers"),
        ({"best_metric": "loss", "best_metric_mode": "max"}, "config.unused_metric_is_built_in()"),
    ],
)
def test_what_cannot_choose_is_refused(training: dict[str, Any], sentence: str) -> None:
    config = DeploymentConfig(training=training)
    assert sentence in "; ".join([*config.problems()])
