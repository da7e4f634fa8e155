"""Room for what rotation keeps is told, and demanded, before the first step."""

from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.store import Store
from infrastructure.backup.free_space import require_free_space
from infrastructure.core.errors import StorageError


@pytest.mark.parametrize("is_remote", [False, True])
def test_room_is_told_and_demanded_here_and_at_a_place(tmp_path: Path, is_remote: bool) -> None:
    place = open_place(str(tmp_path)) if is_remote else None
    store = Store(Path("run") if is_remote else tmp_path / "run" / "checkpoints", place)
    told = require_free_space("there", store, 2, 1000)
    assert told.startswith("there: ")
    assert "for 3 x 0 MB" in told  # one more than is kept: it is written before another is removed
    assert "MB free" in told
    with pytest.raises(StorageError, match="make room"):
        require_free_space("there", store, 2, 1 << 60)
