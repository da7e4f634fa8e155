"""The extension `memory`: adds a key-value memory to a model, and fills its store during training.

A training step reads only entries that earlier steps stored. Its own entries are stored when its
weights are updated. So the result does not depend on how a batch is split, and a checkpoint
contains the weights and the entries of the same step.
"""

from typing import Any

import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import Setting
from infrastructure.features.key_value_memory.memory import KeyValueMemory
from infrastructure.models import added_modules
from infrastructure.models.added_modules import decoder_layers, hidden_size
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension

WIDEST = 128  # wider entries could not be told apart by their spread

Entries = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class KeyValueMemoryExtension(Extension):
    """A key-value memory, configured by `training.memory`.

    Attributes:
        module: the memory, once it is attached.
    """

    name = KeyValueMemory.kind
    adds_weights = True

    def __init__(self, trainer: Any) -> None:
        self.settings = trainer.training_config.memory
        self.module: KeyValueMemory | None = None
        self._pending: list[Entries] = []

    def attach(self, model: torch.nn.Module) -> None:
        there = added_modules.added_modules(model).get(self.name)
        if there is None:
            there = KeyValueMemory.build(model, self._wanted(model))
            added_modules.attach(model, there)
        else:
            self._check_same(there.facts)
        assert isinstance(there, KeyValueMemory)
        self.module = there.requires_grad_(True)

    def detach(self, model: torch.nn.Module) -> None:
        added_modules.detach(model, self.name)
        self.module = None

    def _wanted(self, model: torch.nn.Module) -> JsonObject:
        given = self.settings
        middle = (len(decoder_layers(model)) - 1) // 2
        return {
            "layer": middle if given.layer == "auto" else given.layer,
            "slots": given.slots,
            "heads": given.heads,
            "width": min(hidden_size(model), WIDEST) if given.width == "auto" else given.width,
            "store": given.store,
        }

    def _check_same(self, facts: JsonObject) -> None:
        """Check that the settings match the memory that the loaded model already has."""
        for name in self.settings.model_fields_set:
            value = getattr(self.settings, name)
            if value not in ("auto", facts[name]):
                raise ConfigurationError(
                    "key_value_memory.setting_differs",
                    setting=Setting(f"training.memory.{name}", str(value)),
                    name=name,
                    existing=facts[name],
                )

    def step_start(self, state: TrainingState) -> None:
        self._pending = []

    def gradients_forgotten(self) -> None:
        self._pending = []

    def after_loss(self, state: TrainingState) -> None:
        module = self.module
        if module is None or not module.capacity or module.seen is None or state.output is None:
            return
        (states, rows), batch = module.seen, state.output.batch
        positions, targets = batch["target_positions"], batch["targets"]
        self._pending.append((states[positions], targets, rows[positions]))

    def weights_updated(self) -> None:
        for entries in self._pending:
            assert self.module is not None
            self.module.store(*entries)
        self._pending = []
