"""Two processes train what the kernel refuses one, resume after a kill, and take what was forecast.

The short form of `python -m benchmarks.spread_memory`: fewer layers.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def shown() -> dict[str, Any]:
    """What a run finds where all is as fixed beforehand."""
    return {
        "lora": False,
        "weights": 1000,
        "state_bytes": 16000,
        "limit_bytes": 20000,
        "tiny_private_bytes": 8000,
        "refused": [2, "temper: it does not fit into the memory"],
        "one": [2, "RuntimeError: can't allocate memory", ""],
        "killed": [-9, "Forecast: 1 GiB", ["1-a", "2-b"], ""],
        "last": [0, "Run r: resuming from step 2; --new-run starts a new run", ["5-a", "6-b"], ""],
        "num_runs": 1,
        "forecast_bytes": 1050 << 20,
        "peak_bytes": [1000 << 20, 1100 << 20],
        "private_bytes": [900 << 20, 910 << 20],
        "times_out_of_memory": 0,
        "errors": [0.05, -0.045],
    }


def test_it_is_shown_where_all_is_as_fixed_beforehand() -> None:
    assert is_shown(shown())
    written = page(shown())
    assert "as fixed beforehand" in written
    assert "NOT" not in written
    assert "| rank 0 | 1,050 MiB | 1,000 MiB | +5.0% | 900 MiB |" in written
    assert "| rank 1 | 1,050 MiB | 1,100 MiB | -4.5% | 910 MiB |" in written


@pytest.mark.parametrize(
    "other",
    [
        {"refused": [0, ""]},
        {"one": [0, "memory", ""]},
        {"one": [2, "", "temper: no such file"]},
        {"killed": [0, "", [], ""]},
        {"last": [1, "Run r: resuming from step 2; --new-run starts a new run", [], ""]},
        {"last": [0, "", [], ""]},
        {"last": [0, "Run r: resuming from step 0; --new-run starts a new run", [], ""]},
        {"num_runs": 2},
        {"times_out_of_memory": 1},
        {"errors": []},
        {"errors": [0.0, TOLERANCE + 0.01]},
        {"errors": [-TOLERANCE - 0.01, 0.0]},
    ],
)
def test_anything_else_is_not_shown_and_its_page_can_be_read(other: dict[str, Any]) -> None:
    assert not is_shown(shown() | other)
    assert "NOT as fixed beforehand" in page(shown() | other)


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


def test_what_the_kernel_refused_is_read_from_the_errors_where_the_end_lacks_it(
    tmp_path: Path,
) -> None:
    run = object.__new__(Run)
    run.folder, run.output = tmp_path, "temper: RuntimeError: can't start new thread"
    assert run.refusal() == ""
    errors = tmp_path / "runs" / "one" / "logs" / "errors"
    errors.mkdir(parents=True)
    first = "RuntimeError: can't allocate memory: you tried to allocate 5 bytes."
    (errors / "traceback.txt").write_text(f"{first}\nRuntimeError: can't start new thread")
    assert run.refusal() == first
    run.output = "temper: Cannot allocate memory"
    assert run.refusal() == run.output
