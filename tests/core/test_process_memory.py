import os
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.core.process_memory import (
    HardLimit,
    allowed_bytes,
    can_limit_hard,
    children_bytes,
    peak_resident_bytes,
    resident_bytes,
)

MIB = 1 << 20

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_allocated_is_resident_and_stays_in_the_peak() -> None:
    before = resident_bytes()
    block = bytearray(os.urandom(1) * (64 * MIB))
    assert resident_bytes() - before > 48 * MIB
    highest = peak_resident_bytes()
    del block
    assert peak_resident_bytes() >= highest >= before + 48 * MIB


def test_children_count_while_they_live() -> None:
    script = "x = bytearray(b'1' * 50_000_000); print('there', flush=True); input()"
    before = children_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert children_bytes() - before > 50_000_000
        child.stdin.write("\n")
    # Not the very same number: a child that an earlier test left may grow or end meanwhile.
    assert children_bytes() - before < 10_000_000


LIMITED = """
from infrastructure.core.process_memory import *
MIB = 1 << 20
limit = resident_bytes() + 200 * MIB
hard = HardLimit(limit)
hard.tighten(resident_bytes())
kept = []
try:
    while len(kept) < 400:
        kept.append(bytearray(b"1" * MIB))
except MemoryError:
    del kept[-5:]
    print("refused", peak_resident_bytes() <= limit, len(kept) > 50)
hard.lift()
kept.append(bytearray(b"1" * (300 * MIB)))
print("lifted", resident_bytes() > limit)
"""


@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_the_system_refuses_memory_beyond_the_limit_until_it_is_lifted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["refused", "True", "True", "lifted", "True"]


@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_a_limit_that_was_never_set_is_lifted_without_a_trace() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    HardLimit(1).lift()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_limit_of_private_memory_is_what_a_process_may_have() -> None:
    assert allowed_bytes() is None
    code = (
        "import resource; from infrastructure.core.process_memory import *;"
        "limit = 3 << 30; resource.setrlimit(resource.RLIMIT_DATA, (limit, limit));"
        "resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 4 << 20));"
        "print(allowed_bytes(), resident_bytes(), allowed_bytes(threads_to_come=100))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT)
    allowed, resident, with_threads = map(int, output.stdout.split())
    assert allowed - with_threads == pytest.approx(100 * (4 << 20), abs=8 << 20)
    assert (3 << 30) - (200 << 20) < allowed <= (3 << 30) + resident


BLOCKS = """
from infrastructure.core.process_memory import *
MIB = 1 << 20
def growth():
    before, kept = resident_bytes(), []
    for _ in range(10):
        block = bytearray(b"1") * (20 * MIB)
        kept.append(bytearray(b"1") * 100_000)
        del block
        kept.append(bytearray(b"1") * 100_000)
    return resident_bytes() - before
give_back_large_blocks()
print(growth() // MIB)
"""


@pytest.mark.skipif(not can_limit_hard(), reason="measured with glibc")
def test_large_blocks_that_are_freed_are_given_back_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 20
