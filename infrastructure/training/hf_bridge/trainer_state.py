"""Snapshots of a Trainer's state between two steps, and restoring them."""

import dataclasses
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard

import torch

from infrastructure.backup.format.manifest import MEASURED_ON
from infrastructure.backup.state.optimizer_state import merge_optimizer, split_optimizer
from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.core.errors import CheckpointError
from infrastructure.core.exact_json import from_json, to_json
from infrastructure.core.json_text import JsonObject, as_object, parse_json
from infrastructure.core.optional import is_installed, require
from infrastructure.models.trainable_state import load_trainable_state, trainable_state
from infrastructure.run.history import HISTORY, History
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import HookRunner
from infrastructure.training.hf_bridge.best_model import BEST, best_files
from infrastructure.training.hf_bridge.carried_state import CarriedState, callback_states

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import TrainerState, TrainingArguments

WRITER = "TemperCallback"
TRAINER_STATE = "trainer_state.json"


@dataclass
class TrainerParts:
    """The objects that a Trainer of transformers passes to its callbacks.

    Attributes:
        args: its TrainingArguments.
        state: its TrainerState.
        optimizer: as wrapped by accelerate, with the gradient scaler if there is one.
    """

    args: "TrainingArguments"
    state: "TrainerState"
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler

    @property
    def device(self) -> torch.device:
        """The device on which the Trainer trains."""
        return torch.device(self.args.device)

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The gradient scaler, if fp16 needs one."""
        return getattr(self.optimizer, "scaler", None)

    @property
    def needs_own_checkpoints(self) -> bool:
        """True if the Trainer needs the checkpoint folders that it writes itself, besides
        Temper's.
        """
        args = self.args
        best = args.load_best_model_at_end or str(args.save_strategy) == "SaveStrategy.BEST"
        return bool(best or args.push_to_hub)

    @property
    def global_batch_size(self) -> int:
        """The number of examples per optimizer step."""
        size = self.state.train_batch_size or self.args.train_batch_size
        return int(size * self.args.gradient_accumulation_steps)


class AdapterFiles(TypedDict):
    """The configuration of a PEFT adapter, and the names of its weights.

    Each name in the adapter's file is mapped to the name in the model.
    """

    config: JsonObject
    names: dict[str, str]


@dataclass(frozen=True)
class ModelFiles:
    """The contents of a model's checkpoint folder apart from its weights.

    Attributes:
        config: text of config.json. None: the model has no config.
        adapters: the PEFT adapters by name. None: it is not a PEFT model.
        tied: additional names of tied weights, each mapped to the name under which the weight is
            saved.
    """

    config: str | None
    adapters: dict[str, AdapterFiles] | None
    tied: dict[str, str]

    @classmethod
    def of(cls, model: torch.nn.Module) -> "ModelFiles":
        """Return the files of a model. Afterwards, the structure of the model must not change."""
        config: object = getattr(model, "config", None)
        text = config.to_json_string() if hasattr(config, "to_json_string") else None
        adapters = adapters_of(model) if is_peft(model) else None
        return cls(text, adapters, {} if adapters else tied_names(model))


def is_peft(model: torch.nn.Module) -> "TypeGuard[PeftModel]":
    """Return whether PEFT has wrapped the model, so that a Trainer saves only its adapters."""
    return is_installed("peft") and isinstance(model, require("peft", "the adapter").PeftModel)


def adapters_of(model: "PeftModel") -> dict[str, AdapterFiles]:
    """Return the configuration and the weight names of each PEFT adapter."""
    peft = require("peft", "the adapter")
    names = {_identity(tensor): name for name, tensor in trainable_state(model).items()}
    adapters: dict[str, AdapterFiles] = {}
    for adapter, config in model.peft_config.items():
        saved = peft.get_peft_model_state_dict(
            model, adapter_name=adapter, save_embedding_layers=False
        )
        files = {name: names.get(_identity(tensor)) for name, tensor in saved.items()}
        adapters[adapter] = {
            "config": _adapter_config(config),
            "names": {name: own for name, own in files.items() if own is not None},
        }
    return adapters


def tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Return additional names of tied weights, each mapped to the name under which the weight is
    saved.

    A Trainer looks for all names and warns about missing ones.
    """
    kept = trainable_state(model)
    names = {_identity(tensor): name for name, tensor in kept.items()}
    every = {n: t for n, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    return {
        name: names[_identity(tensor)]
        for name, tensor in every.items()
        if name not in kept and _identity(tensor) in names
    }


def _identity(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _adapter_config(config: "PeftConfig") -> JsonObject:
    """Return a PEFT configuration as JSON, in the form in which PEFT saves it."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return as_object(parse_json((Path(folder) / "adapter_config.json").read_text()))


def take_snapshot(
    parts: TrainerParts, files: ModelFiles, carried: CarriedState, values: Mapping[str, object]
) -> Snapshot:
    """Return the complete state of a Trainer. Its tensors share memory with the training.

    Args:
        values: further JSON values to include.

    Raises:
        ValueError: a part of the state is neither a tensor nor JSON.
    """
    tensors, optimizer = split_optimizer(parts.optimizer.state_dict())
    trainer_state = dataclasses.asdict(parts.state)
    callbacks = callback_states(carried.trainer)
    if callbacks is not None:
        trainer_state["stateful_callbacks"] = callbacks
    state = json.dumps(trainer_state)
    scaler = None if parts.scaler is None else parts.scaler.state_dict()
    step = torch.tensor([parts.state.global_step])
    groups, held = carried.take()
    return Snapshot(
        {
            "model": trainable_state(parts.model),
            "optimizer": tensors,
            "random": {**capture_random(parts.device), "step": step},
            "trainer": {TRAINER_STATE: _as_tensor(state)},
            BEST: best_files(parts.state.best_model_checkpoint),
            **groups,
        },
        {
            "writer": WRITER,
            "step": parts.state.global_step,
            "optimizer": to_json(optimizer, "the optimizer"),
            "scheduler": to_json(parts.scheduler.state_dict(), "the learning-rate scheduler"),
            "scaler": to_json(scaler, "the gradient scaler"),
            "model": dataclasses.asdict(files),
            "carried": held,
            **values,
        },
    )


@dataclass(frozen=True)
class TrainerSnapshots:
    """A maker of snapshots of a Trainer for the run's checkpoints.

    Attributes:
        facts: everything that determines the result; see `trainer_facts`.
        carried: further state of the Trainer.
        hooks: the hooks whose states are included.
        settings: settings by which the command finds the run when it resumes. None: the run is
            found by its name.
        history: changes made during the run.
    """

    parts: TrainerParts
    files: ModelFiles
    facts: Mapping[str, object]
    carried: CarriedState
    state: TrainingState
    hooks: HookRunner
    settings: Mapping[str, object] | None = None
    history: History = ()

    def take(self, is_finished: bool) -> Snapshot:
        """Return a snapshot of the current state. Its tensors share memory with the training."""
        state, best = self.state, self.state.best_evaluation_loss
        values = {
            "facts": self.facts,
            "finished": state.total_steps if is_finished else None,
            "position": dataclasses.asdict(state.position),
            "num_examples": state.num_examples,
            "num_tokens": state.num_tokens,
            "best_evaluation_loss": best if math.isfinite(best) else None,
            "recoveries": list(state.recoveries),
            "hooks": self.hooks.state_dict(),
            HISTORY: [*self.history],
            MEASURED_ON: state.measured_on,
        }
        if self.settings is not None:
            values["identity"] = {"settings": self.settings}
        return take_snapshot(self.parts, self.files, self.carried, values)


def restore_counts(state: TrainingState, values: Mapping[str, Any]) -> None:
    """Restore the counters in `state` from the values of a checkpoint."""
    state.num_examples, state.num_tokens = values["num_examples"], values["num_tokens"]
    state.recoveries = list(values["recoveries"])
    best = values["best_evaluation_loss"]
    state.best_evaluation_loss = math.inf if best is None else best
    state.measured_on = values.get(MEASURED_ON)


def _as_tensor(text: str) -> torch.Tensor:
    """Return a text as a tensor of its bytes.

    Used for text that may be too long for a manifest or may contain NaN.
    """
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def text_of(tensor: torch.Tensor) -> str:
    """Decode the text in a tensor of bytes."""
    return tensor.numpy().tobytes().decode()


def read_version(checkpoint: Path) -> Snapshot:
    """Read and verify a checkpoint that `TemperCallback` wrote.

    Raises:
        CheckpointError: the checkpoint is damaged, or was not written by `TemperCallback`.
    """
    snapshot = load_checkpoint(checkpoint)
    if snapshot.values.get("writer") != WRITER:
        raise CheckpointError("trainer.foreign_checkpoint", checkpoint=checkpoint)
    return snapshot


def restore_model(model: torch.nn.Module, snapshot: Snapshot) -> None:
    """Load a snapshot's weights into the model, all or none.

    Raises:
        CheckpointError: the weights belong to another model.
    """
    load_trainable_state(model, snapshot.tensors["model"])


def restore_optimizer(parts: TrainerParts, snapshot: Snapshot) -> None:
    """Restore optimizer and random state from a snapshot, if the Trainer does not restore them
    itself.
    """
    values, tensors = snapshot.values, snapshot.tensors.get("optimizer", {})
    parts.optimizer.load_state_dict(merge_optimizer(tensors, from_json(values["optimizer"])))
    restore_random(snapshot.tensors["random"], parts.device)


def trainer_state_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the contents of `trainer_state.json` in a snapshot."""
    state: dict[str, Any] = json.loads(text_of(snapshot.tensors["trainer"][TRAINER_STATE]))
    return state


def has_finite_weights(snapshot: Snapshot) -> bool:
    """Return whether all trained weights in a snapshot are finite."""
    tensors = snapshot.tensors["model"].values()
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())
