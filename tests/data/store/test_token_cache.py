"""Entries are built once, whole or not at all, kept within limits, and not swept while in use."""

import errno
import fcntl
import logging
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.data.store.token_cache import (
    LOCK,
    TokenCache,
)
from infrastructure.data.store.token_store import TokenStoreWriter
from tests.forks import forked_python

SECONDS_PER_DAY = 86_400


def builder(num_tokens: int = 1000, calls: list[int] | None = None) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        if calls is not None:
            calls.append(num_tokens)
        tokens = np.arange(num_tokens, dtype=np.int32)
        with TokenStoreWriter(folder, 1 << 20) as writer:
            writer.append([TokenizedExample(tokens, tokens > 0)])
            writer.finish({})

    return build


def cache(directory: Path, **settings: object) -> TokenCache:
    return TokenCache(CacheConfig(directory=str(directory), **settings))


def entries(directory: Path) -> list[str]:
    return sorted(p.name for p in (directory / "tokens").iterdir() if not p.name.startswith("."))


def age(directory: Path, key: str, days: float) -> None:
    then = time.time() - days * SECONDS_PER_DAY
    os.utime(directory / "tokens" / key / LOCK, (then, then))


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    calls: list[int] = []
    first = cache(tmp_path).open("a", builder(calls=calls))
    second = cache(tmp_path).open("a", builder(calls=calls))
    assert (first.was_there, second.was_there) == (False, True)
    assert len(calls) == 1
    assert len(second.store.example(0).input_ids) == 1000
    cache(tmp_path).open("b", builder(calls=calls))
    assert len(calls) == 2


def test_a_worker_that_imports_the_users_script_opens_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has started it holds the lock, and waits for it."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match=r"core\.script_trains_when_imported"):
        cache(tmp_path).open("a", builder())


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failed_build_leaves_nothing(failure: type[BaseException], tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        builder()(folder)
        raise failure("halfway")

    with pytest.raises(failure, match="halfway"):
        cache(tmp_path).open("a", build)
    assert entries(tmp_path) == []
    assert list((tmp_path / "tokens").glob(".partial-*")) == []
    assert not cache(tmp_path).open("a", builder()).was_there


def test_what_is_being_built_is_not_swept(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        cache(tmp_path).sweep()
        builder()(folder)
        cache(tmp_path, cleanup_interval=0).sweep()

    assert len(cache(tmp_path).open("a", build).store.example(0).input_ids) == 1000


def test_all_of_an_entry_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path.name if path.parent.name != "tokens" else "folder")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    cache(tmp_path).open("a", builder())
    files = {path.name for path in (tmp_path / "tokens" / "a").iterdir()} - {LOCK}
    assert {*synced[:-2]} >= files
    assert synced[-2:] == ["folder", "tokens"]


KILLED = """
import os, sys
from pathlib import Path
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.store.token_cache import TokenCache

def build(folder):
    (folder / "input_ids.npy").write_bytes(b"half")
    os._exit(9)

TokenCache(CacheConfig(directory=sys.argv[1])).open("a", build)
"""


def test_a_killed_build_leaves_nothing_that_is_read_and_is_swept(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert process.returncode == 9
    assert len(list((tmp_path / "tokens").glob(".partial-*"))) == 1
    entry = cache(tmp_path, cleanup_interval=0).open("a", builder())
    assert not entry.was_there
    assert list((tmp_path / "tokens").glob(".partial-*")) == []
    assert len(entry.store.example(0).input_ids) == 1000


@pytest.mark.parametrize("name", ["input_ids.npy", "supervised.npy", "offsets.npy", "meta.json"])
def test_a_damaged_entry_is_made_again_with_a_warning(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache(tmp_path).open("a", builder()).close()
    path = tmp_path / "tokens" / "a" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        entry = cache(tmp_path).open("a", builder())
    assert not entry.was_there
    damaged = "data.cache_metadata_altered" if name == "meta.json" else "data.cache_chunk_damaged"
    assert f"{damaged}(file={name}" in caplog.text
    assert f"data.cache_entry_damaged(folder={path.parent}, reason={damaged}(" in caplog.text
    assert entry.store.example(0).input_ids.tolist() == list(range(1000))


def test_the_age_of_entries_is_that_of_the_setting(tmp_path: Path) -> None:
    for key, days in (("a", 2.9), ("b", 3.1)):
        cache(tmp_path).open(key, builder()).close()
        age(tmp_path, key, days)
    cache(tmp_path).sweep()  # a week by default
    assert entries(tmp_path) == ["a", "b"]
    cache(tmp_path, max_age_days=3).sweep()
    assert entries(tmp_path) == ["a"]


def test_unused_entries_are_swept_by_age(tmp_path: Path) -> None:
    for key in ("old", "new", "used"):
        cache(tmp_path).open(key, builder()).close()
    held = cache(tmp_path).open("used", builder())
    for key in ("old", "used"):
        age(tmp_path, key, days=8)
    cache(tmp_path).sweep()
    assert entries(tmp_path) == ["new", "used"]
    held.close()
    cache(tmp_path).sweep()
    assert entries(tmp_path) == ["new"]


SWEEPER = """
import shutil, sys
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.store.token_cache import TokenCache

def pause():
    print("ready", flush=True)
    sys.stdin.readline()

def delete_later(*arguments, **options):
    pause()
    return delete(*arguments, **options)

cache = TokenCache(CacheConfig(directory=sys.argv[1]))
if sys.argv[2] == "pause before deleting":
    delete, shutil.rmtree = shutil.rmtree, delete_later
else:
    pause()
cache.sweep()
"""


def start_sweeper(directory: Path, pause: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SWEEPER, str(directory), pause]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked_python(command, text=True, **pipes)


def go_on(sweeper: subprocess.Popen[str]) -> None:
    sweeper.stdin.write("go\n")
    sweeper.stdin.flush()


def make_old_entries(directory: Path, count: int) -> None:
    for number in range(count):
        folder = directory / "tokens" / f"key{number}"
        folder.mkdir(parents=True)
        for name in (LOCK, "meta.json", "input_ids.npy"):
            (folder / name).write_text("x")
        age(directory, folder.name, days=8)


def test_processes_may_sweep_at_the_same_time(tmp_path: Path) -> None:
    make_old_entries(tmp_path, 150)
    sweepers = [start_sweeper(tmp_path, "pause before sweeping") for _ in range(4)]
    assert [sweeper.stdout.readline() for sweeper in sweepers] == ["ready\n"] * 4
    for sweeper in sweepers:
        go_on(sweeper)
    assert [sweeper.communicate()[1] for sweeper in sweepers] == [""] * 4
    assert [sweeper.returncode for sweeper in sweepers] == [0] * 4
    assert entries(tmp_path) == []
    assert list((tmp_path / "tokens").glob(".removed-*")) == []


def test_another_process_may_delete_what_is_being_deleted(tmp_path: Path) -> None:
    make_old_entries(tmp_path, 1)
    sweeper = start_sweeper(tmp_path, "pause before deleting")
    assert sweeper.stdout.readline() == "ready\n"
    [removed] = (tmp_path / "tokens").glob(".removed-*")
    shutil.rmtree(removed)
    go_on(sweeper)
    assert sweeper.communicate()[1] == ""
    assert sweeper.returncode == 0


def test_what_a_killed_process_left_half_deleted_is_deleted(tmp_path: Path) -> None:
    prepared = cache(tmp_path)
    left = tmp_path / "tokens" / ".removed-00"
    left.mkdir()
    (left / "input_ids.npy").write_text("x")
    prepared.sweep()
    assert not left.exists()


def test_opening_counts_as_use(tmp_path: Path) -> None:
    cache(tmp_path).open("a", builder()).close()
    age(tmp_path, "a", days=6)
    cache(tmp_path).open("a", builder()).close()
    age_in_days = (time.time() - (tmp_path / "tokens/a" / LOCK).stat().st_mtime) / SECONDS_PER_DAY
    assert age_in_days < 1


def test_sweeps_keep_their_interval(tmp_path: Path) -> None:
    for key in ("a", "b"):
        cache(tmp_path).open(key, builder()).close()
        age(tmp_path, key, days=8)
    cache(tmp_path, cleanup_interval=3600).open("c", builder())  # swept a moment ago
    assert entries(tmp_path) == ["a", "b", "c"]
    stamp = tmp_path / "tokens" / ".swept"
    os.utime(stamp, (time.time() - 3601,) * 2)
    cache(tmp_path, cleanup_interval=3600).open("c", builder())
    assert entries(tmp_path) == ["c"]


def test_the_longest_unused_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    num_tokens = 100_000  # some 0.41 MB an entry
    for number, key in enumerate(("a", "b")):
        cache(tmp_path).open(key, builder(num_tokens)).close()
        age(tmp_path, key, days=2 - number)
    held = cache(tmp_path, disk_size=1).open("c", builder(num_tokens))
    assert entries(tmp_path) == ["b", "c"]
    big = cache(tmp_path, disk_size=1).open("d", builder(4 * num_tokens))
    assert entries(tmp_path) == ["c", "d"]  # both in use
    root = rf"root={tmp_path}/tokens"
    about = re.search(rf"cache_too_small\(megabytes=(\S+), {root}, limit=1\)", caplog.text)
    assert about is not None
    assert 2 < float(about[1]) < 2.2  # of four and one times 0.41
    held.close()
    big.close()
    cache(tmp_path, disk_size=1).sweep()
    assert entries(tmp_path) == []


def test_memory_size_decides_what_is_held_in_memory(tmp_path: Path) -> None:
    small = cache(tmp_path, memory_size=1).open("a", builder(100_000)).store
    large = cache(tmp_path, memory_size=1).open("b", builder(400_000)).store
    assert (small.is_in_memory, large.is_in_memory) == (True, False)
    limited = TokenCache(CacheConfig(directory=str(tmp_path)), memory_bytes=1000)
    assert not limited.open("a", builder()).store.is_in_memory
    more = TokenCache(CacheConfig(directory=str(tmp_path), memory_size=1), memory_bytes=10**9)
    assert more.memory_bytes == 10**6
    assert np.array_equal(large.example(0).input_ids, np.arange(400_000))


def test_without_locks_entries_are_used_and_never_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not cache(tmp_path).open("a", builder()).was_there
    age(tmp_path, "a", days=99)
    cache(tmp_path).sweep()
    assert cache(tmp_path).open("a", builder()).was_there


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    not_a_folder = r"data\.cache_not_writable\(folder=.*/file/tokens, reason=Not a directory\)"
    with pytest.raises(ValueError, match=not_a_folder):
        cache(tmp_path / "file")


def test_an_entry_is_built_by_one_of_those_that_need_it(tmp_path: Path) -> None:
    began, second_began, go_ahead = (threading.Event() for _ in range(3))

    def first(folder: Path) -> None:
        began.set()
        assert go_ahead.wait(60)
        builder()(folder)

    def second(folder: Path) -> None:
        second_began.set()
        builder()(folder)

    with ThreadPoolExecutor(2) as threads:
        built = threads.submit(cache(tmp_path).open, "a", first)
        assert began.wait(60)
        found = threads.submit(cache(tmp_path).open, "a", second)
        other = cache(tmp_path).open("b", builder())  # of another key
        has_begun = second_began.wait(0.2)
        go_ahead.set()
        assert not has_begun
        entries_ = built.result(60), found.result(60), other
    assert [entry.was_there for entry in entries_] == [False, True, False]
    assert not second_began.is_set()


def test_an_entry_that_cannot_be_read_once_it_is_built_is_an_error(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        builder()(folder)
        (folder / "tasks.npy").write_bytes(b"")

    with pytest.raises(OSError, match=r"data\.cache_entry_damaged_at_once\(path=.*tokens/a\)"):
        cache(tmp_path).open("a", build)
    assert entries(tmp_path) == []
    assert len(cache(tmp_path).open("a", builder()).store) == 1  # nothing holds its lock


def test_the_remains_of_one_build_do_not_hinder_another(tmp_path: Path) -> None:
    """A running build keeps its folder; one of another key, whose process died, goes."""
    opened = cache(tmp_path)
    opened.sweep_if_due()
    for name in ("a-1", "b-2"):
        (opened.root / f".partial-{name}").mkdir()

    def build(folder: Path) -> None:
        cache(tmp_path).sweep()
        left = sorted(path.name for path in opened.root.glob(".partial-*"))
        assert left == sorted([".partial-a-1", folder.name])
        builder()(folder)

    opened.open("a", build).close()
    cache(tmp_path).sweep()
    assert list(opened.root.glob(".partial-*")) == []


def test_a_cache_knows_its_size_and_keeps_what_just_fits(tmp_path: Path) -> None:
    opened = cache(tmp_path)
    assert opened.size_bytes() == 0
    for key in ("a", "b"):
        opened.open(key, builder(100_000)).close()
    files = [path for key in "ab" for path in (opened.root / key).iterdir()]
    assert opened.size_bytes() == sum(path.stat().st_size for path in files)
    with (opened.root / "a" / "input_ids.npy").open("ab") as file:  # to the last byte
        file.truncate(file.tell() + 10**6 - opened.size_bytes())
    cache(tmp_path, disk_size=1).sweep()
    assert entries(tmp_path) == ["a", "b"]
    with (opened.root / "a" / "input_ids.npy").open("ab") as file:
        file.write(b"x")
    cache(tmp_path, disk_size=1).evict()
    assert len(entries(tmp_path)) == 1
