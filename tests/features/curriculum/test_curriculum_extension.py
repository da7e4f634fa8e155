"""Curricula of a tiny Llama: which examples each stage has, and that a run goes on to the same bits
in any of them."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.features.conformance.strategy import tiny_trainer, tiny_training
from infrastructure.features.curriculum import curriculum_extension
from infrastructure.features.curriculum.curriculum_extension import CurriculumExtension
from infrastructure.features.curriculum.stages import packed
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer


class Seen(Observer):
    """The examples of each stage, and their lengths."""

    def __init__(self) -> None:
        self.rows: dict[int, list[bytes]] = {}

    def step_end(self, state: TrainingState) -> None:
        stage = self.rows.setdefault(int(state.phase.name.split()[1]), [])
        stage += [example.input_ids.tobytes() for example in state.batch]  # type: ignore[attr-defined]


def curriculum(
    folder: Path, checkpoints: str | None = None, **settings: Any
) -> tuple[EnhancedTrainer, Seen]:
    seen = Seen()
    values = {"num_epochs": 1, "curriculum_stages": 3, **settings}
    config: TrainingConfig = tiny_training(strategy="curriculum", **values)
    directory = folder / checkpoints if checkpoints else None
    return tiny_trainer(folder, config, hooks=[seen], checkpoint_directory=directory), seen


def extension_of(trainer: EnhancedTrainer) -> CurriculumExtension:
    return next(e for e in trainer.hooks.extensions if isinstance(e, CurriculumExtension))


def weights(trainer: EnhancedTrainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.initialize_model().named_parameters()}


def test_short_rows_come_first(tmp_path: Path) -> None:
    trainer, seen = curriculum(tmp_path)
    state = trainer.train()
    data = trainer.initialize_data()
    assert isinstance(data, DataPipeline)
    lengths = np.sort(data.candidate_lengths())
    parts = np.array_split(lengths, 3)
    assert state.step == trainer.prepare().planned.total_steps == 3 * 4
    for stage, part in enumerate(parts, start=1):
        shown = [len(row) // 4 for row in seen.rows[stage]]
        assert len(shown) == data.num_examples  # an epoch is as long in each stage
        assert max(shown) == part[-1]
        assert (min(shown) < part[0]) == (lengths[0] < part[0])
    assert set(seen.rows[1]) & set(seen.rows[3])


def test_each_stage_reports_its_number_of_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, _ = curriculum(tmp_path, curriculum_stages=2, curriculum_by="loss", num_epochs=2)
    with caplog.at_level(logging.INFO, "infrastructure.features.curriculum"):
        trainer.train()
    own = [record.getMessage() for record in caplog.records if "curriculum" in record.name]
    assert own == [
        "curriculum.measuring_losses()",
        "curriculum.examples_of_phase(phase=stage 1 of 2, num_selected=8, num_candidates=16,"
        " measure=loss)",
        "curriculum.examples_of_phase(phase=stage 2 of 2, num_selected=16, num_candidates=16,"
        " measure=loss)",
    ]
    with pytest.raises(ValueError, match=r"curriculum\.needs_data_files"):
        extension_of(trainer).inspect(object(), torch.nn.Linear(1, 1))
    one = extension_of(curriculum(tmp_path)[0])
    assert one.state_dict() == {}
    one.load_state_dict({"stages": packed(np.array([1, 0], dtype=np.uint8))})
    assert one.stages is not None
    assert one.stages.tolist() == [1, 0]
    assert one.state_dict() == {"stages": packed(one.stages)}


def test_an_example_without_anything_to_learn_is_the_hardest(tmp_path: Path) -> None:
    trainer, _ = curriculum(tmp_path, curriculum_by="loss")
    trainer.prepare()
    compute = trainer.adapter.compute_loss
    polled: list[int] = []

    def none_at_first(*given: Any) -> Any:
        output = compute(*given)
        return output if len(polled) > 1 else replace(output, num_items=0)

    trainer.adapter.compute_loss = none_at_first  # type: ignore[method-assign]
    losses = extension_of(trainer)._losses(range(3), lambda: polled.append(1))
    assert np.isnan(losses).tolist() == [True, False, False]
    assert len(polled) == 3
    batch = trainer.adapter.prepare_batch(trainer.initialize_data().examples([2]))  # type: ignore[union-attr]
    with torch.no_grad(), trainer.precision.autocast():
        output = compute(trainer.model.eval(), batch)
    assert losses[2] == pytest.approx(float(output.loss_sum) / output.num_items)


def test_by_loss_measured_once_and_resumed_in_any_stage(tmp_path: Path) -> None:
    whole, seen = curriculum(tmp_path, "whole", curriculum_by="loss", mixed_precision=False)
    whole.train()
    stages = extension_of(whole).stages
    assert stages is not None
    assert np.bincount(stages).tolist() == [6, 5, 5]
    saved = by_step(whole.checkpoints.store)  # type: ignore[union-attr]
    for step in (5, 8):  # within a later stage, and between two
        again, then = curriculum(tmp_path, curriculum_by="loss")
        again.restore(saved[step])
        extension_of(again)._losses = None  # type: ignore  # would be measured with other weights
        again.train()
        assert (extension_of(again).stages == stages).all()
        assert then.rows[3] == seen.rows[3][-len(then.rows[3]) :]
        for name, value in weights(whole).items():
            assert torch.equal(value, weights(again)[name]), (step, name)


def test_the_first_stage_has_the_lowest_losses(tmp_path: Path) -> None:
    trainer, _ = curriculum(tmp_path, curriculum_by="loss", curriculum_stages=2)
    trainer.prepare()
    before = weights(trainer)
    losses = extension_of(trainer)._losses(range(16))
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())
    trainer.train()
    stages = extension_of(trainer).stages
    assert losses[stages == 0].max() <= losses[stages == 1].min()
    assert len(set(losses)) > 8


def test_other_stages_are_another_training(tmp_path: Path) -> None:
    whole, _ = curriculum(tmp_path, "whole", max_steps=9)
    whole.train()
    other, _ = curriculum(tmp_path, max_steps=9, curriculum_stages=2)
    with pytest.raises(CheckpointError, match="curriculum_stages"):
        other.restore(by_step(whole.checkpoints.store)[1])  # type: ignore[union-attr]


def test_the_costs_are_of_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By length, the last stage alone has the long rows: its micro-batches are the heaviest."""
    trainer, _ = curriculum(tmp_path)
    trainer.prepare()
    epochs = trainer.cost_measurement().epochs
    assert epochs is not None
    assert [len(lengths) for lengths in epochs] == [16] * 3
    longest = [int(lengths.max()) for lengths in epochs]
    assert longest == sorted(longest)
    heaviest = trainer.cost_measurement().heaviest_units(4)
    assert heaviest >= int(epochs[-1][:4].sum())
    assert extension_of(trainer).seconds_beside_steps() == 0
    by_loss, _ = curriculum(tmp_path, curriculum_by="loss")
    by_loss.prepare()
    extension, now, measured = extension_of(by_loss), [0.0], list[range]()

    def losses(ids: range) -> None:
        now[0] += 3 * len(ids) ** len(measured)
        measured.append(ids)

    monkeypatch.setattr(curriculum_extension.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(extension, "_losses", losses)
    assert extension.seconds_beside_steps() == 3 * 4 / 4 * 16
    assert measured == [range(4), range(4)]
    extension.stages = np.zeros(16, dtype=np.uint8)
    assert extension.seconds_beside_steps() == 0
