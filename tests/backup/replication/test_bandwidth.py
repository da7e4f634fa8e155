"""Copying takes no more bytes a second than it may."""

import pytest

from infrastructure.backup.replication.bandwidth import PIECE_BYTES, Bandwidth, Paced
from tests.faults.drive_model import Clock


def test_the_bound_holds_over_time() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1000.0, clock, clock.sleep)
    for _ in range(100):
        bandwidth.take(500)
    assert 49.0 <= clock.now <= 50.0


def test_time_that_was_not_used_is_saved_for_one_second_only() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1000.0, clock, clock.sleep)
    clock.now += 3600
    bandwidth.take(3000)
    assert clock.now == 3602.0


def test_without_a_bound_nothing_waits() -> None:
    clock = Clock()
    Bandwidth(None, clock, clock.sleep).take(1 << 40)
    assert clock.now == 0.0


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_no_bandwidth_at_all_is_refused(limit: float) -> None:
    problem = rf"^backup\.bandwidth_not_positive\(bytes_per_second={limit}\)$"
    with pytest.raises(ValueError, match=problem):
        Bandwidth(limit)


def test_buffers_come_in_pieces_that_are_announced() -> None:
    reported: list[int] = []
    data = [bytes(PIECE_BYTES + 5), b"end", b""]
    paced = Paced(data, reported.append)
    assert b"".join(bytes(piece) for piece in paced) == b"".join(data)
    assert reported == [PIECE_BYTES, 5, 3]
    assert (len(paced), paced[1]) == (3, b"end")
