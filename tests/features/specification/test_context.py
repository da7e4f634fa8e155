"""The function-style front of seed 000: one's own loop from the same parts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.specification.context import (
    EpochBatches,
    TrainingContext,
    initialize_training,
    should_checkpoint,
)
from infrastructure.run.checkpoint_paths import step_of


def configure(model: Path, folder: Path, **training: Any) -> DeploymentConfig:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(10, 30)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    usual = {"batch_size": 4, "num_epochs": 2, "learning_rate": 3e-3, "warmup_steps": 0}
    return DeploymentConfig(
        model={"name": str(model)},
        data={"path": str(path), "max_length": 64, "validation_split": 0, "num_workers": 0},
        training=usual | training,
        cache={"directory": str(folder / "cache")},
        output_dir=str(folder / "runs"),
        device="cpu",
    )


@pytest.fixture
def context(saved_llama: Path, tmp_path: Path) -> TrainingContext:
    config = configure(saved_llama, tmp_path)
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


def test_a_context_without_a_configuration_reads_the_file_and_the_environment(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configured = configure(saved_llama, tmp_path)
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/training_config.yaml").write_text(
        f"data: {{path: {configured.data.path}, max_length: 64, num_workers: 0}}\n"
        f"cache: {{directory: {tmp_path / 'cache'}}}\n"
    )
    monkeypatch.setenv("MODEL_NAME", str(saved_llama))
    monkeypatch.setenv("DISABLE_GPU", "true")
    assert initialize_training().trainer.model_config.name == str(saved_llama)


def test_checkpoints_of_ones_own_loop_go_to_the_output_directory(
    saved_llama: Path, tmp_path: Path
) -> None:
    config = configure(saved_llama, tmp_path)
    first, second = initialize_training(config), initialize_training(config)
    assert not (tmp_path / "runs").exists()
    saved = [first.save_state(), second.save_state()]
    assert all(path.is_relative_to(tmp_path / "runs") for path in saved)
    assert saved[0].parent != saved[1].parent


def test_ones_own_loop_ends_where_it_is_configured_to(saved_llama: Path, tmp_path: Path) -> None:
    context = initialize_training(configure(saved_llama, tmp_path, max_steps=7))
    steps = []
    for _ in range(context.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            context.trainer.train_step(batch)
            steps.append(len(batch))
        context.end_epoch()
    assert steps == [4] * 7
    assert list(context.pipeline) == []


def test_a_checkpoint_is_due_every_few_steps_and_at_the_end(
    saved_llama: Path, tmp_path: Path
) -> None:
    settings = {"checkpoint_frequency": 3, "max_steps": 8, "settings": {"mine": 4}}
    context = initialize_training(configure(saved_llama, tmp_path, **settings))
    due = []
    for _ in range(context.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            context.trainer.train_step(batch)
            due.append(should_checkpoint(context))
        context.end_epoch()
    assert due == [False, False, True, False, False, True, False, True]
    assert context.settings == {"mine": 4}
    assert isinstance(context.pipeline, EpochBatches)
    assert context.pipeline.data.num_examples == 20


def test_an_epoch_that_ends_may_end_its_phase(saved_llama: Path, tmp_path: Path) -> None:
    strategy = {"strategy": "curriculum", "curriculum_stages": 2, "num_epochs": 2}
    context = initialize_training(configure(saved_llama, tmp_path, **strategy))
    assert context.num_epochs == 4
    seen = []
    for _ in range(5):
        context.state.model.eval()
        context.start_epoch()
        context.state.position.example = 7
        seen.append((context.state.phase.name, context.state.model.training))
        context.end_epoch()
        assert context.state.position.example == 0
    stages = ["stage 1 of 2"] * 2 + ["stage 2 of 2"] * 3
    assert seen == [(stage, True) for stage in stages]


def test_ones_own_steps_are_the_steps_of_the_loop(saved_llama: Path, tmp_path: Path) -> None:
    config = configure(saved_llama, tmp_path, batch_size=2, gradient_accumulation=2)
    own, real = initialize_training(config), initialize_training(config)
    for _ in range(own.num_epochs):
        own.start_epoch()
        for batch in own.pipeline:
            own.trainer.train_step(batch)
        own.end_epoch()
    real.run()
    assert own.state.num_tokens == real.state.num_tokens > 0
    assert (own.state.step, own.state.num_examples) == (real.state.step, real.state.num_examples)
    assert own.state.position == real.state.position
    assert own.state.metrics["tokens"] == real.state.metrics["tokens"]
    ours, theirs = own.state.model.state_dict(), real.state.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
