"""Our strategies keep the contract, and a strategy with a defect does not."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.conformance.strategy import TrainingStrategySuite
from infrastructure.training.core.state import Phase, StepOutput
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.strategies.standard_strategy import StandardTrainingStrategy
from tests.features.conformance.planted import failure, without_defect
from tests.slow import slow


class TestStandard(TrainingStrategySuite):
    name = "standard"

    def make(self, config: TrainingConfig) -> TrainingStrategy:
        return get_training_strategy(self.name, config)


@slow  # its own effect has quick tests in tests/training/strategies
class TestFinetune(TestStandard):
    name = "finetune"
    settings: ClassVar[dict[str, Any]] = {
        "strategy": "finetune",
        "layerwise_lr_decay": 0.9,
    }


class TestProgressive(TestStandard):
    name = "progressive"
    settings: ClassVar[dict[str, Any]] = {
        "strategy": "progressive",
        "progressive": {"target_stacks": 2},
    }

    @slow  # tests/features/stackwise/training/test_strategy.py has quick ones
    def test_a_training_that_goes_on_gives_the_same_bits(self, tmp_path: Path) -> None:
        super().test_a_training_that_goes_on_gives_the_same_bits(tmp_path)


class TestStackwise(TestStandard):
    name = "end_to_end"
    settings: ClassVar[dict[str, Any]] = {
        "strategy": "end_to_end",
        "end_to_end_scope": "stackwise",
        "progressive": {"target_stacks": 2},
    }

    @slow  # tests/features/stackwise/training/test_strategy.py has quick ones
    def test_a_training_that_goes_on_gives_the_same_bits(self, tmp_path: Path) -> None:
        super().test_a_training_that_goes_on_gives_the_same_bits(tmp_path)


# Defects, each in a strategy that is else sound.

EMBEDDING = "embed_tokens"


class OtherPhases(StandardTrainingStrategy):
    num_calls = 0

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        self.num_calls += 1
        return [Phase(f"phase {self.num_calls}", num_epochs)]


class NamesWhatIsNotThere(StandardTrainingStrategy):
    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        return [Phase("train", num_epochs, frozenset({"no.such.weight"}))]


class LeavesOutWhatItNames(StandardTrainingStrategy):
    """Its phase says that everything trains."""

    def train_step(self, model: Any, *arguments: Any, **keywords: Any) -> StepOutput:
        output = super().train_step(model, *arguments, **keywords)
        for name, parameter in model.named_parameters():
            if EMBEDDING in name:
                parameter.grad = None
        return output


class TrainsMoreThanItNames(StandardTrainingStrategy):
    """Its phase says that the embedding stays."""

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        names = (name for name, _ in model.named_parameters())
        return [Phase("train", num_epochs, frozenset(n for n in names if EMBEDDING not in n))]

    def update_parameters(self, model: Any, *arguments: Any) -> torch.Tensor:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.999)
        return super().update_parameters(model, *arguments)


class StepsInTrainStep(StandardTrainingStrategy):
    def train_step(self, model: Any, batch: Any, optimizer: Any, *more: Any) -> StepOutput:
        output = super().train_step(model, batch, optimizer, *more)
        optimizer.step()
        return output


class HoldsTheGraph(StandardTrainingStrategy):
    def train_step(self, *arguments: Any) -> StepOutput:
        output = super().train_step(*arguments)
        return StepOutput(output.loss_sum.requires_grad_(), output.num_items)


class MeansOfTheMicroBatch(StandardTrainingStrategy):
    """Divides by the items of each piece."""

    def train_step(self, model: Any, batch: Any, *more: Any) -> StepOutput:
        alone = {key: value for key, value in batch.items() if key != "total_items"}
        return super().train_step(model, alone, *more)


class KeepsGradients(StandardTrainingStrategy):
    def update_parameters(self, model: Any, *arguments: Any) -> torch.Tensor:
        kept = [(p, p.grad) for p in model.parameters()]
        norm = super().update_parameters(model, *arguments)
        for parameter, gradient in kept:
            parameter.grad = gradient
        return norm


class RateOfTheCalls(StandardTrainingStrategy):
    """A schedule that counts how often it was asked."""

    def rate_factor(self, total_steps: int) -> Any:
        numbers = iter(range(10_000))
        return lambda step: 1 / (1 + next(numbers))


class CountsItsSteps(StandardTrainingStrategy):
    """What it does depends on the steps that this process has done."""

    steps = 0

    def unscale_gradients(self, optimizer: Any, scaler: Any) -> None:
        super().unscale_gradients(optimizer, scaler)
        self.steps += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad += self.steps


class HasNoPhase(StandardTrainingStrategy):
    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        return []


class HasNoEpoch(StandardTrainingStrategy):
    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        return [Phase("train", 0)]


class NeverSteps(StandardTrainingStrategy):
    def update_parameters(self, model: Any, optimizer: Any, *more: Any) -> torch.Tensor:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        norm = super().update_parameters(model, optimizer, *more)
        with torch.no_grad():
            for parameter, was in zip(model.parameters(), before, strict=True):
                parameter.copy_(was)
        return norm


class StepsInItsFirstPhase(NeverSteps):
    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        return [Phase("first", 1), Phase("second", 1)]

    def update_parameters(self, model: Any, *more: Any) -> torch.Tensor:
        kind = NeverSteps if self.entered else StandardTrainingStrategy
        return kind.update_parameters(self, model, *more)


def giving(change: Any) -> type[StandardTrainingStrategy]:
    """A strategy whose steps give another output, or leave other gradients."""

    class Giving(StandardTrainingStrategy):
        def train_step(self, model: Any, batch: Any, *more: Any) -> StepOutput:
            output: StepOutput = change(super().train_step(model, batch, *more), model, batch)
            return output

    return Giving


def without_gradients(output: StepOutput, model: Any, _: Any) -> StepOutput:
    model.zero_grad(set_to_none=True)
    return output


def without_one_gradient(output: StepOutput, model: Any, batch: Any) -> StepOutput:
    if "total_items" in batch:
        next(model.parameters()).grad = None
    return output


class NormOfNothing(StandardTrainingStrategy):
    def update_parameters(self, model: Any, *more: Any) -> torch.Tensor:
        return 0 * super().update_parameters(model, *more)


class KeepsItsRate(StandardTrainingStrategy):
    def update_parameters(self, model: Any, optimizer: Any, scaler: Any, _: Any) -> torch.Tensor:
        return super().update_parameters(model, optimizer, scaler, None)


class ClimbsUp(StandardTrainingStrategy):
    def rate_factor(self, total_steps: int) -> Any:
        return lambda step: -1.0


TRAINS, GATHERS = (
    "test_a_phase_trains_the_parameters_that_it_names",
    "test_a_micro_batch_only_gathers_gradients",
)
PHASES = "test_phases_are_always_the_same_ones"
UPDATES = "test_an_update_changes_weights_and_forgets_gradients"

DEFECTS: list[tuple[type[TrainingStrategy], str, str]] = [
    (HasNoPhase, PHASES, "it has no phase"),
    (HasNoEpoch, PHASES, "phase 'train' has 0 epochs"),
    (NeverSteps, TRAINS, "no step has changed anything"),
    (
        giving(lambda out, *_: StepOutput(out.loss_sum.reshape(1), out.num_items)),
        GATHERS,
        "loss_sum is no single number",
    ),
    (
        giving(lambda out, *_: StepOutput(out.loss_sum, out.num_items + 1)),
        GATHERS,
        "items of",
    ),
    (giving(without_gradients), GATHERS, "train_step leaves no gradient"),
    (
        giving(without_one_gradient),
        "test_a_split_batch_has_the_same_gradient",
        "gradients of other parameters",
    ),
    (NormOfNothing, UPDATES, "the norm of the gradients is 0.0"),
    (NeverSteps, UPDATES, "update_parameters changes no weight"),
    (KeepsItsRate, UPDATES, "the schedule does not advance"),
    (ClimbsUp, "test_the_learning_rate_is_that_of_the_step_alone", "negative rates"),
    (OtherPhases, "test_phases_are_always_the_same_ones", "asked twice"),
    (
        NamesWhatIsNotThere,
        "test_phases_are_always_the_same_ones",
        "the model does not have",
    ),
    (LeavesOutWhatItNames, "test_a_phase_trains_the_parameters_that_it_names", "does not train ["),
    (
        TrainsMoreThanItNames,
        "test_a_phase_trains_the_parameters_that_it_names",
        "which it does not name",
    ),
    (StepsInTrainStep, "test_a_micro_batch_only_gathers_gradients", "changes weights"),
    (HoldsTheGraph, "test_a_micro_batch_only_gathers_gradients", "detach it"),
    (MeansOfTheMicroBatch, "test_a_split_batch_has_the_same_gradient", "total_items"),
    (KeepsGradients, "test_an_update_changes_weights_and_forgets_gradients", "leaves gradients"),
    (RateOfTheCalls, "test_the_learning_rate_is_that_of_the_step_alone", "going on after 5"),
    (CountsItsSteps, "test_a_training_that_goes_on_gives_the_same_bits", "other bits"),
]


@pytest.mark.parametrize(("kind", "test", "sentence"), DEFECTS)
def test_a_defect_is_seen(
    kind: type[TrainingStrategy], test: str, sentence: str, tmp_path: Path
) -> None:
    class Suite(TrainingStrategySuite):
        def make(self, config: TrainingConfig) -> TrainingStrategy:
            return kind(config)

    message = failure(Suite(), test, tmp_path)
    assert message is not None
    assert sentence in message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LeavesOutWhatItNames, None),
        (StepsInItsFirstPhase, "phase 'second' changes nothing"),
    ],
)
def test_a_strategy_may_leave_out_some_of_what_it_names(
    kind: type[TrainingStrategy], message: str | None, tmp_path: Path
) -> None:
    class Suite(TrainingStrategySuite):
        trains_all_it_names = False

        def make(self, config: TrainingConfig) -> TrainingStrategy:
            return kind(config)

    assert failure(Suite(), TRAINS, tmp_path) == message


def test_each_test_has_a_defect_that_it_sees() -> None:
    assert without_defect(TrainingStrategySuite, {test for _, test, _ in DEFECTS}) == []
