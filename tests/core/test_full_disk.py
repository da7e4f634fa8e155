"""A full disk is one sentence, however deep in an error it lies."""

import errno
from pathlib import Path

import pytest

from infrastructure.core.errors import StorageError
from infrastructure.core.full_disk import full_disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_full_disk_names_step_folder_and_the_way_on(number: int, link: str) -> None:
    refused = StorageError("3 saves in a row failed")
    setattr(refused, link, OSError(number, "No space left on device"))
    error = full_disk(refused, Path("runs/a"), 31)
    assert error is not None
    assert str(error) == "core.disk_full(step=31, folder=runs/a)"


def test_another_error_is_none() -> None:
    assert full_disk(OSError(errno.EIO, "broken"), Path("runs/a"), 1) is None
    assert full_disk(ValueError("wrong"), Path("runs/a"), 1) is None
