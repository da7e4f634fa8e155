"""Everything needed to resume a run, captured between two optimizer steps.

Tensors are saved as safetensors and all other values as JSON. Nothing is pickled.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypedDict

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.format.manifest import MEASURED_ON
from infrastructure.backup.state.optimizer_state import Tensors, merge_optimizer, split_optimizer
from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.core.errors import CheckpointError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.redact import redact_shapes
from infrastructure.models.trainable_state import load_trainable_state, trainable_state
from infrastructure.training.core.state import Position, SkippedBatch, TrainingState


@dataclass
class Snapshot:
    """The state of a run: tensors by group ("model", "optimizer", "random"), and JSON values."""

    tensors: dict[str, Tensors]
    values: dict[str, Any]


class VersionFacts(TypedDict, total=False):
    """Properties of a checkpoint, as in `Store.commit`."""

    kind: str
    healthy: bool
    score: float | None


class Participants(Protocol):
    """The parts of a run, besides the model, whose state a checkpoint contains."""

    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR | None
    scaler: torch.amp.GradScaler | None

    @property
    def device(self) -> torch.device:
        """The device on which the model trains."""

    def state_dict(self) -> dict[str, object]:
        """Return the state of the loop and its hooks as JSON values, for a checkpoint."""

    def load_state_dict(self, saved: JsonObject) -> None:
        """Restore the state that `state_dict` returned."""

    def take_form(self, model: torch.nn.Module, saved: JsonObject) -> None:
        """Convert the model's layers to the dtypes that they had when it was saved."""


def take_snapshot(state: TrainingState, parts: Participants) -> Snapshot:
    """Return the complete state of a run. The snapshot's tensors share memory with the training's.

    Write the snapshot before training continues, because training changes these tensors.
    """
    optimizer_tensors, optimizer_values = split_optimizer(parts.optimizer.state_dict())
    tensors = {
        "model": trainable_state(state.model),
        "optimizer": optimizer_tensors,
        "random": {**capture_random(parts.device), "step": torch.tensor([state.step])},
    }
    values = {
        "position": asdict(state.position),
        "step": state.step,
        "step_is_ending": state.step_is_ending,
        "num_examples": state.num_examples,
        "num_tokens": state.num_tokens,
        "micro_batch_size": state.micro_batch_size,
        "evaluation": {
            redact_shapes(name): _finite_or_none(v) for name, v in state.evaluation.items()
        },
        "evaluated_step": state.evaluated_step,
        "best_evaluation_loss": _finite_or_none(state.best_evaluation_loss),
        MEASURED_ON: state.measured_on,
        "loss": _finite_or_none(state.loss),
        "optimizer": optimizer_values,
        "scheduler": parts.scheduler.state_dict() if parts.scheduler else None,
        "scaler": parts.scaler.state_dict() if parts.scaler else None,
        "loop": parts.state_dict(),
        "skipped": [asdict(batch) for batch in state.skipped],
        "recoveries": list(state.recoveries),
    }
    return Snapshot(tensors, values)


def restore_snapshot(snapshot: Snapshot, state: TrainingState, parts: Participants) -> None:
    """Restore everything that `take_snapshot` returned.

    Raises:
        CheckpointError: the snapshot belongs to another model, optimizer or precision.
    """
    values = snapshot.values
    parts.take_form(state.model, values["loop"])
    load_trainable_state(state.model, snapshot.tensors["model"])
    merged = merge_optimizer(
        snapshot.tensors.get("optimizer", {}),
        values["optimizer"],  # SGD has no state
    )
    try:
        parts.optimizer.load_state_dict(merged)
    except ValueError as error:
        raise CheckpointError("run.optimizer_differs_from_checkpoint", error=error) from error
    _restore_one("learning-rate schedule", parts.scheduler, values["scheduler"])
    _restore_one("gradient scaler", parts.scaler, values["scaler"])
    restore_progress(values, state)
    parts.load_state_dict(values["loop"])
    restore_random(snapshot.tensors["random"], parts.device)


def restore_progress(values: dict[str, Any], state: TrainingState) -> None:
    """Restore a run's progress (step, position, metrics), but not its weights and optimizer."""
    state.position = Position(**values["position"])
    state.step = values["step"]
    state.step_is_ending = values["step_is_ending"]
    state.num_examples = values["num_examples"]
    state.num_tokens = values["num_tokens"]
    state.micro_batch_size = values["micro_batch_size"]
    state.evaluation = {n: _or(v, float("nan")) for n, v in values["evaluation"].items()}
    state.evaluated_step = values["evaluated_step"]
    state.best_evaluation_loss = _or(values["best_evaluation_loss"], float("inf"))
    rows_now, state.measured_on = state.measured_on, values.get(MEASURED_ON)
    state.measure_on(rows_now)
    state.loss = _or(values["loss"], float("nan"))
    state.skipped = [SkippedBatch(**_rows_fixed(saved)) for saved in values.get("skipped", [])]
    state.recoveries = list(values.get("recoveries", []))


def _restore_one(what: str, living: Any, saved: Mapping[str, object] | None) -> None:
    if (living is None) != (saved is None):
        has, had = ("none", "one") if living is None else ("one", "none")
        raise CheckpointError(
            "run.checkpoint_component_differs", component=what, current=has, saved=had
        )
    if living is not None and saved is not None:
        living.load_state_dict(saved)


def _rows_fixed(saved: dict[str, Any]) -> dict[str, Any]:
    return {**saved, "rows": tuple(saved["rows"])}


def _finite_or_none(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
