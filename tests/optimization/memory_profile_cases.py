import time

import pytest
import torch

from infrastructure.optimization.memory_profile import profile_memory

MIB = 1 << 20


def test_a_block_is_measured_with_its_peak_and_what_it_leaves() -> None:
    with profile_memory("first"):
        torch.ones(10)  # what the first one loads is not measured
    with profile_memory("two blocks") as profile:
        kept = torch.ones(16 * MIB // 4)
        freed = torch.ones(64 * MIB // 4)
        time.sleep(1.0)  # the peak is sampled, and a busy machine delays the samples
        del freed
    assert profile.rise_bytes > 70 * MIB
    assert 10 * MIB < profile.delta_bytes < 40 * MIB
    [line] = profile.lines()
    assert line.startswith("optimization.memory_profile_line(name=two blocks, peak=")
    assert kept.sum() > 0


def test_a_block_that_fails_is_measured_too() -> None:
    profiles = []

    def fail() -> None:
        with profile_memory("fails") as profile:
            profiles.append(profile)
            # more than any block before it: the system's own mark holds then, however busy it is
            raise MemoryError(torch.ones(128 * MIB // 4).sum())

    with pytest.raises(MemoryError):
        fail()
    assert profiles[0].rise_bytes > 120 * MIB
