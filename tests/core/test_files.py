"""Files and directories are whole or not there."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.core import files
from infrastructure.core.files import (
    atomic_write,
    exchange,
    file_sha256,
    is_utf8,
    make_directory,
    paths_below,
    readable_path,
    recover_directory,
    refuse_what_is_there,
    remove_if_unlocked,
    remove_parts,
    require_listable,
    whole_directory,
    write_json,
    write_text,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file.txt"
    write_text(path, "first")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


def write_half_of(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"half")
        raise OSError("disk full")


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "first")
    with pytest.raises(OSError, match="full"):
        write_half_of(path)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_json_that_is_not_strict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "a.json", {"name": "ä"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"name": "ä"}


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    content = b"x" * (3 << 20)
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_directory_gets_its_name_when_all_is_there(tmp_path: Path) -> None:
    target = tmp_path / "final"
    for content in ("first", "second"):
        with whole_directory(target) as part:
            (part / "inner").mkdir()
            (part / "inner" / "file").write_text(content)
            assert part != target
    assert (target / "inner" / "file").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def interrupt_half_way(target: Path) -> None:
    with whole_directory(target) as part:
        (part / "file").write_text("half")
        raise KeyboardInterrupt


def test_a_directory_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    target = tmp_path / "final"
    with whole_directory(target) as part:
        (part / "file").write_text("first")
    with pytest.raises(KeyboardInterrupt):
        interrupt_half_way(target)
    assert (target / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


# Replaces a directory and kills itself right before or after the given call.
KILLED = """
import os, signal, sys
from pathlib import Path
from infrastructure.core import files

target, call, when, number = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
if call == "rename":
    files.exchange = lambda first, second: False
owner, name = (files, "exchange") if call == "exchange" else (Path, "rename")
function = getattr(owner, name)
calls = []

def deadly(*arguments):
    calls.append(arguments)
    if when == "before" and len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    result = function(*arguments)
    if len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, deadly)
with files.whole_directory(target) as part:
    (part / "file").write_text("new")
    (part / "another").write_text("new")
"""
OLD, NEW = ("old",), ("new", "new")
POINTS = {
    "rename before 1": OLD,
    "rename after 1": OLD,  # the name is free
    "rename before 2": OLD,
    "rename after 2": NEW,
    "rename before 3": NEW,
    "rename after 3": NEW,
    "exchange before 1": OLD,
    "exchange after 1": NEW,
}


def contents(directory: Path) -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted(directory.iterdir()))


def write_old(target: Path) -> None:
    with whole_directory(target) as part:
        (part / "file").write_text("old")


@pytest.mark.parametrize("next_one", ["read", "write"])
@pytest.mark.parametrize("point", POINTS)
def test_a_directory_survives_a_kill_at_any_point(
    tmp_path: Path, point: str, next_one: str
) -> None:
    target = tmp_path / "final"
    write_old(target)
    if "exchange" in point and not exchange(target, target):
        pytest.skip("this file system cannot exchange two names")
    process = subprocess.run([sys.executable, "-c", KILLED, str(target), *point.split()])
    assert process.returncode == -signal.SIGKILL
    if next_one == "read":
        recover_directory(target)
        assert contents(target) == POINTS[point]
    else:
        with whole_directory(target) as part:
            assert contents(target) == POINTS[point]
            (part / "file").write_text("third")
        assert contents(target) == ("third",)
    assert list(tmp_path.iterdir()) == [target]


def test_only_what_is_new_or_empty_is_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        refuse_what_is_there(tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"folder=.*/file, problem=core\.is_a_file"):
        refuse_what_is_there(tmp_path / "file")
    with pytest.raises(ValueError, match=rf"folder={tmp_path}, problem=core\.contains_other_files"):
        refuse_what_is_there(tmp_path)
    with monkeypatch.context() as patch:  # whoever runs the tests may write everywhere
        patch.setattr(os, "access", lambda *given: given != (tmp_path, os.W_OK))
        with pytest.raises(ValueError, match=rf"core\.folder_not_writable\(folder={tmp_path}\)"):
            refuse_what_is_there(tmp_path / "new" / "below")


def test_two_names_that_are_relative_are_exchanged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Path("first"), Path("second")
    monkeypatch.chdir(tmp_path)
    for path in (first, second):
        path.write_text(path.name)
    if not exchange(first.absolute(), second.absolute()):
        pytest.skip("this file system cannot exchange two names")
    assert (first.read_text(), second.read_text()) == ("second", "first")
    assert exchange(first, second)
    assert (first.read_text(), second.read_text()) == ("first", "second")


def test_an_exchange_never_frees_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "final"
    write_old(target)
    if not exchange(target, target):
        pytest.skip("this file system cannot exchange two names")
    monkeypatch.setattr(Path, "rename", None)
    with whole_directory(target) as part:
        (part / "file").write_text("new")
    assert contents(target) == ("new",)
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "final"
    with whole_directory(target) as part:
        (part / "file").write_text("new")
        target.with_name(part.name.replace(".part", ".old")).mkdir()  # between its two renames
        recover_directory(target)
        assert not target.exists()
        assert contents(part) == ("new",)
        with whole_directory(target) as other:
            (other / "file").write_text("other")
        assert contents(part) == ("new",)
    assert contents(target) == ("new",)


@pytest.mark.parametrize("has_locks", [True, False])
def test_only_what_a_dead_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(95, "not supported")

    if not has_locks:
        monkeypatch.setattr(files.fcntl, "flock", no_locks)
    others = {".final.2.mine.part", ".a.0123abcd.part", ".final-2.0123abcd.part"}
    for name in (".final.2.0123abcd.part", ".final.2.0123abcd.old", *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    recover_directory(tmp_path / "final.2")
    assert contents(tmp_path / "final.2") == (".final.2.0123abcd.old",)
    left = {path.name for path in tmp_path.iterdir()} - {"final.2"}
    unknown = set() if has_locks else {".final.2.0123abcd.part"}
    assert left == others | unknown


def test_without_an_exchange_a_directory_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.sys, "platform", "darwin")
    files._renameat2.cache_clear()
    assert not exchange(tmp_path, tmp_path)
    target = tmp_path / "final"
    for content in ("first", "second"):
        with whole_directory(target) as part:
            (part / "file").write_text(content)
    assert contents(target) == ("second",)
    assert list(tmp_path.iterdir()) == [target]
    files._renameat2.cache_clear()


def test_a_missing_parent_is_nothing_to_recover(tmp_path: Path) -> None:
    recover_directory(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, set[str]]]:
    """For each sync: the inode, its size, and the names that the directory of the test had."""
    calls: list[tuple[int, int, set[str]]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        folder = place if place.is_dir() else place.parent
        calls.append((found.st_ino, found.st_size, {path.name for path in folder.iterdir()}))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_it_counts(
    tmp_path: Path, synced: list[tuple[int, int, set[str]]]
) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "content")
    (file, size, before), (directory, _, after) = synced
    assert (file, size) == (path.stat().st_ino, len("content"))
    assert "file.txt" not in before
    assert (directory, after) == (tmp_path.stat().st_ino, {"file.txt"})


def test_all_of_a_directory_is_on_the_disk_before_its_name(
    tmp_path: Path, synced: list[tuple[int, int, set[str]]]
) -> None:
    target = tmp_path / "final"
    with whole_directory(target) as part:
        (part / "inner").mkdir()
        (part / "inner" / "file").write_text("content")
        (part / "another").write_text("more")
    inodes = [inode for inode, _, _ in synced]
    inside = [target, target / "inner", target / "inner" / "file", target / "another"]
    assert sorted(inodes[:-1]) == sorted(path.stat().st_ino for path in inside)
    assert inodes.index(target.stat().st_ino) == len(inside) - 1  # last, as it names the others
    assert inodes[-1] == tmp_path.stat().st_ino
    assert "final" in synced[-1][2]


def file_system(folder: Path) -> str:
    """The kind of the file system that a folder lies on."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    held = [(point, kind) for _, point, kind, *_ in lines if folder.is_relative_to(point)]
    return max(held, key=lambda one: len(one[0]))[1]


def test_two_names_are_exchanged_where_the_file_system_can(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux") or file_system(tmp_path) not in ("ext4", "tmpfs"):
        pytest.skip("nothing is promised of this file system")
    (tmp_path / "first").write_text("1")
    (tmp_path / "second").write_text("2")
    assert exchange(tmp_path / "first", tmp_path / "second")
    assert (tmp_path / "first").read_text() == "2"
    assert (tmp_path / "second").read_text() == "1"
    assert not exchange(tmp_path / "first", tmp_path / "none")
    assert (tmp_path / "first").read_text() == "2"


def test_json_is_written_for_people(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "ä"})
    assert (tmp_path / "a.json").read_text() == '{\n  "name": "ä"\n}\n'


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_who_may_read_a_file_is_the_user_s_choice(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_json(tmp_path / "a.json", {})
        with whole_directory(tmp_path / "folder") as part:
            (part / "file").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == mode
    assert (tmp_path / "folder/file").stat().st_mode & 0o777 == mode
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


def fail_on_the_second_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    rename, renamed = Path.rename, []

    def once(self: Path, target: Path) -> Path:
        renamed.append(self)
        if len(renamed) == 2:
            raise OSError("no second name")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)


def test_a_rename_that_fails_is_reported_and_the_older_directory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "final"
    write_old(target)
    monkeypatch.setattr(files, "exchange", lambda first, second: False)
    fail_on_the_second_rename(monkeypatch)
    with pytest.raises(OSError, match="no second name"):
        write_old(target)
    monkeypatch.undo()
    assert contents(target) == ("old",)
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_is_reported_though_the_half_written_file_is_gone(tmp_path: Path) -> None:
    def lose() -> None:
        with atomic_write(tmp_path / "file") as file:
            file.write(b"half")
            for part in tmp_path.iterdir():
                part.unlink()
            raise KeyError("the reason")

    with pytest.raises(KeyError, match="the reason"):
        lose()


def test_the_folders_above_a_directory_are_made(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with whole_directory(tmp_path / "a" / "b" / "final") as part:
            (part / "file").write_text(content)
    assert contents(tmp_path / "a" / "b" / "final") == ("second",)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / ".final.0123abcd.part").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    write_text(tmp_path / "file", "content")
    with whole_directory(tmp_path / "final") as part:
        (part / "file").write_text("content")
    recover_directory(tmp_path / "final")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


WRITER = """
import sys, time
from pathlib import Path
from infrastructure.core.files import atomic_write

with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "report.html")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as writer:  # type: ignore[call-overload]
        assert writer.stdout.readline() == b"begun\n"
        (part,) = tmp_path.iterdir()
        remove_parts(tmp_path)
        assert part.exists(), "it is being written"
        writer.kill()
    (tmp_path / ".notes.part").write_text("of somebody else")
    remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".notes.part"]


def test_a_folder_that_is_named_like_a_part_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".folder.01234567.part").mkdir()
    (tmp_path / ".file.01234567.part").write_text("half")
    removed: list[Path] = []
    monkeypatch.setattr(files, "remove_if_unlocked", removed.append)
    remove_parts(tmp_path)
    assert [path.name for path in removed] == [".file.01234567.part"]


def test_a_part_that_is_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, locked = fcntl.flock, []

    def late(descriptor: int, kind: int) -> None:
        locked.append(descriptor)
        if len(locked) == 1:
            remove_parts(tmp_path)  # whoever sweeps comes just before
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    write_text(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 1
    for descriptor in locked:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_two_names_are_exchanged_where_the_process_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange(tmp_path, tmp_path):
        pytest.skip("this file system cannot exchange two names")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first").write_text("1")
    (tmp_path / "second").write_text("2")
    assert exchange(Path("first"), Path("second"))
    assert (tmp_path / "first").read_text() == "2"


def test_who_may_look_into_a_directory_is_the_user_s_choice(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        files.make_directory(tmp_path / "a" / "b")
        files.make_directory(tmp_path / "private", 0o700)
    finally:
        os.umask(before)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "private")}
    assert modes == {"a": 0o775, "a/b": 0o775, "private": 0o700}


def test_a_folder_that_goes_away_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    for name in ("a/of a", "b/of b"):
        (tmp_path / name).parent.mkdir()
        write_text(tmp_path / name, "content")
    below = paths_below(tmp_path)
    first = next(below)
    shutil.rmtree(first)
    rest = {path.name for path in below}
    assert {first.name, *rest} == {"a", "b", f"of {'b' if first.name == 'a' else 'a'}"}
    assert list(paths_below(tmp_path / "never there")) == []


def test_each_directory_that_is_made_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    make_directory(tmp_path / "a/b/c", 0o700)
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "a/b", tmp_path / "a/b/c")]
    assert modes == [tmp_path.joinpath("a").stat().st_mode & 0o777, 0o700]
    assert modes[0] != 0o700
    make_directory(tmp_path / "a/b/c")
    assert len(synced) == 3


def test_what_is_being_written_is_nobody_s_to_remove(tmp_path: Path) -> None:
    """Until it has its name, also when its own descriptor is closed already."""
    kept: list[bool] = []
    with atomic_write(tmp_path / "file") as file:
        file.write(b"whole")
        [part] = tmp_path.iterdir()
        file.flush()
        kept.append(remove_if_unlocked(part))
        remove_parts(tmp_path)
        assert part.exists()
    assert kept == [False]
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert remove_if_unlocked(tmp_path / "file")
    assert remove_if_unlocked(tmp_path / "file")  # it is gone already
    (tmp_path / "file").touch()
    assert not remove_if_unlocked(tmp_path / "file" / "below it")


def test_a_finished_part_is_locked_until_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, seen = Path.replace, []

    def watched(part: Path, target: Path) -> Path:
        seen.append(remove_if_unlocked(part))
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_text(tmp_path / "file", "whole")
    assert seen == [False]


def test_where_there_are_no_locks_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "try_lock", lambda descriptor: None)
    (tmp_path / "file").touch()
    assert not remove_if_unlocked(tmp_path / "file")
    assert (tmp_path / "file").exists()
    write_text(tmp_path / "other", "runs/\udcff")
    assert (tmp_path / "other").read_bytes() == b"runs/\\udcff"


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_listable(tmp_path)
    for lacking in (os.R_OK, os.X_OK):
        monkeypatch.setattr(os, "access", lambda _, mode, no=lacking: not mode & no)
        with pytest.raises(PermissionError) as raised:
            require_listable(tmp_path)
        assert raised.value.args == (errno.EACCES, "Permission denied")
        assert raised.value.filename == str(tmp_path)


@pytest.mark.parametrize(
    ("path", "shown"), [("runs/ä", "runs/ä"), (Path("runs/\udcff"), "runs/\\xff")]
)
def test_a_path_that_is_no_text_is_shown_by_its_bytes(path: str | Path, shown: str) -> None:
    assert (readable_path(path), is_utf8(path)) == (shown, shown == str(path))
