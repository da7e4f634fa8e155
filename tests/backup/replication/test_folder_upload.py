"""A finished folder arrives whole, once, and never over another one unless that is asked for."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from infrastructure.backup.replication.folder_upload import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    Publication,
    PublishedFolder,
    compare,
    fetch_folder,
    paths_in,
    problems_at,
    read_sums,
)
from infrastructure.core.checksums import SUMS
from infrastructure.core.errors import CheckpointError, DamagedFileError, StorageError
from tests.backup.memory_place import RUN, MemoryPlace
from tests.backup.replication.test_copier import HOUR, Rig, save
from tests.faults.drive_model import Clock

PARENT = Path(RUN)
FILES = {"config.json": b"{}", "weights": b"w" * 100, "tokenizer/vocab.txt": b"a"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "final", FILES)
    return tmp_path / "final"


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def publish(place: MemoryPlace, what: Publication, clock: Clock | None = None) -> PublishedFolder:
    clock = clock or Clock()
    published = PublishedFolder(place, PARENT, what, clock=clock)
    for wait in published.steps():
        clock.now += wait
    return published


def there(place: MemoryPlace, name: str = "final") -> dict[str, bytes]:
    at = PARENT / name
    files = place.files.files.items()
    return {p.relative_to(at).as_posix(): bytes(d) for p, d in files if p.is_relative_to(at)}


def test_a_question_comes_back_from_its_line() -> None:
    for what in (Publication("t", "/f", "n"), Publication("t", "/f", "n", ("a", "b/c"), True)):
        assert Publication.from_line(what.to_line()) == what


def test_all_files_arrive_and_their_sums_last(folder: Path) -> None:
    place = MemoryPlace()
    published = publish(place, Publication("t", str(folder), "final"))
    assert published.target == PARENT / "final"
    assert published.total_bytes == published.done_bytes == sum(map(len, FILES.values()))
    sums = there(place).pop(SUMS)
    assert there(place) == {**FILES, SUMS: sums}
    assert place.written[-1] == PARENT / "final" / SUMS
    assert {*published.seen} == {PARENT / "final" / name for name in there(place)}
    read = read_sums(place, PARENT / "final")
    assert read is not None
    assert {*read} == {*FILES}
    assert list(compare(place, PARENT / "final", read)) == []
    before = len(place.written)
    publish(place, Publication("other", str(folder), "final"))
    assert len(place.written) == before


def test_of_a_folder_only_the_files_that_are_named(folder: Path) -> None:
    place = MemoryPlace()
    what = Publication("t", str(folder), "final", ("weights", "tokenizer/vocab.txt", "none"))
    publish(place, what)
    assert {*there(place)} == {"weights", "tokenizer/vocab.txt", SUMS}
    (folder / SUMS).write_text("older")
    assert paths_in(folder) == sorted(folder / name for name in FILES)
    with pytest.raises(ValueError, match=rf"^backup\.no_files_to_publish\(folder={folder}\)$"):
        paths_in(folder, ["none"])


OTHERS: dict[str, Callable[[dict[Path, bytes]], object]] = {
    "another size": lambda files: files.update({PARENT / "final/weights": b"w"}),
    "other bytes": lambda files: files.update({PARENT / "final/weights": b"v" * 100}),
    "other sums": lambda files: files.update({PARENT / "final" / SUMS: b"other"}),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("replaces", [False, True])
def test_another_folder_of_that_name_stays_unless_it_is_to_be_replaced(
    folder: Path, other: str, replaces: bool
) -> None:
    place = MemoryPlace()
    OTHERS[other](place.files.files)
    before = there(place)
    published = publish(place, Publication("t", str(folder), "final", replaces=replaces))
    assert published.target is not None
    name = published.target.name
    assert (name == "final") is replaces
    assert there(place, name).items() >= FILES.items()
    if not replaces:
        assert name == f"final-{sha256(there(place, name)[SUMS]).hexdigest()[:8]}"
        assert there(place) == before
        again = publish(place, Publication("again", str(folder), "final"))
        assert again.target == published.target


def test_what_is_on_its_way_is_waited_for_and_not_written_twice(folder: Path) -> None:
    place, clock = MemoryPlace(), Clock()
    place.is_safe = lambda path: clock.now > (100.0 if path.name == SUMS else 60.0)
    published = PublishedFolder(place, PARENT, Publication("t", str(folder), "final"), clock=clock)
    waits = []
    for wait in published.steps():
        clock.now += wait
        waits += [wait] if wait else []
        if clock.now <= 60.0:
            assert published.done_bytes == 0
        elif clock.now > 60.0 + LONGEST_WAIT_SECONDS:
            assert published.done_bytes == published.total_bytes
    assert len(place.written) == len(FILES) + 1
    assert (waits[0], max(waits)) == (FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    assert clock.now > 100.0


def test_what_is_wrong_there_is_raised_and_written_again(folder: Path) -> None:
    place, clock = MemoryPlace(), Clock()
    what = Publication("t", str(folder), "final", replaces=True)
    published = PublishedFolder(place, PARENT, what, clock=clock)
    place.is_safe = lambda path: False
    steps = published.steps()
    for _ in range(6):
        next(steps)
    place.is_safe = lambda path: True
    place.files.files[PARENT / "final/weights"] = b"v" * 100
    for _ in published.steps():
        pass
    assert there(place)["weights"] == FILES["weights"]
    (folder / "weights").unlink()
    with pytest.raises(CheckpointError):
        list(published.steps())


def test_problems_of_published_folders_are_found(folder: Path) -> None:
    place = MemoryPlace()
    assert list(problems_at(place, PARENT)) == []
    for name in ("final", "other", "third", "versions", "half"):
        publish(place, Publication(name, str(folder), name))
    place.files.files[PARENT / "other/weights"] = b"v" * 100
    del place.files.files[PARENT / "third/config.json"]
    del place.files.files[PARENT / "half" / SUMS]
    place.files.files[PARENT / "third/weights"] = b"v" * 100
    missing = f"backup.store_file_missing(path={PARENT}/third/config.json)"
    assert dict(problems_at(place, PARENT)) == {
        "final": None,
        "other": f"backup.published_file_mismatch(path={PARENT}/other/weights)",
        "third": f"{missing}; backup.published_file_mismatch(path={PARENT}/third/weights)",
    }
    place.files.files[PARENT / "final" / SUMS] = b"no sums"
    assert dict(problems_at(place, PARENT))["final"] is not None


def test_a_folder_comes_back_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    place = MemoryPlace()
    publish(place, Publication("t", str(folder), "final"))
    sums = read_sums(place, PARENT / "final")
    assert sums is not None
    progress: list[tuple[int, int]] = []
    here = tmp_path / "here"
    fetch_folder(place, PARENT / "final", sums, here, lambda *done: progress.append(done))
    found = {p.relative_to(here).as_posix(): p.read_bytes() for p in here.rglob("*") if p.is_file()}
    assert found == there(place)
    total = sum(map(len, FILES.values()))
    assert (progress[-1], {whole for _, whole in progress}) == ((total, total), {total})
    place.files.files[PARENT / "final/weights"] = b"v" * 100
    with pytest.raises(DamagedFileError) as raised:
        fetch_folder(place, PARENT / "final", sums, tmp_path / "again", lambda *done: None)
    values = f"url=memory:here, path={PARENT}/final/weights"
    assert str(raised.value) == f"backup.fetched_file_mismatch({values})"
    assert not (tmp_path / "again").exists()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def folders(rig: Rig) -> dict[str, str]:
    return rig.copier.status().published_folders


def test_a_copier_publishes_after_the_versions(rig: Rig, folder: Path) -> None:
    name = save(rig.local, 1)
    rig.copier.publish(Publication("t", str(folder), "final"))
    assert not rig.copier.is_done
    shown = set()
    while not rig.copier.is_done:
        rig.clock.now += rig.copier.tick()
        status = rig.copier.status()
        shown.add((status.in_flight_step, status.in_flight_folder))
    assert {(1, None), (None, "final")} <= shown
    manifest = rig.remote.manifest_path(name)
    assert rig.place.written.index(manifest) < rig.place.written.index(PARENT / "final/weights")
    assert folders(rig) == {"t": "memory:here/run-1/final"}
    assert rig.copier.status().in_flight_folder is None


def test_a_version_that_is_saved_meanwhile_comes_first(rig: Rig, folder: Path) -> None:
    rig.copy(1)
    rig.place.is_safe = lambda path: "final" not in path.parts
    rig.copier.publish(Publication("t", str(folder), "final"))
    rig.run_until(lambda: PARENT / "final/weights" in rig.place.written)
    rig.copy(2)
    assert folders(rig) == {}
    assert not rig.copier.is_done
    rig.place.is_safe = lambda path: True
    rig.run_until(lambda: rig.copier.is_done)
    assert {*folders(rig)} == {"t"}
    assert rig.place.written.count(PARENT / "final/weights") == 1


def test_what_is_published_once_stays_so_when_it_is_requested_again(rig: Rig, folder: Path) -> None:
    rig.copier.publish(Publication("first", str(folder), "final"))
    rig.run_until(lambda: rig.copier.is_done)
    rig.copier.publish(Publication("second", str(folder), "final"))
    assert {*folders(rig)} == {"first"}
    rig.run_until(lambda: rig.copier.is_done)
    assert {*folders(rig)} == {"first", "second"}


def test_of_two_questions_for_a_name_the_later_one_holds(
    rig: Rig, folder: Path, tmp_path: Path
) -> None:
    write(tmp_path / "newer", {**FILES, "weights": b"n" * 100})
    rig.copier.publish(Publication("old", str(folder), "final", replaces=True))
    rig.copier.publish(Publication("new", str(tmp_path / "newer"), "final", replaces=True))
    rig.run_until(lambda: rig.copier.is_done)
    assert {*folders(rig)} == {"new"}
    assert there(rig.place)["weights"] == b"n" * 100
    write(folder, {"weights": b"m" * 100})
    rig.copier.publish(Publication("newest", str(folder), "final", replaces=True))
    assert folders(rig) == {}  # what is there is about to be written over
    rig.run_until(lambda: rig.copier.is_done)
    assert {*folders(rig)} == {"newest"}
    assert there(rig.place)["weights"] == b"m" * 100


def test_a_folder_that_is_gone_is_named_and_stops_nothing(rig: Rig, folder: Path) -> None:
    rig.copier.publish(Publication("t", str(folder / "none"), "final"))
    rig.run_until(lambda: rig.copier.is_done)
    error = f"backup.no_files_to_publish(folder={folder / 'none'})"
    values = f"folder=final, error={error}"
    assert rig.copier.status().error == f"backup.folder_not_copied({values})"
    assert folders(rig) == {}
    rig.copy(1)


@pytest.mark.parametrize("lost", ["config.json", "weights"])
@pytest.mark.parametrize("is_here", [True, False])
def test_a_published_file_that_a_place_loses_is_seen_and_written_again(
    rig: Rig, folder: Path, lost: str, is_here: bool
) -> None:
    """And until it is there again the folder does not count as published."""
    rig.copier.publish(Publication("t", str(folder), "final"))
    rig.run_until(lambda: rig.copier.is_done)
    rig.place.files.files[PARENT / "final" / lost] = b"v" * len(FILES[lost])
    rig.place.is_safe = lambda path: False
    if not is_here:
        (folder / lost).unlink()
    began = rig.clock.now
    rig.run_until(lambda: rig.clock.now - began > HOUR / 4)
    assert folders(rig) == {}
    rig.place.is_safe = lambda path: True
    rig.run_until(lambda: rig.copier.is_done)
    assert folders(rig).keys() == ({"t"} if is_here else set())
    rig.settle()
    assert rig.copier.is_done, "nothing is tried for ever"
    assert (there(rig.place)[lost] == FILES[lost]) is is_here


def test_what_may_be_replaced_is_copied_again_as_it_is_by_then(rig: Rig, folder: Path) -> None:
    """Such as a report, which is written anew while a run goes on."""
    rig.copier.publish(Publication("t", str(folder), "final", replaces=True))
    rig.run_until(lambda: rig.copier.is_done)
    write(folder, {"weights": b"n" * 100, "more": b"m"})
    rig.place.files.files[PARENT / "final/weights"] = b"v" * 100
    began = rig.clock.now
    rig.run_until(lambda: rig.clock.now - began > HOUR / 4)
    rig.run_until(lambda: rig.copier.is_done)
    assert {*folders(rig)} == {"t"}
    found = there(rig.place)
    sums = found.pop(SUMS).decode()
    assert found == {**FILES, "weights": b"n" * 100, "more": b"m"}
    for name, data in found.items():
        assert f"{sha256(data).hexdigest()}  {name}\n" in sums


def test_a_folder_whose_sums_another_writes_over_is_published_under_another_name(
    rig: Rig, folder: Path
) -> None:
    rig.copier.publish(Publication("t", str(folder), "final"))
    rig.run_until(lambda: rig.copier.is_done)
    rig.place.files.files[PARENT / "final" / SUMS] = b"another's"
    rig.place.is_safe = lambda path: False
    began = rig.clock.now
    rig.run_until(lambda: rig.clock.now - began > HOUR / 4)
    assert folders(rig) == {}
    rig.place.is_safe = lambda path: True
    rig.run_until(lambda: rig.copier.is_done)
    assert folders(rig)["t"].startswith("memory:here/run-1/final-")
    assert there(rig.place)[SUMS] == b"another's"


def test_a_requested_look_sees_published_files_too(rig: Rig, folder: Path) -> None:
    rig.copy(1)
    rig.copier.publish(Publication("t", str(folder), "final"))
    rig.run_until(lambda: rig.copier.is_done)
    rig.place.files.files[PARENT / "final/weights"] = b"v" * 100
    rig.copier.look_again("look")
    rig.run_until(lambda: rig.copier.has_looked)
    assert rig.copier.status().last_look == "look"
    assert there(rig.place)["weights"] == FILES["weights"]
    assert {*folders(rig)} == {"t"}


def test_a_place_that_refuses_is_tried_again(rig: Rig, folder: Path) -> None:
    def refuses(operation: str, path: Path) -> None:
        if operation == "write" and "final" in path.parts:
            raise StorageError("no")

    rig.place.fault = refuses
    rig.copier.publish(Publication("t", str(folder), "final"))
    rig.run_until(lambda: rig.copier.has_failed)
    assert not rig.copier.is_done
    rig.place.fault = lambda operation, path: None
    rig.run_until(lambda: rig.copier.is_done)
    assert {*folders(rig)} == {"t"}
