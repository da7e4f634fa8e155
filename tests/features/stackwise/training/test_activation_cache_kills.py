import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.features.stackwise.training.killed_builder import ROWS, cache_in
from tests.features.stackwise.training.trunks import expected, ids_of
from tests.forks import forked_python

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def builder() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.features.stackwise.training.killed_builder"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with forked_python(command, cwd=ROOT, text=True, **pipes) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


def begin(
    builder: "subprocess.Popen[str]", folder: Path, limit_bytes: int = 0, most_pages: int = 0
) -> int:
    assert builder.stdin is not None
    assert builder.stdout is not None
    builder.stdin.write(f"{folder} {limit_bytes} {most_pages}\n")
    builder.stdin.flush()
    begun, pid = builder.stdout.readline().split()
    assert begun == "begun"
    return int(pid)


def was_killed(builder: "subprocess.Popen[str]") -> bool:
    """When it has ended: whether it was still at work."""
    assert builder.stdout is not None
    return builder.stdout.readline().split() == ["ended", "True"]


def kill_while_building(builder: "subprocess.Popen[str]", folder: Path, num_pages: int) -> bool:
    """Kill a builder when so many pages are there; whether it was still at work."""
    pid = begin(builder, folder, most_pages=num_pages + 4)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(folder.glob("*/*.page"))) < num_pages:
        pass
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return was_killed(builder)


@pytest.mark.parametrize("limit_bytes", [20, 33, 900, 5_000, 40_000, 100_000, 200_000])
def test_killed_in_the_middle_of_a_write(
    builder: "subprocess.Popen[str]", tmp_path: Path, limit_bytes: int
) -> None:
    """At this byte of the key, or of the first page that is longer."""
    begin(builder, tmp_path, limit_bytes)
    assert was_killed(builder)
    left = list(tmp_path.glob("*/.*.part"))
    assert [path.stat().st_size for path in left] == [limit_bytes]
    cache, trunk, pages = cache_in(tmp_path)
    there = len(list(cache.folder.glob("*.page")))
    assert all(map(cache._can_be_read, range(there)))
    assert not list(tmp_path.glob("*/.*.part"))
    cache.build(trunk)
    assert trunk.num_calls == len(pages) - there
    assert cache.statistics.pages_damaged == 0
    assert all(map(cache._can_be_read, range(len(pages))))
    cache.close()


def test_a_killed_builder_leaves_nothing_that_is_wrong(
    builder: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """One cache is killed again and again, each time further on, and then has its true values."""
    ids = ids_of(ROWS)
    killed = [kill_while_building(builder, tmp_path, target) for target in range(0, 40, 5)]
    assert all(killed)
    cache, trunk, pages = cache_in(tmp_path)
    there = len(list(cache.folder.glob("*.page")))
    assert 0 < there < len(pages)
    assert list(cache.folder.glob(".*")) == []
    # what is there is true, before anything is built
    right = expected(trunk, pages)
    assert [n for n in range(len(pages)) if cache._can_be_read(n)] == list(range(there))
    cache.build(trunk)
    assert trunk.num_calls == len(pages) - there
    read = cache.read(ids)
    assert read is not None
    assert all(torch.equal(value, right[i]) for i, value in zip(ids, read, strict=True))
    assert cache.statistics.pages_damaged == 0
    cache.close()


def test_a_page_that_is_written_in_place_is_seen_when_its_writer_is_killed(tmp_path: Path) -> None:
    """What a disk shows of a page whose blocks were lost: the size is right, the end is zeros."""
    cache, trunk, pages = cache_in(tmp_path)
    cache.build(trunk)
    cache.close()
    for number in range(len(pages)):
        path = cache.folder / f"{number:08d}.page"
        size = path.stat().st_size
        kept = size * number // len(pages) // 4096 * 4096
        os.truncate(path, kept)
        os.truncate(path, size)
    again, trunk, _ = cache_in(tmp_path)
    again.build(trunk)
    right = expected(trunk, pages)
    ids = ids_of(ROWS)
    read = again.read(ids)
    assert read is not None
    assert all(torch.equal(value, right[i]) for i, value in zip(ids, read, strict=True))
    assert again.statistics.pages_damaged == len(pages)
    again.close()
