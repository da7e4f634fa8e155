"""A backend that raises what no place may raise is named, wherever it is asked."""

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content
from infrastructure.backup.backends.contract import BackendError, held_to_contract
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from tests.backup.memory_place import MemoryPlace

MODULE = """
import temper


class DatabaseError(Exception):
    pass


class Rows(temper.FolderPlace):
    def __init__(self, url):
        from pathlib import Path

        if "refuse" in url:
            raise DatabaseError("no login")
        super().__init__(Path(url.partition("://")[2]))

    def size(self, path):
        raise DatabaseError("no such table")

    def read(self, path):
        yield b"x"
        raise ValueError("bad row")

    def names(self, directory):
        raise DatabaseError("no such table")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "rows_place.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("rows_place", None)


def test_each_method_names_the_backends_own_error(tmp_path: Path) -> None:
    url = f"rows_place:Rows://{tmp_path}/place"
    place = open_place(url)
    with pytest.raises(BackendError) as raised:
        place.size(Path("run-1/x"))
    assert str(raised.value) == (
        f"backup.backend_raised_wrong_error(url={place.url},"
        " error=DatabaseError: no such table at rows_place.py:18 (size))"
    )
    chunks = place.read(Path("run-1/x"))
    assert next(chunks) == b"x"
    with pytest.raises(BackendError, match=r"ValueError: bad row at rows_place\.py:22"):
        next(chunks)
    with pytest.raises(ValueError, match=r"backup\.path_outside_destination"):
        place.write(Path("../x"), [b"x"])


def test_one_that_cannot_be_made_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"DatabaseError: no login at rows_place"):
        open_place("rows_place:Rows://refuse")


def test_a_run_is_not_begun_with_it(tmp_path: Path) -> None:
    options = BackupConfig(place=f"rows_place:Rows://{tmp_path}/place")
    backup = RunBackup(tmp_path / "run-1/checkpoints", options, run_id="run-1")
    with pytest.raises(StorageError, match=r"backup\.destination_unusable"):
        backup.check_place()


def test_its_remedy_is_none_of_what_the_backend_knows(tmp_path: Path) -> None:
    place = open_place(f"rows_place:Rows://{tmp_path}/place")
    with pytest.raises(BackendError) as raised:
        place.size(Path("run-1/x"))
    assert place.advice(raised.value) == phrase("backup.fix_backend_and_resume")
    assert place.advice(OSError(errno.ENOSPC, "full")) != phrase("backup.fix_backend_and_resume")


CALLS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("identify", "require_identity", "probe", "close"), ()),
    "confirm": (Path("x"), Content.of([b""])),
    "write": (Path("x"), [b""]),
    "create": (Path("x"), b""),
    "rename": (Path("x"), Path("y")),
    "advice": (OSError("x"),),
    "read_into": (Path("x"), memoryview(bytearray(1))),
    **dict.fromkeys(
        (
            *("sweep", "size", "names", "remove", "free_bytes", "make_directory", "sync_file"),
            *("sync_directory", "truncate", "forget_cached", "read", "read_back"),
        ),
        (Path("x"),),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (KeyError("row"), BackendError),
        (StorageError("other bytes"), StorageError),
        (OSError("no answer"), OSError),
        (AssertionError("a fault of the test"), AssertionError),
    ],
)
def test_no_method_raises_anything_else(
    name: str, raised: Exception, expected: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise raised

    place = held_to_contract(type("Broken", (MemoryPlace,), {name: fail})())
    assert held_to_contract(place) is place
    with pytest.raises(expected) as caught:
        list(getattr(place, name)(*CALLS[name]))
    if expected is BackendError:
        values = "url=memory:here, error=KeyError: 'row' at test_contract.py:"
        assert str(caught.value).startswith(f"backup.backend_raised_wrong_error({values}")
        assert caught.value.__cause__ is raised
    else:
        assert caught.value is raised


@pytest.mark.parametrize(
    "name", [name for name, given in CALLS.items() if given and isinstance(given[0], Path)]
)
def test_no_method_leads_out(name: str) -> None:
    place = held_to_contract(MemoryPlace())
    with pytest.raises(ValueError, match=r"backup\.path_outside_destination\(path=\.\./x, "):
        list(getattr(place, name)(Path("../x"), *CALLS[name][1:]))


def test_another_error_may_be_injected_and_advice_is_text() -> None:
    def advice(self: MemoryPlace, error: OSError) -> int:
        return 7

    def size(self: MemoryPlace, path: Path) -> int:
        return {}["row"]

    kind = type("Numbers", (MemoryPlace,), {"advice": advice, "size": size})
    place = held_to_contract(kind(), AssertionError)
    assert place.advice(OSError("x")) == "7"
    with pytest.raises(AssertionError, match="KeyError: 'row'"):
        place.size(Path("x"))
