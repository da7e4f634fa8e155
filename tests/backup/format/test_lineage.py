"""A store knows its own versions at its place, and tells those of another training from them."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from infrastructure.backup.format.lineage import FILE, MOST_NAMES, Lineage, sequence_of


def version(sequence: int, who: str = "ours") -> str:
    return f"{sequence:012d}-{who}"


def begun(root: Path, local: Collection[str], parents: Collection[str] = ()) -> Lineage:
    lineage = Lineage(root)
    lineage.begin(local, parents)
    return lineage


def foreign(lineage: Lineage, *sequences: int) -> list[int]:
    """Which of these sequences would be another training's."""
    listed = [version(sequence, "theirs") for sequence in sequences]
    return [sequence_of(name) for name in lineage.strangers(listed, [])]


def test_a_store_without_versions_knows_none_and_takes_every_other_for_a_stranger(
    tmp_path: Path,
) -> None:
    lineage = Lineage(tmp_path)
    assert not lineage.is_recorded
    assert lineage.known == frozenset()
    assert lineage.newest_sequence == 0
    assert foreign(lineage, 0, 1, 7) == [0, 1, 7]
    lineage.begin([], [])
    assert lineage.is_recorded
    assert foreign(lineage, 0, 1, 7) == [0, 1, 7]


def test_at_first_contact_only_what_came_after_the_oldest_version_here_may_be_foreign(
    tmp_path: Path,
) -> None:
    local, parents = [version(6), version(9), version(7)], [version(5)]
    lineage = begun(tmp_path, local, parents)
    assert lineage.known == {*local, *parents}
    assert lineage.newest_sequence == 9
    assert foreign(lineage, 4, 5, 6, 7, 12) == [6, 7, 12]
    assert lineage.strangers([*local, *parents], []) == []
    assert lineage.strangers([version(10)], [version(10)]) == [], "not yet copied"


def test_a_later_process_knows_what_the_first_one_knew(tmp_path: Path) -> None:
    begun(tmp_path, [version(6)])
    again = Lineage(tmp_path)
    assert again.is_recorded
    again.begin([version(3), version(20)], [version(2)])
    assert again.known == {version(6)}, "this was no first contact"
    assert foreign(again, 5, 6) == [6]
    again.add([version(8)])
    assert Lineage(tmp_path).known == {version(6), version(8)}


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    lineage = begun(tmp_path, [version(6)])
    (tmp_path / FILE).unlink()
    lineage.add([version(6)])
    assert not (tmp_path / FILE).exists()
    lineage.add([version(7)])
    assert Lineage(tmp_path).known == {version(6), version(7)}


def test_what_lay_at_the_place_of_a_restored_store_is_its_past(tmp_path: Path) -> None:
    lineage = begun(tmp_path, [version(3)])
    lineage.restored([version(5), version(9)])
    again = Lineage(tmp_path)
    for each in (lineage, again):
        assert each.known == {version(3), version(5), version(9)}
        assert each.newest_sequence == 9
        assert foreign(each, 4, 9, 10) == [10]
    again.restored([version(4)])
    assert foreign(again, 9, 10) == [10], "what is older does not open it again"
    again.restored([])
    assert foreign(again, 9, 10) == [10]


def test_a_store_restored_from_an_empty_place_is_recorded_all_the_same(tmp_path: Path) -> None:
    Lineage(tmp_path).restored([])
    again = Lineage(tmp_path)
    assert again.is_recorded
    assert foreign(again, 0) == [0]


@pytest.mark.parametrize("num_more", [0, 1, 5])
def test_of_a_long_list_the_oldest_names_count_by_their_sequence(
    tmp_path: Path, num_more: int
) -> None:
    first = 10
    names = [version(n) for n in range(first, first + MOST_NAMES + num_more)]
    lineage = begun(tmp_path, names)
    assert lineage.known == {*names[num_more:]}
    assert foreign(lineage, first - 1, first, first + 5) == [
        n for n in (first, first + 5) if n >= first + num_more
    ]
    lineage.add([version(first)])  # an old one that is named again
    assert Lineage(tmp_path).strangers(names, []) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", json.dumps({"known": 3, "since": 1}), json.dumps({"known": []})]
)
def test_a_damaged_list_is_reported_and_begun_again(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not Lineage(tmp_path).is_recorded
    assert not caplog.records, "that there is none yet is no damage"
    (tmp_path / FILE).write_text(text)
    lineage = Lineage(tmp_path)
    assert "backup.lineage_record_damaged(error=" in caplog.text
    assert not lineage.is_recorded
    lineage.begin([version(4)], [])
    assert Lineage(tmp_path).known == {version(4)}


def test_what_was_known_before_a_restoration_is_its_past_for_later_processes_too(
    tmp_path: Path,
) -> None:
    names = [version(3), version(9)]
    begun(tmp_path, names).restored(names)
    assert foreign(Lineage(tmp_path), 5, 9, 10) == [10]


def test_the_folder_of_a_store_is_made_but_not_that_of_a_deleted_run(tmp_path: Path) -> None:
    root = tmp_path / "run" / "checkpoints"
    with pytest.raises(FileNotFoundError):
        begun(root, [version(3)])
    assert not root.parent.exists()
    root.parent.mkdir()
    begun(root, [version(3)])
    assert Lineage(root).known == {version(3)}


def test_the_folder_of_a_restored_run_is_made(tmp_path: Path) -> None:
    root = tmp_path / "run" / "checkpoints"
    Lineage(root).restored([version(3)])
    assert Lineage(root).known == {version(3)}
