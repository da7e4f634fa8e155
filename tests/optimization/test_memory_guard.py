import pytest

from infrastructure.core.hardware import Memory
from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization import memory_guard
from infrastructure.optimization.memory_guard import Action, MemoryGuard, machine_percent

MIB = 1 << 20


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_above_the_share_memory_is_released_once_in_a_while() -> None:
    clock, calls = Clock(), []

    def release() -> int:
        calls.append(clock.now)
        return 5 * MIB

    guard = MemoryGuard(85.0, release=[release], clock=clock, machine_percent=lambda: 90.0)
    assert guard.check() is Action.RELEASED
    clock.now = 10.0
    assert guard.check() is Action.NONE  # just done
    clock.now = 40.0
    assert guard.check() is Action.RELEASED
    assert calls == [0.0, 40.0]
    assert guard.num_releases == 2
    assert guard.released_bytes >= 10 * MIB


def test_below_the_share_nothing_happens() -> None:
    guard = MemoryGuard(85.0, machine_percent=lambda: 80.0)
    assert guard.check() is Action.NONE
    assert guard.num_releases == 0
    assert guard.highest_bytes > 0


def test_above_its_own_limit_a_training_releases_and_then_needs_smaller_pieces() -> None:
    clock, held = Clock(), [bytearray(b"1" * (128 * MIB))]

    def release() -> int:
        held.clear()
        return 128 * MIB

    used = resident_bytes()
    guard = MemoryGuard(
        100.0, limit_bytes=used - 20 * MIB, release=[release], clock=clock, machine_percent=float
    )
    assert guard.check() is Action.RELEASED
    assert resident_bytes() < used - 20 * MIB
    too_little = MemoryGuard(100.0, limit_bytes=MIB, clock=clock, machine_percent=float)
    assert too_little.check() is Action.SMALLER
    assert too_little.check() is Action.RELEASED  # smaller pieces need time to show
    clock.now = 60.0
    assert too_little.check() is Action.SMALLER


def test_the_machines_share_is_a_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < machine_percent() < 100
    monkeypatch.setattr(memory_guard, "memory", lambda: Memory(800, 600, limited=True))
    assert machine_percent() == 25.0


class Process:
    """What a process and its children take, without any; a release frees some of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, own: int, children: int) -> None:
        self.own, self.children, self.freed = own, children, 0
        self.num_counted = 0
        monkeypatch.setattr(memory_guard, "resident_bytes", lambda: self.own)
        monkeypatch.setattr(memory_guard, "children_bytes", self._count)
        monkeypatch.setattr(memory_guard, "release_memory", lambda: 7)

    def _count(self) -> int:
        self.num_counted += 1
        return self.children

    def release(self) -> int:
        self.own -= self.freed
        return self.freed


def test_children_count_and_are_counted_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, process = Clock(), Process(monkeypatch, own=60, children=30)
    guard = MemoryGuard(100.0, clock=clock, machine_percent=float)
    found = []
    for now, children in ((0.0, 30), (1.0, 50), (2.0, 50), (3.0, 10)):
        clock.now, process.children = now, children
        found.append(guard.used_bytes())
    assert found == [90, 90, 110, 110]
    assert process.num_counted == 2
    process.own = 5
    guard.used_bytes()
    assert guard.highest_bytes == 110


def test_near_its_own_limit_a_training_releases_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, process = Clock(), Process(monkeypatch, own=91, children=0)
    released = [process.release, lambda: 2]
    guard = MemoryGuard(100.0, 100, released, clock=clock, machine_percent=float)
    found = []
    for now in (0.0, 29.0, 30.0):
        clock.now = now
        found.append(guard.check())
    assert found == [Action.RELEASED, Action.NONE, Action.RELEASED]
    assert (guard.num_releases, guard.released_bytes) == (2, 2 * (2 + 7))
    process.own, clock.now = 90, 100.0
    assert guard.check() is Action.NONE


def test_above_its_limit_what_is_released_may_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, process = Clock(), Process(monkeypatch, own=101, children=0)
    guard = MemoryGuard(100.0, 100, [process.release], clock=clock, machine_percent=float)
    process.freed = 1
    assert guard.check() is Action.RELEASED
    process.own, process.freed = 102, 1
    assert guard.check() is Action.SMALLER


def test_the_whole_machine_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looked = Clock(), []
    Process(monkeypatch, own=1, children=0)
    guard = MemoryGuard(
        85.0, clock=clock, machine_percent=lambda: (looked.append(clock.now), 85.0)[1]
    )
    for tenth in range(25):
        clock.now = tenth / 10
        assert guard.check() is Action.NONE  # what is allowed is not too much
    assert looked == [0.0, 1.0, 2.0]
