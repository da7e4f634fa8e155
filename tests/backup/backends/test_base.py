"""The parts that all destinations share: content and its proof, the identity, small files."""

import array
import errno
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.backup.backends.base import Content, Evidence, require_content
from infrastructure.backup.backends.place_identity import FOLDER, ids_at
from infrastructure.core.errors import StorageError
from tests.backup.memory_place import MemoryPlace

FILE = Path("run-1/objects/ab/abcd")


def test_content_is_the_size_and_the_hashes_of_all_its_pieces() -> None:
    pieces = [b"hello ", memoryview(array.array("I", [1, 2])), bytearray(b"there")]
    whole = b"".join(bytes(piece) for piece in pieces)
    sha256, md5 = hashlib.sha256(whole).hexdigest(), hashlib.md5(whole).hexdigest()
    content = Content.of(pieces)
    assert content == Content(19, (("sha256", sha256), ("md5", md5)))
    assert (content.sha256, content.md5) == (sha256, md5)
    assert Content.of(pieces, ["md5"]) == Content(19, (("md5", md5),))
    with pytest.raises(ValueError, match=r"backup\.hash_not_declared\(hash_name=sha256\)"):
        assert Content.of(pieces, ["md5"]).sha256


def test_the_strongest_evidence_comes_first_and_keeps_its_name_in_statuses() -> None:
    names = ["service checksum", "read-back", "mount cache", "storage backend"]
    assert [each.value for each in Evidence] == names


class Noting(MemoryPlace):
    """Notes which of its files are read back."""

    def __init__(self) -> None:
        super().__init__()
        self.read_back_paths: list[Path] = []

    def read_back(self, path: Path) -> Iterator[bytes]:
        self.read_back_paths.append(path)
        return self.read(path)


@pytest.mark.parametrize(
    ("held", "names", "problem"),
    [
        (b"hello", ("sha256", "md5"), None),
        (b"hello", ("md5",), None),
        (b"hell", ("md5",), "read_back_size_mismatch(path={}, size=4, expected_size=5)"),
        (b"hello!", ("md5",), "read_back_size_mismatch(path={}, size=6, expected_size=5)"),
        (b"hallo", ("md5",), "read_back_mismatch(path={})"),
        (b"hallo", ("sha256",), "read_back_mismatch(path={})"),
        (None, ("sha256",), "read_back_file_missing(path={})"),
    ],
)
def test_a_file_is_compared_with_what_was_written(
    held: bytes | None, names: tuple[str, ...], problem: str | None
) -> None:
    place, content = Noting(), Content.of([b"he", b"llo"], names)
    if held is not None:
        place.write(FILE, [held])
    if problem is None:
        require_content(place, FILE, content)
        assert place.read_back_paths == [FILE]
        return
    with pytest.raises(StorageError) as raised:
        require_content(place, FILE, content)
    assert str(raised.value) == f"backup.{problem}".format(f"memory:here/{FILE}")


def test_the_first_hash_alone_proves_a_file() -> None:
    place = Noting()
    place.write(FILE, [b"hello"])
    first, second = Content.of([b"hello"]).hashes
    require_content(place, FILE, Content(5, (first, ("md5", "?"))))
    with pytest.raises(StorageError, match="read_back_mismatch"):
        require_content(place, FILE, Content(5, (("sha256", "?"), second)))


def test_a_destination_is_new_once_and_keeps_its_identity() -> None:
    place = MemoryPlace()
    assert place.identity is None
    place.require_identity()  # nothing is expected yet
    marker = place.identify()
    assert (place.identity, place.is_new) == (marker, True)
    assert place.files.names(FOLDER) == [marker]
    assert json.loads(place.files.files[FOLDER / marker]) == {"format": 1, "id": marker}
    assert (place.identify(), place.is_new) == (marker, False)
    other = MemoryPlace()
    other.files = place.files
    assert (other.identify(marker), other.identity, other.is_new) == (marker, marker, False)


def test_of_several_marks_the_first_counts_and_other_files_are_none() -> None:
    place = MemoryPlace()
    for name in ("b" * 32, "a" * 32, "0" * 31, "README"):
        place.write(FOLDER / name, [json.dumps({"id": name}).encode()])
    assert (place.identify(), place.is_new) == ("a" * 32, False)
    assert ids_at(place) == ["a" * 32, "b" * 32]


@pytest.mark.parametrize("what", ["another_destination", "folder_without_marker"])
def test_another_destination_is_refused_by_name(what: str) -> None:
    place, known = MemoryPlace(), "0" * 32
    if what == "another_destination":
        MemoryPlace.identify(place)
    place.run = "run-7"
    expected = f"not_the_runs_destination(run=run-7, url=memory:here, what=backup.{what}())"
    for action in (lambda: place.identify(known), place.require_identity):
        with pytest.raises(OSError, match=re.escape(f"backup.{expected}")) as raised:
            action()
        assert (raised.value.errno, place.identity) == (errno.ENOTCONN, known)
    assert len(place.files.names(FOLDER)) == (what == "another_destination")


def test_a_probe_leaves_nothing_and_what_killed_ones_left_is_swept() -> None:
    place = MemoryPlace()
    marker = place.identify()
    place.probe()
    place.probe()
    probes = [path for what, path, *_ in place.files.log if what == "write"][1:]
    assert place.removed == probes
    assert len({*probes}) == 2
    assert {(path.parent, path.name[:6]) for path in probes} == {(FOLDER, "probe-")}
    place.fault = lambda operation, path: (
        place.files.remove(path) if operation == "remove" else None
    )
    place.probe()  # another process has swept it
    place.fault = lambda operation, path: None
    place.write(FOLDER / "probe-0123", [b""])
    place.write(FOLDER / "a-probe-0123", [b""])
    place.write(Path("probe-0123"), [b""])
    place.sweep(Path("run-1"))
    assert {*place.files.files} == {FOLDER / marker, FOLDER / "a-probe-0123", Path("probe-0123")}


def test_a_new_destination_has_nothing_to_sweep() -> None:
    class New(MemoryPlace):
        def names(self, directory: Path) -> list[str]:
            raise FileNotFoundError(directory)

    New().sweep(Path("run-1"))


@pytest.mark.parametrize("size", [0, 3, 4, 5, 11, 20])
def test_memory_is_filled_as_far_as_it_reaches(size: int) -> None:
    class InPieces(MemoryPlace):
        def read(self, path: Path) -> Iterator[bytes]:
            yield from (b"hell", b"o th", b"ere")

    memory = bytearray(b"." * size)
    ends = list(InPieces().read_into(FILE, memoryview(memory)))
    assert ends == [min(end, size) for end in (4, 8, 11)]
    assert bytes(memory) == b"hello there"[:size].ljust(size, b".")


def test_a_destination_can_do_without_what_only_file_systems_have() -> None:
    place = MemoryPlace()
    place.write(FILE, [b"hello"])
    target = FILE.with_name("target")
    place.rename(FILE, target)
    assert {path: place.files.files[path] for path in place.files.files} == {target: b"hello"}
    place.truncate(target)
    assert place.size(target) == 0
    place.require_reachable()
    assert place.create(FILE, b"x") is place.free_bytes(FILE) is place.caution(FILE) is None
    assert {*place.files.files} == {target}
    assert super(MemoryPlace, place).advice(OSError("x")) == (
        "backup.check_destination_reachable(url=memory:here)"
    )


@pytest.mark.parametrize("path", ["../x", "run/../../x", "run/..", "/etc/passwd"])
def test_a_path_that_leads_out_is_refused_by_name(path: str) -> None:
    expected = f"backup.path_outside_destination(path={path}, url=memory:here)"
    with pytest.raises(ValueError, match=re.escape(expected)):
        MemoryPlace().parts_of(Path(path))
    assert MemoryPlace().parts_of(FILE) == ("run-1", "objects", "ab", "abcd")
    assert MemoryPlace().parts_of(Path("run..1")) == ("run..1",)
