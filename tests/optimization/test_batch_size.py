"""The search for the fastest micro-batch that fits, on machines that are written down."""

from collections.abc import Callable

import pytest

from infrastructure.optimization import batch_size
from infrastructure.optimization.batch_size import BatchSizeSearch, DoesNotFitError

MIB = 1 << 20


class Machine:
    """Takes `per_example` bytes an example besides `idle`; what is beyond `memory` fails."""

    def __init__(self, speeds: Callable[[int], float], memory: int = 1 << 40) -> None:
        self.idle, self.per_example, self.memory = 100 * MIB, 10 * MIB, memory
        self.speeds = speeds
        self.tried: list[int] = []
        self.freed = 0

    def peak_of(self, size: int) -> int:
        self.tried.append(size)
        peak = self.idle + size * self.per_example
        if peak > self.memory:
            raise MemoryError
        return peak

    def free(self) -> None:
        self.freed += 1

    def search(self, budget: int) -> BatchSizeSearch:
        return BatchSizeSearch(
            peak_of=self.peak_of,
            speed_of=self.speeds,
            budget_bytes=budget,
            idle_bytes=self.idle,
            free_memory=self.free,
        )


def test_the_fastest_size_that_fits_is_chosen() -> None:
    machine = Machine(speeds=lambda size: 100.0 * size)
    choice = machine.search(budget=1 << 40).run(largest=64)
    assert choice.size == 64
    assert choice.peak_bytes == machine.idle + 64 * machine.per_example


def test_what_would_not_fit_is_predicted_and_never_tried() -> None:
    machine = Machine(speeds=lambda size: 100.0 * size)
    choice = machine.search(budget=260 * MIB).run()
    assert choice.size == 16  # which takes all of it; 32 would take 420
    assert machine.tried == [1, 2, 4, 8, 16]
    assert choice.reason.startswith("optimization.batch_size_would_take(size=32, ")


def test_memory_that_runs_out_ends_the_search_and_is_freed() -> None:
    machine = Machine(speeds=lambda size: 100.0 * size, memory=200 * MIB)
    choice = machine.search(budget=1 << 40).run()
    assert choice.size == 8
    assert machine.freed == 1
    assert choice.reason == "optimization.batch_size_out_of_memory(size=16)"


def test_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    machine = Machine(speeds=lambda size: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        machine.search(budget=1 << 40).run()


def test_of_sizes_as_fast_the_smallest_is_chosen() -> None:
    machine = Machine(speeds=lambda size: min(size, 8) * 100.0 + size * 0.1)
    choice = machine.search(budget=1 << 40).run()
    assert choice.size == 8
    assert machine.tried == [1, 2, 4, 8, 16, 32, 64]  # three that were no faster end the search
    assert choice.reason == "optimization.larger_not_faster()"


def test_a_busy_moment_does_not_decide() -> None:
    tried: list[int] = []

    def speed(size: int) -> float:
        tried.append(size)
        is_busy = size == 4 and tried.count(4) <= 2
        return {1: 300.0, 2: 600.0, 4: 1000.0, 8: 970.0, 16: 960.0}[size] * (0.93 if is_busy else 1)

    assert Machine(speed).search(budget=1 << 40).run(largest=16).size == 4


def test_one_example_that_does_not_fit_is_reported() -> None:
    with pytest.raises(DoesNotFitError, match=r"optimization\.single_example_does_not_fit"):
        Machine(speeds=lambda size: 1.0).search(budget=50 * MIB).run()


def test_after_the_time_is_over_no_larger_size_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "SECONDS", -1.0)
    machine = Machine(speeds=lambda size: 100.0 * size)
    assert machine.search(budget=1 << 40).run().size == 1
    assert machine.tried == [1]


def test_a_size_that_is_there_stays_unless_another_one_is_clearly_faster() -> None:
    speeds = {1: 10.0, 2: 20.0, 4: 101.0, 8: 100.0}
    assert Machine(speeds.__getitem__).search(1 << 40).run(8, beside=8).size == 8
    speeds[4] = 110.0
    assert Machine(speeds.__getitem__).search(1 << 40).run(8, beside=8).size == 4


def test_the_size_that_is_there_is_measured_though_the_search_ends_before_it() -> None:
    machine = Machine(speeds=lambda size: 200.0 if size == 64 else 100.0)
    assert machine.search(budget=1 << 40).run(64, beside=64).size == 64
    assert machine.tried[-2:] == [8, 64]


def test_a_size_that_takes_more_than_was_predicted_is_not_chosen() -> None:
    """Nor one that is there already, however fast it would be."""
    machine = Machine(speeds=lambda size: 100.0 * size)
    peak_of = machine.peak_of
    machine.peak_of = lambda size: peak_of(size) + (100 * MIB if size > 4 else 0)  # type: ignore[method-assign]
    choice = machine.search(budget=250 * MIB).run(beside=24)
    assert choice.size == 4
    assert [trial.size for trial in choice.trials] == [1, 2, 4]
    assert machine.tried == [1, 2, 4, 8]  # one of 24 is predicted to take 340
    assert choice.peak_bytes == 140 * MIB


def test_the_best_sizes_are_measured_again_in_turns() -> None:
    measured: list[int] = []

    def speed(size: int) -> float:
        measured.append(size)
        return {1: 79.0, 2: 81.0, 4: 100.0, 8: 97.9}[size]

    choice = Machine(speed).search(budget=1 << 40).run(largest=8)
    assert measured == [1, 1, 2, 2, 4, 4, 8, 8] + [2, 4, 8] * 4
    assert (choice.size, choice.reason) == (4, "")
    assert choice.lines() == [
        f"optimization.batch_size_trial(mark={mark}, size={size}, tokens_per_second={speed},"
        f" peak={peak} GiB)"
        for mark, size, speed, peak in (
            (" ", 1, 79.0, "0.1"),
            (" ", 2, 81.0, "0.1"),
            ("→", 4, 100.0, "0.1"),
            (" ", 8, 97.9, "0.2"),
        )
    ]


@pytest.mark.parametrize(("speed_of_8", "size"), [(102.0, 4), (102.1, 8), (110.0, 8)])
def test_sizes_that_are_nearly_as_fast_are_as_good(speed_of_8: float, size: int) -> None:
    speeds = {1: 10.0, 2: 20.0, 4: 100.0, 8: speed_of_8}
    assert Machine(speeds.__getitem__).search(1 << 40).run(8).size == size


@pytest.mark.parametrize(
    ("budget", "memory", "reason"),
    [
        (50, 999, "would_take(size=1, needed=0.098 GiB, budget=0.049 GiB)"),
        (105, 999, "takes(size=1, needed=0.1 GiB, budget=0.1 GiB)"),
        (200, 105, "out_of_memory(size=1)"),
    ],
)
def test_why_one_example_does_not_fit(budget: int, memory: int, reason: str) -> None:
    machine = Machine(speeds=lambda size: 1.0, memory=memory * MIB)
    search = machine.search(budget=budget * MIB)
    search.way_out = "buy more"
    with pytest.raises(DoesNotFitError) as raised:
        search.run()
    assert str(raised.value) == (
        "optimization.single_example_does_not_fit("
        f"reason=optimization.batch_size_{reason}, way_out=buy more)"
    )
    assert machine.freed == (memory == 105)


@pytest.mark.parametrize(
    ("seconds", "sizes", "num_rounds"),
    [(14.0, [1, 2, 4, 8], 4), (21.0, [1, 2, 4], 4), (61.0, [1], 0)],
)
def test_the_search_ends_in_time(
    seconds: float, sizes: list[int], num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(batch_size.time, "monotonic", lambda: clock[0])
    measured: list[int] = []

    def speed(size: int) -> float:
        measured.append(size)
        clock[0] += seconds / 2 if len(measured) <= 2 * len(sizes) else 0.0
        return 100.0 + size

    choice = Machine(speed).search(budget=1 << 40).run(largest=8)
    assert [trial.size for trial in choice.trials] == sizes
    assert measured[2 * len(sizes) :] == sizes * num_rounds
    passed = seconds * len(sizes)
    over = f"optimization.measured_long_enough(seconds={passed})"
    assert choice.reason == (over if len(sizes) < 4 else "")
