"""G11: memory that runs out at any step, rows that break the loss; `python -m` prints one line.

Memory is short once at a step, in the forward pass, the backward pass, the optimizer's step or the
evaluation: the training ends after the same steps on the same batches with the same losses as one
that was not disturbed, and with dropout bit for bit as one that had the smaller micro-batch from
there on. A row that is not a number is named and passed over, also by whoever goes on from any
version that was ever saved. Each of the defects in MUTANTS must be found.
"""

import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import patch

import torch

from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.core.errors import TrainingDivergedError
from infrastructure.core.messages import phrase
from infrastructure.training.checkpoints import checkpoint_manager, snapshot
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.forward.evaluation_loss import EvaluationLoss
from infrastructure.training.forward.gradient_accumulation import split
from infrastructure.training.loop import checkpointer
from infrastructure.training.loop import optimizer_step as stepping
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.recovery import bad_loss
from tests.conftest import save_tiny_llama
from tests.data.builders import pairs
from tests.training import toy_training
from tests.training.test_enhanced_trainer import Training as RealTraining
from tests.training.toy import ToySource
from tests.training.toy_training import Training

PLACES = ("forward", "backward", "optimizer", "evaluation")
NUM_STEPS = 12
CHECKPOINT_FREQUENCY = 5
TOLERANCE = 1e-5
SETTINGS: dict[str, Any] = {
    "batch_size": 3,
    "gradient_accumulation": 2,
    "checkpoint_frequency": CHECKPOINT_FREQUENCY,
    "validation_frequency": 1,
    "max_grad_norm": None,  # clipping would hide gradients of a wrong size
}


class Course(Observer):
    """What a training did in the end: steps that were done again count once."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.evaluations: dict[int, float] = {}
        self.batches: dict[int, list[Any]] = {}

    def step_end(self, state: TrainingState) -> None:
        self.losses[state.step] = state.loss
        self.batches[state.step] = [getattr(e, "input_ids", e) for e in state.batch]

    def eval_end(self, state: TrainingState) -> None:
        self.evaluations[state.step] = state.evaluation["eval_loss"]


class SmallerFrom(Extension):
    """The reference: smaller micro-batches from a step on, without any error."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_start(self, state: TrainingState) -> None:
        if state.step == self.step:
            state.micro_batch_size = max(1, min(state.micro_batch_size, len(state.batch)) // 2)


@dataclass
class Shortage:
    """Memory is short once, at one step and one place; the optimizer's step is torn by it."""

    place: str
    step: int
    was: list[int] = field(default_factory=list)

    def befall(self, step: OptimizerStep, state: TrainingState, adapter: Any) -> None:
        """Let it happen to a training that is about to begin."""
        compute, measure, calls = step.strategy.compute_loss, adapter.compute_loss, [0, -1]

        def train(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
            calls[:] = [calls[0] + 1 if calls[1] == state.step else 0, state.step]
            pieces = -(-len(state.batch) // state.micro_batch_size)
            is_here = state.step == self.step and calls[0] == min(1, pieces - 1)
            if is_here and self.place == "forward":
                self.raise_once()
            output = compute(model, batch)  # type: ignore[misc]
            if is_here and self.place == "backward":
                output.loss_sum.register_hook(lambda gradient: self.raise_once())
            return output

        def evaluate(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
            if self.place == "evaluation" and state.step == self.step + 1 and not model.training:
                self.raise_once()
            return measure(model, batch)

        def tear(*arguments: Any) -> None:
            if self.place == "optimizer" and state.step == self.step and not self.was:
                next(state.model.parameters()).data.fill_(7.0)
                self.raise_once()

        step.strategy.compute_loss, adapter.compute_loss = train, evaluate
        step.optimizer.register_step_pre_hook(tear)

    def raise_once(self) -> None:
        if not self.was:
            self.was.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory: planted")


def toy(directory: Path, *hooks: Any, **settings: Any) -> tuple[Training, Course]:
    """A toy training that evaluates really."""
    course = Course()
    training = Training(directory, hooks=[*hooks, course], **{**SETTINGS, **settings})

    def evaluate() -> dict[str, float]:
        held_out = EvaluationLoss(training.state.model, training.adapter, Precision("fp32", "cpu"))
        return held_out.measure(training.source.evaluation_batches(6))

    training.loop.evaluate = evaluate
    return training, course


@dataclass
class Outcome:
    """Sums over all points."""

    points: int = 0
    wrong_courses: int = 0
    not_the_same_bits: int = 0
    largest_difference: float = 0.0

    @property
    def is_right(self) -> bool:
        wrong = self.wrong_courses + self.not_the_same_bits
        return wrong == 0 and self.largest_difference <= TOLERANCE

    def compare(self, found: Course, expected: Course) -> None:
        """Steps, batches, and the losses of both kinds."""
        self.points += 1
        same_steps = list(found.losses) == list(expected.losses)
        same_batches = str(found.batches) == str(expected.batches)
        self.wrong_courses += not (same_steps and same_batches)
        pairs = [(found.losses, expected.losses), (found.evaluations, expected.evaluations)]
        for ours, theirs in pairs:
            differences = [abs(ours.get(step, math.inf) - loss) for step, loss in theirs.items()]
            self.largest_difference = max(self.largest_difference, *differences)


def short_of_memory(steps: range) -> Outcome:
    """Each place at each step: without dropout beside the undisturbed run, with it bit for bit
    beside one that had smaller micro-batches from the step that the training went back to."""
    outcome = Outcome()
    with directories() as new:
        whole, expected = toy(new(), dropout=0.0)
        whole.run()
        for place in PLACES:
            for step in steps:
                shortage = Shortage(place, step)
                training, course = toy(new(), dropout=0.0)
                shortage.befall(training.step, training.state, training.adapter)
                training.run()
                assert shortage.was
                outcome.compare(course, expected)
                outcome.not_the_same_bits += not same_bits(place, step, new)
    return outcome


def same_bits(place: str, step: int, new: Callable[[], Path]) -> bool:
    training, _ = toy(new())
    Shortage(place, step).befall(training.step, training.state, training.adapter)
    training.run()
    begin = {"optimizer": step // CHECKPOINT_FREQUENCY * CHECKPOINT_FREQUENCY, "evaluation": -1}
    reference, _ = toy(new(), SmallerFrom(begin.get(place, step)))
    return torch.equal(training.weights, reference.run().weights)


@dataclass
class Poison:
    """Sums over all poisoned rows."""

    rows: int = 0
    misnamed: int = 0
    unfinished: int = 0
    resumed: int = 0
    differing: int = 0
    not_finite: int = 0

    @property
    def is_right(self) -> bool:
        return not (self.misnamed or self.unfinished or self.differing or self.not_finite)


def poisoned(examples: range, log_frequency: int, *, once: bool = False) -> Poison:
    """Rows that are not numbers, one after the other; `once`: only the first time that they are
    seen, so that nobody who goes on would find out again what was chosen."""
    outcome = Poison()
    settings: dict[str, Any] = {"log_frequency": log_frequency}
    with directories() as new, patch.object(bad_loss, "MAX_ROLLBACKS", 9):
        for example in examples:
            outcome.rows += 1
            training, _ = toy(new(), **settings)
            poison(training, example, once)
            try:
                training.run()
            except TrainingDivergedError:
                outcome.unfinished += 1
                continue
            outcome.unfinished += training.state.step != NUM_STEPS
            named = [batch.rows for batch in training.state.skipped]
            outcome.misnamed += not once and named != [(row,) for row in names_of(example)]
            outcome.not_finite += not training.weights.isfinite().all()
            for version in training.checkpoints.checkpoints():
                again, _ = toy(new(), **settings)
                if not once:
                    poison(again, example, once)
                elif not knows_the_choice(version):
                    continue
                again.resume(version)
                outcome.resumed += 1
                outcome.differing += not torch.equal(again.weights, training.weights)
    return outcome


def poison(training: Training, example: int, once: bool) -> None:
    prepare, seen = training.adapter.prepare_batch, []

    def prepare_batch(examples: Any) -> dict[str, Any]:
        batch = prepare(examples)
        if example in examples and training.state.model.training and not (once and seen):
            seen.append(True)
            batch["features"] = batch["features"] * float("nan")
        elif example in examples and not once:
            batch["features"] = batch["features"] * float("nan")
        return batch

    training.adapter.prepare_batch = prepare_batch  # type: ignore[method-assign]


def knows_the_choice(version: Path) -> bool:
    return bool(checkpoint_manager.load_checkpoint(version).values["skipped"])


def names_of(example: int) -> list[str]:
    """The names of an example in each epoch, by its position."""
    orders = [next(ToySource().train_batches(epoch, 0, 20)) for epoch in range(3)]
    return [
        phrase("training.row_place", number=order.index(example), epoch=epoch)
        for epoch, order in enumerate(orders)
    ]


@contextmanager
def directories() -> Iterator[Callable[[], Path]]:
    """Inside, each call gives a new directory."""
    with tempfile.TemporaryDirectory() as root:
        yield lambda: Path(tempfile.mkdtemp(dir=root))


@contextmanager
def without_random_state() -> Iterator[None]:
    with mock.patch.object(stepping, "restore_random"):
        yield


@contextmanager
def without_weighting() -> Iterator[None]:
    accumulate = OptimizerStep._accumulate

    def unweighted(step: OptimizerStep, state: TrainingState, examples: Any, items: int) -> Any:
        pieces = list(split(examples, state.micro_batch_size))
        own = items if state.micro_batch_size == SETTINGS["batch_size"] else items // len(pieces)
        return accumulate(step, state, examples, max(1, own))

    with mock.patch.object(OptimizerStep, "_accumulate", unweighted):
        yield


@contextmanager
def with_the_old_optimizer_state() -> Iterator[None]:
    restore = checkpointer.restore_snapshot

    def keep(saved: Any, state: TrainingState, parts: Any) -> None:
        groups = parts.optimizer.state_dict()
        restore(saved, state, parts)
        parts.optimizer.load_state_dict(groups)

    with mock.patch.object(checkpointer, "restore_snapshot", keep):
        yield


@contextmanager
def without_the_skips() -> Iterator[None]:
    def forget(saved: Any, state: TrainingState, parts: Any) -> None:
        snapshot.restore_snapshot(saved, state, parts)
        state.skipped = []

    with mock.patch.object(toy_training, "restore_snapshot", forget):
        yield


MUTANTS: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
    "no random state restored before the retry": (
        without_random_state,
        lambda: short_of_memory(range(5, 6)).is_right,
    ),
    "smaller pieces without weighting": (
        without_weighting,
        lambda: short_of_memory(range(5, 6)).is_right,
    ),
    "the optimizer's state kept on the way back": (
        with_the_old_optimizer_state,
        lambda: short_of_memory(range(6, 7)).is_right,
    ),
    "skips forgotten after a resume": (
        without_the_skips,
        lambda: poisoned(range(13, 14), 1, once=True).is_right,
    ),
}


def missed_mutants() -> list[str]:
    """The defects that nothing noticed."""
    missed = []
    for name, (mutate, is_right) in MUTANTS.items():
        with mutate():
            if is_right():
                missed.append(name)
    return missed


def transformer(steps: range) -> Outcome:
    """The same on a real Llama, tiny and trained in full."""
    outcome = Outcome()
    with directories() as new:
        model, data = save_tiny_llama(new() / "llama"), new() / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in pairs(28)))  # no batch of one
        whole, expected = llama(model, data, new())
        whole.trainer.train()
        for place in PLACES:
            for step in steps:
                shortage = Shortage(place, step)
                training, course = llama(model, data, new())
                loop, state = training.trainer.prepare().loop, training.trainer.state
                shortage.befall(loop.optimizer_step, state, training.trainer.adapter)
                training.trainer.train()
                assert shortage.was
                outcome.compare(course, expected)
    return outcome


def llama(model: Path, data: Path, directory: Path) -> tuple[RealTraining, Course]:
    settings: dict[str, Any] = {"batch_size": 4, "max_steps": 9, "num_epochs": 3}
    settings |= {"learning_rate": 1e-3, "mixed_precision": "fp32"}  # TOLERANCE is for fp32
    settings |= {"checkpoint_frequency": CHECKPOINT_FREQUENCY, "validation_frequency": 1}
    course = Course()
    training = RealTraining(model, data, checkpoints=directory, **settings)
    training.trainer.add_hooks([course])
    training.trainer.cache_config = CacheConfig(directory=str(directory / "cache"))
    return training, course


def main() -> None:
    logging.getLogger("infrastructure").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    memory = short_of_memory(range(NUM_STEPS))
    real = transformer(range(8))
    found = {1: poisoned(range(0, 20, 2), 1), 3: poisoned(range(1, 20, 4), 3)}
    once = poisoned(range(8), 1, once=True)
    result = {
        "points": memory.points,
        "wrong_courses": memory.wrong_courses,
        "not_the_same_bits": memory.not_the_same_bits,
        "largest_loss_difference": memory.largest_difference,
        "transformer_points": real.points,
        "transformer_wrong_courses": real.wrong_courses,
        "transformer_largest_loss_difference": real.largest_difference,
        "poisoned": sum(one.rows for one in (*found.values(), once)),
        "misnamed": sum(one.misnamed for one in found.values()),
        "unfinished": sum(one.unfinished for one in (*found.values(), once)),
        "not_finite": sum(one.not_finite for one in (*found.values(), once)),
        "resumed": sum(one.resumed for one in (*found.values(), once)),
        "differing": sum(one.differing for one in (*found.values(), once)),
        "mutants": len(MUTANTS),
        "mutants_caught": len(MUTANTS) - len(missed_mutants()),
    }
    print(json.dumps({"G11": result}))


if __name__ == "__main__":
    main()
