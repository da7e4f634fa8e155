"""A backend that raises what no place may raise is named, wherever it is asked."""

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.contract import BackendError
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase

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
