"""The conformance suite of model adapters.

An adapter must give the same gradient however a batch is split, and never train on masked tokens.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch

from infrastructure.backup.state.random_state import seed_everything
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.messages import phrase
from infrastructure.features.conformance.strategy import MODEL, tiny_data, tiny_training
from infrastructure.training.model_adapters.base_adapter import LossOutput, ModelAdapter

NUM_EXAMPLES = 6
RELATIVE, ABSOLUTE = 1e-3, 1e-5


class ModelAdapterSuite:
    """A suite for model adapters: subclass it and define `make`.

    Attributes:
        learns_in_evaluation: True if the loss in evaluation mode is the training loss without
            dropout, so that its gradient can be tested.
    """

    learns_in_evaluation = True

    def make(self, folder: Path) -> ModelAdapter:
        """Return a new adapter that has not created its model; put its data into `folder`."""
        raise NotImplementedError

    def unsupervised(self, example: object) -> Any:
        """Return the same example without trained tokens; None if this is not possible."""
        supervised = getattr(example, "supervised", None)
        if not is_dataclass(example) or not isinstance(supervised, np.ndarray):
            return None
        nothing: Any = {"supervised": np.zeros_like(supervised)}
        return replace(example, **nothing)  # type: ignore[type-var]

    def ready(self, folder: Path) -> tuple[ModelAdapter, torch.nn.Module, Sequence[object]]:
        """Return an adapter, its model in evaluation mode, and some examples."""
        adapter = self.make(folder)
        seed_everything(0)
        model = adapter.initialize_model().eval()
        source = adapter.create_data_source(CacheConfig(directory=str(folder / "cache")), 0)
        return adapter, model, next(iter(source.train_batches(0, 0, NUM_EXAMPLES)))

    def test_the_model_is_remembered_and_lies_on_the_device(self, tmp_path: Path) -> None:
        adapter, model, examples = self.ready(tmp_path)
        assert adapter.model is model, "initialize_model gives a model that it does not remember"
        tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
        batch = adapter.prepare_batch(examples)
        tensors |= {k: v for k, v in batch.items() if isinstance(v, torch.Tensor)}
        for name, tensor in tensors.items():
            assert tensor.device.type == adapter.device.type, f"{name} lies on {tensor.device}"

    def test_the_same_seed_gives_the_same_weights(self, tmp_path: Path) -> None:
        one, other = (self.ready(tmp_path)[1].state_dict() for _ in range(2))
        differing = [name for name in one if not torch.equal(one[name], other[name])]
        assert not differing, f"the same seed gives other weights: {differing[:3]}"

    def test_items_are_counted_before_the_forward_pass(self, tmp_path: Path) -> None:
        adapter, model, examples = self.ready(tmp_path)
        for some in (examples, examples[:1]):
            counted, num_items = (
                adapter.count_items(some),
                self._loss(adapter, model, some).num_items,
            )
            assert counted == num_items, f"count_items says {counted}, compute_loss {num_items}"
        assert adapter.count_tokens(examples) > 0, "count_tokens finds nothing"
        assert adapter.count_computed(examples) >= adapter.count_tokens(examples), (
            "count_computed leaves tokens out"
        )

    def test_a_loss_is_a_sum_over_items(self, tmp_path: Path) -> None:
        adapter, model, examples = self.ready(tmp_path)
        whole = self._loss(adapter, model, examples)
        assert whole.loss_sum.ndim == 0, f"the loss has shape {list(whole.loss_sum.shape)}"
        pieces = [self._loss(adapter, model, [example]) for example in examples]
        assert whole.num_items == sum(piece.num_items for piece in pieces), "items do not add up"
        whole_loss, total = _value(whole), sum(map(_value, pieces))
        assert _near(whole_loss, total), (
            f"the loss of a batch is {whole_loss:.6g}, those of its examples add up to {total:.6g}:"
            " give a sum over items, not a mean"
        )

    def test_a_split_batch_has_the_same_gradient(self, tmp_path: Path) -> None:
        if not self.learns_in_evaluation:
            raise SkipTest(phrase("conformance.evaluation_loss_differs"))
        adapter, model, examples = self.ready(tmp_path)
        half = len(examples) // 2
        whole = self._gradients(adapter, model, [examples])
        split = self._gradients(adapter, model, [examples[:half], examples[half:]])
        assert whole, "no parameter has a gradient: nothing would be learnt"
        assert whole.keys() == split.keys(), "a split batch has gradients of other parameters"
        largest = max(float(gradient.abs().max()) for gradient in whole.values())
        for name, gradient in whole.items():
            error = float((gradient - split[name]).abs().max())
            assert error <= RELATIVE * largest + ABSOLUTE, f"split, {name} has another gradient"

    def test_what_is_masked_is_not_learnt(self, tmp_path: Path) -> None:
        adapter, model, examples = self.ready(tmp_path)
        masked = self.unsupervised(examples[1])
        if masked is None:
            raise SkipTest(phrase("conformance.example_not_masked"))
        alone = self._loss(adapter, model, examples[:1])
        beside = self._loss(adapter, model, [examples[0], masked])
        assert beside.num_items == alone.num_items, (
            f"{beside.num_items - alone.num_items} masked items are counted"
        )
        assert _near(_value(beside), _value(alone)), (
            f"beside an example with nothing to learn the loss is {_value(beside):.6g} instead of"
            f" {_value(alone):.6g}: it ignores the mask"
        )

    def test_evaluating_twice_gives_the_same(self, tmp_path: Path) -> None:
        adapter, model, examples = self.ready(tmp_path)
        with torch.no_grad():
            one, other = (self._loss(adapter, model, examples).loss_sum for _ in range(2))
        assert torch.equal(one, other), f"evaluated twice, the loss is {one} and {other}"

    def test_it_describes_itself(self, tmp_path: Path) -> None:
        adapter = self.ready(tmp_path)[0]
        described = adapter.describe()
        assert described.get("name"), f"describe() has no name: {described}"
        assert json.loads(json.dumps(described)) == described, "describe() is no JSON"
        assert all(isinstance(note, str) for note in adapter.notes()), "notes() are sentences"

    def _loss(
        self, adapter: ModelAdapter, model: torch.nn.Module, examples: Sequence[object]
    ) -> LossOutput:
        seed_everything(0)
        return adapter.compute_loss(model, adapter.prepare_batch(examples))

    def _gradients(
        self, adapter: ModelAdapter, model: torch.nn.Module, pieces: Sequence[Sequence[object]]
    ) -> dict[str, torch.Tensor]:
        model.zero_grad(set_to_none=True)
        for piece in pieces:
            self._loss(adapter, model, piece).loss_sum.backward()
        named = ((name, parameter.grad) for name, parameter in model.named_parameters())
        return {name: gradient.clone() for name, gradient in named if gradient is not None}


def with_tiny_model(
    adapter: Callable[[ModelConfig, TrainingConfig, torch.device], ModelAdapter], folder: Path
) -> ModelAdapter:
    """Return an adapter of a tiny Llama, with a few rows of text in `folder`."""
    made = adapter(ModelConfig(embedded=MODEL), tiny_training(), torch.device("cpu"))
    made.data_config = tiny_data(folder)
    return made


def _value(output: LossOutput) -> float:
    return float(output.loss_sum.detach())


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= RELATIVE * abs(other) + ABSOLUTE
