"""Our places keep the contract, and a place with a defect does not."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.backends.drive import DrivePlace
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.testing.suites.storage_backend import StorageBackendSuite
from tests.backup.backends.hub_server import TOKEN, Hub, running_hub
from tests.testing.suites.planted import failure, without_defect


class TestFolder(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return open_place(str(folder / "backups"))


class TestDrive(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return DrivePlace(folder / "backups", drive_id=lambda path: "1xYz")


class TestFsspec(StorageBackendSuite):
    @pytest.fixture(autouse=True)
    def empty_store(self) -> Iterator[None]:
        MemoryFileSystem.store.clear()
        yield
        MemoryFileSystem.store.clear()

    def open(self, folder: Path) -> Place:
        return open_place(f"memory://{folder.name}/{folder.parent.name}")


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
class TestHub(StorageBackendSuite):
    hub: Hub

    @pytest.fixture(autouse=True)
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        with running_hub() as self.hub:
            yield
        huggingface_hub.close_session()

    def open(self, folder: Path) -> Place:
        return HubPlace(f"hf://me/{folder.name}/temper", self.hub.url)


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


DEFECTS: list[tuple[Callable[[Path], Place], str, str]] = [
    (ReadsShort, "test_what_is_written_is_read", "bytes are read"),
    (LosesBytes, "test_what_is_written_is_read", "11 of 12 bytes"),
    (FillsShort, "test_memory_is_filled_to_the_end", "stops at"),
    (ListsLate, "test_a_file_is_listed_as_soon_as_it_was_written", "are listed"),
    (ListsBelow, "test_a_file_is_listed_as_soon_as_it_was_written", "not listed in the one above"),
    (ListsNothing, "test_what_was_never_written_is_not_there", "names of what is not there"),
    (Appends, "test_a_second_write_replaces_the_whole_file", "after a second write"),
    (OverwritesNeighbours, "test_neighbours_stay_as_they_are", ""),
    (KeepsRemoved, "test_what_is_removed_is_gone", "still listed"),
    (NeverSure, "test_what_was_written_is_confirmed", "not confirmed after"),
    (AlwaysSure, "test_other_bytes_are_never_confirmed", "is confirmed as"),
    (TrustsSize, "test_other_bytes_are_never_confirmed", "is confirmed as"),
    (NeverSure, "test_other_bytes_are_never_confirmed", "raise StorageError"),
    (IsAnyPlace, "test_a_place_is_known_again", "the same identity"),
    (LeavesProbes, "test_looking_leaves_nothing_behind", "probing leaves"),
    (LeadsOut, "test_no_path_leads_out", "leads out of the place"),
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


def test_each_test_has_a_defect_that_it_sees() -> None:
    planted: dict[str, Any] = {test: kind for kind, test, _ in DEFECTS}
    assert without_defect(StorageBackendSuite, planted) == []
