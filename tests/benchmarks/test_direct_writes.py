"""Both write whole versions; one of them past the page cache."""

from io import FileIO
from pathlib import Path

import pytest

from benchmarks.direct_writes import CACHED, DIRECT, MODES, TENSOR_BYTES, measure, page
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


def test_the_page_has_the_ratio_of_processor_times() -> None:
    text, ratio = page({DIRECT: [(0.2, 1.0)] * 3, CACHED: [(0.8, 2.0)] * 3}, 8 * 2**20)
    assert ratio == pytest.approx(0.25)
    assert "3 versions of 8 MiB with each" in text
    assert "0.25 times the processor time (95 % interval 0.25 to 0.25)" in text
    assert "| direct | 0.20 | 1.00 |\n| cached | 0.80 | 2.00 |" in text
