"""Threads and number format are measured where they are open and worth it, and kept by whoever goes
on."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core import shared_cores
from infrastructure.core.errors import CheckpointError
from infrastructure.core.hardware import Processor
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core import precision, product_choice
from infrastructure.training.core.product_choice import threads_restored
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.placement import Placement
from infrastructure.training.resume import fingerprint
from infrastructure.training.resume.fingerprint import repeat_num_threads
from infrastructure.training.setup import compute_choice
from infrastructure.training.setup.compute_choice import (
    ComputeChoice,
    choose_by_product,
    choose_by_trial,
)
from infrastructure.training.sizing.cost_measurement import DryRunStep, MicroCost
from infrastructure.training.strategies import StandardTrainingStrategy
from tests.training.small_runs import small_trainer, write_rows

MakeTrainer = Callable[..., EnhancedTrainer]
Plant = Callable[[dict[tuple[str, int], float]], list[tuple[str, int]]]


@pytest.fixture(autouse=True)
def threads_are_restored() -> Iterator[None]:
    with threads_restored():
        yield


@pytest.fixture
def one_thread() -> None:
    """No number of threads to choose."""
    torch.set_num_threads(1)


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of four cores, whatever the environment says. They are only counted: real
    ones would wait for each other on a busy machine, and compute as much."""
    monkeypatch.delenv(shared_cores.THREADS_VARIABLE, raising=False)
    machine = Processor("a CPU", 4, 4, ())
    monkeypatch.setattr(fingerprint, "processor", lambda: machine)
    torch.set_num_threads(1)
    counted = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: counted[-1])
    monkeypatch.setattr(torch, "set_num_threads", counted.append)


@pytest.fixture
def make(saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """Trainers on a CPU with bf16 instructions, for which few micro-batches are enough."""
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(compute_choice, "WORTH_IT", 4)
    write_rows(tmp_path, 40)
    return lambda **training: small_trainer(saved_llama, tmp_path, **{"max_steps": 4, **training})


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Have a micro-batch take so many seconds in a format with so many threads; what was tried."""

    def planted(seconds: dict[tuple[str, int], float]) -> list[tuple[str, int]]:
        measured: list[tuple[str, int]] = []

        def micro_batch(step: DryRunStep, examples: Sequence[object]) -> MicroCost:
            form = step.strategy.precision.name, torch.get_num_threads()
            first = 100.0 if form not in measured else 0.0  # loads kernels
            measured.append(form)
            return MicroCost(1, first + seconds[form], 1)

        monkeypatch.setattr(DryRunStep, "micro_batch", micro_batch)
        return measured

    return planted


def choice_of_trial(trainer: EnhancedTrainer) -> ComputeChoice:
    choice = choose_by_trial(trainer)
    assert choice is not None
    return choice


@pytest.mark.usefixtures("one_thread")
def test_fp32_has_to_be_clearly_faster(make: MakeTrainer, plant: Plant) -> None:
    measured = plant({("bf16", 1): 1.0, ("fp32", 1): 0.91})
    trainer = make()
    choice = choice_of_trial(trainer)
    assert (choice.precision, choice.num_threads, choice.lines()) == ("bf16", 1, [])
    assert trainer.precision.name == trainer.strategy.precision.name == "bf16"
    assert measured == [("bf16", 1), ("fp32", 1)] * 3
    plant({("bf16", 1): 1.0, ("fp32", 1): 0.89})
    choice = choice_of_trial(trainer)
    assert choice.precision == "fp32"
    for chosen in (trainer.precision, trainer.strategy.precision):
        assert chosen.name == "fp32"
    measured_as = "1 s in bf16 with 1 thread, 0.89 s in fp32 with 1 thread"
    here = f"origin=training.measured_here(), measured={measured_as}"
    origin = f"training.compute_choice_origin({here})"
    assert choice.decided() == {"training.mixed_precision": {"value": "fp32", "origin": origin}}
    (line,) = choice.lines()
    assert line.startswith("training.compute_choice_measured(chosen=training.mixed_precision=fp32")
    assert "seconds=0.89, usual_seconds=1.0, in_usual= in bf16, threads=1 thread" in line


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(
    ("seconds", "num_threads", "tried"),
    [
        ({4: 0.3, 2: 0.25}, 4, [4, 2]),  # near ties keep all of them
        ({4: 0.3, 2: 0.2, 1: 0.17}, 2, [4, 2, 1]),
        ({4: 0.3, 2: 0.2, 1: 0.1}, 1, [4, 2, 1]),
    ],
)
def test_fewer_threads_have_to_be_clearly_faster(
    make: MakeTrainer,
    plant: Plant,
    seconds: dict[int, float],
    num_threads: int,
    tried: list[int],
) -> None:
    measured = plant({("fp32", count): each for count, each in seconds.items()})
    trainer = make(mixed_precision="fp32")
    choice = choice_of_trial(trainer)
    assert torch.get_num_threads() == trainer.identity()["num_threads"] == num_threads
    assert list(dict.fromkeys(count for _, count in measured)) == tried
    assert choice.precision == trainer.precision.name == "fp32"
    assert choice.decided().keys() == {"num_threads"}
    assert choice.decided()["num_threads"]["value"] == num_threads
    lines = choice.lines()
    assert len(lines) == (num_threads != 4)
    for line in lines:
        assert (
            f"compute_choice_measured(chosen=training.cpu_threads(count={num_threads}, most=4), "
            in line
        )
        assert f"seconds={choice.seconds['fp32', num_threads]}, usual_seconds=0.3" in line
        assert choice.seconds["fp32", num_threads] == pytest.approx(seconds[num_threads])
        assert "in_usual=, threads=4 threads" in line


@pytest.mark.usefixtures("four_threads")
def test_threads_hardly_wait_in_a_long_micro_batch(make: MakeTrainer, plant: Plant) -> None:
    measured = plant({("fp32", 4): 0.6})
    assert choose_by_trial(make(mixed_precision="fp32")) is None
    assert (set(measured), torch.get_num_threads()) == ({("fp32", 4)}, 4)
    plant({("bf16", 4): 0.6, ("fp32", 4): 0.1})
    choice = choice_of_trial(make())
    assert choice.decided().keys() == {"training.mixed_precision"}
    assert (choice.precision, torch.get_num_threads()) == ("fp32", 4)


@pytest.mark.usefixtures("four_threads")
def test_formats_are_compared_with_all_threads_and_with_half_of_them(
    make: MakeTrainer, plant: Plant
) -> None:
    # In the usual format, half of the threads would be no gain.
    seconds = {("bf16", 4): 0.2, ("fp32", 4): 0.19, ("bf16", 2): 0.18, ("fp32", 2): 0.1}
    plant({**seconds, ("fp32", 1): 0.1})
    trainer = make()
    choice = choice_of_trial(trainer)
    assert (choice.num_threads, choice.precision) == (2, "fp32")
    assert (torch.get_num_threads(), trainer.precision.name) == (2, "fp32")
    (line,) = choice.lines()
    assert (
        "chosen=training.cpu_threads(count=2, most=4), training.mixed_precision=fp32, seconds=0.1"
        in line
    )
    assert "usual_seconds=0.2, in_usual= in bf16, threads=4 threads" in line
    assert choice.decided().keys() == {"num_threads", "training.mixed_precision"}


@pytest.mark.usefixtures("one_thread")
def test_fp32_is_taken_where_a_product_is_clearly_slower_in_bf16(
    make: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"bf16": 0.001, "fp32": 0.00079}
    monkeypatch.setattr(product_choice, "product_seconds", lambda: seconds)
    trainer = make()
    choice = choose_by_product(trainer)
    assert choice is not None
    parts = (trainer, trainer.strategy, trainer.adapter)
    assert {part.precision.name for part in parts} == {"fp32"}
    values = "fp32_time=0.79 ms, bf16_time=1 ms, precision=bf16"
    times = f"training.matrix_product_times({values})"
    assert choice.line() == f"training.mixed_precision=fp32 (measured: {times})"
    decision = {"value": "fp32", "origin": f"training.measured_here(): {times}"}
    assert choice.decided() == {"training.mixed_precision": decision}


@pytest.mark.usefixtures("four_threads")
def test_only_threads_are_tried_where_a_product_decides_on_the_format(
    make: MakeTrainer, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    tried = plant({("fp32", 4): 0.3, ("fp32", 2): 0.1, ("fp32", 1): 0.1})
    trainer = make()
    choose_by_product(trainer)
    assert choice_of_trial(trainer).decided().keys() == {"num_threads"}
    assert {name for name, _ in tried} == {"fp32"}
    assert (trainer.precision.name, torch.get_num_threads()) == ("fp32", 2)


@pytest.mark.parametrize(("training", "in_fp32"), [({}, 0.81), ({"mixed_precision": "bf16"}, 0.1)])
def test_a_product_decides_on_nothing_that_is_close_or_given(
    make: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    training: dict[str, Any],
    in_fp32: float,
) -> None:
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 1.0, "fp32": in_fp32})
    trainer = make(**training)
    assert choose_by_product(trainer) is None
    assert trainer.precision.name == "bf16"


@pytest.mark.parametrize("model", [{"dtype": "bf16"}, {"quantization": "4bit"}])
def test_a_product_of_fp32_decides_for_no_other_weights(
    make: MakeTrainer, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    trainer = make()
    trainer.model_config = trainer.model_config.copy_with(**model, lora_config=LoraConfig())
    assert choose_by_product(trainer) is None
    assert trainer.precision.name == "bf16"


@pytest.mark.parametrize(
    ("precision_of_stacks", "name"), [("full", "fp32"), ("bf16", "bf16"), ("fp16", "bf16")]
)
def test_stacks_that_are_held_in_16_bits_stay_in_bf16(
    make: MakeTrainer, monkeypatch: pytest.MonkeyPatch, precision_of_stacks: str, name: str
) -> None:
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    trainer = make(strategy="progressive", progressive={"new_stack_precision": precision_of_stacks})
    choose_by_product(trainer)
    assert trainer.precision.name == name


@pytest.mark.usefixtures("one_thread")
def test_the_pass_that_loads_kernels_is_left_out_once() -> None:
    """Of the first candidate it was done before."""
    trainer: Any = SimpleNamespace(use_precision=lambda name: None)
    all_threads, half = ("fp32", 2), ("fp32", 1)
    passes = iter([0.1, 0.3, 0.4, 0.5, 0.6])
    measured = compute_choice._in_turns(trainer, [all_threads, half], lambda: next(passes))
    assert measured == {all_threads: 0.3, half: 0.4}
    assert not list(passes)


@pytest.mark.usefixtures("four_threads")
def test_a_slower_minute_does_not_count_against_fewer_threads(
    make: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pair of two and one is measured while everything takes three times as long."""
    seconds = {4: 0.4, 2: 0.2, 1: 0.12}
    counts: list[int] = []

    def micro_batch(step: DryRunStep, examples: Sequence[object]) -> MicroCost:
        counts.append(torch.get_num_threads())
        return MicroCost(1, seconds[counts[-1]] * (3 if 1 in counts else 1), 1)

    monkeypatch.setattr(DryRunStep, "micro_batch", micro_batch)
    choice = choice_of_trial(make(mixed_precision="fp32"))
    assert choice.num_threads == 1


@pytest.mark.parametrize(
    "training",
    [{"mixed_precision": "bf16"}, {"compile_mode": "default"}, {"max_steps": 3}],
)
@pytest.mark.usefixtures("one_thread")
def test_a_given_format_and_short_trainings_are_not_measured(
    make: MakeTrainer, plant: Plant, training: dict[str, Any]
) -> None:
    measured = plant({})
    assert choose_by_trial(make(**training)) is None
    assert measured == []


@pytest.mark.usefixtures("four_threads")
def test_a_given_number_of_threads_is_kept(
    make: MakeTrainer, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shared_cores.THREADS_VARIABLE, "4")
    measured = plant({})
    trainer = make(mixed_precision="bf16")
    assert choose_by_trial(trainer) is None
    repeat_num_threads(2, trainer.device, 1)
    assert (measured, torch.get_num_threads()) == ([], 4)


@pytest.mark.usefixtures("one_thread")
def test_a_run_goes_on_in_the_format_that_it_began_with(
    make: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(ComputeChoice, "precision", "fp32")
        trainer = make(checkpoint_frequency=2)
        choose_by_trial(trainer)
    trainer.save_checkpoints_to(tmp_path / "checkpoints")
    trainer.train()
    checkpoint = CheckpointManager(tmp_path / "checkpoints").newest()
    again = make(checkpoint_frequency=2)
    again.restore(checkpoint)
    strategy = again.prepare().loop.optimizer_step.strategy
    assert again.precision.name == strategy.precision.name == "fp32"
    given = make(checkpoint_frequency=2, mixed_precision="bf16")
    with pytest.raises(CheckpointError, match=r"run\.restore_precision_by_flag"):
        given.restore(checkpoint)


@pytest.mark.usefixtures("four_threads")
def test_a_run_goes_on_with_as_many_threads_as_it_began_with(
    make: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(2)
    trainer = make(checkpoint_frequency=2)
    trainer.save_checkpoints_to(tmp_path / "checkpoints")
    trainer.train()
    checkpoint = CheckpointManager(tmp_path / "checkpoints").newest()
    torch.set_num_threads(4)
    assert make(checkpoint_frequency=2).restore(checkpoint) == []
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(fingerprint, "processor", lambda: Processor("a CPU", 1, 4, ()))
    [difference] = make(checkpoint_frequency=2).restore(checkpoint)
    assert (difference.name, difference.was, difference.current) == ("num_threads", 2, 1)
    monkeypatch.setenv(shared_cores.THREADS_VARIABLE, "3")
    torch.set_num_threads(3)
    [difference] = make(checkpoint_frequency=2).restore(checkpoint)
    assert (difference.was, difference.current) == (2, 3)


@pytest.mark.usefixtures("one_thread")
def test_a_cpu_without_bf16_does_not_go_on_in_bf16(
    make: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(checkpoint_frequency=2)
    trainer.save_checkpoints_to(tmp_path / "checkpoints")
    trainer.train()
    checkpoint = CheckpointManager(tmp_path / "checkpoints").newest()
    monkeypatch.setattr(precision, "best_precision", lambda device: "fp32")
    with pytest.raises(CheckpointError, match="precision: was bf16, is fp32"):
        make(checkpoint_frequency=2).restore(checkpoint)


class OwnStrategy(StandardTrainingStrategy):
    """A user's strategy, whose steps cannot be repeated for a measurement."""


@pytest.mark.parametrize(
    ("differing", "is_alone"),
    [
        ({}, True),
        ({"device": torch.device("cuda")}, False),
        ({"training_config": TrainingConfig(compile_mode="default")}, False),
        ({"placement": SimpleNamespace(size=2)}, False),
        ({"strategy": SimpleNamespace(has_forms=True)}, False),
        ({"strategy": OwnStrategy(TrainingConfig())}, False),
    ],
)
def test_only_one_plain_training_on_a_cpu_is_tried(
    differing: dict[str, Any], is_alone: bool
) -> None:
    plain: dict[str, Any] = {
        **{"device": torch.device("cpu"), "placement": Placement()},
        **{"training_config": TrainingConfig(compile_mode=None)},
        "strategy": StandardTrainingStrategy(TrainingConfig()),
    }
    trainer: Any = SimpleNamespace(**plain | differing)
    assert compute_choice._is_alone(trainer) == is_alone


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"batch_size": 4}, 7 * 3),
        ({"batch_size": "auto", "num_epochs": 5}, 1000 * 5 // 32),
        ({"batch_size": "auto"}, 1000 // 32),
    ],
)
def test_the_micro_batches_of_a_training_are_counted_or_estimated(
    settings: dict[str, Any], count: int
) -> None:
    trainer: Any = SimpleNamespace(
        training_config=TrainingConfig(**settings),
        length=lambda: SimpleNamespace(total_steps=7),
        batch_plan=lambda: SimpleNamespace(gradient_accumulation=3),
        initialize_data=lambda: SimpleNamespace(num_examples=1000),
    )
    assert compute_choice._num_micro_batches(trainer) == count
