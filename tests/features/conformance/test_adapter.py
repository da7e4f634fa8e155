"""Our adapters keep the contract, and an adapter with a defect does not."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.conformance.adapter import ModelAdapterSuite
from infrastructure.features.conformance.strategy import MODEL
from infrastructure.features.stackwise.training.layers_adapter import (
    LayersAdapter,
    LayersModel,
    LoaderSource,
)
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.base_adapter import Batch, LossOutput, ModelAdapter
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from tests.data.builders import pairs, write_jsonl
from tests.features.conformance.planted import failure, without_defect

CPU = torch.device("cpu")


def with_data(adapter: ModelAdapter, folder: Path, **data: Any) -> ModelAdapter:
    rows = write_jsonl(folder / "rows.jsonl", pairs(20))
    adapter.data_config = DataConfig(path=str(rows), max_length=48, num_workers=0, **data)
    return adapter


class TestStandard(ModelAdapterSuite):
    data: ClassVar[dict[str, Any]] = {}
    training: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> ModelAdapter:
        training = TrainingConfig(mixed_precision=False, **self.training)
        adapter = get_model_adapter("standard", ModelConfig(embedded=MODEL), training)
        return with_data(adapter, folder, **self.data)


class TestStandardInPaddedRows(TestStandard):
    data: ClassVar[dict[str, Any]] = {"packing": False}


class TestStandardWithHiddenTokens(TestStandard):
    training: ClassVar[dict[str, Any]] = {"time_step_masking": True}


class TestTacticalMappo(ModelAdapterSuite):
    learns_in_evaluation = False

    def make(self, folder: Path) -> ModelAdapter:
        model = ModelConfig(name="tactical_mappo")
        return get_model_adapter("tactical_mappo", model, TrainingConfig())


class TestLayers(ModelAdapterSuite):
    def make(self, folder: Path) -> ModelAdapter:
        torch.manual_seed(0)
        rows = TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
        source = LoaderSource(DataLoader(rows, batch_size=4), 0)
        layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)]
        model = LayersModel(layers, None, None, torch.zeros(1, 4))
        return LayersAdapter(model, source, None, ModelConfig(), TrainingConfig(), CPU)


# Defects, each in an adapter that is else sound.


class IgnoresTheMask(StandardModelAdapter):
    """As where labels are the input ids."""

    def prepare_batch(self, examples: Sequence[Any]) -> Batch:
        return super().prepare_batch([_all_learnt(example) for example in examples])

    def count_items(self, examples: Sequence[Any]) -> int:
        return super().count_items([_all_learnt(example) for example in examples])


def _all_learnt(example: Any) -> Any:
    supervised = np.ones_like(example.supervised)
    supervised[0] = False
    return replace(example, supervised=supervised)


class GivesMeans(StandardModelAdapter):
    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        output = super().compute_loss(model, batch)
        return LossOutput(output.loss_sum / output.num_items, output.num_items)


class CountsAllTokens(StandardModelAdapter):
    def count_items(self, examples: Sequence[Any]) -> int:
        return self.count_tokens(examples)


class ForgetsItsModel(StandardModelAdapter):
    def initialize_model(self) -> torch.nn.Module:
        model = super().initialize_model()
        self.model = None
        return model


class HasItsOwnSeed(StandardModelAdapter):
    seeds = itertools.count()

    def initialize_model(self) -> torch.nn.Module:
        torch.manual_seed(next(self.seeds))
        model = super().initialize_model()
        torch.nn.init.normal_(next(model.parameters()))
        return model


class LearnsMoreOfLargeBatches(StandardModelAdapter):
    """The same loss, and a little more of its gradient."""

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        loss, count = vars(super().compute_loss(model, batch)).values()
        share = 0.01 if count > 40 else 0.0
        return LossOutput(loss + share * (loss - loss.detach()), count)


class Drifts(StandardModelAdapter):
    calls = 0

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        self.calls += 1
        output = super().compute_loss(model, batch)
        return LossOutput(output.loss_sum * (1 + self.calls / 1e6), output.num_items)


class IsNoJson(StandardModelAdapter):
    def describe(self) -> dict[str, Any]:
        return {"name": "mine", "shape": (1, 2)}


class HardlyLearnsOneWeight(StandardModelAdapter):
    """Sound: what a split batch rounds otherwise is little of what is learnt, though it is much of
    the gradient of this weight."""

    def initialize_model(self) -> torch.nn.Module:
        model = super().initialize_model()
        next(model.parameters()).register_hook(lambda gradient: 1e-9 * gradient)
        return model

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        loss, count = vars(super().compute_loss(model, batch)).values()
        total = [*model.parameters()][-1].sum()
        rounded = 1e-3 if count > 40 else 0.0
        return LossOutput(loss + rounded * (total - total.detach()), count)


def test_rounding_in_a_weight_that_hardly_learns_is_no_defect(tmp_path: Path) -> None:
    class Suite(ModelAdapterSuite):
        def make(self, folder: Path) -> ModelAdapter:
            training = TrainingConfig(mixed_precision=False)
            adapter = HardlyLearnsOneWeight(ModelConfig(embedded=MODEL), training, CPU)
            return with_data(adapter, folder)

    assert failure(Suite(), "test_a_split_batch_has_the_same_gradient", tmp_path) is None


Make = Callable[..., ModelAdapter]


def broken(**methods: Callable[..., Any]) -> Make:
    """Make an adapter with these methods, each of which gets the sound one, too."""

    def make(*given: Any) -> ModelAdapter:
        adapter = StandardModelAdapter(*given)
        for name, method in methods.items():
            setattr(adapter, name, partial(method, getattr(adapter, name)))
        return adapter

    return make


def losing(change: Callable[[torch.Tensor, int, Batch], tuple[torch.Tensor, int]]) -> Make:
    """Make an adapter whose loss and number of items are changed."""

    def compute(sound: Any, model: torch.nn.Module, batch: Batch) -> LossOutput:
        output = sound(model, batch)
        return LossOutput(*change(output.loss_sum, output.num_items, batch))

    return broken(compute_loss=compute)


def with_a_weight_elsewhere(initialize: Any) -> torch.nn.Module:
    model: torch.nn.Module = initialize()
    model.register_parameter("far", torch.nn.Parameter(torch.empty(1, device="meta")))
    return model


def learns_one_weight(sound: Any, model: torch.nn.Module, batch: Batch) -> LossOutput:
    output: LossOutput = sound(model, batch)
    loss = output.loss_sum.detach() + 0 * next(model.parameters()).sum()
    return LossOutput(loss, output.num_items) if output.num_items > 40 else output


ON_DEVICE = "test_the_model_is_remembered_and_lies_on_the_device"
COUNTS = "test_items_are_counted_before_the_forward_pass"
IS_SUM, SPLIT = "test_a_loss_is_a_sum_over_items", "test_a_split_batch_has_the_same_gradient"
DESCRIBES = "test_it_describes_itself"

DEFECTS: list[tuple[Make, str, str]] = [
    (
        broken(prepare_batch=lambda sound, e: {"far": torch.empty(1, device="meta"), **sound(e)}),
        ON_DEVICE,
        "far lies on meta",
    ),
    (broken(initialize_model=with_a_weight_elsewhere), ON_DEVICE, "far lies on meta"),
    (broken(count_items=lambda sound, e: sound(e) + (len(e) == 1)), COUNTS, "count_items says"),
    (broken(count_items=lambda sound, e: sound(e) + (len(e) > 1)), COUNTS, "count_items says"),
    (broken(count_tokens=lambda *_: 0), COUNTS, "count_tokens finds nothing"),
    (
        broken(count_computed=lambda sound, e: sound.__self__.count_tokens(e) - 1),
        COUNTS,
        "count_computed leaves tokens out",
    ),
    (losing(lambda loss, count, _: (loss.reshape(1), count)), IS_SUM, "the loss has shape [1]"),
    (losing(lambda loss, count, _: (loss, count + 1)), IS_SUM, "items do not add up"),
    (
        losing(lambda loss, count, _: (loss * (1.01 if count > 40 else 1.0), count)),
        IS_SUM,
        "those of its examples add up to",
    ),
    (
        losing(lambda loss, count, _: (loss.detach().requires_grad_(), count)),
        SPLIT,
        "no parameter has a gradient",
    ),
    (broken(compute_loss=learns_one_weight), SPLIT, "gradients of other parameters"),
    (
        losing(lambda loss, count, batch: (loss + batch["input_ids"].numel(), count)),
        "test_what_is_masked_is_not_learnt",
        "it ignores the mask",
    ),
    (broken(describe=lambda _: {"kind": "mine"}), DESCRIBES, "describe() has no name"),
    (broken(notes=lambda _: [1]), DESCRIBES, "notes() are sentences"),
    (IgnoresTheMask, "test_what_is_masked_is_not_learnt", "masked items are counted"),
    (GivesMeans, "test_a_loss_is_a_sum_over_items", "give a sum over items, not a mean"),
    (CountsAllTokens, "test_items_are_counted_before_the_forward_pass", "count_items says"),
    (ForgetsItsModel, "test_the_model_is_remembered_and_lies_on_the_device", "not remember"),
    (HasItsOwnSeed, "test_the_same_seed_gives_the_same_weights", "other weights"),
    (LearnsMoreOfLargeBatches, "test_a_split_batch_has_the_same_gradient", "another gradient"),
    (Drifts, "test_evaluating_twice_gives_the_same", "evaluated twice"),
    (IsNoJson, "test_it_describes_itself", "no JSON"),
]


@pytest.mark.parametrize(("kind", "test", "sentence"), DEFECTS)
def test_a_defect_is_seen(kind: Make, test: str, sentence: str, tmp_path: Path) -> None:
    class Suite(ModelAdapterSuite):
        def make(self, folder: Path) -> ModelAdapter:
            training = TrainingConfig(mixed_precision=False)
            return with_data(kind(ModelConfig(embedded=MODEL), training, CPU), folder)

    message = failure(Suite(), test, tmp_path)
    assert message is not None
    assert sentence in message


def test_without_a_way_to_look_a_test_is_skipped(tmp_path: Path) -> None:
    class Suite(TestStandard):
        learns_in_evaluation = False

        def unsupervised(self, example: object) -> Any:
            return None

    found = [
        failure(Suite(), test, tmp_path) for test in (SPLIT, "test_what_is_masked_is_not_learnt")
    ]
    codes = ("evaluation_loss_differs", "example_not_masked")
    assert found == [f"skipped: conformance.{code}()" for code in codes]
    assert ModelAdapterSuite().unsupervised(SimpleNamespace(supervised=np.ones(2))) is None


def test_each_test_has_a_defect_that_it_sees() -> None:
    assert without_defect(ModelAdapterSuite, {test for _, test, _ in DEFECTS}) == []
