"""A run whose memory grows records this, with the line that holds the memory."""

from pathlib import Path
from types import SimpleNamespace

import torch

from infrastructure.features.leak_watch.extension import KIND, LeakExtension
from infrastructure.features.leak_watch.leak_watch import Leak, LeakWatch
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.extensions.extension_manager import create_extensions
from tests.slow import slow
from tests.training.toy_training import Training

MIB = 1 << 20


class Leaking(Extension):
    """Holds on to memory at every step, as a list of losses with their graphs does; so much that
    it counts in a process that has run many tests."""

    def __init__(self) -> None:
        self.held: list[torch.Tensor] = []

    def step_end(self, state: TrainingState) -> None:
        self.held.append(torch.ones(3 * MIB))  # the line that leaks


@slow
def test_a_run_whose_memory_grows_names_the_line_that_holds_it() -> None:
    watch = LeakWatch(window=10, min_growth_bytes=16 * MIB)
    extension = LeakExtension(None, watch, interval_seconds=0.0)
    training = Training(hooks=[Leaking(), extension], num_examples=120).run()
    [leak] = [one for one in training.state.recoveries if one["kind"] == KIND]
    assert "leak_watch.rate" in leak["message"]
    line = leak["message"].split("lines=")[1].split(" ")[0]
    assert line.startswith(f"{__file__}:")
    source = Path(__file__).read_text().splitlines()[int(line.rsplit(":", 1)[1]) - 1]
    assert "the line that leaks" in source


def test_what_the_watch_for_leaks_finds_is_recorded() -> None:
    readings: dict[int, int] = {}

    class Watch(LeakWatch):
        """It has found something after the second reading."""

        def add(self, step: int, used_bytes: int) -> Leak | None:
            readings[step] = used_bytes
            return Leak(3.0 * MIB, (("mine.py:7", 9 * MIB),)) if len(readings) == 2 else None

    extension = LeakExtension(None, Watch(), interval_seconds=0.0)
    training = Training(hooks=[extension], max_steps=3).run()
    assert [*readings] == [1, 2, 3]
    assert min(readings.values()) > MIB
    [leak] = training.state.recoveries
    assert (leak["kind"], leak["step"]) == (KIND, 2)
    assert "mine.py:7" in leak["message"]


def test_memory_is_read_every_ten_seconds_and_lines_are_sought_unless_compiled() -> None:
    seen: list[int] = []

    class Watch(LeakWatch):
        def add(self, step: int, used_bytes: int) -> Leak | None:
            seen.append(step)
            return None

        def stop(self) -> None:
            seen.append(-1)

    times = [100.0, 105.0, 109.9, 110.0, 119.0, 125.0, 134.9]
    extension = LeakExtension(None, Watch(), clock=iter(times).__next__)
    state = TrainingState(torch.nn.Linear(1, 1))
    for state.step in range(len(times)):
        extension.step_end(state)
    extension.train_end(state)
    assert seen == [0, 3, 5, -1]
    for mode, counts_tensors in ((None, True), ("default", False)):
        trainer = SimpleNamespace(training_config=SimpleNamespace(compile_mode=mode))
        assert LeakExtension(trainer).watch.counts_tensors is counts_tensors


def test_it_is_enabled_by_its_name() -> None:
    [hook] = create_extensions(["leak_watch"], None, {})
    assert isinstance(hook, LeakExtension)
    assert not hook.adds_weights
