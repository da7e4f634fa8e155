import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.core import process_memory as module
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


@pytest.mark.parametrize(
    ("limit", "used", "hard", "allowed"),
    [
        (1000, 300, -1, 400 + 1000 - 300 - 60 - 32),  # 60 of its 400 private ones are not used yet
        (1000, 995, -1, 400 + 16),
        (1000, 300, 500, 500),
    ],
)
def test_the_limit_of_the_kernel_leaves_what_is_free(
    limit: int, used: int, hard: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard_bytes, given = hard * MIB if hard > 0 else module.resource.RLIM_INFINITY, []
    sizes = SimpleNamespace(data=400 * MIB, rss=350 * MIB, shared=10 * MIB)
    process = SimpleNamespace(memory_info=lambda: sizes)
    monkeypatch.setattr(module, "_process", lambda _: process)
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (7, hard_bytes))
    monkeypatch.setattr(module.resource, "setrlimit", lambda _, values: given.append(values))
    guard = HardLimit(limit * MIB)
    guard.tighten(used * MIB)
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (8, 9))
    guard.tighten(used * MIB)
    guard.lift()
    guard.lift()
    assert given == [(allowed * MIB, hard_bytes)] * 2 + [(7, hard_bytes)]


@pytest.mark.parametrize(
    ("soft", "stack", "threads", "allowed"),
    [
        (1000, 5, 0, 750),
        (1000, 5, 20, 650),
        (1000, -1, 20, 710),
        (200, 5, 0, 150),
        (-1, 5, 0, None),
    ],
)
def test_what_a_process_may_have_is_what_it_has_and_what_is_left(
    soft: int, stack: int, threads: int, allowed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {module.resource.RLIMIT_DATA: soft, module.resource.RLIMIT_STACK: stack}
    soft_of = {kind: size * MIB if size > 0 else size for kind, size in limits.items()}
    monkeypatch.setattr(module.resource, "getrlimit", lambda kind: (soft_of[kind], -1))
    sizes = SimpleNamespace(data=400 * MIB, rss=150 * MIB)
    process = SimpleNamespace(memory_info=lambda: sizes)
    monkeypatch.setattr(module.psutil, "Process", lambda: process)
    assert allowed_bytes(threads) == (None if allowed is None else allowed * MIB)
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert allowed_bytes(threads) is None


def test_a_system_without_the_kernel_s_record_has_a_peak_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status").write_text("VmPeak:\t 9 kB\nVmHWM:\t 1234 kB\n")
    monkeypatch.setattr(module, "CLEAR_REFS", tmp_path / "clear_refs")
    usage = SimpleNamespace(ru_maxrss=77)
    monkeypatch.setattr(module.resource, "getrusage", lambda _: usage)
    found = []
    for name in ("status", "none"):
        monkeypatch.setattr(module, "STATUS", tmp_path / name)
        found.append((peak_resident_bytes(), module.reset_high_water_mark()))
    assert found == [(1234 * 1024, True), (77 * 1024, False)]
    assert (tmp_path / "clear_refs").read_text() == "5"
    monkeypatch.setattr(module, "CLEAR_REFS", tmp_path)
    monkeypatch.setattr(module, "STATUS", tmp_path / "status")
    assert not module.reset_high_water_mark()
