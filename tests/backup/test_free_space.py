"""Room for what rotation keeps is told, and demanded, before the first step."""

from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.objects import SLACK_BYTES
from infrastructure.backup.format.store import Store
from infrastructure.backup.free_space import require_free_space
from infrastructure.core.errors import StorageError


@pytest.mark.parametrize("is_remote", [False, True])
def test_free_space_is_reported_and_required_here_and_at_a_place(
    tmp_path: Path, is_remote: bool
) -> None:
    place = open_place(str(tmp_path)) if is_remote else None
    store = Store(Path("run") if is_remote else tmp_path / "run" / "checkpoints", place)
    sentence = require_free_space("there", store, 2, 1000)
    assert sentence.startswith("there: ")
    # one more than is kept: it is written before another is removed
    needed = "backup.space_needed(checkpoints=3 checkpoints, size=0.0 MiB, reserve=64.0 MiB)"
    assert f"{needed} need 64.0 MiB" in sentence
    assert sentence.endswith(" are free")
    with pytest.raises(StorageError, match=r"backup\.no_space_for_rotation"):
        require_free_space("there", store, 2, 1 << 60)


def test_fewer_checkpoints_are_advised_where_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "run" / "checkpoints")
    size = 100 << 20
    for free, advice in (
        (SLACK_BYTES + 2 * size, r"alternative=backup\.or_keep_fewer_checkpoints\(\)\)"),
        (SLACK_BYTES, r"alternative=\)"),
    ):
        monkeypatch.setattr(type(store.operations), "free_bytes", lambda *_, free=free: free)
        with pytest.raises(StorageError, match=f"{advice}$"):
            require_free_space("there", store, 2, size)
