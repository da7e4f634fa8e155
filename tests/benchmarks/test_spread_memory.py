"""Two processes train what the kernel refuses one, go on after a kill, and take what was forecast.

The short form of `python -m benchmarks.spread_memory`: fewer layers.
"""

from pathlib import Path

import pytest

from benchmarks.spread_memory import TOLERANCE, Model, is_shown, measured, page
from infrastructure.core.process_memory import can_limit_hard
from tests.slow import slow


@slow
@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_two_processes_train_what_the_kernel_refuses_one(tmp_path: Path) -> None:
    found = measured(tmp_path, Model(768, 8), lora=False)
    assert "take a machine with more memory" in found["refused"][1]
    assert found["one"][0] != 0, found["one"][2]
    assert found["last"][0] == 0, found["last"][3]
    assert found["errors"] == pytest.approx([0.0, 0.0], abs=TOLERANCE)
    assert is_shown(found)
    assert "as fixed beforehand" in page(found)
