"""The extension that selects the training examples of the current curriculum stage.

An epoch is equally long in every stage: if a stage has fewer examples, they are repeated. So a run
has the same steps, schedule and forecast as a run without stages, and the order of the examples is
a function of (seed, epoch, stages). For stages by loss, losses are measured once, with the initial
weights, and the stages are stored in checkpoints.
"""

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.serving.example_order import Indices
from infrastructure.features.curriculum.stages import (
    Stages,
    by_rank,
    ids_of,
    packed,
    unpacked,
)
from infrastructure.models.preserve import preserve
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop.session import TrainingSession
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter

log = logging.getLogger(__name__)

NUM_TIMED = 4  # examples from which the time to measure losses is estimated


class CurriculumTrainer(Protocol):
    """The parts of a trainer that `CurriculumExtension` reads."""

    training_config: TrainingConfig
    adapter: ModelAdapter

    @property
    def precision(self) -> Precision: ...

    def initialize_model(self) -> torch.nn.Module: ...

    def initialize_data(self) -> DataSource: ...

    def prepare(self) -> TrainingSession: ...


class CurriculumExtension(Extension):
    """An extension that selects the examples of the current stage at the start of each epoch."""

    def __init__(self, trainer: CurriculumTrainer) -> None:
        self.trainer = trainer
        config = trainer.training_config
        self.by, self.num_stages = config.curriculum_by, config.curriculum_stages
        self.stages: Stages | None = None
        self._saved: str | None = None

    @property
    def name(self) -> str:
        return "curriculum"

    def state_dict(self) -> dict[str, object]:
        return {} if self._saved is None else {"stages": self._saved}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._saved = saved["stages"]
        self.stages = unpacked(saved["stages"])

    def inspect(self, data: Any, model: torch.nn.Module) -> None:
        if not isinstance(data, DataPipeline):
            raise InputError("curriculum.needs_data_files")
        if self.by == "loss":
            by_rank(np.zeros(data.num_candidates), self.num_stages)
        else:
            self.stages = by_rank(data.candidate_lengths(), self.num_stages)

    def epoch_start(self, state: TrainingState) -> None:
        data = self._data
        if self.stages is None or len(self.stages) != data.num_candidates:
            group = self.trainer.prepare().loop.optimizer_step.group
            self._saved = group.decide(
                lambda: packed(by_rank(self._measured(state), self.num_stages))
            )
            self.stages, state.must_save = unpacked(self._saved), True
        ids = ids_of(self.stages, state.position.phase)
        if not np.array_equal(ids, data.selected):
            data.select(ids)
            log.info(
                phrase(
                    "curriculum.examples_of_phase",
                    phase=state.phase.name,
                    num_selected=len(ids),
                    num_candidates=data.num_candidates,
                    measure=self.by,
                )
            )

    def epoch_lengths(self) -> list[Indices] | None:
        if self.stages is None:
            return None
        epochs = []
        for stage in range(int(self.stages.max()) + 1):
            ids = ids_of(self.stages, stage)
            epochs.append(self._data.lengths_of_selection(ids, stage))
        return epochs

    def seconds_beside_steps(self) -> float:
        """Estimate the time to measure the loss of every example, from a few examples.

        The time is 0 if no losses are needed, or if they are already measured.
        """
        if self.by != "loss" or self.stages is not None:
            return 0.0
        count = min(NUM_TIMED, self._data.num_candidates)
        self._losses(range(count))  # warms up
        started = time.perf_counter()
        self._losses(range(count))
        return (time.perf_counter() - started) / count * self._data.num_candidates

    @property
    def _data(self) -> DataPipeline:
        data = self.trainer.initialize_data()
        assert isinstance(data, DataPipeline)  # `inspect` has verified it
        return data

    def _measured(self, state: TrainingState) -> npt.NDArray[np.float64]:
        """Measure the mean loss of each example with the current weights, float64 (N,)."""
        log.info(phrase("curriculum.measuring_losses"))
        poll = partial(self.trainer.prepare().loop.poll, state)
        return self._losses(range(self._data.num_candidates), poll)

    @torch.no_grad()
    def _losses(self, ids: range, poll: Callable[[], None] = do_nothing) -> npt.NDArray[np.float64]:
        """Measure the mean loss of each example in `ids`, float64 (N,).

        Each example is a batch of its own, so that its loss does not depend on other examples. An
        example without supervised items gets NaN and counts as the hardest.
        """
        model, adapter = self.trainer.initialize_model(), self.trainer.adapter
        losses = np.full(len(ids), math.nan)
        with preserve(model, random=adapter.device, modes=True):
            model.eval()
            for number in ids:
                poll()
                batch = adapter.prepare_batch(self._data.examples([number]))
                with self.trainer.precision.autocast():
                    output = adapter.compute_loss(model, batch)
                if output.num_items:
                    losses[number] = float(output.loss_sum) / output.num_items
        return losses
