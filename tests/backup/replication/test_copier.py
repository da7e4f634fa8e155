"""The copier: one version at a time, the newest wins, and nothing that is safe is ever given up."""

import errno
import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from infrastructure.backup.backends.contract import BackendError
from infrastructure.backup.format.lineage import FILE
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier import LONGEST_RETRY_SECONDS, Copier
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.core.errors import StorageError
from tests.backup.memory_place import RUN, MemoryPlace, disconnected, run_until, save
from tests.faults.drive_model import Clock

HOUR = 3600.0


class Rig:
    """A local store, a place, and the copier between them, in simulated time."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.clock = Clock(1000.0)
        self.local = Store(directory / "checkpoints")
        self.place = MemoryPlace()
        self.remote = Store(Path(RUN), self.place)
        self.copier = self.new_copier(**options)

    def new_copier(self, **options: object) -> Copier:
        link = RemoteSession(self.place, RUN, clock=self.clock)
        copier = Copier(
            self.local,
            link,
            Retention(**{"keep_last": 2, **options}),  # type: ignore[arg-type]
            now=self.clock,
            draw=lambda: 1.0,
        )
        COPIERS.append(copier)
        return copier

    def run_until(self, is_over: Callable[[], bool]) -> None:
        run_until(self.copier.tick, is_over, self.clock)

    def copy(self, step: int, **facts: object) -> str:
        """Save a version and wait until it is confirmed."""
        name = save(self.local, step, **facts)
        self.run_until(lambda: name in self.copier.pruning.confirmed)
        self.settle()
        return name

    def settle(self) -> None:
        """Let the copier do what is left to do now."""
        for _ in range(60):
            self.clock.now += self.copier.tick()

    def manifests_written(self) -> list[str]:
        return [path.stem for path in self.place.written if path.parent.name == "versions"]


COPIERS: list[Copier] = []


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_version_is_confirmed_and_the_status_shows_it(rig: Rig) -> None:
    name = rig.copy(120)
    status = rig.copier.status()
    assert (status.state, status.confirmed_name, status.confirmed_step) == ("idle", name, 120)
    assert status.is_safe
    assert rig.copier.is_done
    assert rig.remote.newest() == (name, [])


def test_the_newest_wins_and_the_one_on_its_way_is_finished(rig: Rig) -> None:
    first = save(rig.local, 1)
    rig.run_until(lambda: len(rig.place.written) == 1)
    status, packs = rig.copier.status(), rig.local.read(first).packs
    assert (status.in_flight_step, status.total_bytes) == (1, sum(p.size_bytes for p in packs))
    save(rig.local, 2)
    last = save(rig.local, 3)
    rig.local.remove_all_but([last])
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.manifests_written() == [first, last]


def test_frequent_saves_do_not_starve_the_copy(rig: Rig) -> None:
    for step in range(1, 60):
        save(rig.local, step)
        rig.local.remove_all_but(rig.local.versions()[:2])
        for _ in range(3):
            rig.clock.now += rig.copier.tick()
    assert len(rig.manifests_written()) >= 3


def test_an_unreachable_place_is_tried_again_and_reported_with_advice(rig: Rig) -> None:
    save(rig.local, 1)
    rig.place.fault = disconnected
    waits = []
    for _ in range(30):
        waits.append(rig.copier.tick())
        rig.clock.now += waits[-1]
    assert waits == [*(2.0**n for n in range(1, 9)), *[LONGEST_RETRY_SECONDS] * 22]
    status = rig.copier.status()
    assert status.state == "retrying"
    assert status.num_failures > 9
    assert "not connected" in str(status.error)
    assert status.advice == "mount it again"
    assert not rig.copier.is_done
    rig.place.fault = lambda operation, path: None
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.copier.status().error is None


def test_a_place_that_goes_away_while_there_is_nothing_to_copy_is_reported_at_once(
    rig: Rig,
) -> None:
    rig.copy(1)
    left_at = rig.clock.now
    rig.place.fault = disconnected
    rig.run_until(lambda: rig.copier.status().num_failures > 0)
    assert rig.clock.now - left_at <= 2.0


def test_a_nudge_does_not_shorten_the_time_that_a_place_is_left_alone(rig: Rig) -> None:
    rig.place.fault = disconnected
    for _ in range(10):
        rig.clock.now += rig.copier.tick()
    rig.copier.tick()
    questions: list[str] = []

    def noted(operation: str, path: Path) -> None:
        questions.append(operation)
        disconnected(operation, path)

    rig.place.fault = noted
    rig.copier.nudge()
    assert rig.copier.tick() > 0.9
    assert questions == []


def test_secrets_in_an_error_are_masked(rig: Rig) -> None:
    def refuses(operation: str, path: Path) -> None:
        raise OSError(errno.EIO, "refused with token=hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ")

    rig.place.fault = refuses
    rig.place.advice = lambda error: f"see {error}"  # type: ignore[method-assign]
    rig.place.url = "https://me:ABCDEFGHIJ@here"
    rig.copier.tick()
    status = rig.copier.status()
    assert "ABCDEFGHIJ" not in str(status)
    assert "refused" in str(status.error)
    assert "refused" in str(status.advice)
    assert "here" in status.place


def test_a_version_that_is_damaged_here_is_passed_over_and_named(rig: Rig) -> None:
    name = save(rig.local, 1)
    manifest = rig.local.read(name)
    pack = manifest.packs[manifest.tensors["model/w"].pack]
    rig.local.objects.path_of(pack.hash).write_bytes(bytes(pack.size_bytes))
    rig.settle()
    status = rig.copier.status()
    assert f"backup.damaged_checkpoint_not_copied(name={name[:12]}, " in str(status.error)
    assert "backup.local_file_bytes_changed" in str(status.error)
    assert rig.copier.is_done
    assert rig.manifests_written() == []
    newer = rig.copy(2)
    assert rig.copier.status().error is None
    assert rig.remote.newest() == (newer, [])


def test_damage_that_cannot_be_looked_into_now_is_named_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = save(rig.local, 1)
    rig.local.manifest_path(name).write_bytes(b"{")
    looks: list[list[str]] = []

    def refuses_the_second() -> list[str]:
        looks.append([name])
        if len(looks) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return looks[-1]

    monkeypatch.setattr(rig.local, "versions", refuses_the_second)
    assert not rig.copier.is_done
    assert rig.copier.status().refused_name is None
    rig.settle()
    assert rig.copier.status().refused_name == name


def test_evidence_is_copied_after_what_can_be_resumed(rig: Rig) -> None:
    good = save(rig.local, 1)
    evidence = save(rig.local, 2, healthy=False)
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.manifests_written() == [good, evidence]
    assert rig.copier.status().confirmed_name == good


def test_nothing_is_removed_before_enough_newer_ones_are_confirmed(rig: Rig) -> None:
    first = rig.copy(1)
    rig.copy(2)
    rig.place.is_safe = lambda path: False
    save(rig.local, 3)
    rig.settle()
    assert first in rig.remote.versions()
    rig.place.is_safe = lambda path: True
    rig.run_until(lambda: len(rig.copier.pruning.confirmed) == 3 or rig.copier.is_done)
    rig.settle()
    assert first not in rig.remote.versions()
    assert len(rig.remote.versions()) == 2


def test_versions_of_an_earlier_session_count_only_when_newer_ones_are_confirmed(
    rig: Rig,
) -> None:
    old = [rig.copy(1), rig.copy(2)]
    rig.copier = rig.new_copier()
    newer = rig.copy(3)
    assert set(rig.remote.versions()) == {*old, newer}  # two are confirmed now: 2 and 3, or 3
    rig.copy(4)
    assert old[0] not in rig.remote.versions()


def test_the_best_and_the_newest_emergency_version_stay(tmp_path: Path) -> None:
    rig = Rig(tmp_path, keep_best=1)
    best = rig.copy(1, score=0.1)
    emergency = rig.copy(2, kind="emergency")
    others = [rig.copy(step, score=1.0) for step in range(3, 8)]
    assert set(rig.remote.versions()) == {best, emergency, *others[-2:]}


def test_manifests_go_before_objects_and_objects_after_the_grace(rig: Rig) -> None:
    for step in range(1, 5):
        rig.copy(step)
    assert rig.place.removed
    assert all(path.parent.name == "versions" for path in rig.place.removed)
    rig.clock.now += HOUR + 1
    rig.settle()
    assert any("objects" in path.parts for path in rig.place.removed)
    remaining = rig.remote.versions()
    assert len(remaining) == 2
    for name in remaining:
        rig.remote.verify(rig.remote.read(name))


def test_an_object_that_is_named_again_within_the_grace_stays(rig: Rig) -> None:
    for step in (2, 3, 5):  # the part for an odd step comes back with step 7
        rig.copy(step)
    rig.clock.now += HOUR / 2
    rig.copy(8)
    rig.copy(10)
    rig.clock.now += HOUR
    rig.copy(7)
    rig.settle()
    for name in rig.remote.versions():
        rig.remote.verify(rig.remote.read(name))


def test_while_a_manifest_cannot_be_read_no_object_is_removed(rig: Rig) -> None:
    for step in range(1, 5):
        rig.copy(step)
    rig.copier = rig.new_copier()
    damaged = rig.remote.manifest_path(rig.remote.versions()[0])
    intact = rig.place.files.files[damaged]
    rig.place.files.files[damaged] = b"?"
    rig.place.removed.clear()
    save(rig.local, 9)
    rig.run_until(lambda: rig.copier.is_done)
    for _ in range(3):
        rig.clock.now += HOUR / 4
        rig.settle()
    assert not [path for path in rig.place.removed if "objects" in path.parts]
    assert intact


def test_what_a_killed_copier_left_without_a_name_goes_after_the_grace(rig: Rig) -> None:
    save(rig.local, 1)
    rig.run_until(lambda: len(rig.place.written) == 2)
    left = rig.place.written[1]
    rig.copier.close()
    rig.local.remove_all_but([save(rig.local, 2)])
    rig.copier = rig.new_copier()
    rig.run_until(lambda: rig.copier.is_done)
    rig.settle()
    assert left in rig.place.files.files
    rig.clock.now += HOUR + 1
    rig.settle()
    assert left not in rig.place.files.files
    assert rig.remote.newest()[0] == rig.local.versions()[0]


def test_a_short_listing_removes_nothing(rig: Rig) -> None:
    names = [rig.copy(step) for step in range(1, 4)]
    listing = rig.place.names
    rig.place.names = (  # type: ignore[method-assign]
        lambda directory: [] if directory.name == "versions" else listing(directory)
    )
    rig.place.removed.clear()
    rig.clock.now += 2 * HOUR
    rig.settle()
    kept = names[-2:]
    for name in kept:
        assert rig.remote.manifest_path(name) in rig.place.files.files
        rig.remote.verify(rig.remote.read(name))


def test_a_version_of_another_machine_stops_everything(rig: Rig, tmp_path: Path) -> None:
    rig.copy(1)
    other = Rig(tmp_path / "other")
    other.place = rig.place
    other.local.hash_name = rig.local.hash_name
    stranger = save(other.local, 5)
    for step in (6, 7):
        stranger = save(other.local, step)
    data = other.local.manifest_path(stranger).read_bytes()
    rig.place.files.files[rig.remote.manifest_path(stranger)] = data
    rig.place.removed.clear()
    before = len(rig.place.written)
    for step in range(2, 5):
        save(rig.local, step)
    rig.clock.now += 2 * HOUR
    rig.settle()
    status = rig.copier.status()
    assert status.state == "fenced"
    assert status.error == f"backup.destination_written_by_another(name={stranger[:12]})"
    assert status.advice == "backup.resolve_fenced_destination()"
    assert rig.copier.is_done
    assert rig.copier.tick() == 60.0
    assert rig.place.removed == []
    assert [p for p in rig.place.written[before:] if p.parent.name == "versions"] == []


def test_a_version_that_a_listing_hid_at_first_is_no_stranger_and_rotates(rig: Rig) -> None:
    hidden = rig.copy(1)
    rig.local.remove_all_but([save(rig.local, 2)])
    path = rig.remote.manifest_path(hidden)
    data = rig.place.files.files.pop(path)
    rig.copier = rig.new_copier()
    rig.run_until(lambda: rig.copier.status().state != "starting")
    rig.place.files.files[path] = data
    for step in (3, 4, 5):
        rig.copy(step)
    assert rig.copier.status().state == "idle"
    assert hidden not in rig.remote.versions(), "it is known as one of ours, and was replaced"


def test_a_place_that_refuses_to_remove_is_copied_to_all_the_same(rig: Rig) -> None:
    def refuses(operation: str, path: Path) -> None:
        if operation == "remove":
            raise OSError(errno.EPERM, "Operation not permitted")

    rig.place.fault = refuses
    for step in range(1, 6):
        name = save(rig.local, step)
        rig.run_until(lambda name=name: name in rig.copier.pruning.confirmed)  # type: ignore[misc]
    assert len(rig.remote.versions()) == 5


def test_a_place_that_confirms_nothing_is_copied_to_and_reported_and_nothing_is_removed(
    rig: Rig,
) -> None:
    rig.place.is_safe = lambda path: False
    for step in (1, 2, 3, 4):
        name = save(rig.local, step)
        rig.run_until(lambda name=name: name in rig.remote.versions())  # type: ignore[misc]
    rig.run_until(lambda: rig.copier.status().state == "doubtful")
    assert rig.remote.newest() == (name, [])
    status = rig.copier.status()
    assert status.confirmed_name is None
    assert "backup.state_doubtful()" in status.possible_loss(0.0).text
    assert not rig.copier.is_done
    assert rig.place.removed == []
    rig.place.is_safe = lambda path: True
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.copier.status().confirmed_name == name


def test_the_best_of_an_earlier_session_stays(tmp_path: Path) -> None:
    """It was confirmed by another copier, and this one has only read its manifest."""
    rig = Rig(tmp_path, keep_best=1)
    best = rig.copy(1, score=0.5)
    rig.copier = rig.new_copier(keep_best=1)
    others = [rig.copy(step, score=0.9 - step / 100) for step in range(2, 6)]
    assert rig.remote.versions() == [*others[:-3:-1], best]


def test_a_version_of_which_an_object_is_missing_here_is_passed_over_and_named(rig: Rig) -> None:
    name = save(rig.local, 1)
    pack = rig.local.read(name).packs[0]
    rig.local.objects.path_of(pack.hash).unlink()
    rig.settle()
    status = rig.copier.status()
    assert f"backup.damaged_checkpoint_not_copied(name={name[:12]}, " in str(status.error)
    assert "backup.local_object_missing(" in str(status.error)
    assert rig.copier.is_done


def test_with_nothing_to_copy_it_is_idle(rig: Rig) -> None:
    assert rig.copier.status().state == "starting"
    rig.settle()
    assert rig.copier.status().state == "idle"
    rig.clock.now += 1.0
    assert rig.copier.tick() == 1.0


@pytest.mark.parametrize(("drawn", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_retries_of_many_copiers_are_spread(rig: Rig, drawn: float, share: float) -> None:
    rig.copier = Copier(rig.local, rig.copier.link, Retention(2), now=rig.clock, draw=lambda: drawn)
    rig.place.fault = disconnected
    for number in (1, 2, 3):
        wait = rig.copier.tick()
        assert wait == 2.0**number * share
        rig.clock.now += wait


@pytest.mark.parametrize(
    ("error", "advice", "is_fault"),
    [
        (StorageError("no"), "backup.is_written_again()", False),
        (OSError("no"), "look at it", False),
        (BackendError("no"), "look at it", True),
    ],
)
def test_an_error_is_reported_with_what_follows_from_it(
    rig: Rig, error: Exception, advice: str, is_fault: bool
) -> None:
    faults: list[Exception] = []
    rig.copier = Copier(
        rig.local, rig.copier.link, Retention(2), now=rig.clock, on_fault=faults.append
    )

    def refuse(operation: str, path: Path) -> None:
        raise error

    rig.place.fault = refuse
    rig.copier.tick()
    status = rig.copier.status()
    assert (status.error, status.advice, status.num_failures) == ("no", advice, 1)
    assert faults == ([error] if is_fault else [])


@pytest.mark.parametrize("is_here", [True, False])
def test_a_copy_that_was_lost_is_named_with_what_follows_from_it(rig: Rig, is_here: bool) -> None:
    name = rig.copy(1)
    manifest = rig.local.read(name)
    pack = manifest.packs[manifest.tensors["model/w"].pack]
    path = rig.remote.objects.path_of(pack.hash)
    rig.place.files.files[path] = b"cut"
    rig.place.is_safe = lambda other: other != path
    if not is_here:
        rig.local.manifest_path(name).unlink()
    rig.clock.now += HOUR / 4
    rig.settle()
    follows = "is_copied_again" if is_here else "cannot_be_copied_again"
    values = f"name={name[:12]}, reason={path} holds other bytes, consequence=backup.{follows}()"
    assert rig.copier.status().error == f"backup.confirmed_checkpoint_damaged({values})"


def test_who_comes_too_early_waits_and_nothing_is_done(rig: Rig) -> None:
    save(rig.local, 1)
    rig.place.is_safe = lambda path: False
    calls: list[str] = []
    rig.place.fault = lambda operation, path: calls.append(operation)
    while (wait := rig.copier.tick()) < 0.4:
        rig.clock.now += wait
    calls.clear()
    rig.clock.now += wait / 2
    assert rig.copier.tick() == pytest.approx(wait / 2)
    assert calls == []
    rig.clock.now += wait / 2
    rig.copier.tick()
    assert calls


def test_after_a_version_the_evidence_that_is_left_to_copy_is_begun_without_a_pause(
    rig: Rig,
) -> None:
    good, _ = save(rig.local, 1), save(rig.local, 2, healthy=False)
    rig.run_until(lambda: bool(rig.place.written))
    began = rig.clock.now
    manifest = rig.remote.manifest_path(good)
    rig.run_until(lambda: manifest in rig.place.written[:-1])
    assert rig.clock.now == began


def test_an_object_that_was_removed_is_written_again_at_once_when_it_is_named_again(
    rig: Rig,
) -> None:
    for step in (1, 2, 4, 6):  # the part for an odd step comes back with step 7
        rig.copy(step)
    rig.clock.now += HOUR + 1
    rig.settle()
    assert any("objects" in path.parts for path in rig.place.removed)
    name = save(rig.local, 7)
    began = rig.clock.now
    rig.run_until(lambda: name in rig.copier.pruning.confirmed)
    assert rig.clock.now - began < 60
    rig.remote.verify(rig.remote.read(name))


def test_a_version_whose_time_is_unreadable_was_saved_when_it_was_confirmed(rig: Rig) -> None:
    manifest = rig.local.read(save(rig.local, 1))
    assert manifest.created_at(5.0) == datetime.fromisoformat(manifest.created).timestamp()
    assert replace(manifest, created="yesterday").created_at(5.0) == 5.0


def test_an_idle_place_is_looked_at_once_a_minute(rig: Rig) -> None:
    """For the versions of another machine; each look costs a question to the place."""
    rig.copy(1)
    looked_at: list[float] = []

    def look(operation: str, path: Path) -> None:
        if (operation, path.name) == ("names", "versions"):
            looked_at.append(rig.clock.now)

    rig.place.fault = look
    rig.settle()
    rig.settle()
    rig.settle()
    pauses = [after - before for before, after in itertools.pairwise(looked_at)]
    assert pauses
    assert set(pauses) == {60.0}


def test_a_place_is_first_looked_at_several_times_and_then_left_for_a_minute(rig: Rig) -> None:
    """Right after a mount a listing may be short for a moment."""
    looked_at: list[float] = []

    def look(operation: str, path: Path) -> None:
        if (operation, path.name) == ("names", "versions"):
            looked_at.append(rig.clock.now - 1000.0)

    rig.place.fault = look
    rig.run_until(lambda: rig.clock.now >= 1059.0)
    assert [at for at in looked_at if at < 59] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])


def test_an_upload_is_given_up_when_another_machine_goes_on(rig: Rig, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    for step in range(1, 4):
        stranger = save(other, step)
    save(rig.local, 1)
    rig.run_until(lambda: bool(rig.place.written))
    upload = rig.copier._upload
    assert upload is not None
    rig.place.files.files[rig.remote.manifest_path(stranger)] = other.manifest_path(
        stranger
    ).read_bytes()
    rig.run_until(lambda: rig.copier.status().state == "fenced")
    assert rig.copier.status().in_flight_step is None
    assert all(file._file.closed for file in upload._files.values())
    assert rig.manifests_written() == []


def test_a_local_store_that_cannot_be_read_is_reported_until_it_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = rig.copy(1)

    def refuses() -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(rig.local, "versions", refuses)
        rig.settle()
        error = str(rig.copier.status().error)
    assert error.startswith(f"backup.file_unreadable(path={rig.local.root}, error=")
    assert "Input/output error" in error
    rig.settle()
    assert rig.copier.status().error is None
    assert rig.copier.status().confirmed_name == name


@pytest.mark.parametrize("is_new_session", [False, True])
def test_an_object_of_a_copied_version_that_seems_wrong_is_not_written_over(
    rig: Rig, is_new_session: bool
) -> None:
    """The place may show a whole one as damaged for a moment, and the version needs it."""
    rig.copy(1)
    if is_new_session:
        rig.copier = rig.new_copier()
    frozen = rig.place.written[0]
    rig.place.files.files[frozen] = bytes(len(rig.place.files.files[frozen]))
    rig.clock.now += rig.copier.link.fresh_seconds + 1
    save(rig.local, 2)
    rig.run_until(lambda: rig.copier.status().num_failures == 2)
    assert rig.place.written.count(frozen) == 1


def test_what_is_removed_at_the_place_is_removed_once(rig: Rig) -> None:
    calls: list[Path] = []
    rig.place.fault = lambda what, path: calls.append(path) if what == "remove" else None
    for step in range(1, 7):
        rig.copy(step)
    rig.clock.now += HOUR + 1
    rig.settle()
    manifests = [path for path in calls if path.parent.name == "versions"]
    assert len(manifests) == len({*manifests}) == 4


def test_of_several_damaged_versions_the_newest_is_named(rig: Rig) -> None:
    names = [save(rig.local, step) for step in (1, 2, 3)]
    for name in names[1:]:
        rig.local.manifest_path(name).write_bytes(b"?")
    rig.settle()
    status = rig.copier.status()
    assert status.confirmed_name == names[0]
    assert status.refused_name == names[2]
    assert f"backup.damaged_checkpoint_not_copied(name={names[2][:12]}, " in str(status.error)


def test_nothing_is_copied_to_a_place_that_another_training_writes_to(tmp_path: Path) -> None:
    other, rig = Rig(tmp_path / "one"), Rig(tmp_path / "two")
    rig.place, rig.remote = other.place, other.remote
    rig.copier = rig.new_copier()
    other.copy(1)
    written = [*other.place.written]
    save(rig.local, 2)
    rig.settle()
    assert rig.copier.status().state == "fenced"
    assert rig.place.written == written


def test_versions_that_are_gone_from_here_are_no_strangers(rig: Rig) -> None:
    """A store of before has no list of what it knows."""
    for step in (1, 2, 3, 4):
        rig.copy(step)
    (rig.local.root / FILE).unlink()
    for name in rig.local.versions()[1:]:
        rig.local.manifest_path(name).unlink()
    there = rig.remote.versions()
    assert len(there) > len(rig.local.versions()) == 1
    rig.copier = rig.new_copier()
    newest = rig.copy(5)
    assert rig.copier.status().state == "idle"
    assert rig.remote.newest() == (newest, [])


def test_a_manifest_of_an_earlier_session_that_is_hidden_for_a_while_is_not_written_over(
    rig: Rig,
) -> None:
    name = rig.copy(1)
    manifest, rig.copier = rig.remote.manifest_path(name), rig.new_copier()
    back_at = rig.clock.now + 200.0

    def hides(operation: str, path: Path) -> None:
        if path == manifest and operation in ("size", "confirm") and rig.clock.now < back_at:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    rig.place.fault = hides
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.clock.now >= back_at
    assert rig.manifests_written() == [name]


def test_what_an_earlier_session_left_at_the_place_is_swept_at_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[tuple[Path, int]] = []
    monkeypatch.setattr(rig.place, "sweep", lambda run: swept.append((run, len(rig.place.written))))
    for step in (1, 2):
        rig.copy(step)
    assert swept == [(Path(RUN), 0)]


def test_versions_before_those_that_are_here_are_no_strangers(rig: Rig) -> None:
    """A store of before has no list of what it knows: it knows by name what its own name."""
    names = [rig.copy(step) for step in (1, 2, 3)]
    first = rig.local.manifest_path(names[0]).read_bytes()
    names.append(save(rig.local, 4))
    rig.copier.close()
    (rig.local.root / FILE).unlink()
    for name in names[1:3]:
        rig.local.manifest_path(name).unlink()
    assert rig.local.manifest_path(names[0]).read_bytes() == first
    del rig.place.files.files[rig.remote.manifest_path(names[1])]
    assert names[2] in rig.remote.versions()
    rig.copier = rig.new_copier()
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.copier.status().state != "fenced"
    assert rig.remote.newest() == (names[3], [])


def test_what_is_damaged_at_both_is_named_and_not_tried_for_ever(rig: Rig) -> None:
    name = rig.copy(1)
    manifest = rig.local.read(name)
    pack = manifest.packs[manifest.tensors["model/w"].pack]
    rig.local.objects.path_of(pack.hash).write_bytes(bytes(pack.size_bytes))
    rig.place.files.files[rig.remote.objects.path_of(pack.hash)] = b"cut"
    rig.clock.now += HOUR
    rig.settle()
    assert rig.copier.is_done
    status = rig.copier.status()
    assert (status.confirmed_name, status.refused_name) == (None, name)
    assert status.error is not None
    newer = rig.copy(2)
    assert rig.copier.status().confirmed_name == newer


def test_at_the_end_is_looked_once_at_what_was_copied_since_the_last_look(rig: Rig) -> None:
    rig.copy(1)
    rig.copier.look_again("mine")
    assert not rig.copier.has_looked
    rig.run_until(lambda: rig.copier.has_looked)
    rig.copier.look_at_the_end()
    assert rig.copier.has_looked
    assert rig.copier.status().last_look == "mine"
    rig.copy(2)
    rig.copier.look_at_the_end()
    assert not rig.copier.has_looked
    rig.run_until(lambda: rig.copier.has_looked)
    assert rig.copier.status().last_look == "end"


@pytest.mark.parametrize("damage", [b"cut", None])
def test_a_requested_look_finds_what_the_place_has_lost_and_copies_it_first(
    rig: Rig, damage: bytes | None
) -> None:
    rig.copy(2)
    name = rig.copy(3)
    manifest = rig.local.read(name)
    pack = manifest.packs[manifest.tensors["model/w"].pack]
    path = rig.remote.objects.path_of(pack.hash)
    rig.place.files.files[path] = damage or b""
    if damage is None:
        del rig.place.files.files[path]
    rig.copier.look_again("mine")
    rig.run_until(lambda: rig.copier.has_looked)
    assert rig.remote.newest() == (name, [])
    assert rig.copier.status().last_look == "mine"
    assert rig.place.written.count(path) == 2


def test_times_are_those_of_the_confirmed_version(rig: Rig) -> None:
    """Since 1970 in a status, whatever the link's clock counts from."""
    rig.copier = Copier(rig.local, rig.copier.link, Retention(2), now=lambda: rig.clock.now + 5e8)
    COPIERS.append(rig.copier)
    name = rig.copy(1)
    status = rig.copier.status()
    confirmed_at = status.confirmed_at
    assert confirmed_at is not None
    assert confirmed_at == pytest.approx(5e8 + 1000.0, abs=60.0)
    assert status.saved_at == rig.local.read(name).created_at()
    rig.clock.now += 300.0
    rig.settle()
    assert rig.copier.status().confirmed_at == confirmed_at
    rig.clock.now += 400.0  # it was looked at once more by now
    rig.settle()
    status = rig.copier.status()
    assert status.confirmed_at == confirmed_at
    assert status.present_at is not None
    assert status.compared_at is not None
    assert 5e8 + 1000.0 + 300.0 < status.compared_at <= status.present_at
    assert status.changed_at == rig.clock.now + 5e8


def test_a_status_is_not_news_because_two_clocks_drift_apart(rig: Rig) -> None:
    drift = [5e8]
    rig.copier = Copier(
        rig.local, rig.copier.link, Retention(2), now=lambda: rig.clock.now + drift[0]
    )
    rig.copy(1)
    before = rig.copier.status().present_at
    assert before is not None
    for seconds, seen_at in ((0.9, before), (-0.9, before), (1.5, before + 1.5)):
        drift[0] = 5e8 + seconds
        assert rig.copier.status().present_at == seen_at


def test_who_is_nudged_does_not_wait(rig: Rig) -> None:
    rig.copy(1)
    rig.clock.now += rig.copier.tick()
    assert rig.copier.tick() == 1.0
    save(rig.local, 2)
    assert rig.copier.tick() == 1.0
    assert rig.copier.status().in_flight_step is None
    rig.copier.nudge()
    while rig.copier.tick() == 0.0 and rig.copier.status().in_flight_step is None:
        pass
    assert rig.copier.status().in_flight_step == 2


def test_of_two_lost_copies_the_newer_one_is_named(rig: Rig) -> None:
    names = [rig.copy(1), rig.copy(2)]
    for name in names:
        rig.local.manifest_path(name).unlink()
        rig.place.files.files[rig.remote.manifest_path(name)] = b"cut"
    rig.clock.now += HOUR / 4
    rig.settle()
    error = str(rig.copier.status().error)
    assert error.startswith(f"backup.confirmed_checkpoint_damaged(name={names[1][:12]}, ")


def test_copied_versions_are_looked_at_while_another_one_is_on_its_way(rig: Rig) -> None:
    name = rig.copy(1)
    rig.place.is_safe = lambda path: False
    save(rig.local, 2)
    rig.run_until(lambda: rig.copier.status().in_flight_step == 2)
    assert rig.copier.status().confirmed_name == name
    rig.place.files.files[rig.remote.manifest_path(name)] = b"cut"
    began = rig.clock.now
    rig.run_until(lambda: rig.copier.status().confirmed_name is None)
    assert rig.copier.status().in_flight_step == 2
    assert rig.clock.now - began < 800.0


def test_no_look_is_done_at_another_place(rig: Rig) -> None:
    rig.copy(1)
    rig.place.is_slow = True
    rig.copier.look_again("mine")
    rig.place.files.files = {
        path: data for path, data in rig.place.files.files.items() if path.is_relative_to(RUN)
    }
    rig.clock.now += 1.0
    rig.copier.tick()
    status = rig.copier.status()
    assert (rig.copier.has_looked, status.last_look) == (False, "")
    assert "backup.folder_without_marker" in str(status.error)


def test_after_an_error_is_over_nothing_is_left_of_it_in_the_status(rig: Rig) -> None:
    """As soon as a file arrives, and not only when all have."""
    save(rig.local, 1)
    rig.place.fault = disconnected
    rig.run_until(lambda: rig.copier.status().num_failures == 3)
    rig.place.fault = lambda operation, path: None
    rig.place.is_safe = lambda path: False
    rig.run_until(lambda: bool(rig.place.written))
    rig.copier.tick()
    status = rig.copier.status()
    assert (status.error, status.num_failures, status.advice) == (None, 0, None)
    assert status.state in ("copying", "confirming")
    assert not rig.copier.has_failed


def test_evidence_takes_no_turn_from_a_version_that_is_not_confirmed_yet(rig: Rig) -> None:
    rig.place.is_safe = lambda path: False
    good = save(rig.local, 1)
    rig.run_until(lambda: rig.copier.status().state == "doubtful" and bool(rig.manifests_written()))
    rig.run_until(lambda: rig.copier.status().in_flight_step is None)
    evidence = save(rig.local, 2, healthy=False)
    rig.run_until(lambda: evidence in rig.remote.versions())
    rig.place.is_safe = lambda path: True
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.copier.status().confirmed_name == good


@pytest.mark.parametrize("size_bytes", [None, 9])
def test_a_manifest_that_seems_wrong_later_is_not_written_over_at_once(
    rig: Rig, size_bytes: int | None
) -> None:
    """A mount may show a whole one as damaged for a while, and it is in use."""
    name = rig.copy(1)
    path = rig.remote.manifest_path(name)
    whole = rig.place.files.files[path]
    rig.place.files.files[path] = bytes(len(whole) if size_bytes is None else size_bytes)
    rig.run_until(lambda: rig.copier.status().num_failures == 2)
    assert rig.manifests_written() == [name]
    rig.place.files.files[path] = whole
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.manifests_written() == [name]
    assert rig.copier.status().confirmed_name == name


def test_objects_of_a_version_that_takes_hours_to_arrive_are_left_alone(rig: Rig) -> None:
    rig.copy(2)
    save(rig.local, 3)
    before = len(rig.place.written)
    rig.run_until(lambda: len(rig.place.written) > before)
    arrived = rig.place.written[before]
    began = rig.clock.now

    def refuses(operation: str, path: Path) -> None:
        if operation == "write" and path != arrived:
            raise OSError(errno.EIO, "Input/output error")

    rig.place.fault = refuses
    rig.run_until(lambda: rig.clock.now - began > 4 * HOUR)
    rig.place.fault = lambda operation, path: None
    rig.run_until(lambda: rig.copier.is_done)
    assert rig.place.removed == []
    assert rig.place.written.count(arrived) == 1


def test_a_copied_version_that_is_lost_there_is_no_reason_to_remove_an_older_one(
    rig: Rig,
) -> None:
    names = [rig.copy(step) for step in (1, 2)]
    manifest = rig.local.read(names[1])
    pack = manifest.packs[manifest.tensors["model/w"].pack]
    rig.local.manifest_path(names[1]).unlink()
    rig.place.files.files[rig.remote.objects.path_of(pack.hash)] = b"cut"
    rig.clock.now += HOUR / 4
    rig.settle()
    assert rig.copier.status().confirmed_name == names[0]
    assert rig.copier.status().error is not None
    names.append(rig.copy(3))
    assert {*names} == {*rig.remote.versions()}
    newest = rig.copy(4)
    assert {*rig.remote.versions()} == {names[2], newest}


def test_an_old_version_that_nobody_knows_and_that_shows_up_later_stays(rig: Rig) -> None:
    names = [rig.copy(step) for step in (1, 2, 3)]
    rig.copier.close()
    (rig.local.root / FILE).unlink()
    for name in rig.local.versions():
        if name != names[2]:
            rig.local.manifest_path(name).unlink()
    path = rig.remote.manifest_path(names[0])
    data = rig.place.files.files.pop(path, None) or b"?"
    rig.copier = rig.new_copier()
    rig.run_until(lambda: rig.copier.status().state != "starting")
    rig.place.files.files[path] = data
    rig.clock.now += HOUR
    for step in (4, 5, 6):
        newest = rig.copy(step)
        rig.clock.now += HOUR
    assert rig.copier.status().state == "idle"
    assert names[0] in rig.remote.versions()
    assert rig.copier.status().confirmed_name == newest
