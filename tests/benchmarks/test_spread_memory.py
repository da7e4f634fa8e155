"""Two processes train what the kernel refuses one, resume after a kill, and take what was forecast.

The short form of `python -m benchmarks.spread_memory`: fewer layers.
"""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.spread_memory import TOLERANCE, Model, Run, is_shown, measured, page
from infrastructure.core.messages import words_of
from infrastructure.core.process_memory import can_limit_hard
from tests.slow import slow


@slow
@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_two_processes_train_what_the_kernel_refuses_one(tmp_path: Path) -> None:
    found = measured(tmp_path, Model(768, 8), lora=False)
    assert found["refused"][1].endswith(str(words_of("optimization.use_larger_machine")))
    assert found["one"][0] != 0, found["one"][2]
    assert found["last"][0] == 0, found["last"][3]
    assert found["errors"] == pytest.approx([0.0, 0.0], abs=TOLERANCE)
    assert is_shown(found)
    assert "as fixed beforehand" in page(found)


@pytest.mark.skipif(not can_limit_hard(), reason="memory is read from /proc")
def test_memory_is_that_of_each_rank_by_its_number() -> None:
    run = object.__new__(Run)
    run.peaks, run.ranks = {}, {}
    block = "x = bytearray(b'1') * {}; print('there', flush=True); input()"
    sizes = {"0": 20_000_000, "1": 90_000_000, None: 10}
    started = []
    for rank, size in sizes.items():
        variables = {k: v for k, v in os.environ.items() if k != "RANK"}
        variables |= {"RANK": rank} if rank is not None else {}
        command = [sys.executable, "-c", block.format(size)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=variables, **pipes))  # type: ignore[call-overload]
    for process in started:
        process.stdout.readline()
        run._look(psutil.Process(process.pid))
        process.communicate(b"\n")
    first, second = run.of_ranks(1)
    assert second - first == pytest.approx(70_000_000, abs=5_000_000)
    assert run.largest(1) == second
