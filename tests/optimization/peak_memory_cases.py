"""The highest memory of this very process, by the kernel and by looking."""

from pathlib import Path

import pytest
import torch

from infrastructure.core import process_memory
from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.peak_memory import peak_memory

CPU = torch.device("cpu")
NUM_BYTES = 64 << 20


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_peak_is_seen_after_it_is_over(monkeypatch: pytest.MonkeyPatch, by_kernel: bool) -> None:
    if not by_kernel:
        monkeypatch.setattr(process_memory, "CLEAR_REFS", Path("/nowhere/clear_refs"))
    before = resident_bytes()
    with peak_memory(CPU) as peak:
        tensor = torch.ones(NUM_BYTES // 4)
        for _ in range(20):  # long enough to be looked at
            tensor.mul_(1.0)
        del tensor
        assert peak.read() >= before + 0.9 * NUM_BYTES
        assert peak.now() < peak.read()


def test_what_was_before_is_forgotten() -> None:
    with peak_memory(CPU) as peak:
        torch.ones(NUM_BYTES // 4)
        highest = peak.read()
        peak.start()
        assert peak.read() < highest - 0.5 * NUM_BYTES
