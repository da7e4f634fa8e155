from infrastructure.core.process_memory import resident_bytes
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


def test_the_machines_share_is_a_percentage() -> None:
    assert 0 < machine_percent() < 100
