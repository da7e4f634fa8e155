"""The function-style front of seed 000: one's own loop from the same parts."""

import json
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.checkpoints.checkpoint_manager import step_of
from infrastructure.training.context import TrainingContext, initialize_training


@pytest.fixture
def context(saved_llama: Path, tmp_path: Path) -> TrainingContext:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(10, 30)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    config = DeploymentConfig(
        model={"name": str(saved_llama)},
        data={"path": str(path), "max_length": 64, "validation_split": 0, "num_workers": 0},
        training={"batch_size": 4, "num_epochs": 2, "learning_rate": 3e-3, "warmup_steps": 0},
        cache={"directory": str(tmp_path / "cache")},
        device="cpu",
    )
    return initialize_training(config, checkpoint_directory=tmp_path / "checkpoints")


def test_ones_own_loop_trains_and_saves(context: TrainingContext) -> None:
    losses: list[float] = []
    for _ in range(context.num_epochs):
        context.start_epoch()
        losses += [context.trainer.train_step(batch) for batch in context.pipeline]
        saved = context.save_state()
        context.end_epoch()
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert step_of(saved) == 10
    assert (context.state.position.epoch, context.state.position.example) == (2, 0)


def test_the_whole_training_in_the_real_loop(context: TrainingContext) -> None:
    assert context.run().step == 10
    assert context.manager.tokenizer is not None
