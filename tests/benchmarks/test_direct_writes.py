"""Both write whole versions; one of them past the page cache."""

from io import FileIO
from pathlib import Path

import pytest

from benchmarks.direct_writes import CACHED, DIRECT, MODES, TENSOR_BYTES, measure
from infrastructure.backup.format import direct_io
from infrastructure.backup.format.store import Store


def test_both_leave_a_whole_version_and_one_of_them_is_direct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bool] = []

    def noted(_file: FileIO, wanted: bool) -> bool:
        requests.append(wanted)
        return False

    monkeypatch.setattr(direct_io, "set_direct", noted)
    costs = measure(tmp_path, TENSOR_BYTES, 2)
    assert {mode: len(costs[mode]) for mode in MODES} == {DIRECT: 2, CACHED: 2}
    assert all(seconds > 0 for mode in MODES for cost in costs[mode] for seconds in cost)
    for mode in MODES:
        store = Store(tmp_path / mode)
        (name,) = store.versions()
        store.verify(store.read(name))
    num_files, num_versions = 2, 3  # an object and a manifest, each written and read back
    assert requests.count(True) == 2 * num_files * num_versions
