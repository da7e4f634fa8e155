"""Room for the checkpoints that rotation keeps is required and reported before the first step."""

from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.store import Store
from infrastructure.backup.free_space import require_free_space
from infrastructure.core.errors import StorageError
from tests.backup.memory_place import save

MIB = 1 << 20


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("num_there", "size_mib", "free_mib", "expected"),
    [
        (0, 100.0, 364.0, "3 checkpoints, size=100.0 MiB|364.0 MiB, 364.0 MiB are free"),
        (0, 100.5, 2048.0, "3 checkpoints, size=100.5 MiB|365.5 MiB, 2.0 GiB are free"),
        (0, 1536.0, 8192.0, "3 checkpoints, size=1.5 GiB|4.6 GiB, 8.0 GiB are free"),
        (1, 100.0, 264.0, "2 checkpoints, size=100.0 MiB|264.0 MiB, 264.0 MiB are free"),
        (4, 100.0, 164.0, "1 checkpoint, size=100.0 MiB|164.0 MiB, 164.0 MiB are free"),
        (0, 100.0, 363.9, "3 checkpoints, size=100.0 MiB|364.0 MiB, free=363.9 MiB, fewer"),
        (0, 100.0, 164.0, "3 checkpoints, size=100.0 MiB|364.0 MiB, free=164.0 MiB, fewer"),
        (0, 100.0, 163.9, "3 checkpoints, size=100.0 MiB|364.0 MiB, free=163.9 MiB, none"),
        (2, 100.0, 163.9, "1 checkpoint, size=100.0 MiB|164.0 MiB, free=163.9 MiB, none"),
        (0, 100.0, None, "3 checkpoints, size=100.0 MiB|364.0 MiB"),
    ],
)
def test_one_checkpoint_more_than_is_kept_has_to_fit(
    num_there: int,
    size_mib: float,
    free_mib: float | None,
    expected: str,
    is_remote: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = open_place(str(tmp_path)) if is_remote else None
    store = Store(Path("run") if is_remote else tmp_path / "run/checkpoints", place)
    for step in range(num_there):
        save(store, step)
    directories: list[Path] = []

    def free_bytes(directory: Path) -> int | None:
        directories.append(directory)
        return None if free_mib is None else int(free_mib * MIB)

    monkeypatch.setattr(store.operations, "free_bytes", free_bytes)
    what, rest = expected.split("|")
    needs = f"there: backup.space_needed(checkpoints={what}, reserve=64.0 MiB) need {rest}"
    if ", free=" in rest:
        needs, _, free = needs.partition(", free=")
        free, advice = free.split(", ")
        other = "backup.or_keep_fewer_checkpoints()" if advice == "fewer" else ""
        with pytest.raises(StorageError) as raised:
            require_free_space("there", store, 2, int(size_mib * MIB))
        values = f"need={needs}, free={free}, alternative={other}"
        assert str(raised.value) == f"backup.no_space_for_rotation({values})"
    else:
        found = require_free_space("there", store, 2, int(size_mib * MIB))
        unknown = f"backup.free_space_unknown(need={needs})"
        assert found == (unknown if free_mib is None else needs)
    assert directories[-1] == (store.root if is_remote or num_there else tmp_path)
