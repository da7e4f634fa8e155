"""Methods that an adapter inherits if it implements only those that it must."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.core.precision import Precision
from infrastructure.training.model_adapters import base_adapter
from infrastructure.training.model_adapters.base_adapter import Batch, LossOutput, ModelAdapter


class Least(ModelAdapter):
    """An adapter of a single layer, whose examples are numbers of units."""

    def initialize_model(self) -> torch.nn.Module:
        self.model = torch.nn.Linear(1, 1)
        return self.model

    def prepare_batch(self, examples: Sequence[Any]) -> Batch:
        return {"x": torch.tensor(examples)}

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        return LossOutput(batch["x"].sum(), len(batch["x"]))

    def count_items(self, examples: Sequence[Any]) -> int:
        return len(examples)

    def count_tokens(self, examples: Sequence[Any]) -> int:
        return sum(examples)

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> Any:
        return SimpleNamespace()


def test_an_adapter_begins_with_its_settings_and_on_its_device() -> None:
    model, training = ModelConfig(name="m"), TrainingConfig()
    adapter = Least(model, training, "meta")  # type: ignore[arg-type] # a name will do
    assert (adapter.model_config, adapter.training_config) == (model, training)
    assert (adapter.device, adapter.precision) == (torch.device("meta"), Precision("fp32", "meta"))
    assert (adapter.model, adapter.tokenizer, adapter.saved_tokenizer) == (None, None, None)
    assert (adapter.data_config.path, adapter.size_grid) == (None, SizeGrid.EXACT)
    assert (adapter.takes_token_functions, adapter.on_disk, adapter.lora_within) == (
        False,
        False,
        None,
    )


def test_what_an_adapter_leaves_open_is_nothing_or_what_follows_from_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = Least(ModelConfig(name="m"), TrainingConfig(), torch.device("cpu"))
    model = adapter.initialize_model()
    assert (adapter.initialize_tokenizer(), adapter.weight_bytes()) == (None, None)
    assert adapter.count_computed([3, 4]) == adapter.count_tokens([3, 4]) == 7
    assert adapter.compute_metrics(model, {}) == adapter.sum_metrics(model, {}) == {}
    adapter.note_added_weights()
    assert (adapter.describe(), adapter.notes()) == ({"name": "m"}, [])
    with pytest.raises(NotImplementedError, match=r"^Least "):
        adapter.save(tmp_path)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(base_adapter, "set_compiled", lambda *given: calls.append(given))
    adapter.set_compiled(True, "reduce-overhead")
    adapter.set_compiled(False)
    assert calls == [(model, True, "reduce-overhead"), (model, False, "default")]
