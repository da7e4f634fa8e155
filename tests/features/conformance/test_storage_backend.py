"""Our places keep the contract, and a place with a defect does not."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.features.conformance.storage_backend import StorageBackendSuite
from tests.backup.backends.hub_server import TOKEN, running_hub
from tests.features.conformance.planted import failure, without_defect


class TestFolder(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return open_place(str(folder / "backups"))


class TestDrive(StorageBackendSuite):
    writes_in_place = True  # a rename on Drive may be undone by the mount

    def open(self, folder: Path) -> Place:
        return DrivePlace(folder / "backups", drive_id=lambda path: "1xYz")


class TestFsspec(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return FsspecPlace(f"file://{folder}/backups")


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


class HalfWritten(Broken):
    """Under its own name from the first byte on."""

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.make_directory(path.parent)
        with self.at(path).open("wb") as file:
            for buffer in buffers:
                file.write(buffer)
                file.flush()


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


DEFECTS: list[tuple[Callable[[Path], Place], str, str]] = [
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
    (HalfWritten, "test_half_a_file_is_never_seen", "conformance.partial_file"),
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
