"""Our places keep the contract, and a place with a defect does not."""

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import huggingface_hub
import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content, Place, require_content
from infrastructure.backup.backends.bucket import BucketPlace
from infrastructure.backup.backends.drive import DrivePlace
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.fsspec_place import FsspecPlace
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.backup.backends.place_identity import ids_at
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.core.errors import StorageError
from infrastructure.features.conformance import storage_backend
from infrastructure.features.conformance.storage_backend import (
    FILE,
    WRITTEN_BACK,
    StorageBackendSuite,
)
from tests.backup.backends.hub_server import TOKEN, running_hub
from tests.features.conformance.planted import failure, without_defect
from tests.slow import slow


class TestFolder(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return open_place(str(folder / "backups"))


class TestDrive(StorageBackendSuite):
    writes_in_place = True  # a rename on Drive may be undone by the mount

    def open(self, folder: Path) -> Place:
        return DrivePlace(folder / "backups", drive_id=lambda path: "1xYz")

    @slow  # the folder above and the two on the Hub are quick
    def test_another_process_sees_what_was_written(self, tmp_path: Path) -> None:
        super().test_another_process_sees_what_was_written(tmp_path)


class TestFsspec(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return FsspecPlace(f"file://{folder}/backups")

    @slow  # the folder above and the two on the Hub are quick
    def test_another_process_sees_what_was_written(self, tmp_path: Path) -> None:
        super().test_another_process_sees_what_was_written(tmp_path)


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
class TestHub(StorageBackendSuite):
    @pytest.fixture(autouse=True)
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # of the other process
        with running_hub() as hub:
            monkeypatch.setenv("HUB_OF_THE_TEST", hub.url)
            yield
        huggingface_hub.close_session()

    def open(self, folder: Path) -> Place:
        return HubPlace(f"hf://me/{folder.name}/temper", os.environ["HUB_OF_THE_TEST"])


class TestBucket(StorageBackendSuite):
    @pytest.fixture(autouse=True)
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        with running_hub() as hub:
            monkeypatch.setenv("HUB_OF_THE_TEST", hub.url)
            yield
        huggingface_hub.close_session()

    def open(self, folder: Path) -> Place:
        url = f"hf://buckets/me/{folder.name}/temper"
        return BucketPlace(url, os.environ["HUB_OF_THE_TEST"])


# Defects, each in a folder that is else sound.


class Broken(FolderPlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "backups")


class ReadsShort(Broken):
    """Gives the first piece only."""

    def read(self, path: Path) -> Iterator[bytes]:
        yield next(super().read(path), b"")


class LosesBytes(Broken):
    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        super().write(path, [b"".join(buffers)[:-1]])


class FillsShort(Broken):
    def read_into(self, path: Path, memory: memoryview) -> Iterator[int]:
        yield next(super().read_into(path, memory))


class ListsLate(Broken):
    """Shows what was there when it last looked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._seen: dict[Path, list[str]] = {}

    def names(self, directory: Path) -> list[str]:
        return self._seen.setdefault(directory, super().names(directory))


class ListsBelow(Broken):
    """As an object store does that knows no folders."""

    def names(self, directory: Path) -> list[str]:
        below = self.at(directory)
        if not below.exists():
            raise FileNotFoundError(directory)
        return [str(p.relative_to(below)) for p in below.rglob("*") if p.is_file()]


class ListsNothing(Broken):
    """Of a folder that is not there, no name: as if it were empty."""

    def names(self, directory: Path) -> list[str]:
        return super().names(directory) if self.at(directory).exists() else []


class Appends(Broken):
    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        old = b"".join(self.read(path)) if self.at(path).exists() else b""
        super().write(path, [*buffers, old])


class CreatesTwice(Broken):
    """Asks first, of what it saw before."""

    def create(self, path: Path, data: bytes) -> bool:
        self.write(path, [data])
        return True


class OverwritesNeighbours(Broken):
    """Keeps what lies under the first four letters of a name."""

    def at(self, path: Path) -> Path:
        return super().at(path.with_name(path.name[:4]) if path.parent.name == "ab" else path)


class KeepsRemoved(Broken):
    def remove(self, path: Path) -> None:
        self.size(path)


class NeverSure(Broken):
    def confirm(self, path: Path, content: Content) -> bool:
        return False


class AlwaysSure(Broken):
    def confirm(self, path: Path, content: Content) -> bool:
        return True


class TrustsSize(Broken):
    def confirm(self, path: Path, content: Content) -> bool:
        return self.size(path) == content.size_bytes or super().confirm(path, content)


class IsAnyPlace(Broken):
    def identify(self, known: str | None = None) -> str:
        self.identity = "the place"
        return self.identity


class LeavesProbes(Broken):
    def probe(self) -> None:
        self.write(Path(".temper-place/probe-x"), [b"x"])

    def sweep(self, directory: Path) -> None: ...


class LeadsOut(Broken):
    def at(self, path: Path) -> Path:
        return self.root / path.name


class WithoutAdvice(Broken):
    def advice(self, error: OSError) -> str:
        return ""


class SwapsTensors(Broken):
    """Reads rightly what it has written itself, and of the others' objects the first for each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.own: set[Path] = set()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.own.add(target)

    def read(self, path: Path) -> Iterator[bytes]:
        if "objects" not in path.parts or path in self.own:
            return super().read(path)
        first = min(p for p in self.at(Path("run-1/objects")).rglob("*") if p.is_file())
        return super().read(first.relative_to(self.root))


class InMemory(Broken):
    """Keeps everything in its class: gone with the process."""

    files: ClassVar[dict[Path, bytes]] = {}

    def read(self, path: Path) -> Iterator[bytes]:
        if path not in self.files:
            raise FileNotFoundError(path)
        yield self.files[path]

    def size(self, path: Path) -> int:
        return len(b"".join(self.read(path)))

    def names(self, directory: Path) -> list[str]:
        below = [p.relative_to(directory) for p in self.files if p.is_relative_to(directory)]
        if not below:
            raise FileNotFoundError(directory)
        return sorted({p.parts[0] for p in below})

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.files[path] = b"".join(buffers)


class NoIdentity(Broken):
    def confirm(self, path: Path, content: Content) -> bool:
        require_content(self, path, content)
        return True


class SureLater(NoIdentity):
    num_questions = 0

    def confirm(self, path: Path, content: Content) -> bool:
        self.num_questions += 1
        return super().confirm(path, content) and self.num_questions > 2


class ForItselfOnly(Broken):
    """Shows others neither the bytes that it writes nor that it removes a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.own: set[Path] = set()
        self.gone: set[str] = set()

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        super().write(path, buffers)
        self.own.add(path)

    def read(self, path: Path) -> Iterator[bytes]:
        if path.name in self.gone:
            raise FileNotFoundError(path)
        return super().read(path) if path in self.own else iter(())

    def names(self, directory: Path) -> list[str]:
        return [name for name in super().names(directory) if name not in self.gone]

    def remove(self, path: Path) -> None:
        self.gone.add(path.name)


class ListsOthersLate(ListsLate):
    """Notices its own files at once."""

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        super().write(path, buffers)
        self._seen.clear()


class HalfWritten(Broken):
    """Under its own name from the first byte on."""

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.make_directory(path.parent)
        with self.at(path).open("wb") as file:
            for buffer in buffers:
                file.write(buffer)
                file.flush()


class ReplacesInPlace(HalfWritten):
    """A file that exists is written under its own name."""

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        kind = HalfWritten if self.at(path).exists() else Broken
        kind.write(self, path, buffers)


class ResumesInPlace(HalfWritten):
    """After a failure a file is written under its own name, and behind what there was before."""

    num_failures = 0
    old: Sequence[Buffer] = ()

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        kind = HalfWritten if self.num_failures and not self.old else Broken
        try:
            is_added = self.num_failures and self.old
            kind.write(self, path, [*self.old, *buffers] if is_added else buffers)
        except OSError:
            self.num_failures += 1
            raise


class ContinuesAfterFailure(ResumesInPlace):
    old = (b"the beginning",)


class TornBeforeItsEnd(HalfWritten):
    """Half a file stays, and is taken for a whole one."""

    def confirm(self, path: Path, content: Content) -> bool:
        return self.size(path) > 0


class RaisesItsOwn(Broken):
    def size(self, path: Path) -> int:
        raise KeyError("no such row")


class InMemorySuite(StorageBackendSuite):
    """At the module's top, where another process finds it."""

    def open(self, folder: Path) -> Place:
        return InMemory(folder)


def test_what_is_gone_with_its_process_is_seen(tmp_path: Path) -> None:
    message = failure(InMemorySuite(), "test_another_process_sees_what_was_written", tmp_path)
    InMemory.files.clear()
    assert message is not None
    assert "conformance.other_process_failed(error=FileNotFound" in message


def test_a_suite_that_no_other_process_finds_is_named(tmp_path: Path) -> None:
    class Hidden(TestFolder):
        pass

    message = failure(Hidden(), "test_another_process_sees_what_was_written", tmp_path)
    assert message == "conformance.suite_in_function(suite=Hidden)"


def broken(**methods: Callable[..., Any]) -> Callable[[Path], Place]:
    """Open a backend with these methods, which also get the backend and the right method."""

    def opened(folder: Path) -> Place:
        place = Broken(folder)
        for name, method in methods.items():
            setattr(place, name, partial(method, place, getattr(place, name)))
        return place

    return opened


def reads_other_bytes(_: Place, read: Any, path: Path) -> Iterator[bytes]:
    yield from (piece.swapcase() for piece in read(path))


def fills_other_bytes(_: Place, fill: Any, path: Path, memory: memoryview) -> Iterator[int]:
    yield from fill(path, memory)
    memory[-1] ^= 1


def reads_what_is_missing(place: Any, read: Any, path: Path) -> Iterator[bytes]:
    return read(path) if place.at(path).exists() else iter(())


def finds_what_is_missing(_: Place, call: Any, path: Path) -> int:
    try:
        return call(path) or 0
    except FileNotFoundError:
        return 7


def creates_over(place: Any, create: Any, path: Path, data: bytes) -> bool:
    is_new: bool = create(path, data)
    place.at(path).write_bytes(data)
    return is_new


def creates_other_bytes(place: Any, create: Any, path: Path, data: bytes) -> bool:
    is_new: bool = create(path, data)
    place.at(path).write_bytes(place.at(path).read_bytes().upper())
    return is_new


def replaces_by_other_bytes(place: Any, write: Any, path: Path, buffers: Sequence[Buffer]) -> None:
    old = place.at(path).exists()
    write(path, [b"".join(buffers).upper()] if old else buffers)


def writes_beside(path: Path, data: bytes = b"another") -> Callable[[Path], Place]:
    def write(_: Place, sound: Any, other: Path, buffers: Sequence[Buffer]) -> None:
        sound(other, buffers)
        if buffers == [b"another"]:
            sound(path, [data])

    return broken(write=write)


def ignores_failures(_: Place, write: Any, path: Path, buffers: Sequence[Buffer]) -> None:
    with suppress(OSError):
        write(path, buffers)


def is_another(place: Place, confirm: Any, path: Path, content: Content) -> bool:
    try:
        return bool(confirm(path, content))
    except OSError as error:
        raise StorageError("another place") from error


def has_any_marker(place: Place, confirm: Any, path: Path, content: Content) -> bool:
    if not ids_at(place):
        raise OSError(errno.ENOTCONN, "no marker")
    return True


def sure_of(damage: bytes | None) -> Callable[[Path], Place]:
    def confirm(place: Any, sound: Any, path: Path, content: Content) -> bool:
        there = place.at(path)
        held = there.read_bytes() if there.exists() else None
        return held == damage or bool(sound(path, content))

    return broken(confirm=confirm)


def sweeps(left: bytes) -> Callable[[Path], Place]:
    def sweep(place: Any, sound: Any, directory: Path) -> None:
        if place.at(FILE).exists():
            place.at(FILE).write_bytes(left)

    return broken(sweep=sweep)


def leads_to(path: str) -> Callable[[Path], Place]:
    def write(_: Place, sound: Any, other: Path, buffers: Sequence[Buffer]) -> None:
        if str(other) != path:
            sound(other, buffers)

    return broken(write=write)


NEAR = ("run-1/objects/ab/abcde", "run-10/x")
OUT = ("../x", "run-1/../../x", "/etc/passwd")

DEFECTS: list[tuple[Callable[[Path], Place], str, str]] = [
    (broken(read=reads_other_bytes), "test_what_is_written_is_read", "abcd: 12 of 12 bytes"),
    (ForItselfOnly, "test_what_is_written_is_read", "abcd: 0 of 12 bytes"),
    (
        broken(size=lambda _, size, path: size(path) + 1),
        "test_what_is_written_is_read",
        "abcd has another size",
    ),
    (
        broken(read_into=fills_other_bytes),
        "test_memory_is_filled_to_the_end",
        "fills the memory with other bytes",
    ),
    (
        ListsOthersLate,
        "test_a_file_is_listed_as_soon_as_it_was_written",
        "['1', '2'] were written, ['1'] are listed",
    ),
    (
        broken(names=lambda _, names, path: [*names(path), *["run-1"] * len(path.parts[:1])]),
        "test_a_file_is_listed_as_soon_as_it_was_written",
        "['1'] were written, ['1', 'run-1'] are listed",
    ),
    (
        broken(names=lambda _, names, path: [*names(path), *["ab"] * (len(path.parts) == 1)]),
        "test_a_file_is_listed_as_soon_as_it_was_written",
        "names are those of one folder",
    ),
    (
        broken(read=reads_what_is_missing),
        "test_what_was_never_written_is_not_there",
        "missing_path_answered(call=read, answer=[])",
    ),
    *(
        (
            broken(**{name: finds_what_is_missing}),
            "test_what_was_never_written_is_not_there",
            f"missing_path_answered(call={name}, answer=7)",
        )
        for name in ("size", "remove")
    ),
    (
        broken(size=lambda _, size, path: 29),
        "test_a_second_write_replaces_the_whole_file",
        "it has the size of the first",
    ),
    (
        broken(create=creates_over),
        "test_what_is_there_is_not_created_again",
        "a file that was created as b'one' holds b'another'",
    ),
    (
        broken(create=creates_other_bytes),
        "test_what_is_there_is_not_created_again",
        "a file that was created as b'one' holds b'ONE'",
    ),
    (
        broken(write=replaces_by_other_bytes),
        "test_a_second_write_replaces_the_whole_file",
        "after a second write the file holds b'HELLO THERE!'",
    ),
    (
        broken(write=replaces_by_other_bytes),
        "test_half_a_file_is_never_seen",
        "another one is not whole",
    ),
    *(
        (writes_beside(Path(path), data), "test_neighbours_stay_as_they_are", f"changed {path}")
        for path in NEAR
        for data in (b"another", path.upper().encode())
    ),
    (
        broken(names=lambda _, names, path: [*names(path), "c"]),
        "test_neighbours_stay_as_they_are",
        "a folder lists what lies in another",
    ),
    (
        broken(
            remove=lambda *_: None,
            names=lambda _, names, path: [name for name in names(path) if name != FILE.name],
        ),
        "test_what_is_removed_is_gone",
        "conformance.removed_file_readable()",
    ),
    (ForItselfOnly, "test_what_is_removed_is_gone", "still listed"),
    (
        SureLater,
        "test_another_place_confirms_nothing",
        "confirm_answers(doubt=conformance.marker_missing(), answer=True)",
    ),
    (
        broken(confirm=is_another),
        "test_another_place_confirms_nothing",
        "confirm_raises(doubt=conformance.marker_missing(), error=another place)",
    ),
    (
        broken(confirm=has_any_marker),
        "test_another_place_confirms_nothing",
        "confirm_answers(doubt=conformance.marker_of_another(), answer=True)",
    ),
    (
        ReplacesInPlace,
        "test_half_a_file_is_never_seen",
        "conformance.partial_file_of_failed_write(num_bytes=0, total=300000)",
    ),
    (
        ResumesInPlace,
        "test_half_a_file_is_never_seen",
        "conformance.partial_file(num_bytes=0, total=300000)",
    ),
    (ContinuesAfterFailure, "test_half_a_file_is_never_seen", "another one is not whole"),
    (
        broken(write=ignores_failures),
        "test_half_a_file_is_never_seen",
        "conformance.failed_write_returns()",
    ),
    *(
        (sure_of(held), "test_other_bytes_are_never_confirmed", f"holds {held!r} is confirmed as")
        for held in (b"hello there", b"hello there?", b"", None)
    ),
    (
        broken(identify=lambda *_: ""),
        "test_a_place_is_known_again",
        "a place has no identity",
    ),
    (
        broken(identify=lambda *_: secrets.token_hex(4)),
        "test_a_place_is_known_again",
        "the same place has another identity",
    ),
    (
        broken(identify=lambda _, identify, *known: "x" if known else identify()),
        "test_a_place_is_known_again",
        "the place is not taken for itself",
    ),
    *(
        (sweeps(left), "test_looking_leaves_nothing_behind", "sweeping takes a whole file")
        for left in (b"", b"HELLO THERE!")
    ),
    *((leads_to(path), "test_no_path_leads_out", f"leads_out(path={path})") for path in OUT),
    (broken(advice=lambda *_: "x" * 20), "test_an_error_has_advice", "advice of 'xxxx"),
    (KeepsRemoved, "test_a_store_of_versions_lies_in_it", "3 versions are there after all but"),
    (ReadsShort, "test_what_is_written_is_read", "bytes are read"),
    (LosesBytes, "test_what_is_written_is_read", "11 of 12 bytes"),
    (FillsShort, "test_memory_is_filled_to_the_end", "stops at"),
    (ListsLate, "test_a_file_is_listed_as_soon_as_it_was_written", "are listed"),
    (ListsBelow, "test_a_file_is_listed_as_soon_as_it_was_written", "not listed in the one above"),
    (
        ListsNothing,
        "test_what_was_never_written_is_not_there",
        "missing_path_answered(call=names, ",
    ),
    (Appends, "test_a_second_write_replaces_the_whole_file", "after a second write"),
    (CreatesTwice, "test_what_is_there_is_not_created_again", "is created twice"),
    (OverwritesNeighbours, "test_neighbours_stay_as_they_are", ""),
    (KeepsRemoved, "test_what_is_removed_is_gone", "still listed"),
    (NeverSure, "test_what_was_written_is_confirmed", "not confirmed after"),
    (AlwaysSure, "test_other_bytes_are_never_confirmed", "is confirmed as"),
    (TrustsSize, "test_other_bytes_are_never_confirmed", "is confirmed as"),
    (NeverSure, "test_other_bytes_are_never_confirmed", "raise StorageError"),
    (
        NoIdentity,
        "test_another_place_confirms_nothing",
        "conformance.confirm_answers(doubt=conformance.marker_missing(), ",
    ),
    (
        HalfWritten,
        "test_half_a_file_is_never_seen",
        "conformance.partial_file_of_failed_write(num_bytes=0, total=300000)",
    ),
    (RaisesItsOwn, "test_what_is_written_is_read", "error=KeyError: 'no such row' at"),
    (IsAnyPlace, "test_a_place_is_known_again", "the same identity"),
    (LeavesProbes, "test_looking_leaves_nothing_behind", "probing leaves"),
    (LeadsOut, "test_no_path_leads_out", "conformance.path_leads_out("),
    (WithoutAdvice, "test_an_error_has_advice", "tell what a person can do"),
    (SwapsTensors, "test_a_store_of_versions_lies_in_it", "versions are damaged"),
]


@pytest.mark.parametrize(("kind", "test", "sentence"), DEFECTS)
def test_a_defect_is_seen(
    kind: Callable[[Path], Place], test: str, sentence: str, tmp_path: Path
) -> None:
    class Suite(StorageBackendSuite):
        confirm_seconds = 0.1

        def open(self, folder: Path) -> Place:
            return kind(folder)

    try:
        message = failure(Suite(), test, tmp_path)
    except FileNotFoundError:  # a defect may end it before the sentence
        assert not sentence
        return
    assert message is not None
    assert sentence in message


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        ({}, None),
        ({"read": b"other bytes".hex()}, "another process reads b'other bytes'"),
        ({"read": b"HELLO THERE!".hex()}, "another process reads b'HELLO THERE!'"),
        ({"names": ["abcd", "x"]}, "another process lists ['abcd', 'x']"),
        ({"identity": "x"}, "for another process it is another place"),
        ({"back": b"half"}, "of what another process has written b'half' is read"),
        (
            {"back": WRITTEN_BACK.upper()},
            "of what another process has written b'FROM ANOTHER PROCESS' is read",
        ),
    ],
)
def test_the_answers_of_another_process_are_compared(
    seen: dict[str, Any], sentence: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(suite: type, method: str, folder: str) -> tuple[Any, bytes]:
        place = Broken(Path(folder))
        answer = {"read": b"".join(place.read(FILE)).hex(), "names": place.names(FILE.parent)}
        answer["identity"] = place.identify()
        place.write(FILE.with_name("back"), [seen.get("back", WRITTEN_BACK)])
        changes = {name: value for name, value in seen.items() if name != "back"}
        lines = ["printed on import", json.dumps({**answer, **changes})]
        return SimpleNamespace(returncode=0, last_words=""), "\n".join(lines).encode()

    monkeypatch.setattr(storage_backend, "call_elsewhere", call)
    message = failure(TestFolder(), "test_another_process_sees_what_was_written", tmp_path)
    assert message == sentence


def test_a_place_that_confirms_later_passes(tmp_path: Path) -> None:
    class Suite(TestFolder):
        def open(self, folder: Path) -> Place:
            return SureLater(folder)

    assert failure(Suite(), "test_what_was_written_is_confirmed", tmp_path) is None


def test_a_place_that_cannot_rename_may_show_half_a_file_but_not_confirm_it(tmp_path: Path) -> None:
    class Suite(TestFolder):
        writes_in_place = True

        def open(self, folder: Path) -> Place:
            return HalfWritten(folder)

    class Torn(Suite):
        def open(self, folder: Path) -> Place:
            return TornBeforeItsEnd(folder)

    test = "test_half_a_file_is_never_seen"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert failure(Suite(), test, tmp_path / "a") is None
    assert failure(Torn(), test, tmp_path / "b") == "half a file is confirmed"


def test_each_test_has_a_defect_that_it_sees() -> None:
    planted: dict[str, Any] = {test: kind for kind, test, _ in DEFECTS}
    planted["test_another_process_sees_what_was_written"] = InMemory
    assert without_defect(StorageBackendSuite, planted) == []
